"""Losses for classification: cross-entropy, binary logistic, squared hinge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from dladmm.base.errors import InputError
from dladmm.compute.execution import EAGER, Execution
from dladmm.losses.base import Kind, Loss
from dladmm.losses.softmax_prox import softmax_prox
from dladmm.losses.targets import as_columns, holds_labels, one_hot, yes_no


class Classification(Loss):
    """Base class of the losses whose targets are classes."""

    kind: Kind = "classification"

    def decision(self, z: Tensor) -> Tensor:
        return (z[:, 0] > 0).long() if z.shape[1] == 1 else z.argmax(dim=1)


@dataclass(frozen=True)
class CrossEntropy(Classification):
    """argmin_z logsumexp(z) - y^T z + (r/2)||z - v||^2, softmax cross-entropy; equations (5) and (15).

    Solved exactly by Newton's method in one unknown per row, see :func:`softmax_prox`. Targets are class indices (N,)
    or soft labels (N, n_classes) whose rows sum to 1.
    """

    name: ClassVar[str] = "cross_entropy"
    takes_soft_labels: ClassVar[bool] = True
    H = 0.5

    def encode(self, y: Tensor, n_outputs: int, dtype: torch.dtype) -> Tensor:
        if n_outputs < 2:
            raise InputError(f"cross_entropy needs n_outputs >= 2; got {n_outputs} (binary_logistic takes 1)")
        if holds_labels(y):
            return one_hot(y, n_outputs, dtype)
        soft = as_columns(y, n_outputs).to(dtype)
        if not ((soft >= 0).all() and ((soft.sum(dim=1) - 1).abs() < 1e-3).all()):
            raise InputError("y as soft labels must be >= 0 with rows that sum to 1")
        return soft

    def rows(self, z: Tensor, target: Tensor) -> Tensor:
        return -(target * F.log_softmax(z, dim=1)).sum(dim=1)

    def gradient(self, z: Tensor, target: Tensor) -> Tensor:
        return F.softmax(z, dim=1) * target.sum(dim=1, keepdim=True) - target

    def curvature(self, z: Tensor, target: Tensor, direction: Tensor) -> Tensor:
        p = F.softmax(z, dim=1)
        weighted = p * direction
        return (weighted * direction).sum(1) - weighted.sum(1).square()

    def prox(self, v: Tensor, target: Tensor, r: Tensor | float) -> Tensor:
        return self.executed_prox(v, target, r, EAGER)

    def executed_prox(self, v: Tensor, target: Tensor, r: Tensor | float, how: Execution) -> Tensor:
        return softmax_prox(v, target, r, how).to(v.dtype)

    def probabilities(self, z: Tensor) -> Tensor:
        return F.softmax(z, dim=1)


@dataclass(frozen=True)
class BinaryLogistic(Classification):
    """argmin_z sum_k log(1 + exp z_k) - y_k z_k + (r/2)||z - v||^2, each column its own; equations (5), (15).

    A column is softmax cross-entropy of the two logits (z/2, -z/2) with 2r in place of r, and is solved as such.
    Targets are 0 or 1 (or probabilities) of shape (N,) or (N, n_outputs), or class indices (N,) taken one against the
    rest.
    """

    name: ClassVar[str] = "binary_logistic"
    H = 0.25

    def encode(self, y: Tensor, n_outputs: int, dtype: torch.dtype) -> Tensor:
        return yes_no(y, n_outputs, dtype)

    def rows(self, z: Tensor, target: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(z, target, reduction="none").sum(dim=1)

    def gradient(self, z: Tensor, target: Tensor) -> Tensor:
        return torch.sigmoid(z) - target

    def curvature(self, z: Tensor, target: Tensor, direction: Tensor) -> Tensor:
        p = torch.sigmoid(z)
        return (p * (1 - p) * direction.square()).sum(1)

    def prox(self, v: Tensor, target: Tensor, r: Tensor | float) -> Tensor:
        return self.executed_prox(v, target, r, EAGER)

    def executed_prox(self, v: Tensor, target: Tensor, r: Tensor | float, how: Execution) -> Tensor:
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
