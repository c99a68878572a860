"""Losses for classification, one output against the rest: binary logistic, squared hinge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from dladmm.base.errors import InputError
from dladmm.base.spec import given_only
from dladmm.compute.execution import EAGER, Execution
from dladmm.losses.base import NEVER, Classification, yes_no
from dladmm.losses.class_weights import as_row, positive
from dladmm.losses.cross_entropy import softmax_prox


@dataclass(frozen=True)
class BinaryLogistic(Classification):
    """argmin_z sum_k log(1 + exp z_k) - y_k z_k + (r/2)||z - v||^2, each column its own; equations (5), (15).

    A column is softmax cross-entropy of the two logits (z/2, -z/2) with 2r in place of r, and is solved as such.
    Targets are 0 or 1 (or probabilities) of shape (N,) or (N, n_outputs), or class indices (N,) taken one against the
    rest.

    Parameters
    ----------
    pos_weight : sequence of float, optional
        What a yes counts in every column (or in all, for one number), as in ``nn.BCEWithLogitsLoss``; positive.
    """

    name: ClassVar[str] = "binary_logistic"
    linear_in_target: ClassVar[bool] = True
    pos_weight: tuple[float, ...] | None = None
    H = 0.25

    def __post_init__(self) -> None:
        if self.pos_weight is not None:
            weights = positive("pos_weight", self.pos_weight)
            object.__setattr__(self, "pos_weight", weights)
            object.__setattr__(self, "H", 0.25 * max(1.0, *weights))

    def to_spec(self) -> dict[str, Any]:
        return given_only(super().to_spec(), pos_weight=None)

    def encode(self, y: Tensor, n_outputs: int, dtype: torch.dtype) -> Tensor:
        if self.pos_weight is not None and len(self.pos_weight) not in (1, n_outputs):
            raise InputError(
                f"pos_weight must have one entry per output, {n_outputs}; got {len(self.pos_weight)}"
            )
        return yes_no(y, n_outputs, dtype)

    def _counted(self, target: Tensor) -> tuple[Tensor, Tensor]:
        """P(yes) and what every entry counts: ``w y log p + (1 - y) log(1 - p)`` is a logistic loss of its own."""
        assert self.pos_weight is not None
        yes = target * as_row(self.pos_weight, target)
        count = yes + (1 - target)
        return yes / count, count

    def rows(self, z: Tensor, target: Tensor) -> Tensor:
        weight = None if self.pos_weight is None else as_row(self.pos_weight, z)
        return F.binary_cross_entropy_with_logits(z, target, reduction="none", pos_weight=weight).sum(dim=1)

    def gradient(self, z: Tensor, target: Tensor) -> Tensor:
        if self.pos_weight is None:
            return torch.sigmoid(z) - target
        yes, count = self._counted(target)
        return (torch.sigmoid(z) - yes) * count

    def curvature(self, z: Tensor, target: Tensor, direction: Tensor) -> Tensor:
        p = torch.sigmoid(z)
        entries = p * (1 - p) * direction.square()
        return (entries if self.pos_weight is None else entries * self._counted(target)[1]).sum(1)

    def best_constant(self, mean: Tensor) -> Tensor:
        """The logit of the share of yes."""
        yes = mean if self.pos_weight is None else mean * as_row(self.pos_weight, mean)
        return yes.clamp_min(NEVER).log() - (1 - mean).clamp_min(NEVER).log()

    def prox(self, v: Tensor, target: Tensor, r: Tensor | float) -> Tensor:
        return self.executed_prox(v, target, r, EAGER)

    def executed_prox(self, v: Tensor, target: Tensor, r: Tensor | float, how: Execution) -> Tensor:
        if self.pos_weight is not None:
            target, count = self._counted(target.double())
            r = r / count
        half = v.double().reshape(-1, 1) / 2
        yes = target.double().reshape(-1, 1)
        r_each = 2 * (r.expand_as(v).reshape(-1, 1) if isinstance(r, Tensor) else r)
        z = softmax_prox(torch.cat([half, -half], 1), torch.cat([yes, 1 - yes], 1), r_each, how)
        return (z[:, 0] - z[:, 1]).reshape(v.shape).to(v.dtype)

    def probabilities(self, z: Tensor) -> Tensor:
        return normalised(torch.sigmoid(z))


@dataclass(frozen=True)
class SquaredHinge(Classification):
    """argmin_z sum_k max(0, 1 - y_k z_k)^2 + (r/2)||z - v||^2: (r v + 2 y)/(2 + r) where y v < 1, else v.

    Equations (5) and (15). Targets are 0 or 1 of shape (N,) or (N, n_outputs), or class indices (N,) taken one against
    the rest; internally they are +1 and -1.
    """

    name: ClassVar[str] = "squared_hinge"
    H = 2.0

    def encode(self, y: Tensor, n_outputs: int, dtype: torch.dtype) -> Tensor:
        target = yes_no(y, n_outputs, dtype)
        if not ((target == 0) | (target == 1)).all():
            raise InputError("y must hold 0 and 1 only for squared_hinge; got values in between")
        return 2 * target - 1

    def rows(self, z: Tensor, target: Tensor) -> Tensor:
        return (1 - target * z).clamp_min_(0).square_().sum(dim=1)

    def gradient(self, z: Tensor, target: Tensor) -> Tensor:
        return -2 * target * (1 - target * z).clamp_min_(0)

    def best_constant(self, mean: Tensor) -> Tensor:
        """The mean of targets that are +1 and -1."""
        return mean

    def prox(self, v: Tensor, target: Tensor, r: Tensor | float) -> Tensor:
        # not written as v + move: for large v the two nearly cancel
        return torch.where(target * v < 1, (r * v + 2 * target) / (2 + r), v)

    def probabilities(self, z: Tensor) -> Tensor:
        """The minimiser of the expected squared hinge is z = 2 p - 1; this is its inverse, p = (z + 1)/2."""
        return normalised((z.clamp(-1, 1) + 1) / 2)


def normalised(yes: Tensor) -> Tensor:
    """Class probabilities from P(yes): one column (N, 1), or one column per class against the rest."""
    if yes.shape[1] == 1:
        return torch.cat([1 - yes, yes], dim=1)
    total = yes.sum(dim=1, keepdim=True)
    return torch.where(total > 0, yes / total.clamp_min(torch.finfo(yes.dtype).tiny), 1 / yes.shape[1])
