"""CUDA graphs: the kernels of an iteration launched in one go instead of one by one.

An iteration of a small or a fast network is hundreds of kernels of a few microseconds each, which the host cannot
launch as fast as the device runs them. The launches are recorded once and replayed from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

WARM_CALLS = 2
"""Calls made as they are before the one that is recorded: they compile, allocate buffers and choose algorithms."""


class Replayed:
    """``function()``, recorded on a GPU once it is warm and replayed as long as ``key()`` stays what it was.

    The function works in place on tensors that stay, returns tensors, and never asks the device for a number. The key
    holds everything else it depends on: numbers, and the addresses of the tensors.
    """

    def __init__(self, function: Callable[[], Any], key: Callable[[], Hashable]) -> None:
        self._function, self._key = function, key
        self._recorded: tuple[torch.cuda.CUDAGraph, Any] | None = None
        self._made_for: Hashable = None
        self._calls = 0

    def __call__(self) -> Any:
        key = self._key()
        if key != self._made_for:
            self._made_for, self._recorded, self._calls = key, None, 0
        if self._recorded is None:
            self._calls += 1
            if self._calls <= WARM_CALLS:
                return self._function()
            self._recorded = self._record()
        graph, result = self._recorded
        graph.replay()
        return result

    def _record(self) -> tuple[torch.cuda.CUDAGraph, Any]:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):  # records without running
            result = self._function()
        return graph, result
