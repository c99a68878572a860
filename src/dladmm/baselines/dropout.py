"""Dropout in gradient methods: entries of the input of every layer with weights, the data's own included.

That is what Kipf and Welling's recipe for graphs drops. A mask is a function of the seed and of its number, so that a
resumed run goes on with the masks of the one that was broken off.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import numpy as np
import torch
from torch import Tensor

from dladmm.base.scipy_sparse import sparse
from dladmm.blocks import Block, Params
from dladmm.compute.sparse import SparseMatrix, scipy_matrix


class RandomDropout:
    """Forward passes in which a share of the entries is dropped and the others are multiplied by ``1 / (1 - share)``.

    Parameters
    ----------
    share : float
        From 0 to below 1.
    seed : int
    """

    def __init__(self, share: float, seed: int) -> None:
        self.share, self.seed, self.draws = share, seed, 0
        self._kept: tuple[Tensor, SparseMatrix, Tensor] | None = None

    def forward(self, blocks: Iterable[Block], leaves: Iterable[Params], x: Tensor) -> Tensor:
        """The outputs of the last layer for x (N, ...), as autograd can follow them."""
        v = x
        with torch.enable_grad():
            for block, own in zip(blocks, leaves, strict=True):
                v = block.differentiable_forward(own, self.drop(v) if own else v)
        return v

    def drop(self, v: Tensor) -> Tensor:
        """v with another mask for every call; a sparse v comes back as what graph layers multiply by."""
        if v.layout == torch.strided:
            return v * self._factors(v.shape, v)
        fixed, transposed_order = self._sparse(v)
        values = fixed.csr.values() * self._factors(fixed.csr.values().shape, fixed.csr.values())
        return cast(Tensor, fixed.with_values(values, values[transposed_order]))

    def _factors(self, shape: torch.Size, like: Tensor) -> Tensor:
        """0 or ``1 / (1 - share)`` for every entry."""
        generator = torch.Generator(device=like.device)
        generator.manual_seed((self.seed * 1_000_003 + self.draws) % 2**62)
        self.draws += 1
        chances = torch.rand(shape, generator=generator, dtype=torch.float32, device=like.device)
        return ((chances >= self.share) / (1 - self.share)).to(like.dtype)

    def _sparse(self, v: Tensor) -> tuple[SparseMatrix, Tensor]:
        """The data as a matrix, and where each entry of its transpose stands in it; formed once."""
        if self._kept is None or self._kept[0] is not v:
            matrix = scipy_matrix(v)
            matrix.sort_indices()
            places = sparse.csr_array((np.arange(matrix.nnz), matrix.indices, matrix.indptr), matrix.shape)
            transposed = sparse.csr_array(places.T)
            transposed.sort_indices()
            order = torch.from_numpy(transposed.data.astype(np.int64)).to(v.device)
            self._kept = (v, SparseMatrix.of(matrix, v.dtype, v.device), order)
        return self._kept[1:]
