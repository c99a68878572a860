"""Float32 products on tensor cores, by factors in parts: how fast, and how exact beside torch's own?

    python benchmarks/split_products.py --device cuda        # half a minute

A float32 number is the sum of three bfloat16 numbers, or to 22 bits of two TF32 numbers. Products of the parts run on
tensor cores, and six (three) of them make the product of the whole. ``NN`` is rows times weights, ``TN`` a sum over
the rows, in bfloat16 by chunks whose sums are added up in float32: tensor cores round every addition down, which
shows in long sums. ``kernel`` is the library's own (dladmm/compute/product_kernels.py): three products of float16
parts, scaled 32 at a time, whose sums of 32 are added up outside of the tensor cores; the others are what was tried
before it. Errors are over the product of absolute values, against float64.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # this checkout, installed or not

from dladmm.compute.execution import times

CHUNK, BLOCK = 2048, 4096
Product = Callable[[Tensor, Tensor], Tensor]

if find_spec("triton") is not None:
    import triton
    import triton.language as tl

    @triton.jit
    def split_kernel(x, y, n, columns, BLOCK: tl.constexpr):
        i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = i < n
        value = tl.load(x + i, mask=inside, other=0.0)
        first = value.to(tl.bfloat16)
        rest = value - first.to(tl.float32)
        second = rest.to(tl.bfloat16)
        third = (rest - second.to(tl.float32)).to(tl.bfloat16)
        place = i // columns * 3 * columns + i % columns
        tl.store(y + place, first, mask=inside)
        tl.store(y + place + columns, second, mask=inside)
        tl.store(y + place + 2 * columns, third, mask=inside)


def split(x: Tensor) -> Tensor:
    """Three bfloat16 matrices side by side whose sum is x (n, k): (n, 3 k)."""
    if x.is_cuda:
        x = x.contiguous()
        parts = x.new_empty(len(x), 3 * x.shape[1], dtype=torch.bfloat16)
        split_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, parts, x.numel(), x.shape[1], BLOCK=BLOCK)
        return parts
    found = []
    for _ in range(3):
        found.append(x.bfloat16())
        x = x - found[-1].float()
    return torch.cat(found, 1)


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """A product of bfloat16 factors, added up in float32."""
    if not left.is_cuda:
        return left.float() @ right.float()
    made: Tensor = (torch.bmm if left.ndim == 3 else torch.mm)(left, right, out_dtype=torch.float32)
    return made


def six_products(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b``, the smallest parts first: ``a1 b3``, then a1 and a2 with b2, then all of a with b1."""
    k, A = a.shape[1], split(a)
    b1, b2, b3 = split(b).chunk(3, 1)
    found = matmul(A[:, :k], b3)
    found = found + matmul(A[:, : 2 * k], torch.cat([b2, b2]))
    return found + matmul(A, torch.cat([b1, b1, b1]))


def six_products_over_rows(a: Tensor, b: Tensor) -> Tensor:
    """``a^T b`` by chunks of rows."""
    k, m, A, B = a.shape[1], b.shape[1], split(a), split(b)

    def part(rows: slice, chunks: int) -> Tensor:
        P, Q = (x[rows].reshape(chunks, -1, x.shape[1]) for x in (A, B))
        first = matmul(P[:, :, :k].mT, Q).sum(0)
        second = matmul(P[:, :, k : 2 * k].mT, Q[:, :, : 2 * m]).sum(0)
        third = matmul(P[:, :, 2 * k :].mT, Q[:, :, :m]).sum(0)
        small = first[:, 2 * m :] + second[:, m:] + third
        return small + (first[:, m : 2 * m] + second[:, :m]) + first[:, :m]

    whole = len(a) // CHUNK * CHUNK
    parts = [part(slice(0, whole), whole // CHUNK)] if whole else []
    parts += [part(slice(whole, len(a)), 1)] if whole < len(a) else []
    return torch.stack(parts).sum(0)


def three_products(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` in TF32: x without its last 13 bits and the rest, without the product of the two rests."""

    def parts(x: Tensor) -> tuple[Tensor, Tensor]:
        high = (x.contiguous().view(torch.int32) & -8192).view(torch.float32)
        return high, x - high

    (high_a, rest_a), (high_b, rest_b) = parts(a), parts(b)
    torch.backends.cuda.matmul.allow_tf32 = True
    found = (high_a @ rest_b).addmm_(rest_a, high_b).addmm_(high_a, high_b)
    torch.backends.cuda.matmul.allow_tf32 = False
    return found


WAYS: dict[str, tuple[Product, Product | None]] = {
    "sgemm": (torch.mm, lambda a, b: a.T @ b),
    "bf16x6": (six_products, six_products_over_rows),
    "tf32x3": (three_products, lambda a, b: three_products(a.T, b)),
    "kernel": (times, lambda a, b: times(a.T, b)),
}
"""``a b`` and, where there is one, ``a^T b``."""


def milliseconds(product: Product, a: Tensor, b: Tensor, repeats: int) -> float:
    wait = torch.cuda.synchronize if a.is_cuda else lambda: None
    for _ in range(3):
        product(a, b)
    wait()
    began = time.perf_counter()
    for _ in range(repeats):
        product(a, b)
    wait()
    return (time.perf_counter() - began) * 1e3 / repeats


def errors(found: Tensor, a: Tensor, b: Tensor) -> tuple[float, float, float]:
    """Largest, root mean square and mean error of ``a b``, over the product of absolute values."""
    a, b = a.double(), b.double()
    error = (found.double() - a @ b) / (a.abs() @ b.abs()).clamp_min(1e-300)
    return float(error.abs().max()), float(error.square().mean().sqrt()), float(error.mean())


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, default=55_000)
    parser.add_argument("--inputs", type=int, nargs="+", default=[784, 1000])
    parser.add_argument("--outputs", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=10)
    given = parser.parse_args(arguments)
    generator = torch.Generator(given.device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=given.device)

    for entries in ("normal", "relu"):
        for n_in in given.inputs:
            a, w, e = normal(given.rows, n_in), normal(n_in, given.outputs), normal(given.rows, given.outputs)
            a, e = (a.relu(), e.relu()) if entries == "relu" else (a, e)
            for name, ways in WAYS.items():
                for kind, way, b, truth in (("NN", ways[0], w, (a[:4000], w)), ("TN", ways[1], e, (a.T, e))):
                    if way is None:
                        continue
                    ms = milliseconds(way, a, b, given.repeats)
                    found = way(a, b)
                    worst, spread, mean = errors(found[:4000] if kind == "NN" else found, *truth)
                    said = f"max {worst:.2e} rms {spread:.2e} bias {mean:.2e}"
                    print(entries, n_in, kind, name, f"{ms:.3f} ms", said)


if __name__ == "__main__":
    main()
