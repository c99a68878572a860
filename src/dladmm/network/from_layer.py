"""Converts torch layers into blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from dladmm.activations import from_module as activation_of
from dladmm.base.errors import InputError
from dladmm.blocks.affine import Affine
from dladmm.blocks.base import Block
from dladmm.blocks.batch_norm import BatchNorm
from dladmm.blocks.convolution import Convolution
from dladmm.blocks.dropout import CHANNELS, Dropout
from dladmm.blocks.elementwise import Elementwise
from dladmm.blocks.embedding import Embedding
from dladmm.blocks.frozen import Frozen
from dladmm.blocks.generic import Generic, dropout_rates
from dladmm.blocks.linear_map import LINEAR_LAYERS, Composed, LinearMap
from dladmm.blocks.max_pool import MaxPool
from dladmm.blocks.positionwise import Positionwise
from dladmm.blocks.recurrent import RecurrentStates
from dladmm.blocks.recurrent_parts import StateSelection
from dladmm.network.given_module import evaluating
from dladmm.network.recurrent_module import Recurrent

_NAMES = {"weight": "W", "bias": "b"}
"""The blocks' names of a torch layer's parameters."""


def blocks_of(
    layers: Sequence[nn.Module], sequences: bool = False, sample: Tensor | None = None
) -> list[Block]:
    """The blocks of a list of layers: blocks with closed-form updates where they exist, else Generic.

    A recurrent layer becomes two blocks: its states, and the selection of those that are passed on. ``sequences`` says
    that the input has shape (N, time, features), so that ``nn.Linear`` acts at every time step; ``sample`` are inputs
    whose way through the layers tells it of every layer.
    """
    blocks: list[Block] = []
    for layer in layers:
        if isinstance(layer, _DropoutNd) and layer.p == 0:
            continue
        if isinstance(layer, nn.Embedding) and any(block.kind != "map" for block in blocks):
            raise InputError(f"{layer!r} takes whole numbers: it must be the first layer of the network.")
        sequences = sequences if sample is None else sample.ndim > 2
        sample = _through(layer, sample)
        frozen = [not p.requires_grad for p in layer.parameters()]
        if isinstance(layer, Recurrent) and not any(frozen):
            blocks += [RecurrentStates(layer), StateSelection(layer.rnn.hidden_size, layer.last)]
            sequences = not layer.last
            continue
        # A block with exact updates trains all of its parameters or none; what is frozen in part becomes Generic
        block = Generic(layer) if any(frozen) and not all(frozen) else _block_of(layer)
        if sequences and block.kind == "dense":
            block = Positionwise(cast(Affine, block))
        if any(frozen) and isinstance(block, (Affine, Positionwise, Convolution, Embedding)):
            block = Frozen(block, {_NAMES[name]: p for name, p in layer.named_parameters()})
        before = blocks[-1] if blocks else None
        if block.kind == "dropout" and type(before) is Elementwise:
            blocks[-1] = Dropout(before.activation, layer)  # one link for both
            continue
        blocks.append(block)
        sequences = sequences and block.keeps_positions
    return merge_linear_maps(blocks)


def _block_of(layer: nn.Module) -> Block:
    if isinstance(layer, nn.RNNBase):
        raise InputError(
            f"{type(layer).__name__} returns a pair, which the next layer cannot take: write "
            f"dladmm.Recurrent({type(layer).__name__}(..., batch_first=True)) in its place."
        )
    if any(isinstance(part, (nn.RReLU, nn.AlphaDropout, nn.FeatureAlphaDropout)) for part in layer.modules()):
        raise InputError(
            f"{layer!r} is random: the sweep needs a function that gives the same output every time. Leave it out, or "
            "use nn.Dropout, which is drawn once per sweep."
        )
    if any(rate >= 1 for _, _, rate in dropout_rates(layer)):
        raise InputError(f"{layer!r} drops everything; p must be below 1.")
    if type(layer) in (nn.Dropout, *CHANNELS):
        return Dropout("identity", layer)
    if isinstance(layer, nn.TransformerEncoderLayer) and not layer.self_attn.batch_first:
        raise InputError(
            "TransformerEncoderLayer must have batch_first=True: otherwise its first dimension is time, and samples "
            "would attend to each other."
        )
    if type(layer) is nn.Linear:
        return Affine(layer.in_features, layer.out_features, bias=layer.bias is not None)
    if type(layer) in LINEAR_LAYERS:
        return LinearMap(layer)
    activation = activation_of(layer)
    if activation is not None:
        return Elementwise(activation)
    known = Embedding.from_module(layer) or Convolution.from_module(layer) or MaxPool.from_module(layer)
    return known or BatchNorm.from_module(layer) or Generic(layer)


@torch.no_grad()
def _through(layer: nn.Module, sample: Tensor | None) -> Tensor | None:
    """The layer's output for a sample in evaluation mode; None where it cannot be had, which is reported later."""
    if sample is None:
        return None
    some = next(layer.parameters(), None)
    if isinstance(layer, nn.Embedding):
        sample = sample.long()
    elif some is not None:
        sample = sample.to(dtype=some.dtype)
    try:
        with evaluating(layer):
            output = layer(sample if some is None else sample.to(some.device))
    except (RuntimeError, ValueError, IndexError, TypeError):
        return None
    return output if isinstance(output, Tensor) else None


def merge_linear_maps(blocks: list[Block]) -> list[Block]:
    """The same chain with parameter-free linear maps merged into the block that follows them.

    They are merged where that block is linear, or where the maps come first and act on the data.
    """
    result: list[Block] = []
    waiting: list[LinearMap] = []
    for block in blocks:
        if block.kind == "map":
            waiting.append(cast(LinearMap, block))
            continue
        if waiting and (not result or block.kind in ("dense", "convolution", "positions")):
            result.append(Composed(waiting, block, first=not result))
        else:
            result += [*waiting, block]
        waiting = []
    return [*result, *waiting]
