"""The loss of several copies of a network, each of which learns from all rows but those of its own fold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dladmm.base.errors import InputError
from dladmm.losses.base import Loss


@dataclass(frozen=True)
class CrossFitted(Loss):
    """``mean over the copies k other than fold(i) of l(z_ik, y_i)``: a row counts in every copy but that of its fold.

    z is (N, copies * n_outputs), copy after copy. Targets are those of the inner loss with the row's fold as one more
    column, (N, n_outputs + 1); a fold below 0 is nobody's, so that such a row counts in all copies.

    Parameters
    ----------
    loss : Loss
    copies : int
        At least 3, so that outputs and targets never have the same number of columns.
    n_outputs : int
        Of one copy.
    """

    loss: Loss
    copies: int
    n_outputs: int
    name: ClassVar[str] = "cross_fitted"

    def __post_init__(self) -> None:
        if self.copies < 3:
            raise InputError(f"a cross-fitted loss needs at least 3 copies, got {self.copies}.")
        object.__setattr__(self, "kind", self.loss.kind)
        object.__setattr__(self, "H", self.loss.H / (self.copies - 1))

    def encode(self, y: Tensor, n_outputs: int, dtype: torch.dtype) -> Tensor:
        """Targets from y with the fold of every row as its last column."""
        if y.ndim != 2 or y.shape[1] < 2:
            raise InputError(f"y needs its fold as the last column, got shape {tuple(y.shape)}.")
        own = y[:, :-1]
        labels = own[:, 0] if own.shape[1] == 1 else own
        encoded = self.loss.encode(labels, self.n_outputs, dtype)
        return torch.cat([encoded, y[:, -1:].to(dtype)], dim=1)

    def rows(self, z: Tensor, target: Tensor) -> Tensor:
        losses = self.loss.rows(self._by_copy(z), self._repeated(target)).view(len(z), -1)
        return (losses * self._shares(target)).sum(1)

    def gradient(self, z: Tensor, target: Tensor) -> Tensor:
        slopes = self.loss.gradient(self._by_copy(z), self._repeated(target))
        return slopes.view(len(z), self.copies, -1).mul_(self._shares(target)[:, :, None]).view(z.shape)

    def curvature(self, z: Tensor, target: Tensor, direction: Tensor) -> Tensor:
        found = self.loss.curvature(self._by_copy(z), self._repeated(target), self._by_copy(direction))
        return (found.view(len(z), -1) * self._shares(target)).sum(1)

    def prox(self, v: Tensor, target: Tensor, r: Tensor | float) -> Tensor:
        """Copy by copy; the copy of the row's own fold keeps v."""
        shares = self._shares(target)
        counts = shares > 0
        per_copy = (r / torch.where(counts, shares, torch.ones_like(shares))).reshape(-1, 1)
        moved = self.loss.prox(self._by_copy(v), self._repeated(target), per_copy).view(len(v), self.copies, -1)
        kept = v.view(moved.shape)
        return torch.where(counts[:, :, None], moved.to(v.dtype), kept).view(v.shape)

    def decision(self, z: Tensor) -> Tensor:
        """Of the mean output of the copies; of targets, their own."""
        if z.shape[1] == self.n_outputs + 1:
            return self.loss.decision(z[:, :-1])
        return self.loss.decision(z.view(len(z), self.copies, -1).mean(1))

    def unseen(self, z: Tensor, target: Tensor) -> Tensor:
        """The output of every row (N, n_outputs) by the copy that never saw it."""
        own = target[:, -1].long().clamp_min(0)
        return z.view(len(z), self.copies, -1)[torch.arange(len(z), device=z.device), own]

    def _by_copy(self, z: Tensor) -> Tensor:
        return z.view(-1, self.n_outputs)

    def _repeated(self, target: Tensor) -> Tensor:
        return target[:, :-1].repeat_interleave(self.copies, 0)

    def _shares(self, target: Tensor) -> Tensor:
        """What every copy counts in a row, (N, copies)."""
        others = target[:, -1:] != torch.arange(self.copies, device=target.device, dtype=target.dtype)
        return others.to(target.dtype) / (self.copies - 1)
