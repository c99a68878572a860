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
    """``sum_k share_ik l(z_ik, y_i)``, the mean over the copies k that learn from row i: all but that of its fold.

    z is (N, copies * n_outputs), copy after copy. Targets are those of the inner loss with the shares as further
    columns, (N, n_outputs + copies): :meth:`targets` makes them.

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
    one_answer_per_row: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.copies < 3:
            raise InputError(f"a cross-fitted loss needs at least 3 copies, got {self.copies}.")
        object.__setattr__(self, "kind", self.loss.kind)
        object.__setattr__(self, "H", self.loss.H / (self.copies - 1))

    def targets(self, encoded: Tensor, fold: Tensor) -> Tensor:
        """Targets from those of the inner loss and the fold of every row (N,); a fold below 0 belongs to no copy."""
        learns = (fold[:, None] != torch.arange(self.copies, device=fold.device)).to(encoded)
        return torch.cat([encoded, learns / learns.sum(1, keepdim=True)], dim=1)

    def encode(self, y: Tensor, n_outputs: int, dtype: torch.dtype) -> Tensor:
        raise InputError("the targets of a cross-fitted loss need folds: make them with its method targets.")

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
        moved = self.loss.prox(self._by_copy(v), self._repeated(target), per_copy).view(
            len(v), self.copies, -1
        )
        kept = v.view(moved.shape)
        return torch.where(counts[:, :, None], moved.to(v.dtype), kept).view(v.shape)

    def decision(self, z: Tensor) -> Tensor:
        """Of the mean output of the copies; of targets, their own."""
        if z.shape[1] == self.n_outputs + self.copies:
            return self.loss.decision(z[:, : self.n_outputs])
        return self.loss.decision(z.view(len(z), self.copies, -1).mean(1))

    def unseen(self, z: Tensor, target: Tensor) -> Tensor:
        """The output of every row (N, n_outputs) by the copy that never saw it."""
        own = self._shares(target).argmin(1)
        return z.view(len(z), self.copies, -1)[torch.arange(len(z), device=z.device), own]

    def _by_copy(self, z: Tensor) -> Tensor:
        return z.view(-1, self.n_outputs)

    def _repeated(self, target: Tensor) -> Tensor:
        own = target[:, None, : self.n_outputs].expand(-1, self.copies, -1)
        return own.reshape(-1, self.n_outputs)

    def _shares(self, target: Tensor) -> Tensor:
        """What every copy counts in a row, (N, copies)."""
        return target[:, self.n_outputs :]
