"""The metric K of least-squares steps of W and b together, from running moments of the inputs.

With ``d = E^T A / N`` and ``sums = 1^T E / N`` the damped step (Equations 8 and 10, b eliminated)

    argmin (1/2N)||A W'^T + 1 b'^T + E||^2 + (t/2)||W'||^2
    W' = -(d - sums mean^T) P,   b' = -sums - W' mean
    [W' b'] = [d sums] K,   K = [[-P, P mean], [mean^T P, -1 - mean^T P mean]]

has ``P = (C + t I)^-1``, where C is the centred Gram matrix of the inputs over N and ``t = damping * mean(eig C)``.

- :class:`FullMetric` holds C and K as matrices.
- :class:`ThinMetric`, for wide layers, holds ``Y = C S`` for a thin sketch S of random signs, and K as a multiple of
  the identity and a product of two thin matrices. What is left out of C is small beside t, so that the directions are
  the same for practical purposes, and neither C nor K is ever made: a direction takes one product with the rows, as a
  gradient does.

Rows of K and of the running directions are padded with zeros to a multiple of ``ALIGNED``. Nothing here asks the device
for a number.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from dladmm.compute.execution import on_gpu
from dladmm.solvers.factor import damped_cholesky, damped_inverse

ALIGNED = 8
"""Rows of matrices are padded to a multiple of so many entries: products are twice as fast on a GPU then."""

THIN_FROM = 512
"""Layers with so many inputs have a thin metric on a CPU: below it products with K are no large part of a step.

On a GPU they are none at any width: a step takes as long as its launches, of which a thin metric has more.
"""

INPUTS_PER_DIRECTION = 16
"""A thin metric has one direction per 16 inputs.

The k-th eigenvalue of C is at most ``trace / k``. So an eigenvalue that is left out is at most 16 times the mean one,
1.6 t with the damping of streaming mode, and on real inputs, whose eigenvalues fall quickly, a small part of t.
"""


class Metric(Protocol):
    """What running directions ask of their metric. ``second`` are the moments about a centre near the mean."""

    second: Tensor

    @property
    def sketch(self) -> Tensor | None:
        """S where ``second`` is ``C S``; None where it is C."""

    def recentre(self, first: Tensor) -> None:
        """Make ``second`` the moments about ``centre + first``, the mean, from those about ``centre``."""

    def renew(self, mean: Tensor | None, damping: float, scale: Tensor) -> None:
        """Make ``scale * K`` from the moments as they are now; without a mean W is solved for alone."""

    def of_rows(self, A: Tensor) -> Tensor:
        """``[A, 1] K``."""

    def add_to(self, running: Tensor, keep: float, gradient: Tensor, sums: Tensor) -> None:
        """``running <- keep running + (1 - keep) [gradient, sums] K`` in place."""

    def tensors(self) -> dict[str, Tensor]:
        """Everything a resumed run needs."""


def padded(n_inputs: int) -> int:
    """Columns of W and b together, and zeros up to a multiple of ``ALIGNED``."""
    return -(-(n_inputs + 1) // ALIGNED) * ALIGNED


def metric_for(like: Tensor, n_inputs: int, groups: int = 1) -> Metric:
    """An empty metric, thin for a wide layer on a CPU."""
    if groups == 1 and n_inputs >= THIN_FROM and not on_gpu(like):
        return ThinMetric(like, n_inputs)
    return FullMetric(like, n_inputs, () if groups == 1 else (groups,))


class FullMetric:
    """C and K as matrices, or as stacks of them, one per group."""

    sketch: Tensor | None = None

    def __init__(self, like: Tensor, n_inputs: int, stack: tuple[int, ...] = ()) -> None:
        n, size = n_inputs, padded(n_inputs)
        self.second = like.new_zeros(*stack, n, n)
        self.matrix = like.new_zeros(*stack, size, size)

    def recentre(self, first: Tensor) -> None:
        self.second -= first[..., :, None] * first[..., None, :]

    def renew(self, mean: Tensor | None, damping: float, scale: Tensor) -> None:
        inverse, n = damped_inverse(self.second, damping), self.second.shape[-1]
        self.matrix[..., :n, :n] = -inverse
        if mean is not None:
            beside = (inverse @ mean[..., None])[..., 0]
            self.matrix[..., :n, n] = self.matrix[..., n, :n] = beside
            self.matrix[..., n, n] = -1 - (beside * mean).sum(-1)
        self.matrix *= scale

    def of_rows(self, A: Tensor) -> Tensor:
        n, K = A.shape[-1], self.matrix
        if A.ndim == 2:
            return torch.addmm(K[n], A, K[:n])
        return torch.baddbmm(K[:, n : n + 1], A, K[:, :n])

    def add_to(self, running: Tensor, keep: float, gradient: Tensor, sums: Tensor) -> None:
        n, K = gradient.shape[-1], self.matrix
        if running.ndim == 2:
            running.addmm_(gradient, K[:n], beta=keep, alpha=1 - keep)
            running.addr_(sums, K[n], alpha=1 - keep)
        else:
            running.baddbmm_(gradient, K[:, :n], beta=keep, alpha=1 - keep)
            running.baddbmm_(sums[:, :, None], K[:, n : n + 1], alpha=1 - keep)

    def tensors(self) -> dict[str, Tensor]:
        return {"second": self.second, "metric": self.matrix}


class ThinMetric:
    """``Y = C S``, and ``K = -diagonal I + left right^T`` in which the bias has no diagonal entry.

    C is known as its Nystroem approximation ``Y (S^T Y)^-1 Y^T``, whose inverse by Woodbury's formula is

        P = (I - G G^T) / t,   G = Y L^-T,   L L^T = t S^T Y + Y^T Y.

    The mean of the eigenvalues of C, of which t is a multiple, is that of ``s^T C s / n`` over the signs s in S.
    """

    def __init__(self, like: Tensor, n_inputs: int) -> None:
        n, size = n_inputs, padded(n_inputs)
        rank = max(ALIGNED, -(-n // (INPUTS_PER_DIRECTION * ALIGNED)) * ALIGNED) - 2  # two more for the bias
        self.sketch = random_signs(n, rank).to(like)
        self.second = like.new_zeros(n, rank)
        self.diagonal = like.new_zeros(())
        self.left, self.right = like.new_zeros(n + 1, rank + 2), like.new_zeros(size, rank + 2)

    def recentre(self, first: Tensor) -> None:
        self.second -= torch.outer(first, first @ self.sketch)

    def renew(self, mean: Tensor | None, damping: float, scale: Tensor) -> None:
        (n, rank), Y = self.second.shape, self.second.double()
        inner = self.sketch.double().T @ Y
        eigenvalue = inner.diagonal().mean() / n
        t = damping * torch.where(eigenvalue > 0, eigenvalue, torch.ones_like(eigenvalue))
        small = t * (inner + inner.T) / 2 + Y.T @ Y
        lower, _ = damped_cholesky(small, 0.0, self.second.dtype, without_waiting=True)
        G = torch.linalg.solve_triangular(lower, Y.T, upper=False).T.to(self.second.dtype)
        shrink = (scale / t).to(G.dtype)
        self.diagonal.copy_(shrink)
        self.left[:n, :rank], self.right[:n, :rank] = shrink * G, G
        if mean is not None:  # [I; -mean^T] P [I, -mean] + e e^T, multiplied out; e is the bias
            along = mean @ G
            self.left[n, :rank], self.right[n, :rank] = -shrink * along, -along
            self.left[:n, rank] = self.right[:n, rank + 1] = shrink * mean
            # An assigned number is copied from the host, which cannot be recorded
            self.right[n, rank].fill_(1.0)
            self.left[n, rank + 1].fill_(1.0)
            self.right[n, rank + 1] = -shrink * mean.square().sum() - scale

    def of_rows(self, A: Tensor) -> Tensor:
        n, rows = A.shape[-1], A.new_zeros(len(A), len(self.right))
        torch.mul(A, -self.diagonal, out=rows[:, :n])
        return rows.addmm_(torch.addmm(self.left[n], A, self.left[:n]), self.right.T)

    def add_to(self, running: Tensor, keep: float, gradient: Tensor, sums: Tensor) -> None:
        n = gradient.shape[-1]
        thin = (gradient @ self.left[:n]).addr_(sums, self.left[n])
        running.addmm_(thin, self.right.T, beta=keep, alpha=1 - keep)
        running[:, :n].addcmul_(gradient, self.diagonal, value=keep - 1)

    def tensors(self) -> dict[str, Tensor]:
        names = ("second", "diagonal", "left", "right")
        return {name: getattr(self, name) for name in names}


def random_signs(n: int, columns: int) -> Tensor:
    """Signs that depend on n alone, so that all ranks and resumed runs have the same: ``(n, columns)``."""
    generator = torch.Generator().manual_seed(n)
    return torch.randint(0, 2, (n, columns), generator=generator) * 2.0 - 1.0
