"""Where a hand-written kernel is asked for, so that all of the package runs without one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

import torch

from dladmm.compute.gpu.code import available

logger = logging.getLogger(__name__)


class HandWritten:
    """The kernel of this name in :mod:`dladmm.compute.kernels`, called as it is there.

    It returns None for arguments that the kernel is not for, and where the kernel cannot be had: the caller then does
    the same with torch's operations.
    """

    def __init__(self, name: str) -> None:
        self.name, self._can_be_made = name, True

    def __call__(self, *args: Any, **constants: Any) -> Any | None:
        wait_for_rehearsals()
        kernel = _kernel(self.name) if self._can_be_made else None
        try:
            return None if kernel is None else kernel(*args, **constants)
        except Exception as error:  # the user's machine compiles it, before anything is written
            logger.warning(
                "the kernel %r cannot be made (%s); torch's operations do its work", self.name, error
            )
            self._can_be_made = False
            return None


@cache
def _kernel(name: str) -> Callable[..., Any | None] | None:
    """None where CUDA code cannot be compiled."""
    if not available():
        return None
    return import_module("dladmm.compute.kernels").KERNELS[name]  # type: ignore[no-any-return]


_rehearsals: list[threading.Thread] = []


def make_ahead(entries: int, classes: int, few: int, product: bool, device: torch.device) -> None:
    """Let the kernels that a run will need be made by threads meanwhile, once (:mod:`dladmm.compute.rehearsal`).

    Parameters
    ----------
    entries : int
        Of the run's largest variable.
    classes : int
        Of a softmax, or 0.
    few : int
        Columns of products that are narrow, or 0.
    product : bool
        Whether rows are multiplied with matrices large enough for a kernel of their own.
    device : torch.device
        A GPU.
    """
    index = torch.cuda.current_device() if device.index is None and device.type == "cuda" else device.index
    _make_ahead(entries, classes, few, product, torch.device(device.type, index))


@cache
def _make_ahead(entries: int, classes: int, few: int, product: bool, device: torch.device) -> None:
    def rehearse() -> None:
        try:
            import_module("dladmm.compute.rehearsal").rehearse(entries, classes, few, product, device)
        except Exception as error:  # the call that needs a kernel says so, and does without it
            logger.debug("kernels could not be made ahead: %s", error)

    if available():
        thread = threading.Thread(target=rehearse, name="dladmm kernels", daemon=True)
        thread.start()
        _rehearsals.append(thread)


def wait_for_rehearsals() -> None:
    """Until no kernel is being made: launches cannot be recorded while another thread loads code."""
    for thread in tuple(_rehearsals):
        thread.join()
        with suppress(ValueError):  # another run's thread may have waited for it as well
            _rehearsals.remove(thread)
