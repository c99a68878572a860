"""The base class of all losses, the encoding of targets, and the risk R(z_L; y) of a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from dladmm.base.errors import InputError
from dladmm.base.spec import Named
from dladmm.compute.communicator import ALONE, Communicator
from dladmm.compute.execution import EAGER, Execution
from dladmm.losses.units import Units
from dladmm.solvers.fista import fista, truncated_fista

NEVER = 1e-12
"""The share that a constant answer gives to a class which it has not seen: its logarithm is finite."""


def holds_labels(y: Tensor) -> bool:
    """Whether y has one entry per row, shape (N,) or (N, 1)."""
    return y.ndim == 1 or (y.ndim == 2 and y.shape[1] == 1)


def as_columns(y: Tensor, n_outputs: int) -> Tensor:
    """y as a matrix of shape (N, n_outputs)."""
    columns = y.reshape(-1, 1) if y.ndim == 1 else y
    if columns.ndim != 2 or columns.shape[1] != n_outputs:
        raise InputError(f"y must have shape (N, {n_outputs}); got {tuple(y.shape)}")
    return columns


def one_hot(y: Tensor, n_classes: int, dtype: torch.dtype) -> Tensor:
    """One-hot targets (N, n_classes) from labels 0 .. n_classes - 1 of shape (N,) or (N, 1)."""
    flat = y.reshape(-1)
    labels = flat.long()
    if flat.is_floating_point() and not (flat == labels).all():
        raise InputError("y must hold whole numbers as class labels; got fractions or NaN")
    if not ((labels >= 0) & (labels < n_classes)).all():
        low, high = int(labels.min()), int(labels.max())
        raise InputError(f"y must hold class labels from 0 to {n_classes - 1}; got {low} to {high}")
    return F.one_hot(labels, n_classes).to(dtype)


def yes_no(y: Tensor, n_outputs: int, dtype: torch.dtype) -> Tensor:
    """Targets in [0, 1] of shape (N, n_outputs): given as such, or from class labels, one against the rest."""
    if n_outputs > 1 and holds_labels(y):
        return one_hot(y, n_outputs, dtype)
    target = as_columns(y, n_outputs).to(dtype)
    if not ((target >= 0) & (target <= 1)).all():
        raise InputError("y must hold numbers from 0 to 1 (0 for no, 1 for yes); got others or NaN")
    return target


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
    one_answer_per_row: ClassVar[bool] = True
    """Whether a row is answered by one class or by numbers, as a linear model would answer it."""
    linear_in_target: ClassVar[bool] = False
    """Whether the mean loss of a constant is its loss at the mean target."""
    exact: ClassVar[bool] = True
    """Whether :meth:`prox` is exact; otherwise the risk solves it by FISTA."""

    @property
    def own(self) -> bool:
        """Whether the loss is not one of this library: its H and its convexity are then tried by sampling."""
        return not type(self).__module__.startswith("dladmm.")

    @property
    def lacks_H(self) -> bool:
        """Whether H is not known and has to be estimated from the targets before training."""
        return False

    def with_estimated_H(self, target: Tensor) -> Loss:
        """This loss with H estimated from the targets; losses that know their H return themselves."""
        return self

    def understood(self, target: Tensor) -> Loss:
        """This loss as it will be used with such targets; a function of one's own that returns a mean as its sum."""
        return self

    @abstractmethod
    def encode(self, y: Tensor, n_outputs: int, dtype: torch.dtype) -> Tensor:
        """The targets y in the form this loss works on, shape (N, n_outputs); raises InputError for invalid y."""

    def units(self, target: Tensor, weight: Tensor | None = None, comm: Communicator = ALONE) -> Units | None:
        """The units in which targets are trained on; None where they stay as they are, as classes do.

        ``target`` (N, n_outputs) is what :meth:`encode` returned, ``weight`` (N, 1) says how often rows count, and
        ``comm`` names the ranks that hold the other rows.
        """
        return None

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

    def best_constant(self, mean: Tensor) -> Tensor | None:
        """argmin_c of the mean of ``l(c, y_i)``, (n_outputs,), from the mean target; None if that does not say it."""
        return None

    @abstractmethod
    def decision(self, z: Tensor) -> Tensor:
        """Predictions from outputs z: class indices (N,) for classification, z itself for regression."""

    def hits(self, z: Tensor, target: Tensor) -> Tensor:
        """Whether the decision of each row is that of its target, (N,); of several labels all must be."""
        same = self.decision(z) == self.decision(target)
        return same if same.ndim == 1 else same.all(1)

    def probabilities(self, z: Tensor) -> Tensor:
        """Class probabilities (N, n_classes), each row sums to 1; only for classification."""
        raise InputError(f"loss {self.name!r} is for regression: it has no class probabilities")


class Classification(Loss):
    """Base class of the losses whose targets are classes."""

    kind: Kind = "classification"

    def decision(self, z: Tensor) -> Tensor:
        return (z[:, 0] > 0).long() if z.shape[1] == 1 else z.argmax(dim=1)


@dataclass(frozen=True, eq=False)
class Risk:
    """R(z_L; y) of the paper: sum_i weight_i l(z_i, y_i), a loss bound to its targets and row weights.

    A network with one output per position of a sample has z of shape (N, positions, n_outputs); each position is then
    a row of its own, and ``target`` has N x positions rows.

    Parameters
    ----------
    loss : Loss
    target : Tensor of shape (N, n_outputs)
        Targets as ``loss.encode`` returns them.
    weight : Tensor of shape (N, 1), optional
        Row weights >= 0; None means all ones.
    solver : {"auto", "fista", "authors"}
        "fista" solves equations (5) and (15) as the paper does; "auto" uses the loss's exact prox where it has one;
        "authors" stops FISTA early, as their GCN script does.
    comm : Communicator
        The ranks that hold the other rows: value and gradient are those of the local rows, H that of all rows.
    """

    loss: Loss
    target: Tensor
    weight: Tensor | None = None
    solver: Literal["auto", "fista", "authors"] = "auto"
    comm: Communicator = ALONE

    def __post_init__(self) -> None:
        if self.solver not in ("auto", "fista", "authors"):
            raise InputError(f"solver must be 'auto', 'fista' or 'authors'; got {self.solver!r}")
        n = len(self.target)
        if self.weight is not None and self.weight.shape != (n, 1):
            raise InputError(f"weight must have shape ({n}, 1), one per row; got {tuple(self.weight.shape)}")

    def n_labelled(self, sample_weight: Tensor | None = None) -> float:
        """Number of targets with positive weight on all ranks, each counted with its sample's weight (N, 1)."""
        counted = torch.ones_like(self.target[:, :1]) if self.weight is None else (self.weight > 0)
        if sample_weight is not None:
            counted = counted * sample_weight.repeat_interleave(len(counted) // max(len(sample_weight), 1), 0)
        return float(self.comm.total(counted.sum(dtype=torch.float64))[0])

    @cached_property
    def H(self) -> float:
        """The Lipschitz constant of the gradient of R: that of one row times the largest weight."""
        if self.weight is None:
            return self.loss.H
        own = self.weight.max() if len(self.weight) else self.weight.new_zeros(())
        return self.loss.H * float(self.comm.largest(own.clone())[0])

    @cached_property
    def _weight(self) -> Tensor:
        return torch.ones_like(self.target[:, :1]) if self.weight is None else self.weight

    @cached_property
    def _labelled(self) -> Tensor:
        """Indices of the rows of positive weight: few on a graph, where the other rows need no work."""
        return torch.nonzero(self._weight[:, 0] > 0)[:, 0]

    @cached_property
    def _labelled_target(self) -> tuple[Tensor, Tensor]:
        return self.target[self._labelled], self._weight[self._labelled]

    def flat(self, z: Tensor) -> Tensor:
        """z as a matrix with one row per target: (N x positions, n_outputs)."""
        return z.reshape(-1, z.shape[-1])

    def _on_labelled(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """z, targets and weights of the rows of positive weight."""
        return z[self._labelled], *self._labelled_target

    def value(self, z: Tensor) -> Tensor:
        """R(z), a 0-d float64 tensor."""
        z = self.flat(z)
        if self.weight is None:
            return self.loss.rows(z, self.target).double().sum()
        z, target, weight = self._on_labelled(z)
        losses = self.loss.rows(z, target).double()
        if losses.ndim == 0:
            if bool((self.weight != self.weight[0]).any()):
                raise InputError(
                    "fn returned a sum; with unequal row weights it must return one loss per row"
                )
            return losses * weight[0, 0].double()
        return torch.dot(losses, weight[:, 0].double())

    def by_sample(self, z: Tensor) -> Tensor:
        """The contribution of each sample to R, float64 of shape (N,)."""
        losses = self.loss.rows(self.flat(z), self.target).double()
        if losses.ndim == 0:
            raise InputError("fn returned a sum; with sample weights it must return one loss per row")
        losses = losses if self.weight is None else losses * self.weight[:, 0].double()
        return losses.reshape(len(z), losses.numel() // max(1, len(z))).sum(1)

    def curvature(self, z: Tensor, direction: Tensor) -> Tensor:
        """``d^T R''(z) d``, what every sample adds to it, (N,)."""
        rows = self.loss.curvature(self.flat(z), self.target, self.flat(direction))
        rows = rows if self.weight is None else rows * self.weight[:, 0]
        return rows if len(rows) == len(z) else rows.reshape(len(z), -1).sum(1)

    def gradient(self, z: Tensor) -> Tensor:
        """The gradient of R at z, of the shape of z."""
        return self._gradient(self.flat(z)).reshape(z.shape)

    def _gradient(self, z: Tensor) -> Tensor:
        if self.weight is None:
            return self.loss.gradient(z, self.target)
        some, target, weight = self._on_labelled(z)
        return torch.zeros_like(z).index_copy(0, self._labelled, self.loss.gradient(some, target) * weight)

    @property
    def closed_form(self) -> bool:
        """Whether the prox is solved exactly, row by row, without a search."""
        return self.solver == "auto" and self.loss.exact

    def prox(self, v: Tensor, rho: float, how: Execution = EAGER, start: Tensor | None = None) -> Tensor:
        """argmin_z R(z) + (rho/2)||z - v||^2, equations (5) and (15); rows of weight 0 keep v."""
        if self.solver == "authors" and start is not None:  # the published script begins there
            return self._stopped_early(self.flat(v), rho, self.flat(start)).reshape(v.shape)
        return self._prox(self.flat(v), rho, how).reshape(v.shape)

    def _prox(self, v: Tensor, rho: float, how: Execution) -> Tensor:
        if not self.closed_form:
            return self._fista(v, rho)
        if self.weight is None:
            return self.loss.executed_prox(v, self.target, rho, how)
        some, target, weight = self._on_labelled(v)
        found = self.loss.executed_prox(some, target, rho / weight, how).to(v.dtype)
        return v.index_copy(0, self._labelled, found)

    def _stopped_early(self, v: Tensor, rho: float, start: Tensor) -> Tensor:
        def value(z: Tensor) -> Tensor:
            return torch.dot(self.loss.rows(z, target).double(), weight[:, 0].double())

        def gradient(z: Tensor) -> Tensor:
            return self.loss.gradient(z, target) * weight

        target, weight = self._labelled_target
        found = truncated_fista(value, gradient, v[self._labelled], rho, start[self._labelled])
        return v.index_copy(0, self._labelled, found.to(v.dtype))

    def _fista(self, v: Tensor, rho: float) -> Tensor:
        def value_grad(z: Tensor) -> tuple[Tensor, Tensor]:
            step = z - v
            value = self.value(z) + (rho / 2) * step.square().sum(dtype=torch.float64)
            return value, self.gradient(z).add_(step, alpha=rho)

        tol = 1e-10 if v.dtype == torch.float64 else 1e-6
        return fista(value_grad, v, self.H + rho, rho, tol, max_iter=2000, comm=self.comm).x
