"""Where a hand-written kernel is asked for, so that all of the package runs without one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch import Tensor

logger = logging.getLogger(__name__)


class HandWritten:
    """The kernel of this name in :mod:`dladmm.compute.kernels`, called as it is there.

    It returns None for arguments that the kernel is not for, and where the kernel cannot be had: the caller then does
    the same with torch's operations.
    """

    def __init__(self, name: str) -> None:
        self.name, self._can_be_made = name, True

    def __call__(self, *args: Any, **constants: Any) -> Tensor | None:
        kernel = _kernel(self.name) if self._can_be_made else None
        try:
            return None if kernel is None else kernel(*args, **constants)
        except Exception as error:  # Triton compiles on the user's machine, before anything is written
            logger.warning(
                "the kernel %r cannot be made (%s); torch's operations do its work", self.name, error
            )
            self._can_be_made = False
            return None


@cache
def _kernel(name: str) -> Callable[..., Tensor | None] | None:
    """None where Triton is not installed."""
    if find_spec("triton") is None:
        return None
    return import_module("dladmm.compute.kernels").KERNELS[name]  # type: ignore[no-any-return]
