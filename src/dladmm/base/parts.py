"""Several arrays with a row per sample as one: inputs and targets that are tuples or dictionaries."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dladmm.base.errors import InputError

EXACT = 2**24
"""Whole numbers below are exact in float32."""


@dataclass(frozen=True)
class Parts:
    """The names (of a dictionary), shapes of a sample and kinds of the arrays that stand side by side in one."""

    names: tuple[str, ...] | None
    shapes: tuple[tuple[int, ...], ...]
    whole_numbers: tuple[bool, ...]

    @classmethod
    def of(cls, value: Any) -> Parts | None:
        """Those of a tuple or a dictionary of arrays or tensors; None for a single array."""
        if not isinstance(value, (tuple, Mapping)) or not value or hasattr(value, "_fields"):
            return None
        parts = list(value.values() if isinstance(value, Mapping) else value)
        if not all(hasattr(part, "__len__") and not isinstance(part, (str, bytes)) for part in parts):
            return None
        names = tuple(str(name) for name in value) if isinstance(value, Mapping) else None
        arrays = [_tensor(each) for each in parts]
        shapes = tuple(tuple(a.shape[1:]) for a in arrays)
        return cls(names, shapes, tuple(not a.is_floating_point() for a in arrays))

    def pack(self, value: Any, name: str = "X") -> Tensor:
        """The arrays as one tensor (N, entries)."""
        arrays = [_tensor(each) for each in (value.values() if isinstance(value, Mapping) else value)]
        lengths = {len(a) for a in arrays}
        if len(lengths) > 1:
            raise InputError(f"the parts of {name} must have the same number of rows, got {sorted(lengths)}.")
        if tuple(tuple(a.shape[1:]) for a in arrays) != self.shapes:
            raise InputError(
                f"the parts of {name} have other shapes than those before: {self.shapes} were expected."
            )
        for a, whole in zip(arrays, self.whole_numbers, strict=True):
            if whole and a.numel() and int(a.abs().max()) >= EXACT:
                raise InputError(
                    f"{name} has whole numbers of 2^24 or more, which float32 cannot hold exactly."
                )
        dtype = torch.float64 if any(a.dtype == torch.float64 for a in arrays) else torch.float32
        return torch.cat([a.flatten(1).to(dtype) if a.ndim > 1 else a[:, None].to(dtype) for a in arrays], 1)

    def unpack(self, packed: Tensor) -> tuple[Tensor, ...] | dict[str, Tensor]:
        """The arrays back, in their shapes; whole numbers as such."""
        found, begin = [], 0
        for shape, whole in zip(self.shapes, self.whole_numbers, strict=True):
            end = begin + math.prod(shape)
            part = packed[:, begin:end].reshape(len(packed), *shape)
            found.append(part.round().long() if whole else part)
            begin = end
        return tuple(found) if self.names is None else dict(zip(self.names, found, strict=True))


def _tensor(value: Any) -> Tensor:
    found = value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
    if found.ndim == 0:
        raise InputError("each part must be an array with a row per sample.")
    return found
