"""Which block a torch layer becomes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from dladmm.activations import from_module as activation_of
from dladmm.base.errors import InputError
from dladmm.blocks.affine import Affine
from dladmm.blocks.base import Block
from dladmm.blocks.convolution import Convolution
from dladmm.blocks.elementwise import Elementwise
from dladmm.blocks.generic import Generic
from dladmm.blocks.linear_map import LINEAR_LAYERS, Composed, LinearMap
from dladmm.blocks.max_pool import MaxPool
from dladmm.blocks.positionwise import Positionwise
from dladmm.blocks.recurrent import RecurrentStates, StateSelection
from dladmm.network.recurrent_module import Recurrent


def blocks_of(layers: Sequence[nn.Module], sequences: bool = False) -> list[Block]:
    """The blocks of layers in order: closed forms where there are, else Generic.

    A recurrent layer is its states and what is seen of them. ``sequences`` says that the input is (samples, time,
    features), where ``nn.Linear`` acts at every time step.
    """
    blocks: list[Block] = []
    for layer in layers:
        if isinstance(layer, Recurrent):
            blocks += [RecurrentStates(layer), StateSelection(layer.rnn.hidden_size, layer.last)]
            sequences = not layer.last
            continue
        block = _block_of(layer)
        blocks.append(Positionwise(block) if sequences and isinstance(block, Affine) else block)
        sequences = sequences and not isinstance(block, (Convolution, LinearMap))
    return joined(blocks)


def _block_of(layer: nn.Module) -> Block:
    if isinstance(layer, nn.RNNBase):
        raise InputError(
            f"{type(layer).__name__} returns a pair, which the next layer cannot take: write "
            f"dladmm.Recurrent({type(layer).__name__}(..., batch_first=True)) in its place."
        )
    if any(isinstance(part, (_DropoutNd, nn.RReLU)) for part in layer.modules()):
        raise InputError(
            f"{layer!r} is random: the sweep needs a function that gives the same output every time. Leave it out; "
            "in mode='accelerated' the option dropout leaves out entries of X instead."
        )
    if type(layer) is nn.Linear:
        return Affine(layer.in_features, layer.out_features, bias=layer.bias is not None)
    if type(layer) in LINEAR_LAYERS:
        return LinearMap(layer)
    activation = activation_of(layer)
    if activation is not None:
        return Elementwise(activation)
    return Convolution.from_module(layer) or MaxPool.from_module(layer) or Generic(layer)


def joined(blocks: list[Block]) -> list[Block]:
    """The same chain with linear maps without parameters made part of the block that follows them.

    That block is linear, or the maps come first and what they see is data.
    """
    result: list[Block] = []
    waiting: list[LinearMap] = []
    for block in blocks:
        if isinstance(block, LinearMap):
            waiting.append(block)
            continue
        if waiting and (not result or isinstance(block, (Affine, Convolution, Positionwise))):
            result.append(Composed(waiting, block, first=not result))
        else:
            result += [*waiting, block]
        waiting = []
    return [*result, *waiting]
