"""An old import path of :class:`dladmm.callbacks.ProgressBar`."""

from __future__ import annotations

from dladmm.callbacks.progress import ProgressBar

__all__ = ["ProgressBar"]
