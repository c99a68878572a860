"""Hand-written kernels for arithmetic on a few numbers of a GPU: one launch where torch's operations take up to thirty.

Each stands beside the plain function that defines it, as :mod:`dladmm.compute.kernels` has them for passes. The code is
in ``gpu/numbers.cu``. They are for numbers of float64; others are left to the function.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dladmm.compute.gpu.code import Unit

NUMBERS = Unit("numbers.cu")
_WARP, _THREADS = 32, 256

_majorised_numbers, _majorised_length, _solved_length = (
    NUMBERS.kernel(name, _WARP) for name in ("majorised_numbers", "majorised_length", "solved_length")
)
_power_above, _mean_shift = (
    {dtype: NUMBERS.kernel(f"{name}_{real}", threads) for real, dtype in _REALS}
    for name, threads in (("power_above", _WARP), ("mean_shift", _THREADS))
    for _REALS in [(("float32", torch.float32), ("float64", torch.float64))]
)


def majorised_numbers(
    d_squared: Tensor, moved_squared: Tensor, *, c: float, nu: float, start: float | None, growth: float
) -> tuple[Tensor, ...] | None:
    """:func:`dladmm.solvers.subproblems._majorised_numbers`, of all samples together."""
    if not _numbers(d_squared, moved_squared):
        return None
    out = d_squared.new_empty(3)
    given = float(c), float(nu), float(start or 0), float(growth)
    _majorised_numbers((1, 1), out, d_squared, moved_squared, *given)
    return out.unbind()


def majorised_length(
    squared: Tensor,
    moved_squared: Tensor,
    power: Tensor | float,
    *,
    c: float,
    strength: float | Tensor,
    start: float | None,
    growth: float,
) -> tuple[Tensor, ...] | None:
    """:func:`dladmm.solvers.weight_step._majorised_length`."""
    if isinstance(strength, Tensor) or not _numbers(squared, moved_squared):
        return None
    short = long = None
    if isinstance(power, Tensor):
        if power.ndim or power.dtype not in _power_above:
            return None
        short, long = (power, None) if power.dtype == torch.float32 else (None, power)
    elif power != 1:
        return None
    out = squared.new_empty(3)
    given = float(c), float(strength), float(start or 0), float(growth)
    _majorised_length((1, 1), out, squared, moved_squared, short, long, *given)
    return out.unbind()


def solved_length(
    squared: Tensor,
    moved_squared: Tensor,
    slope: Tensor,
    shifted: Tensor,
    *,
    c: float,
    strength: float | Tensor,
) -> tuple[Tensor, ...] | None:
    """:func:`dladmm.solvers.weight_step._solved_length`."""
    if isinstance(strength, Tensor) or not _numbers(squared, moved_squared, slope, shifted):
        return None
    out = squared.new_empty(3)
    _solved_length((1, 1), out, squared, moved_squared, slope, shifted, float(c), float(strength))
    return out.unbind()


def power_above(low: Tensor, high: Tensor) -> Tensor | None:
    """:func:`dladmm.compute.passes._power_above`."""
    if low.ndim or high.ndim or low.dtype not in _power_above or high.dtype != low.dtype:
        return None
    out = torch.empty_like(low)
    _power_above[low.dtype]((1, 1), out, low, high)
    return out


def mean_shift(
    sums: Tensor, *, dtype: torch.dtype, samples: float | Tensor, weight: float
) -> tuple[Tensor, ...] | None:
    """:func:`dladmm.solvers.least_squares._mean`."""
    counted = samples if isinstance(samples, Tensor) else None
    if sums.ndim != 1 or sums.dtype != torch.float64 or not sums.is_contiguous() or dtype not in _mean_shift:
        return None
    if counted is not None and not _numbers(counted):
        return None
    shift, out = sums.new_empty(len(sums), dtype=dtype), sums.new_empty(2)
    number = 0.0 if isinstance(samples, Tensor) else float(samples)
    _mean_shift[dtype]((1, 1), shift, out, sums, counted, number, float(weight), len(sums))
    return shift, *out.unbind()


def _numbers(*given: Tensor) -> bool:
    return all(x.ndim == 0 and x.dtype == torch.float64 for x in given)
