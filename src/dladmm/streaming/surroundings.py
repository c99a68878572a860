"""What stands around the method: forward passes that are reported to it, ranks, sharded weights, recordings."""

from __future__ import annotations

import contextlib
import functools
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dladmm.streaming.uses import Layout

Part = tuple[int, int]
"""The position of a weight among the parameters, and the first of its groups."""

# Forward passes -----------------------------------------------------------------------------------------------


class Hook:
    """Reports forward passes to an optimizer. A copy of the module does not copy the optimizer with it."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer: Callable[[], Any] = (lambda: None) if optimizer is None else weakref.ref(optimizer)
        self.busy = False
        self.report = torch.compiler.disable(self._report)  # type: ignore[no-untyped-call]

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        self.report(module, args, kwargs, output)

    def _report(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        optimizer = self.optimizer()
        if optimizer is not None and not self.busy and optimizer._is_observed():
            optimizer._observe(output, (args, kwargs), functools.partial(self._again, module, args, kwargs))

    def _again(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """The outputs of the same forward pass without compiled code, on copies of the buffers."""
        inner: nn.Module = module
        while type(inner).__name__ in ("OptimizedModule", "DistributedDataParallel"):
            inner = getattr(inner, "_orig_mod", None) or inner.module  # type: ignore[assignment]
        buffers = {name: b.clone() for name, b in inner.named_buffers()}
        devices = {p.device for p in inner.parameters() if p.is_cuda}
        self.busy = True
        try:
            with torch.random.fork_rng(devices), torch.enable_grad(), eager():
                return torch.func.functional_call(inner, buffers, args, kwargs)
        finally:
            self.busy = False

    def __reduce__(self) -> Any:
        return Hook, (None,)


def eager() -> contextlib.AbstractContextManager[Any]:
    stance = getattr(torch.compiler, "set_stance", None)
    return stance("force_eager") if stance is not None else contextlib.nullcontext()


def recording() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def tensors_in(value: Any, seen: set[int] | None = None) -> Iterator[Tensor]:
    """All tensors that an output holds, however it is made."""
    seen = set() if seen is None else seen
    if id(value) in seen or isinstance(value, nn.Module):
        return
    seen.add(id(value))
    inside: Iterable[Any] = ()
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        inside = value.values()
    elif isinstance(value, (list, tuple, set)):
        inside = value
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        inside = vars(value).values()
    for each in inside:
        yield from tensors_in(each, seen)


# Ranks --------------------------------------------------------------------------------------------------------


def several(group: Any) -> bool:
    """Whether there are ranks to agree with."""
    dist = torch.distributed
    return dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1


def averaged(
    seen: dict[Part, Tensor],
    maps: dict[int, Layout | None],
    sizes: list[tuple[torch.dtype, torch.device]],
    group: Any,
) -> tuple[dict[Part, Tensor], list[dict[int, Layout | None]]]:
    """Moments as the mean over the ranks that saw a part, and what each rank knows of the layouts."""
    world = torch.distributed.get_world_size(group)
    gathered: list[Any] = [None] * world
    shapes = {part: tuple(moment.shape) for part, moment in seen.items()}
    torch.distributed.all_gather_object(gathered, (maps, shapes), group=group)
    mean = {}
    for part, shape in sorted(
        {part: shape for _, shapes in gathered for part, shape in shapes.items()}.items()
    ):
        dtype, device = sizes[part[0]]
        total = seen[part] if part in seen else torch.zeros(shape, dtype=dtype, device=device)
        torch.distributed.all_reduce(total, group=group)
        mean[part] = total / sum(part in shapes for _, shapes in gathered)
    return mean, [maps for maps, _ in gathered]


# Weights in shards: a rank keeps the momentum of its own rows, and makes the step of the whole -------------------


def local(p: Any) -> Tensor:
    """The numbers of a parameter or gradient that this rank keeps."""
    if p.is_sparse:
        p = p.to_dense()
    p = p.to_local() if hasattr(p, "placements") else p
    return torch.view_as_real(p) if p.is_complex() else p


def whole(stack: Tensor, params: list[Any]) -> Tensor:
    """From a stack of shards that of the whole matrices."""
    if not hasattr(params[0], "placements"):
        return stack
    from torch.distributed.tensor import DTensor

    shape = {"shape": params[0].shape, "stride": params[0].stride(), "run_check": False}
    parts = zip(stack, params, strict=True)
    return torch.stack(
        [DTensor.from_local(s, p.device_mesh, p.placements, **shape).full_tensor() for s, p in parts]
    )


def shards(stack: Tensor, params: list[Any]) -> list[Tensor]:
    """From a stack of whole matrices this rank's shards."""
    if not hasattr(params[0], "placements"):
        return list(stack.unbind())
    from torch.distributed.tensor import distribute_tensor

    parts = zip(stack, params, strict=True)
    return [
        distribute_tensor(s, p.device_mesh, p.placements, src_data_rank=None).to_local() for s, p in parts
    ]


def unsharded(module: nn.Module) -> dict[int, Tensor]:
    """The parameters of ``fully_shard``, by the ``id`` of the tensor that forward passes use in their place."""
    found = {}
    for part in module.modules():
        state: Any = part._get_fsdp_state() if hasattr(part, "_get_fsdp_state") else None  # type: ignore[operator]
        groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
        for each in (p for group in groups if group is not None for p in group.fsdp_params):
            if hasattr(each, "_unsharded_param"):
                found[id(each._unsharded_param)] = each.sharded_param
    return found


# Arguments ----------------------------------------------------------------------------------------------------


def checked(module: Any, lr: Any, total_steps: Any, weight_decay: Any) -> list[Tensor]:
    """The parameters of the module, if all arguments are right."""
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"StreamingADMM takes the module, not {type(module).__name__}: it sees the module's forward passes. Write "
            "StreamingADMM(module) in the place of Optimizer(module.parameters())"
        )
    params: list[Tensor] = list(module.parameters())
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in params):
        raise ValueError("the module has lazy parameters without a shape: call it once on a batch first")
    if not any(p.requires_grad for p in params):
        raise ValueError("the module has no parameter with requires_grad=True")
    if isinstance(lr, bool) or not isinstance(lr, (int, float, Tensor)) or not 0 <= float(lr) < math.inf:
        raise ValueError(f"lr must be a finite number >= 0, not {lr!r}")
    if (
        isinstance(weight_decay, bool)
        or not isinstance(weight_decay, (int, float))
        or not 0 <= weight_decay < math.inf
    ):
        raise ValueError(f"weight_decay must be a finite number >= 0, not {weight_decay!r}")
    if total_steps is not None and (
        isinstance(total_steps, bool) or not isinstance(total_steps, int) or total_steps < 1
    ):
        raise ValueError(f"total_steps must be a whole number >= 1 or None, not {total_steps!r}")
    return params
