"""CUDA graphs: the kernels of an iteration launched in one go instead of one by one.

An iteration of a small or a fast network is hundreds of kernels of a few microseconds each, which the host cannot
launch as fast as the device runs them. The launches are recorded once and replayed from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Any

import torch

from dladmm.compute.workspace import Workspace

WARM_CALLS = 2
"""Calls made as they are before the one that is recorded: they compile, allocate buffers and choose algorithms."""

logger = logging.getLogger(__name__)


class Replayed:
    """``function()``, recorded on a GPU once it is warm and replayed as long as ``key()`` stays what it was.

    The function works in place on tensors that stay, returns tensors, and never asks the device for a number. The key
    holds everything else it depends on: numbers, and the addresses of the tensors.

    What the function leaves in the workspace for its next call lies where it lay when the call was recorded. If the
    launches cannot be recorded, a warning is logged, the workspace is released, and all calls are made as they are.
    """

    def __init__(
        self,
        function: Callable[[], Any],
        key: Callable[[], Hashable],
        workspace: Workspace,
        warm_calls: int = WARM_CALLS,
    ) -> None:
        self._warm_calls = warm_calls
        self._function, self._key, self._workspace = function, key, workspace
        self._recorded: tuple[torch.cuda.CUDAGraph, Any] | None = None
        self._made_for: tuple[Hashable, ...] | None = None
        self._calls = 0
        self.impossible = False

    def __call__(self) -> Any:
        if self.impossible:
            return self._function()
        key = (self._key(), self._workspace.addresses())
        if key != self._made_for:
            if self._recorded is not None or self._made_for is None or key[0] != self._made_for[0]:
                self._calls = 0
            self._made_for, self._recorded = key, None
        if self._recorded is None:
            self._calls += 1
            if self._calls <= self._warm_calls:
                return self._function()
            try:
                self._recorded = self._record()
            except RuntimeError as error:
                self.impossible = True
                logger.warning(
                    "the launches of an iteration cannot be recorded (%s); they are made one by one", error
                )
                self._workspace.release()
                return self._function()
        graph, result = self._recorded
        graph.replay()
        return result

    def _record(self) -> tuple[torch.cuda.CUDAGraph, Any]:
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        before = self._workspace.mark()
        with torch.cuda.stream(
            stream
        ):  # not torch.cuda.graph: it collects garbage and empties the cache first
            graph.capture_begin()  # records without running
            try:
                result = self._function()
                self._workspace.settle(before)
            finally:
                graph.capture_end()
        return graph, result
