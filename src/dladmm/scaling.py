"""Inputs on a common scale, so that one setting serves data of any unit: ``x' = (x - shift) / scale``.

A first layer ``W' x' + b'`` on scaled inputs is the layer ``(W'/scale) x + b' - (W'/scale) shift`` on the inputs as
they are, so the scaling is folded into the weights when training is over and the network takes X as it came.

For an affine layer every feature is centred and divided by its largest deviation, which undoes any change of unit or
origin of single features, and all of them by one number that makes the mean length of a row 1. A graph layer has no
bias and its features are counts or weights of one kind: there one number makes the mean length of a row 0.3.

Rows this short make the first layer's initial weights small beside those it learns, so that it learns features instead
of keeping random ones; docs/acceleration.md has the figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from dladmm.blocks import Affine, Block, Params

ROW_LENGTH, NODE_LENGTH = 1.0, 0.3
"""Mean length of a row after scaling: of a sample's features, and of a node's, for which few labels speak."""


@dataclass(frozen=True)
class Scaling:
    """``x' = (x - shift) / scale``, by feature."""

    shift: Tensor
    scale: Tensor

    @classmethod
    @torch.no_grad()
    def fit(cls, first: Block, x: Tensor, rows: Tensor | None = None) -> Scaling | None:
        """The scaling of these inputs for this first block; None where the block could not undo it."""
        if not isinstance(first, Affine) or x.layout != torch.strided:
            return None
        shift = _mean(x, rows) if first.bias else torch.zeros_like(x[0])
        reach = torch.maximum(x.amax(0) - shift, shift - x.amin(0))
        # A feature that is constant up to rounding says nothing: it is left where it is instead of blown up
        flat = reach <= 8 * torch.finfo(x.dtype).eps * x.abs().amax(0)
        reach = torch.where(flat, torch.ones_like(reach), reach)
        length = _mean(torch.linalg.vector_norm((x - shift) / reach, dim=1, keepdim=True), rows) / ROW_LENGTH
        return cls(shift, reach * torch.where(length > 0, length, torch.ones_like(length)))

    @classmethod
    def of_nodes(cls, features: Any, dtype: torch.dtype, device: torch.device) -> Scaling:
        """One number for the features of a graph's nodes, dense or scipy-sparse, a row a node."""
        squares = features.multiply(features) if sparse.issparse(features) else np.square(features)
        length = float(np.sqrt(np.asarray(squares.sum(axis=1), dtype=np.float64)).mean())
        scale = torch.tensor(length / NODE_LENGTH if length > 0 else 1.0, dtype=dtype, device=device)
        return cls(torch.zeros_like(scale), scale)

    def apply(self, x: Tensor) -> Tensor:
        if x.layout != torch.strided:
            return x * (1 / self.scale)
        return (x - self.shift) / self.scale

    def fold(self, params: Sequence[Params]) -> list[Params]:
        """Parameters for inputs as they are, from those for scaled ones."""
        first = dict(params[0])
        first["W"] = first["W"] / self.scale
        if "b" in first:
            first["b"] = first["b"] - first["W"] @ self.shift
        return [first, *params[1:]]

    def unfold(self, params: Sequence[Params]) -> list[Params]:
        """Parameters for scaled inputs, from those for inputs as they are."""
        first = dict(params[0])
        if "b" in first:
            first["b"] = first["b"] + first["W"] @ self.shift
        first["W"] = first["W"] * self.scale
        return [first, *params[1:]]


def _mean(x: Tensor, rows: Tensor | None) -> Tensor:
    """The mean over the rows, each counted as often as it counts, in float64 and back."""
    if rows is None:
        return x.mean(0, dtype=torch.float64).to(x.dtype)
    weight = rows.double()
    return (torch.stack([(column.double() * weight[:, 0]).sum() for column in x.T]) / weight.sum()).to(
        x.dtype
    )
