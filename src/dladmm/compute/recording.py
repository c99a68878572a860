"""CUDA graphs: the kernels of an iteration launched in one go instead of one by one.

An iteration of a small or a fast network is hundreds of kernels of a few microseconds each, which the host cannot
launch as fast as the device runs them. The launches are recorded once and replayed from then on.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch

from dladmm.compute.hand_written import wait_for_rehearsals
from dladmm.compute.workspace import Workspace

RECORDED_ENTRIES = 1 << 28
"""Of all variables: beyond, an iteration takes the device longer than launching it takes the host."""

WARM_CALLS = 2
"""Calls made as they are before the one that is recorded: they compile, allocate buffers and choose algorithms."""

logger = logging.getLogger(__name__)


class Replayed:
    """``function()``, recorded on a GPU once it is warm and replayed as long as ``key()`` stays what it was.

    The function works in place on tensors that stay, returns tensors, and never asks the device for a number. The key
    holds everything else it depends on: numbers, and the addresses of the tensors.

    What the function leaves in the workspace for its next call lies where it lay when the call was recorded. If the
    launches cannot be recorded, a warning is logged, the workspace is released, and all calls are made as they are.
    ``pool`` is memory shared with other recordings, which are made on the same ``stream``. With ``lasting=False`` the
    function finds nothing of an earlier call in the workspace but what was made of tensors that stay as they are: what
    it leaves there stays where it is, and is kept alive as long as the recording.
    """

    def __init__(
        self,
        function: Callable[[], Any],
        key: Callable[[], Hashable],
        workspace: Workspace,
        warm_calls: int = WARM_CALLS,
        pool: Any = None,
        stream: Any = None,
        lasting: bool = True,
    ) -> None:
        self._warm_calls, self._pool, self._stream = warm_calls, pool, stream
        self._function, self._key, self._workspace = function, key, workspace
        self._recorded: tuple[torch.cuda.CUDAGraph, Any] | None = None
        self._made_for: tuple[Hashable, ...] | None = None
        self._calls = self._failures = 0
        self.impossible = False
        self._lasting, self._alive = lasting, cast("Any", None)

    def __call__(self) -> Any:
        if self.impossible:
            return self._function()
        key = (self._key(), self._workspace.addresses() if self._lasting else ())
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
                self._failures += 1
                # What is launched one by one this time may be recorded next time, in memory of its own: torch holds
                # that of a recording that was broken off for one under way
                self._pool = None
                if self._failures <= 1 and self._calls <= WARM_CALLS:
                    return self._function()
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
        stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        before = self._workspace.mark()
        wait_for_rehearsals()  # what another thread asks of the device would break the recording
        # Not torch.cuda.graph, which waits for the device, collects garbage and empties the cache first. Graphs of
        # earlier runs that are collected in the middle of a recording would break it, so that has to wait.
        with torch.cuda.stream(stream), no_collection():
            graph.capture_begin(pool=self._pool)  # records without running
            try:
                result = self._function()
                if self._lasting:
                    self._workspace.settle(before)
            finally:
                graph.capture_end()
        self._alive = None if self._lasting else (before, self._workspace.mark())
        return graph, result


class Recorder:
    """Functions of one run that are recorded at their first call and replayed from then on, in shared memory.

    They are never replayed at the same time. What a function returns stays where another finds it. Where functions are
    compiled (``compiles``) their first call is made as it is, because nothing can be compiled in a recording.
    """

    def __init__(self, workspace: Workspace, *, lasting: bool = True, compiles: bool = False) -> None:
        self._workspace, self._lasting, self._warm_calls = workspace, lasting, int(compiles)
        self._pool: Any = None
        self._stream: Any = None
        self._recorded: dict[Hashable, Replayed] = {}

    def __call__(self, name: Hashable, function: Callable[[], Any]) -> Any:
        """Call the function of this name, which is always the same; what it returned when it was recorded."""
        if name not in self._recorded:
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
                self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._recorded[name] = Replayed(
                function, lambda: name, self._workspace, warm_calls=self._warm_calls,
                pool=self._pool, stream=self._stream, lasting=self._lasting,
            )  # fmt: skip
        return self._recorded[name]()

    def forget(self) -> None:
        """Record anew what is called from now on."""
        self._recorded, self._pool = {}, None


@contextmanager
def no_collection() -> Iterator[None]:
    """Within it Python collects no garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
