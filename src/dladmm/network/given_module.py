"""What a torch module brings along: weights that were trained already, and hooks that a chain would not run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from dladmm.base.errors import InputError

LOOKED_AT = 100_000
"""Entries of a weight that are looked at, evenly spread."""

UNLIKELY = 2.7
"""A uniform sample is this many 1/sqrt(n) from its distribution (Kolmogorov-Smirnov) once in a million draws."""

SHORT_OF = 16.0
"""The largest of n entries stays this many n-ths below its bound once in ten million draws."""


class StartsFromWeights(UserWarning):
    """Warning: training starts from the weights of the module, which are not as torch draws them."""


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """The module in evaluation mode; afterwards every part has its own mode again."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def trained_layer(module: nn.Module) -> str | None:
    """The name of a layer whose trainable weights are not as torch's own initialisation draws them; None if all are.

    Torch draws the weights of Linear, convolution and recurrent layers evenly between bounds that follow from their
    sizes, and training leaves neither the bounds nor the even spread as they were.
    """
    for name, layer in module.named_modules():
        bound = _bound(layer)
        if bound is None:
            continue
        weights = (p for p in layer.parameters(recurse=False) if p.ndim > 1 and p.requires_grad)
        if any(_was_changed(weight.detach(), bound) for weight in weights):
            return f"{name or type(layer).__name__}"
    return None


def _bound(layer: nn.Module) -> float | None:
    """The largest weight that torch draws for a layer; None for layers that it does not draw evenly."""
    if isinstance(layer, nn.RNNBase):
        return 1 / math.sqrt(layer.hidden_size)
    if isinstance(layer, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)) and not parametrize.is_parametrized(
        layer
    ):
        return 1 / math.sqrt(layer.weight[0].numel())
    return None


def _was_changed(weight: Tensor, bound: float) -> bool:
    flat = weight.flatten()
    some = flat[:: max(1, flat.numel() // LOOKED_AT)].double().cpu()
    n = len(some)
    if n < 2 or not bool(torch.isfinite(some).all()) or bool((some == some[0]).all()):
        return False  # not drawn at all: nothing was learned
    largest = float(some.abs().max()) / bound
    if largest > 1 + 4 * torch.finfo(weight.dtype).eps or largest < 1 - SHORT_OF / n:
        return True
    places = (some / bound + 1).div_(2).sort().values
    steps = torch.arange(n + 1, dtype=torch.float64) / n
    distance = torch.maximum((places - steps[:-1]).abs().max(), (steps[1:] - places).abs().max())
    return float(distance) * math.sqrt(n) > UNLIKELY


def refuse_lazy(module: nn.Module) -> None:
    """Raise where a layer has no size yet."""
    if any(is_lazy(p) for p in module.parameters()):
        raise InputError(
            "the network has lazy layers without a size: pass a row through it first, network(X[:1])."
        )


def refuse_unseen_parts(module: nn.Module) -> None:
    """Raise where a layer does more than its class says: hooks and parametrisations, which a chain would leave out."""
    refuse_lazy(module)
    for name, layer in module.named_modules():
        where = f"{name or 'the network'} ({type(layer).__name__})"
        if parametrize.is_parametrized(layer):
            made = ", ".join(f"{n} by {type(p[0]).__name__.lstrip('_')}" for n, p in _parametrised(layer))
            raise InputError(
                f"{where} has a parametrised {made}: the exact updates need the weights themselves. Remove it with "
                "torch.nn.utils.parametrize.remove_parametrizations, or train with another method."
            )
        hooks = [*layer._forward_pre_hooks.values(), *layer._forward_hooks.values()]
        if hooks:
            named = ", ".join(getattr(hook, "__name__", type(hook).__name__) for hook in hooks)
            raise InputError(
                f"{where} has forward hooks ({named}), such as the older spectral_norm and weight_norm register: the "
                "exact updates would leave them out. Remove them, or put what they compute into a module of your own."
            )


def _parametrised(layer: nn.Module) -> list[tuple[str, nn.ModuleList]]:
    lists = layer.get_submodule("parametrizations")
    return [(name, part) for name, part in lists.named_children() if isinstance(part, nn.ModuleList)]
