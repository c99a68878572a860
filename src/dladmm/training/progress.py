"""The progress bar, under the name it had first; it lives in :mod:`dladmm.callbacks`."""

from __future__ import annotations

from dladmm.callbacks.progress import ProgressBar

__all__ = ["ProgressBar"]
