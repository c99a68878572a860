"""The first layer of a network for tables: features standardised, and outliers drawn in."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dladmm.network.scaling import Scaling

LIMIT = 3.0
"""What no standardised feature exceeds. Values up to one deviation change by 5 % or less."""

FARTHEST = 1e9
"""Deviations beyond which all values are alike: squares stay in the numbers."""


class SoftClip(nn.Module):
    """``z / sqrt(1 + (z/limit)^2)`` of the standardised features ``z = (x - shift) / scale``.

    A heavy tail would otherwise make the deviation of a feature that of its outliers, and an outlier decide alone.
    A constant feature has an infinite scale, and counts for nothing whatever its value is later.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, n_features: int, limit: float = LIMIT) -> None:
        super().__init__()
        self.n_features, self.limit = n_features, limit
        self.register_buffer("shift", torch.zeros(n_features))
        self.register_buffer("scale", torch.ones(n_features))

    @property
    def n_outputs(self) -> int:
        return self.n_features

    @classmethod
    def of(cls, x: Tensor, sample_weight: Tensor | None = None) -> SoftClip:
        """That of the rows x (N, n_features), in their dtype, each counting by its weight (N, 1)."""
        made, scaling = cls(x.shape[1]), Scaling.standard(x, sample_weight)
        made.shift, made.scale = scaling.shift, scaling.scale
        return made

    def forward(self, x: Tensor) -> Tensor:
        z = ((x - self.shift) / self.scale).clamp(-FARTHEST, FARTHEST)
        return z / (1 + (z / self.limit) ** 2).sqrt()

    def extra_repr(self) -> str:
        return f"{self.n_features}, limit={self.limit:g}"
