"""Norms and ratios that float32 does not spoil.

Float32 sums of millions of squares are wrong in the third digit, so norms are accumulated in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor


def row_squared_norms(x: Tensor) -> Tensor:
    """``||x_i||^2`` of each row (sample), float64: float32 inside a row, where it is short enough to be safe."""
    norms: Tensor = torch.linalg.vector_norm(x.flatten(1), dim=1)
    return norms.double().square()


def squared_norm(x: Tensor, rows: Tensor | None = None) -> Tensor:
    """``||x||^2`` as a float64 scalar that stays on the device; ``sum_i rows_i ||x_i||^2`` with row weights (N, 1)."""
    if x.ndim < 2:
        return x.double().square().sum()
    norms = row_squared_norms(x)
    return norms.sum() if rows is None else norms @ rows[:, 0].double()


def unit(x: Tensor) -> tuple[Tensor, Tensor]:
    """``x`` as a power of two times what has entries up to 1, and that power: exact, and products stay in the numbers.

    A gradient of 1e-20 or 1e+20 is no error, but the square of its product with the data is no float32 any more.
    """
    exponent = torch.frexp(x.abs().amax()).exponent.clamp(-120, 120)
    power = torch.ldexp(x.new_ones(()), exponent)
    return x / power, power


def ranged_squared_norm(x: Tensor) -> Tensor:
    """``||x||^2`` also where the squares of its entries are no float32 any more; two passes more than the plain one."""
    if x.numel() == 0:  # a rank may have no rows
        return squared_norm(x)
    scaled, power = unit(x)
    return squared_norm(scaled) * power.double().square()


def ratio(numerator: Tensor, denominator: Tensor, otherwise: float = 0.0) -> Tensor:
    """``numerator / denominator``, and ``otherwise`` where the denominator is zero."""
    safe = torch.where(denominator > 0, denominator, torch.ones_like(denominator))
    return torch.where(denominator > 0, numerator / safe, torch.full_like(safe, otherwise))
