"""A loss defined by a Python function."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F

from dladmm.base.errors import InputError, InputTypeError
from dladmm.base.spec import number
from dladmm.compute.communicator import ALONE, Communicator
from dladmm.losses.base import Kind, Loss, Risk, holds_labels, yes_no
from dladmm.losses.classification import BinaryLogistic, normalised
from dladmm.losses.regression import Squared
from dladmm.losses.sampling import sampled_curvature
from dladmm.losses.units import Units, standard


@dataclass(frozen=True)
class CallableLoss(Loss):
    """argmin_z sum_i fn(z, y)_i + (r/2)||z - v||^2 for a function of your own, by FISTA; equations (5), (15).

    Parameters
    ----------
    fn : callable
        ``fn(z, target)`` returns one loss per row, shape (N,), their sum or their mean, for z of shape (N, n_outputs).
        It must be convex in z and treat rows independently; gradients are taken by autograd.
    H : float, optional
        Bound on the Lipschitz constant of a row's gradient. If not given, training estimates it from the targets
        (:func:`estimated`) and issues a warning.
    kind : {"regression", "classification"}, default "regression"
        Whether targets are numbers or classes.
    H_estimated : bool
        Set by :func:`estimated`.
    """

    name: ClassVar[str] = "callable"
    exact: ClassVar[bool] = False
    fn: Callable[[Tensor, Tensor], Tensor]
    H: float = math.nan
    kind: Kind = "regression"
    H_estimated: bool = False

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise InputTypeError(f"fn must be a function of (z, target); got {self.fn!r}")
        if self.H is None or self.H != self.H:  # NaN: not given
            object.__setattr__(self, "H", math.nan)
        else:
            object.__setattr__(self, "H", number("H", self.H, low=0.0, strict=True))
        if self.kind not in ("classification", "regression"):
            raise InputError(f"kind must be 'classification' or 'regression'; got {self.kind!r}")

    @property
    def own(self) -> bool:
        return True

    @property
    def lacks_H(self) -> bool:
        return math.isnan(self.H)

    def with_estimated_H(self, target: Tensor) -> CallableLoss:
        return estimated(self, target)

    @torch.no_grad()
    def understood(self, target: Tensor) -> CallableLoss:
        """A function that returns the mean over its rows, as torch's losses do, becomes that of their sum."""
        if len(target) == 0 or isinstance(self.fn, RowsOfMean):
            return self
        once = torch.cat([target[:1], target[:1]])
        z = once + torch.linspace(-1.5, 2.0, once.shape[1], dtype=once.dtype, device=once.device)
        one, two = self.rows(z[:1], once[:1]), self.rows(z, once)
        if two.ndim > 0:
            return self
        if torch.isclose(two, 2 * one, rtol=1e-4):
            return self
        if torch.isclose(two, one, rtol=1e-4):
            by_rows = RowsOfMean(self.fn)
            try:
                by_rows(z, once)
            except (RuntimeError, ValueError) as error:
                raise InputError(
                    f"fn returns the mean over rows and cannot be taken row by row ({error}). Return one loss per row, "
                    "shape (N,), as reduction='none' does."
                ) from error
            return replace(self, fn=by_rows)
        raise InputError(
            f"fn returns {float(one):g} for one row and {float(two):g} for the same row twice: neither a sum nor a "
            "mean over rows. Return one loss per row, shape (N,), as reduction='none' does."
        )

    def to_spec(self) -> dict[str, Any]:
        raise InputError(
            "a loss made of a Python function cannot be written to a file; pass it again on loading"
        )

    def encode(self, y: Tensor, n_outputs: int, dtype: torch.dtype) -> Tensor:
        if self.kind == "regression":
            if n_outputs > 1 and holds_labels(y):
                raise InputError(
                    f"y has one entry per row and the network {n_outputs} outputs: a loss of your own gets targets of "
                    "the outputs' shape. For class labels use CallableLoss(fn, kind='classification'), whose targets "
                    "are one-hot."
                )
            return Squared().encode(y, n_outputs, dtype)
        return yes_no(y, n_outputs, dtype)

    def units(self, target: Tensor, weight: Tensor | None = None, comm: Communicator = ALONE) -> Units | None:
        """Those of the squared error for a function of ``z - target``; other functions see the targets as they are."""
        if self.kind != "regression" or not self._of_residuals(target[:64]):
            return None
        return standard(target, weight, comm)

    def _of_residuals(self, target: Tensor) -> bool:
        z = torch.linspace(-1, 1, target.numel(), dtype=target.dtype, device=target.device).view_as(target)
        with torch.no_grad():
            here, there = self.rows(z, target - target), self.rows(z + 1, target - target + 1)
        return bool(torch.allclose(here, there, rtol=1e-6, atol=1e-9))

    def rows(self, z: Tensor, target: Tensor) -> Tensor:
        losses = self.fn(z, target)
        if not isinstance(losses, Tensor):
            raise InputTypeError(f"fn must return a tensor, got {type(losses).__name__}.")
        if losses.shape not in (z.shape[:1], torch.Size([])):
            raise InputError(
                f"fn must return one loss per row, shape ({len(z)},), or their sum; got {tuple(losses.shape)}"
            )
        return losses

    def gradient(self, z: Tensor, target: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = z.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.rows(leaf, target).sum(), leaf)
        return gradient

    def prox(self, v: Tensor, target: Tensor, r: Tensor | float) -> Tensor:
        weight = (1 / r).expand(v.shape[0], 1) if isinstance(r, Tensor) else None
        rho = 1.0 if isinstance(r, Tensor) else r
        return Risk(self, target, weight, "fista").prox(v, rho)

    def decision(self, z: Tensor) -> Tensor:
        return z if self.kind == "regression" else BinaryLogistic().decision(z)

    def probabilities(self, z: Tensor) -> Tensor:
        if self.kind == "regression":
            return super().probabilities(z)
        return normalised(torch.sigmoid(z)) if z.shape[1] == 1 else F.softmax(z, dim=1)


@dataclass(frozen=True)
class RowsOfMean:
    """The losses of all rows (N,) from a function that returns their mean: it is called with one row at a time.

    ``torch.func.vmap`` does so for all rows at once.
    """

    fn: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, z: Tensor, target: Tensor) -> Tensor:
        found: Tensor = vmap(self.fn)(z[:, None], target[:, None])
        return found


def estimated(loss: CallableLoss, target: Tensor) -> CallableLoss:
    """A copy of the loss whose H is twice the largest curvature found by sampling.

    :func:`~dladmm.losses.sampling.sampled_curvature` looks around zero and around the targets. The largest curvature
    found is a lower bound of H; the factor 2 is a safety margin, not a proof.

    Parameters
    ----------
    loss : CallableLoss
    target : Tensor of shape (N, n_outputs)
        Targets as ``loss.encode`` returns them.

    Returns
    -------
    CallableLoss
        The same loss with ``H`` set and ``H_estimated=True``.
    """
    largest = sampled_curvature(loss, target).largest
    if not (math.isfinite(largest) and largest > 0):
        raise InputError(
            "H could not be estimated: the loss has no finite curvature; give CallableLoss an H."
        )
    return replace(loss, H=2 * largest, H_estimated=True)
