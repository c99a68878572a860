"""Gram matrices and their damped Cholesky factors, guarded against rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from dladmm.compute.execution import Execution, exact_products, on_gpu
from dladmm.compute.products import sums_over_rows

STRIPE = 256
"""Columns of a Gram matrix formed at once: wide enough for a product near the hardware's rate."""

LEAF = 64
"""Largest block on the diagonal of a triangular matrix; torch solves those side by side if they are no larger."""

WELL_DAMPED = 0.01
"""Of the mean eigenvalue: the largest is then at most 100 n times what the damping makes the smallest."""

IN_RANGE = 1e9
"""A float32 number within it and its inverse can be divided by twice."""


INVERSE_ERROR = {torch.float32: 1e-2, torch.float64: 1e-14}
"""The largest relative error of :func:`damped_inverse` for any matrix; for most it is the square of it or less."""


class Factor(NamedTuple):
    """A Cholesky factor L of ``G + shift I``, or its inverse where ``inverted``: triangular solves are slow on a GPU.

    ``lower`` is (n, n), or (groups, n, n); ``shift`` has no dimensions, or (groups,).
    """

    lower: Tensor
    shift: Tensor
    inverted: bool

    def solve(self, d: Tensor) -> Tensor:
        """``d (G + shift I)^-1`` for the rows of d."""
        if self.inverted:
            return (d.double() @ self.lower.mT) @ self.lower
        return torch.cholesky_solve(d.to(self.lower.dtype).mT, self.lower).mT


def damped_factor(
    gram: Tensor, shift: Tensor, dtype: torch.dtype, how: Execution, well_damped: float = 0.0
) -> Factor:
    """The factor of ``gram + shift I``, made in float64; ``well_damped`` is shift over the mean eigenvalue.

    On a CPU it is rounded to ``dtype`` where that is harmless: exact products decide how far a direction goes, so what
    a rounded one promises holds.
    """
    without_waiting = how.avoids_waiting(gram)
    lower, total = damped_cholesky(gram, shift, dtype, without_waiting=without_waiting)
    if on_gpu(lower):
        parts = lower.reshape(-1, *lower.shape[-2:])
        return Factor(
            torch.stack([inverse_of_triangular(L) for L in parts]).reshape(lower.shape), total, True
        )
    if well_damped >= WELL_DAMPED and not without_waiting and _in_range(lower.diagonal(dim1=-2, dim2=-1)):
        lower = lower.to(dtype)
    return Factor(lower, total, False)


def _in_range(diagonal: Tensor) -> bool:
    low, high = diagonal.aminmax()
    return bool(low > 1 / IN_RANGE) and bool(high < IN_RANGE)


def full_precision_gram(a: Tensor, counts: Tensor | None = None) -> Tensor:
    """``A^T A`` (``A^T diag(counts) A``), also for a stack of A, in float64.

    Formed from products without TF32: with TF32 its factorisation fails.
    """
    with exact_products():
        counted = a if counts is None else a * counts
        sums = sums_over_rows(a, counted) if on_gpu(a) else None
        if sums is not None:
            return sums
        if a.ndim > 2 or a.shape[1] < 2 * STRIPE:
            return (a.mT @ counted).double()
        gram = torch.empty(a.shape[1], a.shape[1], dtype=torch.float64, device=a.device)
        for start in range(0, a.shape[1], STRIPE):  # symmetric: what lies left of the diagonal is there
            stripe = a[:, start : start + STRIPE].T @ counted[:, start:]
            gram[start:, start : start + STRIPE] = stripe.T
            gram[start : start + STRIPE, start:] = stripe
        return gram


def inverse_of_triangular(L: Tensor) -> Tensor:
    """``L^-1`` of a lower triangular L, for a GPU: substitution waits for itself row after row, products do not.

    The blocks on the diagonal are inverted side by side, then joined two by two,
    ``[[A, 0], [B, C]]^-1 = [[A^-1, 0], [-C^-1 B A^-1, C^-1]]``.
    """
    n = len(L)
    leaves = 1
    while leaves * LEAF < n:
        leaves *= 2
    leaf = -(-n // leaves)
    padded = torch.eye(leaf * leaves, dtype=L.dtype, device=L.device)
    padded[:n, :n] = L

    def on_diagonal(blocks: int) -> Tensor:
        size = len(padded) // blocks
        return padded.view(blocks, size, blocks, size).diagonal(dim1=0, dim2=2).permute(2, 0, 1)

    eye = torch.eye(leaf, dtype=L.dtype, device=L.device).expand(leaves, leaf, leaf)
    inverse = torch.linalg.solve_triangular(on_diagonal(leaves), eye, upper=False)
    while len(inverse) > 1:
        size = inverse.shape[1]
        first, second = inverse[0::2], inverse[1::2]
        below = on_diagonal(len(first))[:, size:, :size]
        joined = L.new_zeros(len(first), 2 * size, 2 * size)
        joined[:, :size, :size], joined[:, size:, size:] = first, second
        joined[:, size:, :size] = -(second @ (below @ first))
        inverse = joined
    found: Tensor = inverse[0, :n, :n]
    return found


def damped_inverse(gram: Tensor, damping: float) -> Tensor:
    """``(G + damping m I)^-1``, m the mean eigenvalue of G; also for a stack. The device is asked for nothing.

    On a GPU by products alone, ``a (I + R)(I + R^2)(I + R^4) ...`` with ``R = I - a (G + damping m I)``: substitution
    takes several times as long. Eigenvalues of G lie between 0 and its norm f, so with ``a = 2 / (f + 2 damping m)``
    those of R are at most ``f / (f + 2 damping m)``. As f is no larger than the trace n m, the damping bounds how many
    factors are needed, whatever G is.
    """
    n = gram.shape[-1]
    mean = gram.diagonal(dim1=-2, dim2=-1).mean(-1)
    mean = torch.where(mean > 0, mean, torch.ones_like(mean))
    if not on_gpu(gram):
        factor, _ = damped_cholesky(gram, damping * mean, gram.dtype, without_waiting=True)
        return torch.cholesky_inverse(factor)
    shift = damping * mean
    a = (2 / (torch.linalg.matrix_norm(gram) + 2 * shift))[..., None, None]
    eye = torch.eye(n, dtype=gram.dtype, device=gram.device)
    power = torch.addcmul(eye * (1 - a * shift[..., None, None]), gram, a, value=-1)
    inverse = (eye + power) * a
    add_product: Callable[..., Tensor] = torch.addmm if gram.ndim == 2 else torch.baddbmm
    left = n / (n + 2 * damping)  # what the factors so far leave of I, at most
    while (left := left * left) > INVERSE_ERROR[gram.dtype]:
        power = power @ power
        inverse = add_product(inverse, inverse, power)
    found: Tensor = inverse
    return found


def damped_cholesky(
    gram: Tensor, shift: float | Tensor, precision: torch.dtype, *, without_waiting: bool = False
) -> tuple[Tensor, Tensor]:
    """Cholesky factor of ``gram + delta I`` and the ``delta`` it took, at least ``shift``; also for a stack.

    The Gram matrix was formed in ``precision``, so it is positive definite only down to the rounding of that
    precision, which is relative to its largest eigenvalue and so to its trace; should that not be enough, delta is
    raised in factors of 100 until the factorisation exists. The caller treats delta as a proximal weight, so that
    raising it shortens the step and never breaks descent. ``without_waiting`` asks the device for nothing: if the first
    factorisation fails, a multiple of the identity that exceeds the Gram matrix takes its place.
    """
    trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    trace = torch.where(trace > 0, trace, torch.ones_like(trace))
    rounding = torch.finfo(precision).eps * trace
    delta = torch.maximum(shift, rounding) if isinstance(shift, Tensor) else rounding.clamp_min(shift)
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)

    def on_diagonal(values: Tensor) -> Tensor:
        return values[..., None, None] * eye

    factor, info = torch.linalg.cholesky_ex(gram + on_diagonal(delta))
    for _ in range(0 if without_waiting else 7):
        failed = info != 0
        if not bool(failed.any()):
            return factor, delta
        delta = torch.where(failed, delta * 100, delta)
        factor, info = torch.linalg.cholesky_ex(gram + on_diagonal(delta))
    failed = info != 0
    enough = torch.where(failed, trace + delta, delta)
    return torch.where(failed[..., None, None], on_diagonal(torch.sqrt(enough)), factor), enough
