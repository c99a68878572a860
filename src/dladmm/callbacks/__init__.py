"""Callbacks: what looks on while a run goes."""

from __future__ import annotations

from dladmm.callbacks.base import Callback, CallbackWarning
from dladmm.callbacks.progress import ProgressBar

__all__ = ["Callback", "CallbackWarning", "ProgressBar"]
