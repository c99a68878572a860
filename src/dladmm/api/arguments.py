"""The arguments of ``train`` and ``train_graph`` made ready: rows or graphs of a rank, and initial parameters.

Decorators give each rank its own samples or graph, and raise an error of one rank on all ranks.
"""

from __future__ import annotations

import inspect
import math
import zlib
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from dladmm.api.given import is_stream, takes
from dladmm.api.same_on_ranks import check_same_call
from dladmm.base.errors import InputError, InputTypeError
from dladmm.base.scipy_sparse import sparse
from dladmm.blocks import Params
from dladmm.compute.communicator import Communicator, current, share
from dladmm.network.chain import Chain
from dladmm.network.given_graph import is_graph
from dladmm.network.recurrent_module import Recurrent
from dladmm.network.tracing import chain_layers

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")

SAMPLE_ARGUMENTS = ("X", "y", "sample_weight", "target_mask")
"""The arguments of ``train`` that have one row per sample."""

CHECKSUM_ROWS = 64
"""Rows whose checksum is compared to find out whether all ranks were given the same data."""

FLOAT64_ENTRIES = 4_000_000
"""Entries of the largest layer up to which ``dtype="auto"`` uses float64, where it is not noticeably slower."""


def shard_samples(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Decorator of ``train`` that replaces its sample arguments by this rank's rows.

    Arrays must be the whole data, the same on every rank, and are sliced here (of a memmap only the slice is read); a
    function ``X(rank, world)`` returns a rank's own rows. Until ``train`` calls :meth:`~Communicator.all_clear`, an
    exception on one rank is raised on all, so that no rank waits for one that rejected its arguments.
    """
    signature = inspect.signature(function)

    @wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        bound = signature.bind(*args, **kwargs)
        given = bound.arguments
        comm = _communicator(given.get("communicator"))
        own = is_stream(given["X"])  # every rank brings its own
        called = callable(given["X"]) and not own
        if comm.alone and not called and not callable(given.get("validation")):
            return function(*args, **kwargs)
        given["communicator"] = comm
        if not comm.alone:
            given["random_state"] = check_same_call(signature, given, comm)
        whole = [name for name in SAMPLE_ARGUMENTS if given.get(name) is not None and not called and not own]
        if whole or not comm.few_messages:
            with comm.together():
                checksums = " ".join(_checksum(_array(given[name])) for name in whole)
            check_same_data(checksums, whole, comm)
        with comm.together():
            _replace_by_own_rows(given, comm)
        with comm.refusals():
            return function(*bound.args, **bound.kwargs)

    return run


def shard_graph(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Decorator of ``train_graph``, which partitions the graph itself: sets the communicator and a common seed."""
    signature = inspect.signature(function)

    @wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        bound = signature.bind(*args, **kwargs)
        given = bound.arguments
        comm = _communicator(given.get("communicator"))
        if comm.alone:
            return function(*args, **kwargs)
        given["random_state"] = check_same_call(signature, given, comm)
        parts = callable(given["data"]) and not is_graph(given["data"])
        if parts and given.get("partition") is not None:
            raise InputError("a graph given in parts defines its own partition; leave partition out.")
        given["communicator"] = comm
        with comm.refusals():
            return function(*bound.args, **bound.kwargs)

    return run


def _communicator(given: Any) -> Communicator:
    """The communicator that was given, or that of the process group that is initialised."""
    if given is not None and not isinstance(given, Communicator):
        raise InputTypeError(
            f"communicator must be a dladmm Communicator or None, got {given!r}; None takes the process group that "
            "torch.distributed was initialised with."
        )
    return current() if given is None else given


def _replace_by_own_rows(given: dict[str, Any], comm: Communicator) -> None:
    names = [name for name in SAMPLE_ARGUMENTS if given.get(name) is not None]
    if is_stream(given["X"]):
        pass
    elif callable(given["X"]):
        if given.get("y") is not None:
            raise InputError(
                "X is a function, which returns the targets together with the rows, (X, y): leave y out."
            )
        given |= dict(zip(("X", "y", "sample_weight"), _called(given["X"], "X", comm), strict=False))
    else:
        own = _own_rows([given[name] for name in names], names, comm)
        given |= dict(zip(names, own, strict=True))
    held = given.get("validation")
    if callable(held):
        given["validation"] = _called(held, "validation", comm)
    elif held is not None:
        parts = [f"validation[{i}]" for i in range(len(held))]
        given["validation"] = tuple(_own_rows(list(held), parts, comm))


def _called(function: Callable[[int, int], Any], name: str, comm: Communicator) -> tuple[Any, ...]:
    if isinstance(function, type) or not takes(function, comm.rank, comm.size):
        plain = "arrays X and y" if name == "X" else "(X, y)"
        raise InputTypeError(
            f"{name} is a function that does not take two arguments. A function is for training in several processes: "
            f"it takes the rank of a process and how many there are, and returns that one's rows. Give {plain}, or "
            "such a function."
        )
    own = function(comm.rank, comm.size)
    if name == "X" and is_stream(own) and not _are_rows(own):
        return (own,)
    if not isinstance(own, tuple) or len(own) not in (2, 3):
        raise InputTypeError(
            f"the function {name} must return (X, y) or (X, y, sample_weight), got {type(own).__name__}."
        )
    return own


def _are_rows(own: Any) -> bool:
    """Whether a tuple holds the rows of a rank, and not batches."""
    return isinstance(own, tuple) and not isinstance(own[0], tuple)


def _own_rows(arrays: list[Any], names: list[str], comm: Communicator) -> list[Any]:
    """This rank's rows of arrays that every rank was given whole."""
    if comm.alone:
        return arrays
    whole = [_array(array) for array in arrays]
    n_rows = _length(whole[0]) if whole else 0
    wrong = [n for n, a in zip(names, whole, strict=True) if a is not None and _length(a) != n_rows]
    if wrong:
        raise InputError(f"{wrong[0]} and {names[0]} must have the same number of rows.")
    part = share(n_rows, comm.rank, comm.size)
    return [None if array is None else array[part] for array in whole]


def _length(array: Any) -> int:
    return int(array.shape[0]) if len(array.shape) else 0


def check_same_data(checksums: str, names: list[str], comm: Communicator) -> None:
    """Raise if the ranks were given different data: some rows would count twice and others not at all."""
    if len(set(comm.texts(checksums))) > 1:
        raise InputError(
            f"{', '.join(names)} must be the same whole arrays on all {comm.size} ranks, of which each takes its own "
            "rows, but they differ. Where each rank has its own rows already, give a function in place of X that takes "
            "the rank and how many there are, and returns (X, y)."
        )


def _array(value: Any) -> Any:
    if value is None or isinstance(value, Tensor | np.ndarray):
        return value
    if sparse.issparse(value):
        return value.tocsr()
    if isinstance(value, (tuple, dict)):
        raise InputTypeError(
            "several inputs or targets are for one process, or for a stream of batches on every rank."
        )
    if isinstance(value, (str, bytes)) or not hasattr(value, "__len__"):
        raise InputTypeError(f"data must be arrays on several ranks, got {type(value).__name__}.")
    return np.asanyarray(value)


def _checksum(array: Any) -> str:
    """Shape, and a checksum of about CHECKSUM_ROWS rows."""
    step = max(1, _length(array) // CHECKSUM_ROWS)
    some = array[::step] if len(array.shape) else array
    some = some.toarray() if sparse.issparse(some) else some
    if isinstance(some, Tensor):
        if some.layout != torch.strided:
            return f"{tuple(some.shape)}"
        some = some.detach().cpu().numpy()
    return f"{tuple(array.shape)}:{zlib.crc32(np.ascontiguousarray(some).tobytes())}"


def best_dtype(n_rows: int, widest: int, mode: str, device: torch.device) -> str:
    """What ``dtype="auto"`` stands for: float64 for small problems on a CPU, but in streaming mode."""
    small = n_rows * widest <= FLOAT64_ENTRIES
    return "float64" if mode != "streaming" and small and device.type == "cpu" else "float32"


def fresh_parameters(
    chain: Chain,
    seed: int,
    scale: float,
    std: float | None,
    dtype: torch.dtype,
    device: torch.device,
    init_rule: str = "he",
) -> list[Params]:
    """New parameters of every block: the block's initialisation times ``scale``, or normal with deviation ``std``.

    ``init_rule="glorot"`` draws weights uniformly within ``scale sqrt(6 / (n_in + n_out))``, positions of a convolution
    counted on both sides.
    """
    generator = torch.Generator().manual_seed(seed)
    try:
        params = chain.initial_parameters(generator, scale, dtype=dtype, device=device)
    except RuntimeError as error:
        if "allocate" not in str(error):
            raise
        raise InputError(f"the weights of {chain!r} do not fit into memory; take narrower layers.") from error
    if init_rule == "glorot" and std is None:
        for block in params:
            for name, p in block.items():
                if p.ndim > 1:
                    bound = scale * math.sqrt(6 / ((p.shape[0] + p.shape[1]) * math.prod(p.shape[2:])))
                    drawn = torch.rand(p.shape, generator=generator, dtype=torch.float64) * 2 - 1
                    block[name] = (drawn * bound).to(device=device, dtype=dtype)
    if std is not None:
        for block in params:
            for name, p in block.items():
                drawn = torch.randn(p.shape, generator=generator, dtype=torch.float64) * std
                block[name] = drawn.to(device=device, dtype=dtype)
    return params


def started(chain: Chain, params: list[Params], x: Any) -> list[Params]:
    """Fresh parameters as they are for inputs of the shape of x, (N, ...), where a block asks for it."""
    last = max((l for l, block in enumerate(chain) if block.starts_by_data), default=-1)
    if last < 0:
        return params
    params, v = list(params), x[:1]
    for l, block in enumerate(chain.blocks[: last + 1]):
        params[l] = block.started(params[l], v)
        v = block.forward(params[l], v)
    return params


def module_parameters(
    model: nn.Module, chain: Chain, dtype: torch.dtype, device: torch.device
) -> list[Params]:
    """Copies of the module's trainable parameters, under the names that the chain's blocks use."""
    layers = chain_layers(model)
    with_parameters = (layer for layer in layers if any(p.requires_grad for p in layer.parameters()))
    names = {"weight": "W", "bias": "b"}
    params: list[Params] = []
    for block in chain:
        known = block.initial_parameters(torch.Generator(), 1.0)
        layer = next(with_parameters) if known else nn.Identity()
        own = {n: p.detach() for n, p in layer.named_parameters() if p.requires_grad}
        if isinstance(layer, Recurrent) and not set(own) & set(known):
            own = {n.removeprefix("rnn."): p for n, p in own.items()}
        renamed = {n if n in known else names[n]: p for n, p in own.items()}
        params.append({n: p.to(device, dtype).clone() for n, p in renamed.items()})
    return params
