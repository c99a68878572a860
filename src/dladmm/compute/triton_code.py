# mypy: ignore-errors
"""The Triton code of :mod:`dladmm.compute.kernels`: a program works on a block of entries, and leaves its sum.

What a pass does only at times is said by numbers, which are not compiled in, so that there is one kernel to make. Masks
speak of the number of entries alone: the compiler knows it for a multiple of 16, and reads 16 bytes at once. Widths are
not compiled in either, where nothing is gained by it.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def nan_max(x, floor):
    return tl.where(x != x, x, tl.maximum(x, floor))


@triton.jit(do_not_specialize=["columns", "moves", "shifts", "leaves"])
def advance(
    x_at, move_at, target_at, residual_at, multiple_at, shift_at, n, columns, inner, moves, shifts, leaves,
    BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    x = tl.load(x_at + at, mask=inside)
    if moves != 0:
        x += tl.load(move_at + at, mask=inside) * tl.load(multiple_at)
    if shifts != 0:
        x += tl.load(shift_at + (at // inner) % columns, mask=inside, other=0.0)
    tl.store(x_at + at, x, mask=inside)
    if leaves != 0:
        tl.store(residual_at + at, x - tl.load(target_at + at, mask=inside), mask=inside)


@triton.jit(do_not_specialize=["row", "compares", "leaves"])
def descend(
    x_at, d_at, other_at, residual_at, step_at, sums_at, n, row, compares, leaves,
    BY_ROW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    if BY_ROW:  # noqa: SIM108  # the other way is not compiled then
        far = tl.load(step_at + at // row, mask=inside)
    else:
        far = tl.load(step_at)
    x = tl.load(x_at + at, mask=inside) - far * tl.load(d_at + at, mask=inside)
    tl.store(x_at + at, x, mask=inside)
    if compares != 0:
        apart = tl.where(inside, x - tl.load(other_at + at, mask=inside), 0.0)
        if leaves != 0:
            tl.store(residual_at + at, apart, mask=inside)
        tl.store(sums_at + tl.program_id(0), tl.sum(apart * apart, 0).to(tl.float64))


@triton.jit(do_not_specialize=["writes", "leaves", "offsets"])
def relu_entries(
    z_at, f_at, m_at, a_at, residual_at, offset_at, sums_at, n, weight, slope, writes, leaves, offsets,
    BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    m, a = tl.load(m_at + at, mask=inside), tl.load(a_at + at, mask=inside)
    above = tl.maximum(a, 0.0) * slope + m > 0
    z = tl.where(above, tl.maximum((m + weight * a) / (1 + weight), 0.0), m)
    z = tl.where(a != a, a, z)
    tl.store(z_at + at, z, mask=inside)
    f = nan_max(z, 0.0)
    if writes != 0:
        tl.store(f_at + at, f, mask=inside)
    if offsets != 0:
        tl.store(offset_at + at, a - f, mask=inside)
    apart = m - z
    if leaves != 0:
        tl.store(residual_at + at, apart, mask=inside)
    tl.store(sums_at + tl.program_id(0), tl.sum(tl.where(inside, apart * apart, 0.0), 0).to(tl.float64))


@triton.jit(do_not_specialize=["programs"])
def inner(prediction_at, target_at, gradient_at, sums_at, n, programs, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    g = tl.load(gradient_at + at, mask=inside, other=0.0)
    apart = tl.load(prediction_at + at, mask=inside, other=0.0) - tl.load(
        target_at + at, mask=inside, other=0.0
    )
    tl.store(sums_at + tl.program_id(0), tl.sum(apart * g, 0).to(tl.float64))
    tl.store(sums_at + programs + tl.program_id(0), tl.sum(g * g, 0).to(tl.float64))


@triton.jit(do_not_specialize=["width"])
def inner_rows(x_at, y_at, products_at, squares_at, width, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x_at += row * width
    y_at += row * width
    products, squares = tl.zeros((COLUMNS,), tl.float32), tl.zeros((COLUMNS,), tl.float32)
    for begin in range(0, width, COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        x = tl.load(x_at + column, mask=column < width, other=0.0)
        y = tl.load(y_at + column, mask=column < width, other=0.0)
        products += x * y
        squares += y * y
    tl.store(products_at + row, tl.sum(products.to(tl.float64), 0))
    tl.store(squares_at + row, tl.sum(squares.to(tl.float64), 0))


@triton.jit(do_not_specialize=["programs"])
def relu_rises(
    H_at, change_at, prediction_at, residual_at, steps_at, sums_at, n, programs,
    STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    H, change = tl.load(H_at + at, mask=inside, other=0.0), tl.load(change_at + at, mask=inside, other=0.0)
    prediction = tl.load(prediction_at + at, mask=inside, other=0.0)
    residual = tl.load(residual_at + at, mask=inside, other=0.0)
    for trial in range(STEPS):
        step = tl.load(steps_at + trial).to(tl.float32)
        moved = nan_max(H - step * change, 0.0) - prediction
        rise = tl.where(inside, (moved + 2 * residual) * moved, 0.0)
        tl.store(sums_at + trial * programs + tl.program_id(0), tl.sum(rise, 0).to(tl.float64))


@triton.jit
def row_sums(
    columns_at, values_at, starts_at, dense_at, sums_at, width,
    WEIGHTED: tl.constexpr, ENTRIES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    within = (column < width)[None, :]
    first, last = tl.load(starts_at + row), tl.load(starts_at + row + 1)
    sums = tl.zeros((ENTRIES, COLUMNS), sums_at.dtype.element_ty)
    for begin in range(first, last, ENTRIES):  # so many rows of ``dense`` are on their way at once
        at = begin + tl.arange(0, ENTRIES)
        inside = at < last
        source = tl.load(columns_at + at, mask=inside, other=0).to(tl.int64)
        part = tl.load(
            dense_at + source[:, None] * width + column[None, :], mask=inside[:, None] & within, other=0.0
        )
        if WEIGHTED:
            part *= tl.load(values_at + at, mask=inside, other=0.0)[:, None]
        sums += part
    tl.store(sums_at + row * width + column, tl.sum(sums, 0), mask=column < width)


@triton.jit(do_not_specialize=["m", "n", "quarter", "between", "started"])
def rows_times(
    rows_at, high_at, rest_at, start_at, out_at, m, n, quarter, between, started, scale,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    k = quarter * 4  # so that the compiler knows of 16 bytes at a time
    first_row, first_column = tl.program_id(0) // tl.cdiv(n, N) * M, tl.program_id(0) % tl.cdiv(n, N) * N
    row, column, inner = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    left = tl.minimum(row, m - 1 - first_row)[:, None] * k + inner[None, :]
    right = tl.minimum(column, n - 1 - first_column)[None, :] * k + inner[:, None]
    rows_at += first_row.to(tl.int64) * k
    high_at += first_column * k
    rest_at += first_column * k
    total = tl.zeros((M, N), tl.float32)
    for begin in range(0, k, K):
        within = inner < k - begin
        a = tl.load(rows_at + left, mask=within[None, :], other=0.0)
        high = tl.load(high_at + right, mask=within[:, None], other=0.0)
        rest = tl.load(rest_at + right, mask=within[:, None], other=0.0)
        nearest = ((a.to(tl.int32, bitcast=True) + 4096) & -8192).to(tl.float32, bitcast=True)
        part = tl.dot(a - nearest, high, input_precision="tf32")
        part = tl.dot(nearest, rest, part, input_precision="tf32")
        part = tl.dot(nearest, high, part, input_precision="tf32")
        total += part * scale  # outside of the tensor cores, which round every addition down
        rows_at += K
        high_at += K
        rest_at += K
    start_at += first_row.to(tl.int64) * between + first_column
    out_at += first_row.to(tl.int64) * n + first_column
    inside = (row < m - first_row)[:, None] & (column < n - first_column)[None, :]
    begun = inside & (column < started)[None, :]
    total += tl.load(start_at + row[:, None] * between + column[None, :], mask=begun, other=0.0)
    tl.store(out_at + row[:, None] * n + column[None, :], total, mask=inside)


@triton.jit
def stirred(x):
    x = (x ^ (x >> 16)) * tl.full((), 0x7FEB352D, tl.uint32)
    x = (x ^ (x >> 16)) * tl.full((), 0x846CA68B, tl.uint32)
    return x ^ (x >> 16)


@triton.jit(do_not_specialize=["columns"])
def drop(out_at, x_at, rows_at, columns_at, limit_at, factor_at, n, columns, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    row, column = at // columns, at % columns
    mixed = tl.load(rows_at + row, mask=inside, other=0) ^ tl.load(columns_at + column, mask=inside, other=0)
    kept = stirred(mixed.to(tl.uint32)).to(tl.float64) >= tl.load(limit_at)
    x = tl.load(x_at + at, mask=inside) * tl.load(factor_at).to(tl.float32)
    tl.store(out_at + at, tl.where(kept, x, 0.0), mask=inside)


@triton.jit
def pool(v_at, f_at, m_at, a_at, sums_at, n, across, nu, c, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # numbers of windows
    inside = at < n
    row, column = at // across, at % across
    place = row * (4 * across) + 2 * column  # of a window's first entry: rows of pixels have 2 across entries
    m0 = tl.load(m_at + place, mask=inside, other=0.0)
    m1 = tl.load(m_at + place + 1, mask=inside, other=0.0)
    m2 = tl.load(m_at + place + 2 * across, mask=inside, other=0.0)
    m3 = tl.load(m_at + place + 2 * across + 1, mask=inside, other=0.0)
    high, low = tl.maximum(m0, m1), tl.minimum(m0, m1)
    high2, low2 = tl.maximum(m2, m3), tl.minimum(m2, m3)
    first, fourth = tl.maximum(high, high2), tl.minimum(low, low2)
    middle, middle2 = tl.minimum(high, high2), tl.maximum(low, low2)
    second, third = tl.maximum(middle, middle2), tl.minimum(middle, middle2)
    pulled = nu * first + c * tl.load(a_at + at, mask=inside, other=0.0)
    top = pulled / (nu + c)
    pulled += nu * second
    top = tl.where(top >= second, top, pulled / (2 * nu + c))
    pulled += nu * third
    top = tl.where(top >= third, top, pulled / (3 * nu + c))
    pulled += nu * fourth
    top = tl.where(top >= fourth, top, pulled / (4 * nu + c))
    tl.store(f_at + at, top, mask=inside)
    # The first entry that is the largest takes the new maximum; the others come down to it
    is0 = m0 == first
    is1 = (m1 == first) & (m0 != first)
    is2 = (m2 == first) & (m0 != first) & (m1 != first)
    is3 = (m3 == first) & (m0 != first) & (m1 != first) & (m2 != first)
    n0 = tl.where(is0, top, tl.minimum(m0, top))
    n1 = tl.where(is1, top, tl.minimum(m1, top))
    n2 = tl.where(is2, top, tl.minimum(m2, top))
    n3 = tl.where(is3, top, tl.minimum(m3, top))
    d0 = n0 - tl.load(v_at + place, mask=inside, other=0.0)
    d1 = n1 - tl.load(v_at + place + 1, mask=inside, other=0.0)
    d2 = n2 - tl.load(v_at + place + 2 * across, mask=inside, other=0.0)
    d3 = n3 - tl.load(v_at + place + 2 * across + 1, mask=inside, other=0.0)
    tl.store(v_at + place, n0, mask=inside)
    tl.store(v_at + place + 1, n1, mask=inside)
    tl.store(v_at + place + 2 * across, n2, mask=inside)
    tl.store(v_at + place + 2 * across + 1, n3, mask=inside)
    squares = tl.where(inside, d0 * d0 + d1 * d1 + d2 * d2 + d3 * d3, 0.0)
    tl.store(sums_at + tl.program_id(0), tl.sum(squares, 0).to(tl.float64))


@triton.jit
def expm1(t):
    u = tl.exp(t)
    small = tl.abs(t) < 0.5
    inner = tl.where(small & (u != 1), u, 2.0)
    near = tl.where(u == 1, t, (inner - 1) * t / tl.log(inner))  # Kahan's: accurate near 0
    return tl.where(small, near, u - 1)


@triton.jit
def log1p(x):
    u = 1 + x
    near = tl.where(u == 1, x, x * tl.log(u) / tl.where(u == 1, 1.0, u - 1))
    return tl.where(tl.abs(x) < 0.5, near, tl.log(u))


@triton.jit(do_not_specialize=["n", "classes"])
def newton_step(
    excess_at, s_at, step_at, offset_at, k_at, log_k_at, labelled_at, total_at, n, classes,
    INNER: tl.constexpr, ROWS: tl.constexpr, CLASSES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, CLASSES)
    rows_inside = row < n
    at = row[:, None] * classes + column[None, :]
    inside = rows_inside[:, None] & (column < classes)[None, :]
    s = tl.load(s_at + row, mask=rows_inside, other=0.0)
    total = tl.load(total_at + row, mask=rows_inside, other=1.0)
    d = tl.load(offset_at + at, mask=inside, other=0.0) + s[:, None]
    k, log_k = tl.load(k_at + at, mask=inside, other=1.0), tl.load(log_k_at + at, mask=inside, other=0.0)
    labelled = tl.load(labelled_at + at, mask=inside, other=0) != 0
    x = k + log_k - d
    t = tl.where(x > 3.5, tl.log(tl.maximum(x, 1.0)), tl.minimum(x, (x - 1) / 2)) - log_k
    for _ in range(INNER):
        e = expm1(t) * k
        t -= (e + t + d) / (e + k + 1)
    excess = k * expm1(t)
    w = tl.where(inside, excess + k, 0.0)
    excess = tl.where(labelled, excess, w)
    tl.store(excess_at + at, excess, mask=inside)
    gap = tl.sum(tl.where(inside, excess, 0.0), 1)
    slope = (1 + 1 / tl.where(rows_inside, tl.sum(w, 1), 1.0)) * tl.where(
        rows_inside, tl.sum(w / (1 + w), 1), 1.0
    )
    step = (gap + log1p(gap / total)) / slope
    tl.store(step_at + row, step, mask=rows_inside)
    tl.store(s_at + row, s + step, mask=rows_inside)
