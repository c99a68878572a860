"""What the kernel of float32 products waits for: as it is, and with a part of its work left out.

    python benchmarks/product_kernel.py          # a GPU of compute capability 9, twenty seconds

``NN`` is 55,000 rows times weights of 1000 x 1000 or 784 x 1000, ``TN`` a sum over the rows, ``SYM`` of a matrix with
itself; milliseconds of the kernel alone, its factors in float16 parts already. With a part left out the results are
wrong: only the time is of interest. Then come the library's products, whose parts are made first, torch's own, and the
errors of both over the product of absolute values: largest, root mean square, mean.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # this checkout, installed or not

from dladmm.compute import product_kernels as made
from dladmm.compute.gpu import code

ROWS, INPUTS, WIDTH = 55_000, 784, 1000
SMALL_PARTS = """                multiply(part, matrix(x + 64 + 32 * i), matrix(y + 32 * i), i);
                multiply(part, matrix(x + 32 * i), matrix(y + 64 + 32 * i), 1);"""
EDITS: dict[str, list[tuple[str, str]]] = {
    "no turns": [
        ("take_turn(group);", ""),
        ("if (group == 0 || half == 0 || step + 1 < steps) give_turn(1 - group);", ""),
        ("if (group == 1) give_turn(0);", ""),
    ],
    "half the bytes": [
        (", PIECE, barrier)", ", PIECE / 2, barrier)"),
        ("STAGE + 3 * SCALES);", "STAGE / 2 + 3 * SCALES);"),
    ],
    "two of three": [(SMALL_PARTS, SMALL_PARTS.splitlines()[0])],
    "no sums": [
        ("for (int i = 0; i < 16; i++) {", "for (int i = 0; i < (step == steps - 1 ? 16 : 1); i++) {")
    ],
}
"""What is left out, as changes of gpu/product.cu."""

VARIANTS: dict[str, tuple[str, ...]] = {
    "as it is": (),
    **{name: (name,) for name in EDITS},
    "all of these": tuple(EDITS),
    "as it is, again": (),
}


def edited(source: str, names: tuple[str, ...]) -> str:
    for old, new in (edit for name in names for edit in EDITS[name]):
        if old not in source:
            raise ValueError(f"the kernel has no {old!r} any more")
        source = source.replace(old, new)
    return source


def milliseconds(work: Callable[[], object], repeats: int = 30) -> float:
    for _ in range(5):
        work()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / repeats


def product(a: made.Parts, b: made.Parts, m: int, n: int, *, splits: bool, symmetric: bool = False) -> Tensor:
    """The kernel alone, as rows_times and sums_over_rows launch it."""
    across, down = -(-n // made.TALL), -(-m // (2 * made.TALL))
    tiles = sum(across - 2 * i for i in range(down)) if symmetric else across * down
    blocks = b.scales.shape[1]
    parts, each = made._shares(tiles, blocks, made._processors(a.pieces.device)) if splits else (1, blocks)
    out = a.scales.new_empty(parts, m, n)
    made._product(
        (tiles, parts), a.pieces, a.scales, b.pieces, b.scales, None, out,
        m, n, blocks, each, 0, False, symmetric, 1.0,
    )  # fmt: skip
    return out


def errors(found: Tensor, left: Tensor, right: Tensor) -> str:
    left, right = left.double(), right.double()
    error = (found.double() - left @ right) / (left.abs() @ right.abs())
    return f"max {error.abs().max():.2e} rms {error.square().mean().sqrt():.2e} bias {error.mean():.2e}"


def main() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    x, w, y = (torch.randn(n, WIDTH, device="cuda", generator=generator) for n in (ROWS, WIDTH, ROWS))
    short, narrow = x[:, :INPUTS].contiguous(), w[:, :INPUTS].contiguous()
    factors = {
        name: made._parts(factor) for name, factor in (("x", x), ("w", w), ("s", short), ("n", narrow))
    }
    columns = {name: made._parts(factor.T) for name, factor in (("x", x), ("y", y), ("s", short))}
    compiled = code._compiled
    for name, edits in VARIANTS.items():
        code._compiled = lambda source, index, edits=edits: compiled(edited(source, edits), index)
        made.PRODUCT._modules.clear()
        made._product._functions.clear()
        took = {
            "NN 1000": lambda: product(factors["x"], factors["w"], ROWS, WIDTH, splits=False),
            "NN 784": lambda: product(factors["s"], factors["n"], ROWS, WIDTH, splits=False),
            "TN 1000": lambda: product(columns["x"], columns["y"], WIDTH, WIDTH, splits=True),
            "SYM 1000": lambda: product(
                columns["x"], columns["x"], WIDTH, WIDTH, splits=True, symmetric=True
            ),
            "TN 784": lambda: product(columns["s"], columns["y"], INPUTS, WIDTH, splits=True),
        }
        print(f"{name:18}", "  ".join(f"{what} {milliseconds(work):.3f}" for what, work in took.items()))
    code._compiled = compiled
    made.PRODUCT._modules.clear()
    made._product._functions.clear()
    out = torch.empty(ROWS, WIDTH, device="cuda")
    products: dict[str, tuple[Callable[[], Tensor | None], Callable[[], Tensor]]] = {
        "x w^T": (lambda: made.rows_times(None, x, w.T, 1.0, out), lambda: torch.mm(x, w.T, out=out)),
        "start + x w^T": (
            lambda: made.rows_times(y, x, w.T, 1.0, out),
            lambda: torch.addmm(y, x, w.T, out=out),
        ),
        "x^T y": (lambda: made.sums_over_rows(x, y), lambda: x.T @ y),
        "x^T x": (lambda: made.sums_over_rows(x, x), lambda: x.T @ x),
    }
    for name, (own, torchs) in products.items():
        print(f"{name:18} {milliseconds(own):.3f}, torch {milliseconds(torchs):.3f}")
    for kind, (a, b, c) in {"normal": (x, w, y), "relu": (x.relu(), w.relu(), y.relu())}.items():
        few, weights = a[:4000], b.T
        own_rows, own_sums = made.rows_times(None, a, weights, 1.0, None), made.sums_over_rows(a, c)
        assert own_rows is not None
        assert own_sums is not None
        print(
            f"{kind} NN kernel {errors(own_rows[:4000], few, weights)}; torch {errors(few @ weights, few, weights)}"
        )
        print(f"{kind} TN kernel {errors(own_sums, a.T, c)}; torch {errors(a.T @ c, a.T, c)}")


if __name__ == "__main__":
    main()
