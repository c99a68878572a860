"""The base class of all losses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor

from dladmm.base.errors import InputError
from dladmm.base.spec import Named
from dladmm.compute.execution import Execution

Kind = Literal["classification", "regression"]


class Loss(Named, ABC):
    """A convex loss l(z, y) of one row with an H-Lipschitz gradient.

    H is the constant of one row of weight 1; the theorems need rho > 2H, with H times the largest row weight
    (Assumption 2 and Lemma 3 of the paper). In the methods, z and v have shape (N, n_outputs) and ``target`` is what
    :meth:`encode` returned.
    """

    kind: Kind
    H: float
    takes_soft_labels: ClassVar[bool] = False
    """Whether targets are class probabilities, so that labels may be smoothed."""
    exact: ClassVar[bool] = True
    """Whether :meth:`prox` is exact; otherwise the risk solves it by FISTA."""

    @property
    def lacks_H(self) -> bool:
        """Whether H is not known and has to be estimated from the targets before training."""
        return False

    def with_estimated_H(self, target: Tensor) -> Loss:
        """This loss with H estimated from the targets; losses that know their H return themselves."""
        return self

    @abstractmethod
    def encode(self, y: Tensor, n_outputs: int, dtype: torch.dtype) -> Tensor:
        """The targets y in the form this loss works on, shape (N, n_outputs); raises InputError for invalid y."""

    @abstractmethod
    def rows(self, z: Tensor, target: Tensor) -> Tensor:
        """The loss of each row, shape (N,)."""

    @abstractmethod
    def gradient(self, z: Tensor, target: Tensor) -> Tensor:
        """The gradient of the sum of the rows' losses with respect to z, shape (N, n_outputs)."""

    @abstractmethod
    def prox(self, v: Tensor, target: Tensor, r: Tensor | float) -> Tensor:
        """argmin_z sum_i l(z_i, y_i) + (r_i/2)||z_i - v_i||^2; r is a number or a column (N, 1), v is (N, n_outputs).

        The update of z_L: Equations 5 and 15 for the MLP, Equations 18 and 21 for the GCN.
        """

    def curvature(self, z: Tensor, target: Tensor, direction: Tensor) -> Tensor:
        """``d^T l''(z) d`` of each row, shape (N,); where a loss does not know it, its bound ``H ||d||^2``."""
        return self.H * direction.square().sum(1)

    def executed_prox(self, v: Tensor, target: Tensor, r: Tensor | float, how: Execution) -> Tensor:
        """:meth:`prox`, for a loss whose iterations may be executed in different ways."""
        return self.prox(v, target, r)

    @abstractmethod
    def decision(self, z: Tensor) -> Tensor:
        """Predictions from outputs z: class indices (N,) for classification, z itself for regression."""

    def probabilities(self, z: Tensor) -> Tensor:
        """Class probabilities (N, n_classes), each row sums to 1; only for classification."""
        raise InputError(f"loss {self.name!r} is for regression: it has no class probabilities")
