"""Losses of the output z_L: value, gradient, Lipschitz constant H, and prox.

The prox is the z_L-update, equations (5) and (15) of the paper:

    z_L <- argmin_z  R(z; y) + (rho/2) ||z - v||^2,      v = W a + b - u/rho.

A :class:`Loss` is a function of one row of z; a :class:`Risk` binds it to the targets and weights of a run.
"""

from __future__ import annotations

from typing import Any

from dladmm.base.spec import from_spec
from dladmm.losses.base import Loss, Risk
from dladmm.losses.classification import BinaryLogistic, SquaredHinge
from dladmm.losses.cross_entropy import CrossEntropy
from dladmm.losses.cross_fitted import CrossFitted
from dladmm.losses.custom import CallableLoss, estimated
from dladmm.losses.from_torch import ignored_by_torch, loss_of_torch
from dladmm.losses.multilabel import Multilabel
from dladmm.losses.of_batches import BatchLoss
from dladmm.losses.poisson import Poisson
from dladmm.losses.quantile import Absolute, Quantile
from dladmm.losses.regression import Huber, Squared
from dladmm.losses.units import Units, foldable

LOSSES: dict[str, type[Loss]] = {
    cls.name: cls
    for cls in (
        *(CrossEntropy, BinaryLogistic, SquaredHinge, Multilabel),
        *(Squared, Huber, Absolute, Quantile, Poisson),
    )
}


def get_loss(spec: Any) -> Loss:
    """The loss for ``spec``: a name such as "squared", a dictionary {"name": "huber", "delta": 2.0}, or the object.

    A loss of torch, such as ``nn.CrossEntropyLoss(label_smoothing=0.1)`` or ``F.mse_loss``, is the one it stands for.
    """
    if not isinstance(spec, (str, dict, Loss)):
        known = loss_of_torch(spec)
        if known is not None:
            return known
    return from_spec("loss", LOSSES, Loss, spec)


__all__ = [
    "LOSSES",
    "Absolute",
    "BatchLoss",
    "BinaryLogistic",
    "CallableLoss",
    "CrossEntropy",
    "CrossFitted",
    "Huber",
    "Loss",
    "Multilabel",
    "Poisson",
    "Quantile",
    "Risk",
    "Squared",
    "SquaredHinge",
    "Units",
    "estimated",
    "foldable",
    "get_loss",
    "ignored_by_torch",
    "loss_of_torch",
]
