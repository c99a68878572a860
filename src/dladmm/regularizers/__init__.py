"""Penalties Omega on the weights W."""

from __future__ import annotations

from typing import Any

from dladmm.base.spec import from_spec
from dladmm.regularizers.base import Regularizer
from dladmm.regularizers.l4 import L4
from dladmm.regularizers.penalties import (
    L1,
    L2,
    ElasticNet,
    NonNegative,
    NoPenalty,
    Signed,
    soft_threshold,
)

REGULARIZERS: dict[str, type[Regularizer]] = {
    cls.name: cls for cls in (NoPenalty, L2, L1, ElasticNet, L4, NonNegative)
}


def get_regularizer(spec: str | dict[str, Any] | Regularizer | None) -> Regularizer:
    """The penalty for ``spec``: None, a name ("l2"), a dictionary {"name": "l1", "strength": 0.1}, or the object."""
    return NoPenalty() if spec is None else from_spec("regularizer", REGULARIZERS, Regularizer, spec)


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
