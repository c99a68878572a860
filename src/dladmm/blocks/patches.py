"""What a convolution does with its patches, as the least-squares solver asks for it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dladmm.compute.passes import squared_norm
from dladmm.compute.work import Work
from dladmm.solvers.metric import Metric
from dladmm.solvers.subproblems import Term

if TYPE_CHECKING:
    from dladmm.blocks.convolution import Convolution


class Patches:
    """``A``, one row per patch of one sample, as the least-squares solver sees it."""

    gram_pays = False

    def __init__(self, block: Convolution, v: Tensor, term: Term, work: Work) -> None:
        self.block, self.v, self.term, self.work = block, v, term, work
        self.weight, self.groups, self.n_inputs = term.weight, block.groups, block.patch
        positions = math.prod(term.target.shape[2:])
        self.samples = work.samples(len(v)) * positions

    def gradient(self, with_column_sums: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.adjoint(self.term.residual(), with_column_sums)

    def adjoint(self, E: Tensor, with_column_sums: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        E = self.work.counted(E)
        shape = (-1, self.n_inputs) if self.groups == 1 else (self.groups, -1, self.n_inputs)
        own = self.block.weight_product(E, self.v).reshape(shape), E.flatten(2).sum((0, 2)).double()
        if not with_column_sums:
            product, sums = self.work.total(*own)
            return product, sums, None
        product, sums, ones = self.work.total(*own, self._own_column_sums())
        return product, sums, ones

    def add_direction(
        self, running: Tensor, keep: float, E: Tensor, decay: Tensor | None, metric: Metric
    ) -> None:
        product, sums, _ = self.adjoint(E, False)
        gradient = product.to(running.dtype) if decay is None else product.to(running.dtype) + decay
        metric.add_to(running, keep, gradient, sums.to(running.dtype).reshape(running.shape[:-1]))

    def mean(self) -> Tensor:
        return self.column_sums() / self.samples

    def moments(self, centre: Tensor | None, sketch: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """From the Gram matrix of the patches themselves, which is float64."""
        second, first = self.gram() / self.samples, None
        if centre is not None:
            mean, c = self.mean(), centre.double()
            outer, first = mean[..., :, None] * c[..., None, :], mean - c
            second = second - outer - outer.mT + c[..., :, None] * c[..., None, :]
        return second if sketch is None else second @ sketch.double(), first

    def gram(self) -> Tensor:
        def make() -> Tensor:
            (gram,) = self.work.total(self.block.gram(self.v, self.work.counts))
            return gram[0] if self.groups == 1 else gram

        return self.work.cached("gram", (self.v, self.work.counts), make)

    def column_sums(self) -> Tensor:
        return self.work.total(self._own_column_sums())[0]

    def _own_column_sums(self) -> Tensor:
        """Patches are linear in the image: their sum over samples is that of the summed image."""
        image = self.work.counted(self.v).sum(0, keepdim=True, dtype=torch.float64)
        sums = self.block.patches(image).sum(1)
        return sums[0] if self.groups == 1 else sums

    def products(self, heading: Tensor) -> Tensor:
        return self.block.product(self.v, heading)

    def squared(self, products: Tensor) -> Tensor:
        return self.work.total(squared_norm(products, self.work.counts))[0]

    def advance(self, products: Tensor | None, multiple: Tensor | None, shift: Tensor | None) -> None:
        prediction = self.term.prediction
        far = None if multiple is None else multiple.to(prediction.dtype)
        by_channel = None if shift is None else shift.reshape(-1, *[1] * (prediction.ndim - 2))
        self.work.advance(self.term, products, far, by_channel)
