"""Losses of the output z_L: value, gradient, Lipschitz constant H, and prox.

The prox is the z_L-update, equations (5) and (15) of the paper:

    z_L <- argmin_z  R(z; y) + (rho/2) ||z - v||^2,      v = W a + b - u/rho.

A :class:`Loss` is the mathematics of one row; a :class:`Risk` binds it to the targets and weights of a run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from dladmm._spec import Named, from_spec, number
from dladmm.errors import InputError, InputTypeError
from dladmm.fista import fista

Kind = Literal["classification", "regression"]


class Loss(Named, ABC):
    """A convex loss l(z, y) of one row with an H-Lipschitz gradient.

    H belongs to one row of weight 1; the theorems ask for rho > 2H, with H times the largest row weight.
    """

    kind: Kind
    H: float

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
        """argmin_z sum_i l(z_i, y_i) + (r_i/2)||z_i - v_i||^2; r is a number or a column (N, 1)."""

    @abstractmethod
    def decision(self, z: Tensor) -> Tensor:
        """Class indices (N,) for classification, z itself for regression."""

    def probabilities(self, z: Tensor) -> Tensor:
        """Class probabilities, rows sum to 1; only classification has them."""
        raise InputError(f"loss {self.name!r} is for regression: it has no class probabilities")


class _Regression(Loss):
    kind: Kind = "regression"

    def encode(self, y: Tensor, n_outputs: int, dtype: torch.dtype) -> Tensor:
        target = _as_columns(y, n_outputs).to(dtype)
        if not torch.isfinite(target).all():
            raise InputError("y must be finite; got NaN or infinity")
        return target

    def decision(self, z: Tensor) -> Tensor:
        return z


class _Classification(Loss):
    kind: Kind = "classification"

    def decision(self, z: Tensor) -> Tensor:
        return (z[:, 0] > 0).long() if z.shape[1] == 1 else z.argmax(dim=1)


@dataclass(frozen=True)
class CrossEntropy(_Classification):
    """argmin_z logsumexp(z) - y^T z + (r/2)||z - v||^2, softmax cross-entropy; equations (5) and (15).

    One unknown a row is enough, s = logsumexp(z): with c = v + y/r and w_i = p_i/r (p the softmax of z)
    optimality reads w_i + log w_i = c_i - s - log r, so w is the Wright omega function of the right side, and
    sum_i w_i = 1/r fixes s. Newton's method runs on h(sum_i w_i(s)) = h(1/r) with h(w) = w + log w. That
    function of s is convex and decreasing with slopes between -1 and -(number of classes), so Newton's method
    converges from any start, for every r; one class alone would make it linear. In float64 throughout.
    """

    name: ClassVar[str] = "cross_entropy"
    H = 0.5

    def encode(self, y: Tensor, n_outputs: int, dtype: torch.dtype) -> Tensor:
        if n_outputs < 2:
            raise InputError(f"cross_entropy needs n_outputs >= 2; got {n_outputs} (binary_logistic takes 1)")
        if y.ndim == 1 or y.shape[1] == 1:
            return _one_hot(y, n_outputs, dtype)
        soft = _as_columns(y, n_outputs).to(dtype)
        if not ((soft >= 0).all() and ((soft.sum(dim=1) - 1).abs() < 1e-3).all()):
            raise InputError("y as soft labels must be >= 0 with rows that sum to 1")
        return soft

    def rows(self, z: Tensor, target: Tensor) -> Tensor:
        return -(target * F.log_softmax(z, dim=1)).sum(dim=1)

    def gradient(self, z: Tensor, target: Tensor) -> Tensor:
        return F.softmax(z, dim=1) * target.sum(dim=1, keepdim=True) - target

    def prox(self, v: Tensor, target: Tensor, r: Tensor | float) -> Tensor:
        return _softmax_prox(v, target, r).to(v.dtype)

    def probabilities(self, z: Tensor) -> Tensor:
        return F.softmax(z, dim=1)


@dataclass(frozen=True)
class Squared(_Regression):
    """argmin_z (1/2)||z - y||^2 + (r/2)||z - v||^2 = v + (y - v)/(1 + r); equations (5) and (15)."""

    name: ClassVar[str] = "squared"
    H = 1.0

    def rows(self, z: Tensor, target: Tensor) -> Tensor:
        return (z - target).square().sum(dim=1) / 2

    def gradient(self, z: Tensor, target: Tensor) -> Tensor:
        return z - target

    def prox(self, v: Tensor, target: Tensor, r: Tensor | float) -> Tensor:
        return v + (target - v) / (1 + r)


@dataclass(frozen=True)
class Huber(_Regression):
    """argmin_z sum_k huber(z_k - y_k) + (r/2)||z - v||^2; equations (5) and (15).

    huber(e) is e^2/2 up to ``delta`` and delta |e| - delta^2/2 beyond. With e = v - y the answer is
    v - e/(1 + r), the step held to delta/r at most.
    """

    name: ClassVar[str] = "huber"
    H = 1.0
    delta: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "delta", number("delta", self.delta, low=0.0, strict=True))

    def rows(self, z: Tensor, target: Tensor) -> Tensor:
        return F.huber_loss(z, target, reduction="none", delta=self.delta).sum(dim=1)

    def gradient(self, z: Tensor, target: Tensor) -> Tensor:
        return (z - target).clamp_(-self.delta, self.delta)

    def prox(self, v: Tensor, target: Tensor, r: Tensor | float) -> Tensor:
        step = (v - target) / (1 + r)
        limit = self.delta / r
        return v - torch.clamp(step, _like(-limit, v), _like(limit, v))


@dataclass(frozen=True)
class BinaryLogistic(_Classification):
    """argmin_z sum_k log(1 + exp z_k) - y_k z_k + (r/2)||z - v||^2, each column its own; equations (5), (15).

    A column is softmax cross-entropy of the two logits (z/2, -z/2) with 2r in the place of r, and is solved
    as such. One column is one yes-or-no question; several are several (or each class against the rest).
    """

    name: ClassVar[str] = "binary_logistic"
    H = 0.25

    def encode(self, y: Tensor, n_outputs: int, dtype: torch.dtype) -> Tensor:
        return _yes_no(y, n_outputs, dtype)

    def rows(self, z: Tensor, target: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(z, target, reduction="none").sum(dim=1)

    def gradient(self, z: Tensor, target: Tensor) -> Tensor:
        return torch.sigmoid(z) - target

    def prox(self, v: Tensor, target: Tensor, r: Tensor | float) -> Tensor:
        half = v.double().reshape(-1, 1) / 2
        yes = target.double().reshape(-1, 1)
        r_each = 2 * (r.expand_as(v).reshape(-1, 1) if isinstance(r, Tensor) else r)
        z = _softmax_prox(torch.cat([half, -half], 1), torch.cat([yes, 1 - yes], 1), r_each)
        return (z[:, 0] - z[:, 1]).reshape(v.shape).to(v.dtype)

    def probabilities(self, z: Tensor) -> Tensor:
        return _normalised(torch.sigmoid(z))


@dataclass(frozen=True)
class SquaredHinge(_Classification):
    """argmin_z sum_k max(0, 1 - y_k z_k)^2 + (r/2)||z - v||^2 = v + 2 y max(0, 1 - y v)/(2 + r).

    Equations (5) and (15); the targets are +1 and -1, with several columns one class against the rest.
    """

    name: ClassVar[str] = "squared_hinge"
    H = 2.0

    def encode(self, y: Tensor, n_outputs: int, dtype: torch.dtype) -> Tensor:
        target = _yes_no(y, n_outputs, dtype)
        if not ((target == 0) | (target == 1)).all():
            raise InputError("y must hold 0 and 1 only for squared_hinge; got values in between")
        return 2 * target - 1

    def rows(self, z: Tensor, target: Tensor) -> Tensor:
        return (1 - target * z).clamp_min_(0).square_().sum(dim=1)

    def gradient(self, z: Tensor, target: Tensor) -> Tensor:
        return -2 * target * (1 - target * z).clamp_min_(0)

    def prox(self, v: Tensor, target: Tensor, r: Tensor | float) -> Tensor:
        return v + target * (1 - target * v).clamp_min_(0) * (2 / (2 + r))

    def probabilities(self, z: Tensor) -> Tensor:
        """The minimiser of the expected squared hinge is z = 2 p - 1: that map backwards."""
        return _normalised((z.clamp(-1, 1) + 1) / 2)


@dataclass(frozen=True)
class CallableLoss(Loss):
    """argmin_z sum_i fn(z, y)_i + (r/2)||z - v||^2 for a function of your own, by FISTA; equations (5), (15).

    ``fn(z, target)`` gives one loss a row, shape (N,), or their sum; it must be convex in z, one row must not
    look at another, and ``H`` must bound the Lipschitz constant of a row's gradient. Gradients by autograd.
    """

    name: ClassVar[str] = "callable"
    fn: Callable[[Tensor, Tensor], Tensor]
    H: float
    kind: Kind = "regression"

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise InputTypeError(f"fn must be a function of (z, target); got {self.fn!r}")
        object.__setattr__(self, "H", number("H", self.H, low=0.0, strict=True))
        if self.kind not in ("classification", "regression"):
            raise InputError(f"kind must be 'classification' or 'regression'; got {self.kind!r}")

    def to_spec(self) -> dict[str, Any]:
        raise InputError(
            "a loss made of a Python function cannot be written to a file; pass it again on loading"
        )

    def encode(self, y: Tensor, n_outputs: int, dtype: torch.dtype) -> Tensor:
        if self.kind == "regression":
            return Squared().encode(y, n_outputs, dtype)
        return _yes_no(y, n_outputs, dtype)

    def rows(self, z: Tensor, target: Tensor) -> Tensor:
        losses = self.fn(z, target)
        if losses.shape not in (z.shape[:1], torch.Size([])):
            raise InputError(
                f"fn must return one loss a row, shape ({len(z)},), or their sum; got {tuple(losses.shape)}"
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
        return _normalised(torch.sigmoid(z)) if z.shape[1] == 1 else F.softmax(z, dim=1)


LOSSES: dict[str, type[Loss]] = {
    cls.name: cls for cls in (CrossEntropy, Squared, Huber, BinaryLogistic, SquaredHinge)
}


def get_loss(spec: str | dict[str, Any] | Loss) -> Loss:
    """The loss that ``spec`` stands for: a name such as "squared", a dictionary, or the object itself."""
    return from_spec("loss", LOSSES, Loss, spec)


@dataclass(frozen=True, eq=False)
class Risk:
    """R(z_L; y) of the paper: sum_i weight_i l(z_i, y_i), a loss bound to its targets and row weights.

    ``weight`` is a column (N, 1) of numbers >= 0, None for ones. ``solver="fista"`` asks for the paper's own
    way of solving equations (5) and (15); "auto" takes the loss's exact prox.
    """

    loss: Loss
    target: Tensor
    weight: Tensor | None = None
    solver: Literal["auto", "fista"] = "auto"

    def __post_init__(self) -> None:
        if self.solver not in ("auto", "fista"):
            raise InputError(f"solver must be 'auto' or 'fista'; got {self.solver!r}")
        n = len(self.target)
        if self.weight is not None and self.weight.shape != (n, 1):
            raise InputError(f"weight must have shape ({n}, 1), one a row; got {tuple(self.weight.shape)}")

    @cached_property
    def H(self) -> float:
        """The Lipschitz constant of the gradient of R: that of one row times the largest weight."""
        return self.loss.H * (1.0 if self.weight is None else float(self.weight.max()))

    def value(self, z: Tensor) -> Tensor:
        """R(z), a 0-d float64 tensor."""
        rows = self.loss.rows(z, self.target).double()
        if self.weight is None:
            return rows.sum()
        if rows.ndim == 0:
            if bool((self.weight != self.weight[0]).any()):
                raise InputError("fn returned a sum; with unequal row weights it must return one loss a row")
            return rows * self.weight[0, 0].double()
        return torch.dot(rows, self.weight[:, 0].double())

    def gradient(self, z: Tensor) -> Tensor:
        """The gradient of R at z."""
        gradient = self.loss.gradient(z, self.target)
        return gradient if self.weight is None else gradient * self.weight

    def prox(self, v: Tensor, rho: float) -> Tensor:
        """argmin_z R(z) + (rho/2)||z - v||^2, equations (5) and (15); rows of weight 0 keep v."""
        if self.solver == "fista" or isinstance(self.loss, CallableLoss):
            return self._fista(v, rho)
        if self.weight is None:
            return self.loss.prox(v, self.target, rho)
        counts = self.weight > 0
        r = rho / torch.where(counts, self.weight, 1.0)
        return torch.where(counts, self.loss.prox(v, self.target, r), v)

    def _fista(self, v: Tensor, rho: float) -> Tensor:
        def value_grad(z: Tensor) -> tuple[Tensor, Tensor]:
            step = z - v
            value = self.value(z) + (rho / 2) * step.square().sum(dtype=torch.float64)
            return value, self.gradient(z).add_(step, alpha=rho)

        tol = 1e-10 if v.dtype == torch.float64 else 1e-6
        return fista(value_grad, v, self.H + rho, rho, tol, max_iter=2000).x


_OUTER, _INNER = 12, 5


def _softmax_prox(v: Tensor, y: Tensor, r: Tensor | float) -> Tensor:
    """argmin_z (sum_i y_i) logsumexp(z) - y^T z + (r/2)||z - v||^2 row by row, in float64.

    The unknown of class i is t_i, with w_i = p_i/r = k_i exp(t_i), where k_i = y_i/r, or 1 where y_i = 0. Its
    equation k expm1(t) + t + d = 0 loses no digits when p is close to y, however small r is.
    """
    v, y = v.double(), y.double()
    r = torch.as_tensor(r, dtype=torch.float64, device=v.device)
    labelled = y > 1e-30
    k = torch.where(labelled, y / r, 1.0)
    log_k = k.log()
    d_minus_s = torch.where(labelled, y.log(), 1 + r.log()) - v
    total = y.sum(dim=1, keepdim=True) / r
    s = torch.logsumexp(v, dim=1, keepdim=True)
    excess = torch.zeros_like(v)
    for _ in range(_OUTER):
        t = _omega(d_minus_s + s, k, log_k)
        excess = k * torch.expm1(t)
        w = excess + k
        excess = torch.where(labelled, excess, w)  # w_i - y_i/r
        gap = excess.sum(dim=1, keepdim=True)  # sum_i w_i - 1/r
        slope = (1 + 1 / w.sum(dim=1, keepdim=True)) * (w / (1 + w)).sum(dim=1, keepdim=True)
        s = s + (gap + torch.log1p(gap / total)) / slope
    return v - excess


def _omega(d: Tensor, k: Tensor, log_k: Tensor) -> Tensor:
    """The root t of k expm1(t) + t + d: Newton's method from above, so monotone.

    With T = t + log k this is exp(T) + T = x: T is the log of the Wright omega function of x and concave, its
    tangents x and (x - 1)/2 and, for x > 1, log x lie above it.
    """
    x = k + log_k - d
    t = torch.where(x > 3.5, x.clamp_min(1).log(), torch.minimum(x, (x - 1) / 2)) - log_k
    for _ in range(_INNER):
        excess = k * torch.expm1(t)
        t = t - (excess + t + d) / (excess + (1 + k))
    return t


def _like(value: Tensor | float, like: Tensor) -> Tensor:
    return torch.as_tensor(value, dtype=like.dtype, device=like.device)


def _normalised(yes: Tensor) -> Tensor:
    """Class probabilities from one column of P(yes), or from several, each class against the rest."""
    if yes.shape[1] == 1:
        return torch.cat([1 - yes, yes], dim=1)
    total = yes.sum(dim=1, keepdim=True)
    return torch.where(total > 0, yes / total.clamp_min(torch.finfo(yes.dtype).tiny), 1 / yes.shape[1])


def _as_columns(y: Tensor, n_outputs: int) -> Tensor:
    columns = y.reshape(-1, 1) if y.ndim == 1 else y
    if columns.ndim != 2 or columns.shape[1] != n_outputs:
        raise InputError(f"y must have shape (N, {n_outputs}); got {tuple(y.shape)}")
    return columns


def _one_hot(y: Tensor, n_classes: int, dtype: torch.dtype) -> Tensor:
    labels = _labels(y, n_classes)
    return F.one_hot(labels, n_classes).to(dtype)


def _labels(y: Tensor, n_classes: int) -> Tensor:
    if y.ndim > 2 or (y.ndim == 2 and y.shape[1] != 1):
        raise InputError(f"y must hold one class label a row, shape (N,); got {tuple(y.shape)}")
    flat = y.reshape(-1)
    labels = flat.long()
    if flat.is_floating_point() and not (flat == labels).all():
        raise InputError("y must hold whole numbers as class labels; got fractions or NaN")
    if labels.numel() and not ((labels >= 0) & (labels < n_classes)).all():
        low, high = int(labels.min()), int(labels.max())
        raise InputError(f"y must hold class labels from 0 to {n_classes - 1}; got {low} to {high}")
    return labels


def _yes_no(y: Tensor, n_outputs: int, dtype: torch.dtype) -> Tensor:
    """Targets in [0, 1], (N, n_outputs): given as such, or class labels taken one against the rest."""
    if n_outputs > 1 and (y.ndim == 1 or y.shape[1] == 1):
        return _one_hot(y, n_outputs, dtype)
    target = _as_columns(y, n_outputs).to(dtype)
    if not ((target >= 0) & (target <= 1)).all():
        raise InputError("y must hold numbers from 0 to 1 (0 for no, 1 for yes); got others or NaN")
    return target
