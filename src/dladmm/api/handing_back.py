"""The trained network put back into the user's module, and compared with what was trained."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dladmm.base.errors import DladmmError
from dladmm.blocks import Params
from dladmm.network.chain import Chain
from dladmm.network.given_module import evaluating
from dladmm.network.scaling import Scaling
from dladmm.network.tracing import chain_layers

COMPARED_ROWS = 64
"""Rows on which the module and the trained chain are compared."""

LARGEST_DIFFERENCE = 0.05
"""Between outputs of the two, relative to the root mean square of the outputs: rounding stays far below."""


class ModuleDiffers(DladmmError, RuntimeError):
    """The module does not compute what was trained; ``Result.module`` of a chain would."""


class RoundedScaling(UserWarning):
    """Warning: folding the scaling of the inputs into the first layer changed the outputs by rounding."""


@torch.no_grad()
def copy_into(model: nn.Module, trained: nn.Module) -> None:
    """Copy the parameters and buffers of the trained network into the user's module; frozen ones stay as they are."""
    if type(model) is type(trained) and model.state_dict().keys() == trained.state_dict().keys():
        frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
        values = trained.state_dict()
        for name, value in model.state_dict().items():
            if name not in frozen:
                value.copy_(values[name])
        return
    # In the order of the chain: a module of another class may declare its layers in a different order.
    layers = nn.ModuleList(chain_layers(model))
    for mine, theirs in zip(layers.parameters(), trained.parameters(), strict=True):
        if mine.requires_grad:
            mine.copy_(theirs)
    for buffer, trained_buffer in zip(layers.buffers(), trained.buffers(), strict=True):
        buffer.copy_(trained_buffer)


@torch.no_grad()
def check_same_outputs(
    model: nn.Module,
    trained: nn.Module,
    chain: Chain,
    params: Sequence[Params],
    scaling: Scaling | None,
    rows: Tensor,
) -> None:
    """Raise unless the user's module gives the outputs of the trained network on these rows (N, ...)."""
    if len(rows) == 0:
        return
    scaled = rows if scaling is None else scaling.apply(rows)
    expected = chain.predict(params, scaled)
    exported, handed = (_evaluated(module, rows, chain) for module in (trained, model))
    if not bool(torch.isfinite(expected).all()):
        return
    if difference(handed, exported) > LARGEST_DIFFERENCE:
        raise ModuleDiffers(
            f"{type(model).__name__} does not compute what was trained: on {len(rows)} rows its outputs differ from "
            f"the trained network's by {difference(handed, exported):.2g} of their size. Its forward pass does "
            "something that the chain of its layers does not; from_module(model) shows that chain. Put the part into a "
            "module of its own, which becomes one block."
        )
    if difference(exported, expected) > LARGEST_DIFFERENCE:
        warnings.warn(
            "the network for unscaled inputs differs from the one trained on scaled inputs by "
            f"{difference(exported, expected):.2g} of the outputs' size: X has features whose mean is large compared "
            "with their spread. Centre them, or use dtype='float64'.",
            RoundedScaling,
            stacklevel=4,
        )


def _evaluated(module: nn.Module, rows: Tensor, chain: Chain) -> Tensor:
    """The module's outputs in evaluation mode; every part has its own mode back afterwards."""
    some = next(module.parameters())
    inputs = chain.module_inputs(rows)
    inputs = inputs.to(device=some.device, dtype=some.dtype if inputs.is_floating_point() else inputs.dtype)
    with evaluating(module):
        output: Tensor = module(inputs)
    return output.to(device=rows.device, dtype=rows.dtype)


def difference(found: Tensor, expected: Tensor) -> float:
    """How far outputs are from the expected ones, relative to their root mean square."""
    if found.shape != expected.shape:
        return float("inf")
    size = expected.double().square().mean().sqrt().clamp_min(1e-12)
    return float(((found - expected).double().square().mean().sqrt() / size).nan_to_num(torch.inf))
