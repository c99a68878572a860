"""Penalties Omega on the weights W."""

from __future__ import annotations

from dladmm.regularizers.base import Regularizer
from dladmm.regularizers.l4 import L4
from dladmm.regularizers.penalties import (
    L1,
    L2,
    REGULARIZERS,
    ElasticNet,
    NonNegative,
    NoPenalty,
    Signed,
    get_regularizer,
    soft_threshold,
)

__all__ = [
    "L1",
    "L2",
    "L4",
    "REGULARIZERS",
    "ElasticNet",
    "NoPenalty",
    "NonNegative",
    "Regularizer",
    "Signed",
    "get_regularizer",
    "soft_threshold",
]
