"""What every loss can do."""

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

    H belongs to one row of weight 1; the theorems ask for rho > 2H, with H times the largest row weight. Assumption 2
    and Lemma 3 of the paper speak of it.
    """

    kind: Kind
    H: float
    takes_soft_labels: ClassVar[bool] = False
    """Whether targets are class probabilities, so that labels may be smoothed."""
    exact: ClassVar[bool] = True
    """Whether ``prox`` is exact; if not, it is FISTA."""

    @abstractmethod
    def encode(self, y: Tensor, n_outputs: int, dtype: torch.dtype) -> Tensor:
        """The targets as the loss wants them, one row a sample; raises InputError where that cannot be."""

    @abstractmethod
    def rows(self, z: Tensor, target: Tensor) -> Tensor:
        """The loss of each row, shape (N,)."""

    @abstractmethod
    def gradient(self, z: Tensor, target: Tensor) -> Tensor:
        """The gradient of the sum of the rows' losses with respect to z."""

    @abstractmethod
    def prox(self, v: Tensor, target: Tensor, r: Tensor | float) -> Tensor:
        """argmin_z sum_i l(z_i, y_i) + (r_i/2)||z_i - v_i||^2; r is a number or a column (N, 1), v is (N, n_out).

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
        """Class indices (N,) for classification, z itself for regression."""

    def probabilities(self, z: Tensor) -> Tensor:
        """Class probabilities, rows sum to 1; only classification has them."""
        raise InputError(f"loss {self.name!r} is for regression: it has no class probabilities")
