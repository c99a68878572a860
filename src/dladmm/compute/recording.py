"""CUDA graphs: the kernels of an iteration launched in one go instead of one by one.

An iteration of a small or a fast network is hundreds of kernels of a few microseconds each, which the host cannot
launch as fast as the device runs them. The launches are recorded once and replayed from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

WARM_CALLS = 2
"""Calls made as they are before the one that is recorded: they compile, allocate buffers and choose algorithms."""

logger = logging.getLogger(__name__)

Memory = dict[str, Any]


class Replayed:
    """``function()``, recorded on a GPU once it is warm and replayed as long as ``key()`` stays what it was.

    The function works in place on tensors that stay, returns tensors, and never asks the device for a number. The key
    holds everything else it depends on: numbers, and the addresses of the tensors.

    What the function leaves in ``memories`` for its next call lies where it lay when the call was recorded. If the
    launches cannot be recorded, which is said, ``forget`` drops what the attempt left there and all calls are made as
    they are.
    """

    def __init__(
        self,
        function: Callable[[], Any],
        key: Callable[[], Hashable],
        memories: Sequence[Memory] = (),
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        self._function, self._key, self._memories, self._forget = function, key, memories, forget
        self._recorded: tuple[torch.cuda.CUDAGraph, Any] | None = None
        self._made_for: tuple[Hashable, ...] | None = None
        self._calls = 0
        self.impossible = False

    def __call__(self) -> Any:
        if self.impossible:
            return self._function()
        key = (self._key(), *(tensor.data_ptr() for memory in self._memories for tensor in _tensors(memory)))
        if key != self._made_for:
            if self._recorded is not None or self._made_for is None or key[0] != self._made_for[0]:
                self._calls = 0
            self._made_for, self._recorded = key, None
        if self._recorded is None:
            self._calls += 1
            if self._calls <= WARM_CALLS:
                return self._function()
            try:
                self._recorded = self._record()
            except RuntimeError as error:
                self.impossible = True
                logger.warning(
                    "the launches of an iteration cannot be recorded (%s); they are made one by one", error
                )
                self._forget()
                return self._function()
        graph, result = self._recorded
        graph.replay()
        return result

    def _record(self) -> tuple[torch.cuda.CUDAGraph, Any]:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        before = [dict(memory) for memory in self._memories]
        with torch.cuda.graph(graph):  # records without running
            result = self._function()
            for memory, old in zip(self._memories, before, strict=True):
                settle(memory, old)
        return graph, result


def settle(memory: Memory, old: Memory) -> None:
    """What replaced a tensor of ``old`` is copied to where that lay: there the next call will look for it."""
    for key in memory.keys() & old.keys():
        memory[key] = _settled(memory[key], old[key])


def _settled(now: Any, was: Any) -> Any:
    if isinstance(now, Tensor) and isinstance(was, Tensor) and now is not was:
        return was.copy_(now)
    if isinstance(now, tuple) and isinstance(was, tuple):
        return tuple(_settled(*both) for both in zip(now, was, strict=True))
    return now


def _tensors(memory: Memory) -> Iterator[Tensor]:
    for value in memory.values():
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, Tensor):
                yield each
