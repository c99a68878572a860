"""Penalties Omega on the weights W."""

from __future__ import annotations

from dladmm.regularizers.base import Regularizer
from dladmm.regularizers.penalties import (
    L1,
    L2,
    L4,
    REGULARIZERS,
    ElasticNet,
    NonNegative,
    NoPenalty,
    get_regularizer,
    soft_threshold,
)
from dladmm.regularizers.signed import Signed
from dladmm.regularizers.weight_set import Box, WeightSet, get_weight_set

__all__ = [
    "L1",
    "L2",
    "L4",
    "REGULARIZERS",
    "Box",
    "ElasticNet",
    "NoPenalty",
    "NonNegative",
    "Regularizer",
    "Signed",
    "WeightSet",
    "get_regularizer",
    "get_weight_set",
    "soft_threshold",
]
