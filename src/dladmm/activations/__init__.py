"""Activations f: value, derivative, and the z_l-update argmin_z (z - m)^2 + weight (a - f(z))^2.

That update, equations (4) and (14) of the paper, is the projection of the point (m, a) onto the graph of f.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from dladmm.activations.base import Activation
from dladmm.activations.jumps import Quantised, Sign, Step
from dladmm.activations.piecewise import HardTanh, Identity, LeakyReLU, PiecewiseLinear, ReLU
from dladmm.activations.smooth import ELU, GELU, Sigmoid, Smooth, Softplus, Tanh
from dladmm.base.spec import from_spec

ACTIVATIONS: dict[str, type[Activation]] = {
    cls.name: cls
    for cls in (
        ReLU, LeakyReLU, Identity, HardTanh, Sigmoid, Tanh, Softplus, ELU, GELU, Sign, Step, Quantised,
    )
}  # fmt: skip


def get_activation(spec: str | dict[str, Any] | Activation) -> Activation:
    """The activation for ``spec``: a name such as "relu", a dictionary {"name": "elu", "alpha": 2.0}, or the object.

    "logistic" is scikit-learn's name of "sigmoid".
    """
    spec = "sigmoid" if isinstance(spec, str) and spec == "logistic" else spec
    return from_spec("activation", ACTIVATIONS, Activation, spec)


def from_module(module: nn.Module) -> Activation | None:
    """The activation that a torch module computes; None if this library does not have it."""
    found = (cls.from_module(module) for cls in ACTIVATIONS.values())
    return next((activation for activation in found if activation is not None), None)


__all__ = [
    "ACTIVATIONS",
    "ELU",
    "GELU",
    "Activation",
    "HardTanh",
    "Identity",
    "LeakyReLU",
    "PiecewiseLinear",
    "Quantised",
    "ReLU",
    "Sigmoid",
    "Sign",
    "Smooth",
    "Softplus",
    "Step",
    "Tanh",
    "from_module",
    "get_activation",
]
