"""Callbacks: progress, checkpoints, early stopping, loggers and experiment trackers."""

from __future__ import annotations

from dladmm.callbacks.base import Callback, CallbackWarning
from dladmm.callbacks.checkpoint import Checkpoint, StopOnSignal
from dladmm.callbacks.early_stopping import EarlyStopping
from dladmm.callbacks.loggers import CSVLogger, JSONLinesLogger
from dladmm.callbacks.progress import ProgressBar
from dladmm.callbacks.trackers import MLflow, TensorBoard, WandB

__all__ = [
    "CSVLogger",
    "Callback",
    "CallbackWarning",
    "Checkpoint",
    "EarlyStopping",
    "JSONLinesLogger",
    "MLflow",
    "ProgressBar",
    "StopOnSignal",
    "TensorBoard",
    "WandB",
]
