"""The first layer of a network for tables: every feature twice, by its value and by its rank."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dladmm.network.scaling import Scaling
from dladmm.network.soft_clip import FARTHEST, LIMIT

KNOTS = 33
"""Points at most at which the rank of a feature is tabulated; it is linear between them."""

HIGHEST_SCORE = 2.5
"""Bound on normal scores: the rank of the largest of a few rows is not known any better."""


NEAR = 1e-9
"""Values that follow each other closer than this, in deviations, share a rank: which is larger may be rounding."""


class TableInputs(nn.Module):
    """Standardised features with outliers drawn in, and beside them the normal scores of their ranks.

    With ``z = (x - shift) / scale`` the outputs are ``z / sqrt(1 + (z/limit)^2)``, shape (N, n_features), and then, for
    every feature, the quantile of the normal distribution that belongs to its rank among the rows it was made of: the
    first keep distances, the second spread values apart that lie close together. Scores are linear between knots and
    constant beyond them. A constant feature has an infinite scale, and counts for nothing whatever its value is later.
    """

    shift: Tensor
    scale: Tensor
    knots: Tensor
    scores: Tensor

    def __init__(self, n_features: int, n_knots: int = KNOTS, limit: float = LIMIT) -> None:
        super().__init__()
        self.n_features, self.n_knots, self.limit = n_features, n_knots, limit
        self.register_buffer("shift", torch.zeros(n_features))
        self.register_buffer("scale", torch.ones(n_features))
        self.register_buffer("knots", torch.zeros(n_knots, n_features))
        self.register_buffer("scores", torch.zeros(n_knots, n_features))

    @property
    def n_outputs(self) -> int:
        return 2 * self.n_features

    @classmethod
    def of(cls, x: Tensor, sample_weight: Tensor | None = None) -> TableInputs:
        """That of the rows x (N, n_features), in their dtype, each counting by its weight (N, 1)."""
        n_knots = max(2, min(len(x), KNOTS))
        made, scaling = cls(x.shape[1], n_knots), Scaling.standard(x, sample_weight)
        made.shift, made.scale = scaling.shift, scaling.scale
        weight = x.new_ones(len(x), 1) if sample_weight is None else sample_weight.to(x.dtype)
        made.knots, made.scores = _ranks(made._standardised(x), weight, n_knots)
        return made

    def _standardised(self, x: Tensor) -> Tensor:
        return ((x - self.shift) / self.scale).clamp(-FARTHEST, FARTHEST)

    def forward(self, x: Tensor) -> Tensor:
        z = self._standardised(x)
        # Differences of slices: ONNX has no diff
        widths, rises = self.knots[1:] - self.knots[:-1], self.scores[1:] - self.scores[:-1]
        slopes = torch.where(widths > 0, rises / widths, 0.0)
        score = self.scores[0].expand_as(z)
        for knot, width, slope in zip(self.knots, widths, slopes, strict=False):
            # One interval after the other: (N, n_features) is all the memory that is needed
            score = score + slope * torch.minimum((z - knot).clamp_min(0.0), width)
        return torch.cat([z / (1 + (z / self.limit) ** 2).sqrt(), score], dim=-1)

    def extra_repr(self) -> str:
        return f"{self.n_features}, n_knots={self.n_knots}, limit={self.limit:g}"


def _ranks(z: Tensor, weight: Tensor, n_knots: int) -> tuple[Tensor, Tensor]:
    """Knots at even quantiles of every column of z (N, n), and the scores of their ranks: two (n_knots, n).

    Values that are equal but for rounding share the mean of their ranks: the unit of a feature must not decide which is
    larger. ``weight`` (N, 1) says how often a row counts.
    """
    ordered, order = z.sort(dim=0)
    follows = torch.zeros_like(ordered, dtype=torch.bool)
    follows[1:] = ordered[1:] - ordered[:-1] < NEAR
    ordered = torch.where(follows, -math.inf, ordered).cummax(0).values  # the first of those that are near
    share = (weight / weight.sum()).expand_as(z).gather(0, order).cumsum(0)
    below = torch.cat([torch.zeros_like(share[:1]), share])  # the share of rows before the k-th, k = 0 ... N
    places = torch.linspace(0, len(z) - 1, n_knots, dtype=z.dtype, device=z.device).round().long()
    knots = ordered[places].contiguous()
    columns = ordered.T.contiguous()
    first = torch.searchsorted(columns, knots.T.contiguous(), side="left").T
    last = torch.searchsorted(columns, knots.T.contiguous(), side="right").T
    rank = (below.gather(0, first) + below.gather(0, last)) / 2
    bound = 0.5 * (1 + math.erf(HIGHEST_SCORE / math.sqrt(2)))
    return knots, torch.special.ndtri(rank.clamp(1 - bound, bound))


def features_taken(module: nn.Module) -> int:
    """How many features a network of linear layers takes per row."""
    for layer in module.modules():
        if isinstance(layer, TableInputs):
            return layer.n_features
    return int(next(module.parameters()).shape[1])
