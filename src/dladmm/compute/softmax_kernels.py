"""The hand-written kernel for the prox of softmax cross-entropy: all its steps in one launch (``gpu/softmax.cu``)."""

from __future__ import annotations

import torch
from torch import Tensor

from dladmm.compute.gpu.code import Unit

THREADS, WARP = 256, 32
"""Of a block of threads, and of those that work in step."""

MANY_THREADS = 1 << 16
"""That a GPU has work for at a time, some for each of its lanes."""

SOFTMAX = Unit("sums.cu", "softmax.cu", DOUBLE=0)

_softmax_prox = {
    torch.float32: SOFTMAX.kernel("softmax_prox", THREADS),
    torch.float64: Unit("sums.cu", "softmax.cu", DOUBLE=1).kernel("softmax_prox", THREADS),
}


def softmax_prox(v: Tensor, y: Tensor, r: Tensor | float, rough_steps: int, steps: int) -> Tensor | None:
    """:func:`dladmm.losses.cross_entropy.softmax_prox` without looking whether it has settled, in the dtype of v.

    So many Newton steps are made in float32, and in float64.
    """
    weights = r if isinstance(r, Tensor) else None
    given = [v, y] if weights is None else [v, y, weights]
    if v.dtype not in _softmax_prox or not all(x.dtype == v.dtype and x.is_contiguous() for x in given):
        return None
    n, classes = v.shape
    if y.shape != v.shape or (weights is not None and weights.shape != (n, 1)):
        return None
    z, lanes = torch.empty_like(v), _lanes(n, classes)
    _softmax_prox[v.dtype](
        (-(-n * lanes // THREADS), 1),
        z, v, y, weights, 0.0 if isinstance(r, Tensor) else float(r), n, classes, lanes, rough_steps, steps,
    )  # fmt: skip
    return z


def _lanes(n: int, classes: int) -> int:
    """Threads of a row: few that have several classes each, where there are rows enough and none of them idles."""
    powers = [1 << i for i in range(6)]  # up to a warp
    enough = [lanes for lanes in powers if n * lanes >= MANY_THREADS and lanes <= classes] or [
        min(WARP, 1 << max(0, classes - 1).bit_length())
    ]
    return min(enough, key=lambda lanes: (-(-classes // lanes) * lanes, lanes))
