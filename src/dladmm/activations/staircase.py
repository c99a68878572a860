"""The torch module of a step function.

Annotations are not postponed in this file: TorchScript has to see the types themselves.
"""

import torch
from torch import Tensor, nn


class Staircase(nn.Module):
    """levels[i] for thresholds[i-1] <= z < thresholds[i], entry by entry; works with TorchScript."""

    levels: Tensor
    thresholds: Tensor

    def __init__(self, levels: list[float], thresholds: list[float]) -> None:
        super().__init__()
        self.register_buffer("levels", torch.tensor(levels, dtype=torch.float64), persistent=False)
        self.register_buffer("thresholds", torch.tensor(thresholds, dtype=torch.float64), persistent=False)

    def forward(self, z: Tensor) -> Tensor:
        step = torch.bucketize(z.contiguous(), self.thresholds.to(z.dtype), right=True)
        return self.levels.to(z.dtype)[step]

    def same(self, other: "Staircase") -> bool:
        """Whether the other one computes the same function."""
        return all(
            mine.shape == theirs.shape and torch.allclose(mine.cpu(), theirs.to("cpu", mine.dtype))
            for mine, theirs in ((self.levels, other.levels), (self.thresholds, other.thresholds))
        )
