"""What a penalty Omega on the weights W is: value, prox, and distance to the subdifferential.

They enter the W-updates, equations (9) and (11) of the paper:

    W <- argmin_X  P(X; theta) + Omega(X)  =  prox of Omega at the gradient step,  step = 1 / theta.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from dladmm.base.spec import Named


class Regularizer(Named, ABC):
    """A penalty Omega(W) on a weight W of any shape: convex, and continuous except for constraints.

    Methods take and return tensors of the shape of W unless they say otherwise.
    """

    is_zero: ClassVar[bool] = False
    """Whether Omega = 0, so that nothing needs to be computed."""

    is_constraint: ClassVar[bool] = False
    """Whether Omega is the indicator of a set (infinite outside), which gradient methods cannot handle."""

    records: ClassVar[bool] = False
    """Whether :meth:`prox` of a constraint asks the device for no number, so that its launches can be recorded."""

    @property
    @abstractmethod
    def quadratic(self) -> float | Tensor | None:
        """lambda when Omega(W) = (lambda/2)||W||^2 (0.0 for no penalty), else None.

        A 0-d tensor where :meth:`times` was given one: it stays on the device.
        """

    @property
    @abstractmethod
    def coercive(self) -> bool:
        """Whether Omega(W) grows without bound with ||W||, as Assumption 2 of the paper requires."""

    has_gradient: ClassVar[bool] = False
    """Whether Omega is differentiable (at zero any subgradient will do), so that :meth:`gradient` may be asked for."""

    def gradient(self, W: Tensor) -> Tensor:
        """The gradient of Omega at W."""
        raise NotImplementedError(f"{self.name} has no gradient everywhere")

    @abstractmethod
    def value(self, W: Tensor) -> Tensor:
        """Omega(W), a 0-d float64 tensor."""

    @abstractmethod
    def prox(self, W: Tensor, step: float | Tensor) -> Tensor:
        """argmin_X Omega(X) + (1/(2 step)) ||X - W||^2; ``step`` is a number or a 0-d tensor."""

    @abstractmethod
    def stationarity(self, W: Tensor, g: Tensor) -> Tensor:
        """Entry by entry min |g + s| over s in dOmega(W): zero where -g is a subgradient, as in Lemma 1."""

    def times(self, share: float | Tensor) -> Regularizer:
        """``share * Omega``; a constraint is returned unchanged.

        A 0-d tensor ``share`` is used without synchronisation by quadratic penalties only.
        """
        return self
