"""``A^T A`` of the patches of images without forming the patches: from products of whole rows of pixels.

An entry of it is ``sum_q x(q + i) x(q + j)`` over the positions q of a patch, for two places i and j in it. Two pixels
of one patch lie at most a kernel's height apart, so the products of each row of pixels with itself and with the rows
that follow it, summed over the samples, hold every term. Those are a few products of matrices (columns of an image,
samples); which of their entries belong to which sum is settled in float64, where samples are no longer told apart.
Borders, strides and dilations only choose entries, so nothing has to be corrected.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dladmm.compute.execution import exact_products, on_gpu

Pair = tuple[int, int]

TOGETHER = 2048
"""Samples of one product on a GPU: products side by side keep it busy, and float32 adds up no more than these."""

PIXELS = {"cpu": 1 << 22, "cuda": 1 << 27}
"""Entries of the images whose rows are put in order at once."""

LARGEST_ROWS = 1 << 26
"""Entries of all products of rows, in float64, up to which they are kept."""


@dataclass(frozen=True)
class PatchShape:
    """Where the patches of an image lie: height first, width second."""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int = 1

    def positions(self, height: int, width: int) -> Pair:
        """How many patches an image has in each direction."""
        down, across = (
            (size + 2 * p - d * (k - 1) - 1) // s + 1
            for size, k, s, p, d in zip(
                (height, width), self.kernel, self.stride, self.padding, self.dilation, strict=True
            )
        )
        return down, across

    def rows_pay(self, channels: int, height: int, width: int) -> bool:
        """Whether products of rows need fewer operations than the patches themselves, and not too much memory."""
        down, across = self.positions(height, width)
        row, reach = channels // self.groups * width, self.kernel[0]
        patch = channels // self.groups * self.kernel[0] * self.kernel[1]
        small = self.groups * height * reach * row * row <= LARGEST_ROWS
        return small and height * reach * row * row <= down * across * patch * patch


def patch_gram(images: Tensor, counts: Tensor | None, shape: PatchShape) -> Tensor:
    """``A^T A`` of all patches of ``images`` (N, C, H, W), float64, (groups, patch, patch); rows count ``counts``."""
    n, channels, height, width = images.shape
    kernel, own = shape.kernel[0], channels // shape.groups
    apart = [d for d in (shape.dilation[0] * i for i in range(kernel)) if d < height]
    sums = [
        images.new_zeros(height - d, shape.groups, own * width, own * width, dtype=torch.float64)
        for d in apart
    ]
    size = max(1, PIXELS.get(images.device.type, PIXELS["cpu"]) // max(1, images[:1].numel()))
    together = TOGETHER if on_gpu(images) else size
    if size > together:
        size -= size % together
    with exact_products():
        for begin in range(0, n, size):
            part = images[begin : begin + size]
            weights = None if counts is None else counts[begin : begin + size]
            whole = len(part) // together * together
            for stop, first in ((whole, 0), (len(part), whole)):
                if stop > first:
                    chosen = None if weights is None else weights[first:stop]
                    _add_products(sums, part[first:stop], chosen, apart, shape.groups, together)
    return _chosen(sums, shape, own, height, width)


def _add_products(
    sums: list[Tensor], part: Tensor, counts: Tensor | None, apart: list[int], groups: int, together: int
) -> None:
    """Add the products of every row of pixels with the rows ``apart`` below it, over the samples of ``part``."""
    n, channels, height, width = part.shape
    each = min(together, n)
    ordered = part.reshape(n // each, each, groups, channels // groups, height, width).permute(
        4, 2, 0, 1, 3, 5
    )
    rows = ordered.reshape(height, groups, n // each, each, -1)
    counted = rows if counts is None else rows * counts.reshape(n // each, each, 1)
    for total, d in zip(sums, apart, strict=True):
        upper, lower = (x.flatten(0, 2) for x in (counted[: height - d], rows[d:]))
        products = torch.bmm(upper.mT, lower)
        total += products.reshape(height - d, groups, -1, *total.shape[-2:]).sum(2, dtype=torch.float64)


def _chosen(sums: list[Tensor], shape: PatchShape, channels: int, height: int, width: int) -> Tensor:
    """The entries of the row products that each entry of the Gram matrix adds up."""
    (kh, kw), groups = shape.kernel, shape.groups
    down, across = shape.positions(height, width)
    device = sums[0].device
    starts = torch.arange(across, device=device) * shape.stride[1] - shape.padding[1]
    columns = starts[:, None] + torch.arange(kw, device=device) * shape.dilation[1]
    # What lies outside is a column of zeros
    columns = torch.where((columns >= 0) & (columns < width), columns, width)
    gram = sums[0].new_zeros(groups, channels, kh, kw, channels, kh, kw)
    for i in range(kh):
        for j in range(i, kh):
            upper = _rows_of(sums, shape, i, j, down, height)
            if upper is None:
                continue
            pixels = upper.reshape(groups, channels, width, channels, width)
            padded = torch.nn.functional.pad(pixels, (0, 1, 0, 0, 0, 1)).permute(2, 4, 0, 1, 3)
            block = padded[columns[:, :, None], columns[:, None, :]].sum(0)  # (kw, kw, groups, C, C)
            gram[:, :, i, :, :, j, :] = block.permute(2, 3, 0, 4, 1)
            if i != j:
                gram[:, :, j, :, :, i, :] = block.permute(2, 4, 1, 3, 0)
    return gram.reshape(groups, channels * kh * kw, channels * kh * kw)


def _rows_of(sums: list[Tensor], shape: PatchShape, i: int, j: int, down: int, height: int) -> Tensor | None:
    """The products of the i-th with the j-th row of all patches, over those whose two rows lie in the image."""
    stride, padding, dilation = shape.stride[0], shape.padding[0], shape.dilation[0]
    inside = [
        t * stride - padding + i * dilation
        for t in range(down)
        if t * stride - padding + i * dilation >= 0 and t * stride - padding + j * dilation < height
    ]
    return sums[j - i][inside[0] : inside[-1] + 1 : stride].sum(0) if inside else None
