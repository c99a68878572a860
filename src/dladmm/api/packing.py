"""A trained network of whole-numbered weights as bits and thresholds, which :mod:`dladmm.packed` reads.

A layer's sum ``m = W q`` is a whole number. What follows it (bias, normalisation, jumps) never falls, or never rises,
as m grows, so that the level which comes out is the number of whole-numbered thresholds that m has reached. They are
found by asking the network's own layers, so that the packed network equals it bit for bit.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dladmm.activations.staircase import Staircase
from dladmm.base.atomic import replacing
from dladmm.base.errors import DataError, InputError
from dladmm.packed import FORMAT, MOST_PLANES

Array = NDArray[Any]
FAR = 1 << 30
"""No sum is as far from zero: thresholds are looked for up to it."""

UNITS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 255, 15, 10, 100, 1000)


@dataclass
class Hidden:
    """A linear layer, what follows it, and the levels that come out: ``alpha (2 number - (n - 1)) + beta``."""

    linear: nn.Linear
    norm: nn.BatchNorm1d | None
    jumps: Staircase
    weights: Array = field(init=False)
    """Whole numbers (n_out, n_in)."""
    factor: float = field(init=False)
    """The layer's own weights are this times the whole ones."""

    def __post_init__(self) -> None:
        self.weights, self.factor = whole_weights(self.linear)

    @property
    def n_levels(self) -> int:
        return len(self.jumps.levels)

    @property
    def levels(self) -> tuple[float, float]:
        """alpha and beta."""
        low, high = float(self.jumps.levels[0]), float(self.jumps.levels[-1])
        return (high - low) / (2 * (self.n_levels - 1)), (high + low) / 2


def save_packed(
    module: nn.Module, path: str | os.PathLike[str], *, unit: float = 1.0, classes: Any = None
) -> int:
    """Write a network as a packed file, and return how many bytes its weights and thresholds take.

    Parameters
    ----------
    module : nn.Sequential
        ``Linear, BatchNorm1d, jumps, ..., Linear`` with whole-numbered weights in all layers but the last, such as
        ``train(..., weights="binary")`` makes; the normalisations may be absent.
    path : str or path
    unit : float, default 1.0
        Inputs are whole multiples of it: 1 for pixels from 0 to 255, 1/255 for the same as shares of 1.
    classes : sequence of int or str, optional
        What the outputs stand for.
    """
    layers, last = parts_of(module)
    names = names_of(classes, last)
    arrays, sizes = _arrays(layers, unit)
    alpha, beta = layers[-1].levels
    weights, bias, scale = _last(last, alpha, beta)
    meta = {
        "format": FORMAT, "n_in": layers[0].linear.in_features, "n_outputs": last.out_features, "unit": float(unit),
        "scale": scale, "layers": sizes, "classes": names,
    }  # fmt: skip
    arrays |= {"last_weights": weights.astype(np.int32), "last_bias": bias.astype(np.int64)}
    text = np.frombuffer(json.dumps(meta).encode("utf-8"), dtype=np.uint8)
    try:
        with replacing(Path(path)) as file:
            np.savez(file, allow_pickle=False, meta=text, **arrays)
    except OSError as error:
        raise DataError(f"{path} could not be written: {error}") from error
    return sum(array.nbytes for array in arrays.values())


def names_of(classes: Any, last: nn.Linear) -> list[Any] | None:
    """The names of the outputs as JSON can hold them, one for each; None without any."""
    names = None if classes is None else [c.item() if isinstance(c, np.generic) else c for c in classes]
    if names is not None and len(names) != last.out_features:
        raise InputError(f"{len(names)} classes for {last.out_features} outputs.")
    return names


def parts_of(module: nn.Module) -> tuple[list[Hidden], nn.Linear]:
    """The hidden layers and the last one; raises InputError for a network that cannot be packed."""
    rest = [layer for layer in module.children() if not isinstance(layer, (nn.Dropout, nn.Flatten))]
    hidden: list[Hidden] = []
    while len(rest) > 1:
        linear, *rest = rest
        norm: Any = rest.pop(0) if isinstance(rest[0], nn.BatchNorm1d) else None
        if not isinstance(linear, nn.Linear) or not rest or not isinstance(rest[0], Staircase):
            raise InputError(
                "a packed network is Linear, BatchNorm1d, jumps (sign, step, quantised), ..., Linear; found "
                f"{type(linear).__name__} followed by {type(rest[0]).__name__ if rest else 'nothing'}. Train with "
                "activation='sign'."
            )
        jumps = rest.pop(0)
        assert isinstance(jumps, Staircase)
        hidden.append(Hidden(linear, norm, jumps))
    if not hidden or not rest or not isinstance(rest[0], nn.Linear):
        raise InputError("a packed network has hidden layers and ends with a Linear.")
    return hidden, rest[0]


def whole_weights(layer: nn.Linear) -> tuple[Array, float]:
    """Whole numbers (n_out, n_in), and what they are to be multiplied by to be the layer's weights."""
    W = layer.weight.detach().double().cpu().numpy()
    sizes = np.unique(np.abs(W))
    sizes = sizes[sizes > 0]
    if len(sizes) == 0:
        raise InputError("all weights of a layer are zero: nothing can be packed.")
    whole = np.rint(W / sizes[0])
    if np.abs(whole).max() >= 2**MOST_PLANES or not np.allclose(whole * sizes[0], W, rtol=1e-5, atol=0):
        raise InputError(
            f"a hidden layer {layer.in_features} -> {layer.out_features} has real weights, which cannot be packed: "
            "train with weights='binary', 'ternary' or a number of bits."
        )
    return whole.astype(np.int64), float(sizes[0])


def _planes(weights: Array) -> tuple[Array, Array | None]:
    """Bits (planes, n_out, n_in), and where weights are not zero; None where none is."""
    used = weights != 0
    sizes = np.abs(weights[used])
    if (sizes % 2 == 0).any():
        raise InputError("packed weights are -1, 0, 1 or the odd numbers of a grid of bits; found even ones.")
    n_planes = int(sizes.max()).bit_length()
    numbers = np.where(used, (weights + (1 << n_planes) - 1) // 2, 0)
    bits = np.stack([(numbers >> i) & 1 for i in range(n_planes)]).astype(np.uint8)
    return bits, None if used.all() else used.astype(np.uint8)


def turned_layers(layers: list[Hidden], unit: float) -> Iterator[tuple[Array, Array]]:
    """Of every layer the whole weights (n_out, n_in) and thresholds (levels - 1, n_out): units that fall turned over.

    Thresholds are of the sums ``W q``: q are rows in units, then ``2 number - (n - 1)`` of the layer before.
    """
    alpha, beta = unit, 0.0  # of the layer's inputs
    for layer in layers:
        falls, thresholds = _thresholds(layer, alpha, beta)
        yield np.where(falls[:, None], -layer.weights, layer.weights), thresholds
        alpha, beta = layer.levels


def _arrays(layers: list[Hidden], unit: float) -> tuple[dict[str, Array], list[dict[str, Any]]]:
    found: dict[str, Array] = {}
    sizes: list[dict[str, Any]] = []
    for l, (layer, (weights, thresholds)) in enumerate(zip(layers, turned_layers(layers, unit), strict=True)):
        bits, mask = _planes(weights)
        found[f"signs_{l}"] = np.packbits(bits, axis=-1)
        if mask is not None:
            found[f"mask_{l}"] = np.packbits(mask, axis=-1)
        found[f"thresholds_{l}"] = thresholds.astype(np.int32)
        n_out, n_in = weights.shape
        sizes.append(
            {"n_in": n_in, "n_out": n_out, "planes": len(bits), "levels": layer.n_levels}
            | {"masked": mask is not None}
        )
    for layer, after in pairwise(layers):
        n = layer.n_levels
        if n & (n - 1) or not np.allclose(np.diff(layer.jumps.levels.cpu().numpy(), 2), 0, atol=1e-6):
            raise InputError(
                f"activations between packed layers have 2, 4, 8, ... equally spaced levels, not {n} before "
                f"{after.linear}."
            )
    return found, sizes


@torch.no_grad()
def _thresholds(layer: Hidden, alpha: float, beta: float) -> tuple[Array, Array]:
    """Which units fall as their sum grows, and the thresholds (levels - 1, n_out) of their sums, turned over there."""
    dtype, n_out = layer.linear.weight.dtype, layer.linear.out_features
    shift = layer.factor * beta * layer.weights.sum(1).astype(np.float64)
    bias = layer.linear.bias
    steps = layer.jumps.thresholds.to("cpu", dtype)

    def number(m: Array) -> Array:
        z = torch.from_numpy(layer.factor * alpha * m + shift).to(dtype)
        z = z if bias is None else z + bias.detach().cpu()
        z = z if layer.norm is None else _evaluated(layer.norm, z)
        return torch.bucketize(z.contiguous(), steps, right=True).numpy()

    far = np.full(n_out, FAR, dtype=np.int64)
    falls = number(far) < number(-far)
    turn = np.where(falls, -1, 1)
    found = []
    for level in range(1, layer.n_levels):
        low, high = -far, far.copy()  # the level is not reached at low - 1, and is at high
        for _ in range(32):
            middle = (low + high) // 2
            there = number(turn * middle) >= level
            high, low = np.where(there, middle, high), np.where(there, low, middle + 1)
            low = np.minimum(low, high)
        found.append(high)
    return falls, np.stack(found)


def _evaluated(norm: nn.BatchNorm1d, z: Tensor) -> Tensor:
    parts = (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    mean, var, gain, shift = (None if p is None else p.detach().cpu() for p in parts)
    return nn.functional.batch_norm(z[None], mean, var, gain, shift, False, 0.0, norm.eps)[0]


def _last(layer: nn.Linear, alpha: float, beta: float) -> tuple[Array, Array, float]:
    """Whole weights and biases of the last layer for inputs ``2 number - (n - 1)``, and the power of two they count."""
    W = layer.weight.detach().double().cpu().numpy()
    b = np.zeros(len(W)) if layer.bias is None else layer.bias.detach().double().cpu().numpy()
    b, W = b + beta * W.sum(1), alpha * W
    largest = max(np.abs(W).max(), np.abs(b).max() / 2**20, 1e-30)
    scale = 2.0 ** (math.ceil(math.log2(largest)) - 30)
    return np.rint(W / scale), np.rint(b / scale), scale


def unit_of(X: Any) -> float:
    """The largest of some usual units that all entries of X are whole multiples of; raises InputError for none."""
    x = np.asarray(X, dtype=np.float64)
    for n in UNITS:
        if np.allclose(np.rint(x * n), x * n, rtol=0, atol=1e-4):
            return 1 / n
    raise InputError(
        "the features are not whole multiples of a usual unit (1, 1/16, 1/255, ...): a packed network takes whole "
        "numbers. Round the features before training."
    )


def cost_of(module: nn.Module) -> dict[str, int]:
    """What a network of linear layers takes: numbers, bytes where they are packed, and operations per row.

    ``bit_operations`` are XOR and popcount of one bit each; ``additions`` those of whole-numbered inputs and of layers
    behind levels; ``multiplications`` those of real numbers.
    """
    found = dict.fromkeys(("parameters", "bytes", "bit_operations", "additions", "multiplications"), 0)
    planes, width, whole_inputs = 0, 0, True  # bits of the inputs; rows are taken to be whole numbers
    for layer in module.children():
        found["parameters"] += sum(p.numel() for p in layer.parameters())
        if isinstance(layer, Staircase):
            planes = max(1, (len(layer.levels) - 1).bit_length())
            found["bytes"] += 4 * (len(layer.levels) - 1) * width
        elif isinstance(layer, nn.Linear):
            width, products = layer.out_features, layer.weight.numel()
            try:
                bits, mask = _planes(whole_weights(layer)[0])
                found["bytes"] += -(-products * (len(bits) + (mask is not None)) // 8)
                kind = "bit_operations" if planes else "additions" if whole_inputs else "multiplications"
                found[kind] += products * len(bits) * max(1, planes)
            except InputError:
                found["bytes"] += 4 * (products + width)
                found["additions" if planes else "multiplications"] += products
            planes, whole_inputs = 0, False
    return found
