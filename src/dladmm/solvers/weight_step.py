"""One step of W in ``(c/2)||A W^T + b - target||^2 + Omega(W)``: Equations 8 to 11, majorised or solved.

A is given as an :class:`Operator`, by its products, sums and Gram matrix.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from dladmm.compute.execution import one_launch
from dladmm.compute.passes import ratio, squared_norm, total_square, unit
from dladmm.compute.work import Work
from dladmm.regularizers import Regularizer
from dladmm.solvers.factor import Factor, damped_factor
from dladmm.solvers.metric import Metric
from dladmm.solvers.proximal_gram import proximal_on_gram
from dladmm.solvers.subproblems import Params, Step, backtracked, line_search


class Operator(Protocol):
    """A, by what the solver needs of it. Every sum is over the rows of all ranks.

    ``W`` is seen as (outputs, inputs), or as (groups, outputs, inputs) where A differs from group to group.
    """

    weight: float
    groups: int

    @property
    def samples(self) -> float | Tensor:
        """How many rows A has, each as often as it counts."""

    @property
    def n_inputs(self) -> int:
        """Columns of A."""

    @property
    def gram_pays(self) -> bool:
        """Whether products with the Gram matrix are cheaper than products with the rows."""

    def adjoint(self, E: Tensor, with_column_sums: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """``E^T A`` of any E, the column sums of E and, where asked for, those of A."""

    def gradient(self, with_column_sums: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """``E^T A``, the column sums of E and, where asked for, those of A."""

    def gram(self) -> Tensor:
        """``A^T A`` in float64."""

    def column_sums(self) -> Tensor:
        """``1^T A`` in float64."""

    def add_direction(
        self, running: Tensor, keep: float, E: Tensor, decay: Tensor | None, metric: Metric
    ) -> None:
        """``running <- keep running + (1 - keep) [E^T A + decay, E^T 1] K`` in place, of any E.

        Without a bias ``E^T 1`` counts nothing: K has zeros there.
        """

    def mean(self) -> Tensor:
        """``1^T A`` over the number of rows."""

    def moments(self, centre: Tensor | None, sketch: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """``(A - 1 c^T)^T (A - 1 c^T)`` and ``1^T (A - 1 c^T)`` over the number of rows; without c the first alone.

        With a ``sketch`` S the first is multiplied by it.
        """

    def products(self, heading: Tensor) -> Any:
        """``A heading^T``, for :meth:`squared` and :meth:`advance`."""

    def squared(self, products: Any) -> Tensor:
        """``||A heading^T||^2``."""

    def advance(self, products: Any, multiple: Tensor | None, shift: Tensor | None) -> None:
        """Hand over the prediction's move ``multiple A heading^T + 1 shift^T``; ``products`` may be None."""


def grouped(W: Tensor, A: Operator) -> Tensor:
    """W as (outputs, inputs), or as (groups, outputs, inputs)."""
    return W.reshape(-1, A.n_inputs) if A.groups == 1 else W.reshape(A.groups, -1, A.n_inputs)


class Move(NamedTuple):
    """W moves by ``multiple * heading``; ``products`` are ``A heading^T``."""

    heading: Tensor
    products: Any
    multiple: Tensor
    step: Step


def step_W(params: Params, d: Tensor, A: Operator, penalty: Regularizer, work: Work) -> Move:
    """``argmin_W (c/2)||A W^T + b - target||^2 + Omega(W)``, Equations 8 and 10, or its majoriser's, 9 and 11."""
    W = params["W"]
    if penalty.quadratic is None:
        exact = work.options.w_solver == "exact"
        return (_exact_proximal_W if exact else _majorised_proximal_W)(params, d, A, penalty, work)
    d = plus_penalty(d, grouped(W, A), penalty.quadratic, A.weight)
    heading, power = unit(direction_W(d, A, penalty, work), work.how)
    products = A.products(heading.to(W.dtype).reshape(W.shape))
    multiple, step = length_W(d, heading, A.squared(products), A, penalty, work, power)
    work.move(W, (heading * multiple).to(W.dtype).reshape(W.shape))
    return Move(heading, products, multiple, step)


def direction_W(
    d: Tensor, A: Operator, penalty: Regularizer, work: Work, dtype: torch.dtype | None = None
) -> Tensor:
    """``-d``, or the exact solver's ``-(A^T A + lambda/c I + delta/c I)^-1 d``: d is the gradient over c.

    ``dtype`` is that of A, where d is kept in a finer one: the Gram matrix is no more exact than A's products.
    """
    if work.options.w_solver == "quadratic":
        return -d
    return -factor_of(A, dtype or d.dtype, penalty, work).solve(d)


def factor_of(A: Operator, dtype: torch.dtype, penalty: Regularizer, work: Work) -> Factor:
    """The factor of ``A^T A + t I``, t = (lambda + delta)/c with the damping delta."""
    gram, strength = A.gram(), penalty.quadratic
    damping = work.options.damping_of(A.n_inputs, last=work.last)
    on_device = isinstance(strength, Tensor)

    def make() -> Factor:
        shift = damping * gram.diagonal(dim1=-2, dim2=-1).mean(-1)
        if strength is not None:
            shift = shift + strength / A.weight
        return damped_factor(gram, shift, dtype, work.how, well_damped=damping)

    numbers = (A.weight, damping, None if on_device else strength, dtype)
    sources = (gram, strength) if on_device else (gram,)
    return work.cached("factor", sources, make, numbers)


def length_W(
    d: Tensor,
    heading: Tensor,
    moved_squared: Tensor,
    A: Operator,
    penalty: Regularizer,
    work: Work,
    power: Tensor | float = 1.0,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Step]:
    """How far along the heading, from ``||A heading^T||^2``, and what that promises; ``-d`` is power * heading.

    Quadratic: ``argmin_W P(W; theta) + Omega(W)``, theta by Algorithms 4 and 6 in closed form: the curvature along
    d is ``q = c ||A d^T||^2 / ||d||^2``. Exact: the best multiple, which is 1 up to rounding.
    """
    options, strength = work.options, 0.0 if penalty.quadratic is None else penalty.quadratic
    squared = total_square(work.how, heading.flatten(0, -2))
    if options.w_solver == "quadratic":
        multiple, length, rate = _majorised_length(
            work.how, squared, moved_squared, power,
            c=A.weight, strength=strength, start=options.start_of_W(last=work.last), growth=options.growth,
        )  # fmt: skip
    else:
        total = factor_of(A, dtype or d.dtype, penalty, work).shift
        slope = -(d * heading).sum(dtype=torch.float64)
        shifted = total * (squared if total.ndim == 0 else heading.square().sum((-2, -1)))
        multiple, length, rate = _solved_length(
            work.how, squared, moved_squared, slope, shifted.sum(), c=A.weight, strength=strength
        )
    return multiple, Step("W", length, rate)


@one_launch("majorised_length")
def _majorised_length(
    squared: Tensor,
    moved_squared: Tensor,
    power: Tensor | float,
    *,
    c: float,
    strength: float | Tensor,
    start: float | None,
    growth: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Multiple of the heading, squared length of the step and what it promises, from the lengths of h and A h^T."""
    alpha = backtracked(c * ratio(moved_squared, squared), start, growth)
    multiple = torch.where(squared > 0, power * c / (alpha + strength), torch.zeros_like(alpha))
    return multiple, squared * multiple.square(), (alpha + strength) / 2


@one_launch("solved_length")
def _solved_length(
    squared: Tensor,
    moved_squared: Tensor,
    slope: Tensor,
    shifted: Tensor,
    *,
    c: float,
    strength: float | Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same for a heading that solves the subproblem: the best multiple, which is 1 up to rounding."""
    multiple = line_search(slope, moved_squared + shifted)
    rate = c * ratio(moved_squared / 2 + shifted, squared) - strength / 2
    return multiple, squared * multiple.square(), rate


def _majorised_proximal_W(params: Params, d: Tensor, A: Operator, penalty: Regularizer, work: Work) -> Move:
    """``argmin_W P(W; alpha) + Omega(W)`` for a penalty without a quadratic form: alpha is searched.

    The test ``phi <= P`` is ``c ||A (zeta - W)^T||^2 <= alpha ||zeta - W||^2``, free of cancellation.
    """
    W, c, options = params["W"], A.weight, work.options
    d = d.reshape(W.shape)
    alpha = options.start_of_W(last=work.last)
    if alpha is None:
        heading, _ = unit(d)
        alpha = float(c * ratio(A.squared(A.products(heading)), squared_norm(heading)))
    alpha = max(alpha, torch.finfo(W.dtype).tiny)
    for _ in range(options.max_backtracks):
        move = penalty.prox(W - d * (c / alpha), 1.0 / alpha) - W
        products, squared = A.products(move), squared_norm(move)
        if float(c * A.squared(products)) <= alpha * float(squared) * (1 + 1e-6):
            work.move(W, move)
            step = Step("W", squared, torch.full_like(squared, alpha / 2))
            return Move(grouped(move, A), products, torch.ones_like(squared), step)
        alpha *= options.growth
    nothing = torch.zeros_like(squared)
    return Move(grouped(move, A), products, nothing, Step("W", nothing, torch.full_like(squared, alpha / 2)))


def _exact_proximal_W(params: Params, d: Tensor, A: Operator, penalty: Regularizer, work: Work) -> Move:
    """Equations 8 and 10 with such a penalty: solved on the Gram matrix, whatever the number of samples."""
    W, c, gram = params["W"], A.weight, A.gram()
    damping = work.options.damping_of(A.n_inputs, last=work.last)
    shape = (A.groups, -1, A.n_inputs)
    groups = zip(W.double().reshape(shape), d.double().reshape(shape), gram.reshape(A.groups, *gram.shape[-2:]),
                 strict=True)  # fmt: skip
    solved = [
        proximal_on_gram(own, slope, G, c, damping * G.diagonal().mean(), penalty) for own, slope, G in groups
    ]
    move = torch.stack([each for each, _ in solved])
    squares = move.square().sum((1, 2))
    promised = torch.stack([delta for _, delta in solved]) @ squares / 2
    products = A.products(move.to(W.dtype).reshape(W.shape))
    squared = squares.sum()
    work.move(W, move.to(W.dtype).reshape(W.shape))
    step = Step("W", squared, ratio(c * A.squared(products) / 2 + promised, squared))
    return Move(grouped(move, A), products, torch.ones_like(squared), step)


def plus_penalty(d: Tensor, W: Tensor, strength: float | Tensor | None, weight: float) -> Tensor:
    """``d + (strength/weight) W``, in the caller's d; a strength that is a tensor on the device stays there."""
    if isinstance(strength, Tensor):
        return d.add_(W * (strength / weight))
    return d.add_(W, alpha=strength / weight) if strength else d
