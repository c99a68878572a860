"""Networks whose weights are of a finite set: which layers, and the trained network with the levels themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn

from dladmm.activations.staircase import Staircase
from dladmm.base.errors import InputError
from dladmm.blocks import Affine, Block, Composed, FiniteAffine
from dladmm.network.chain import Chain
from dladmm.regularizers.weight_set import WeightSet, get_weight_set


def with_weights(chain: Chain, spec: Any) -> Chain:
    """The chain with the weights of its linear layers in a set (:func:`~dladmm.regularizers.get_weight_set`).

    One spec is for all of them but the last, whose outputs the loss compares; a list has one for each.
    """
    affine = [l for l, block in enumerate(chain) if type(_inner(block)) is Affine]
    if isinstance(spec, (list, tuple)):
        sets = [get_weight_set(each) for each in spec]
        if len(sets) != len(affine):
            raise InputError(
                f"weights is a list of {len(sets)}, and the network has {len(affine)} linear layers; give one for each."
            )
    else:
        one = get_weight_set(spec)
        if one is not None and len(affine) < 2:
            raise InputError(
                f"weights={spec!r} is for all linear layers but the last, and the network has no other."
            )
        sets = [one] * (len(affine) - 1) + [None]
    if not any(sets):
        return chain
    blocks = list(chain.blocks)
    for l, found in zip(affine, sets, strict=True):
        if found is not None:
            blocks[l] = _replaced(blocks[l], found)
    return Chain(blocks)


def _inner(block: Block) -> Block:
    return cast(Composed, block).block if block.kind == "mapped" else block


def _replaced(block: Block, weights: WeightSet) -> Block:
    inner = cast(Affine, _inner(block))
    made = FiniteAffine(inner.n_in, inner.n_out, weights, inner.bias)
    if block.kind != "mapped":
        return made
    outer = cast(Composed, block)
    return Composed(outer.maps, made, first=not outer._behind)


@torch.no_grad()
def with_levels(module: nn.Sequential, blocks: Sequence[Block]) -> nn.Sequential:
    """The trained network with weights that are whole numbers, where what follows does not depend on the scale.

    That is a batch normalisation, or an activation with one jump at 0: outputs are the same up to rounding. -1 and 1
    are levels of 2, -1, 0 and 1 of 3, -3, -1, 1 and 3 of two bits. Then sums are exact in float32, whatever their
    order, and so are those of the last layer, whose weights are rounded to multiples of a small power of two: a packed
    file (:mod:`dladmm.api.packing`) has the outputs bit for bit. Weights of a set in a layer that nothing of the
    kind follows are one common factor times the whole numbers.
    """
    inner = [_inner(block) for block in blocks if _inner(block).kind == "dense"]
    layers: list[Any] = list(module)
    places = [i for i, layer in enumerate(layers) if isinstance(layer, nn.Linear)]
    if len(inner) != len(places):
        return module
    larger = 1.0  # how many times as large the inputs of the layer have become
    for block, i in zip(inner, places, strict=True):
        layer, rest = layers[i], [*layers[i + 1 :], None, None]
        weights = block.weight_set
        finite = weights is not None and weights.levels is not None
        sized = _whole(layer, weights) if weights is not None and finite else 1.0
        norm = rest[0] if isinstance(rest[0], nn.BatchNorm1d) and rest[0].running_var is not None else None
        if norm is not None and finite:
            _fold_bias(layer, norm)
            _scale_statistics(norm, sized * larger)
        elif finite and isinstance(rest[0], Staircase) and rest[0].thresholds.tolist() == [0.0]:
            if layer.bias is not None:
                layer.bias.mul_(sized * larger)
        else:
            layer.weight.div_(sized * larger)
        larger = _whole_levels(norm, rest[1]) if norm is not None and finite else 1.0
        if i == places[-1] and i > 0 and isinstance(layers[i - 1], Staircase):
            _exact_sums(layer, float(layers[i - 1].levels.abs().max()))
    return module


def _whole(layer: Any, weights: WeightSet) -> float:
    """Make the weights whole numbers, and return what they were multiplied by."""
    size = float(layer.weight.abs().max())
    if size == 0:
        return 1.0
    factor = weights.largest / size
    layer.weight.copy_((layer.weight * factor).round_())
    return factor


def _fold_bias(layer: Any, norm: nn.BatchNorm1d) -> None:
    """Fold the bias of a layer into the mean of the normalisation behind it."""
    if layer.bias is not None and norm.running_mean is not None:
        norm.running_mean.sub_(layer.bias)
        layer.bias.zero_()


def _whole_levels(norm: nn.BatchNorm1d, jumps: Any) -> float:
    """Make the levels behind a normalisation whole numbers, and return what they were multiplied by."""
    if not isinstance(jumps, Staircase) or norm.weight is None:
        return 1.0
    factor = whole_factor(jumps.levels.tolist())
    if factor != 1.0:
        norm.weight.mul_(factor)
        norm.bias.mul_(factor)
        jumps.thresholds.mul_(factor)
        jumps.levels.mul_(factor).round_()
    return factor


def whole_factor(levels: list[float]) -> float:
    """What makes equally spaced levels whole numbers that are odd, or neighbours; 1 if nothing small does."""
    for factor in (1.0, (len(levels) - 1) / max(map(abs, levels))):
        if all(abs(level * factor - round(level * factor)) < 1e-6 for level in levels):
            return factor
    return 1.0


def _exact_sums(layer: Any, largest_input: float) -> None:
    """Round weights and biases to multiples of a power of two, so that float32 adds them up without rounding."""
    most = 2**22 / (layer.in_features * max(1.0, largest_input))
    largest = max(float(layer.weight.abs().max()), 1e-30)
    unit = 2.0 ** math.ceil(math.log2(largest / most))
    for p in (layer.weight, layer.bias):
        if p is not None:
            p.div_(unit).round_().mul_(unit)


def _scale_statistics(norm: nn.BatchNorm1d, factor: float) -> None:
    """The statistics for inputs that are ``factor`` times as large, so that outputs stay: eps is not scaled."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.mul_(factor)
    var = (norm.running_var.double() + norm.eps) * factor**2
    if bool((var < 2 * norm.eps).any()):
        norm.eps = norm.eps * factor**2
    norm.running_var.copy_(var - norm.eps)
