"""Initial parameters of a run, fresh or from a torch module, and trained ones copied back into the module."""

from __future__ import annotations

import torch
from torch import nn

from dladmm.base.errors import InputError
from dladmm.blocks import Params
from dladmm.network.chain import Chain
from dladmm.network.recurrent_module import Recurrent
from dladmm.network.tracing import chain_layers


def fresh_parameters(
    chain: Chain,
    seed: int,
    scale: float,
    std: float | None,
    dtype: torch.dtype,
    device: torch.device,
) -> list[Params]:
    """New parameters of every block: the block's initialisation times ``scale``, or normal with deviation ``std``."""
    generator = torch.Generator().manual_seed(seed)
    try:
        params = chain.initial_parameters(generator, scale, dtype=dtype, device=device)
    except RuntimeError as error:
        if "allocate" not in str(error):
            raise
        raise InputError(f"the weights of {chain!r} do not fit into memory; take narrower layers.") from error
    if std is not None:
        for block in params:
            for name, p in block.items():
                drawn = torch.randn(p.shape, generator=generator, dtype=torch.float64) * std
                block[name] = drawn.to(device=device, dtype=dtype)
    return params


def module_parameters(
    model: nn.Module, chain: Chain, dtype: torch.dtype, device: torch.device
) -> list[Params]:
    """Copies of the module's parameters, under the names that the chain's blocks use."""
    with_parameters = (layer for layer in chain_layers(model) if next(layer.parameters(), None) is not None)
    names = {"weight": "W", "bias": "b"}
    params: list[Params] = []
    for block in chain:
        known = block.initial_parameters(torch.Generator(), 1.0)
        layer = next(with_parameters) if known else nn.Identity()
        own = dict((layer.rnn if isinstance(layer, Recurrent) else layer).named_parameters())
        renamed = {n if n in known else names[n]: p.detach() for n, p in own.items()}
        params.append({n: p.to(device, dtype).clone() for n, p in renamed.items()})
    return params


@torch.no_grad()
def copy_into(model: nn.Module, trained: nn.Module) -> None:
    """Copy the parameters and buffers of the trained network into the user's module."""
    # In the order of the chain: a module of another class may declare its layers in a different order.
    layers = nn.ModuleList(chain_layers(model))
    for mine, theirs in zip(layers.parameters(), trained.parameters(), strict=True):
        mine.copy_(theirs)
    for buffer, trained_buffer in zip(layers.buffers(), trained.buffers(), strict=True):
        buffer.copy_(trained_buffer)
