"""Subproblems: their terms, the options of their solvers, and the paper's backtracking in closed form or as a search.

A backtracking loop that compares two float32 sums decides by rounding noise. Where the function is quadratic the answer
of the loop is computed instead of searched (:func:`backtracked`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from dladmm.base.errors import InputError
from dladmm.base.spec import check_setting
from dladmm.compute.execution import one_launch
from dladmm.compute.passes import ratio
from dladmm.compute.work import Work

Params = dict[str, Tensor]
"""B_l of the paper: the named parameters of one block."""


class Step(NamedTuple):
    """One variable's move: its squared length and the decrease of the Lagrangian the theory promises for it.

    The Lagrangian falls by at least ``rate * squared``; ``rate`` is the paper's theta/2, tau/2, nu/2 ... and
    ``None`` where only "does not rise" is promised (the hidden z_l, whose length is not needed then). ``own`` says that
    both are sums over this process's rows alone; over all ranks ``squared`` and ``rate * squared`` add up.

    ``tie`` is ``||v - value||^2`` of the anchor once v has moved, of this process's rows, where the update computes it;
    ``link`` is the number of that link, set where nothing moves it any more before the iteration ends.
    """

    variable: str
    squared: Tensor | None
    rate: Tensor | None
    own: bool = False
    tie: Tensor | None = None
    link: int | None = None


class Anchor(NamedTuple):
    """``(weight/2) ||v - value||^2``: what ties a variable to the block that produces it."""

    weight: float
    value: Tensor


@dataclass(frozen=True)
class Term:
    """``(weight/2) ||target - prediction||^2``: what ties a block's output variable to the block.

    ``prediction`` is the cached ``g(B, v)``. An update that hands a move of B or v to its work hands over the
    prediction's move with it, so that g never has to be computed again.
    """

    weight: float
    target: Tensor
    prediction: Tensor

    def residual(self) -> Tensor:
        """``E = prediction - target``."""
        return self.prediction - self.target


Solver = Literal["quadratic", "exact"]
PenaltyStep = Literal["prox", "gradient"]


@dataclass(frozen=True)
class SubproblemOptions:
    """How the subproblems are solved.

    ``w_solver``, ``a_solver``
        ``"quadratic"``: one majorised step with backtracking, as in the paper; ``"exact"``: the minimiser.
    ``alpha0``, ``t0``
        Where the backtracking of W (Algorithms 4 and 6) and of a (Algorithms 3 and 7) starts.
        ``None`` is the tight value: the smallest that majorises along the step, which is exact line search.
    ``last_alpha0``
        The same for W of the last block; ``None`` is ``alpha0``.
    ``growth``
        The paper's gamma and eta, the factor of one backtracking step.
    ``damping``
        Exact W only: weight of the proximal term ``(damping * c * trace(A^T A) / n) / 2 ||W - W_k||^2``.
    ``last_damping``
        The same for the last block, with ``trace(A^T A)`` in the place of the mean ``trace(A^T A) / n``: 1 makes the
        step about as long as a gradient step. ``None`` treats the last block like the others.
    ``map_damping``
        A hidden linear layer with n inputs behind an image (Flatten or pooling before it): its damping is ``damping``
        times this times sqrt(n), between the mean eigenvalue and the trace. Such a layer has so many inputs that it
        would fit whatever is asked of it and leave nothing for the convolutions. ``None`` treats it like the others.
    ``ramps``
        A sweep of accelerated mode sees a ramp in the place of a jump (:mod:`dladmm.solvers.jump_surrogate`).
    ``tau_per_sample``
        Quadratic a only: one tau per row instead of one for all (the paper allows a vector).
    ``penalise_bias``
        The l2 penalty includes the biases, as Property 1 needs it (docs/theory.md); MLPs in convergent mode.
    ``w_penalty``
        ``"prox"``: the penalty on W is added to the majoriser, as in Equations 9, 11, 19 and 20. ``"gradient"``: it is
        majorised too, by its gradient, as in the authors' GCN script; for graphs.
    ``max_backtracks``
        Cap of every loop that has to search; reaching it leaves the variable where it was.
    """

    w_solver: Solver = "exact"
    a_solver: Solver = "exact"
    alpha0: float | None = None
    t0: float | None = None
    growth: float = 2.0
    damping: float = 0.1
    last_damping: float | None = None
    map_damping: float | None = None
    ramps: bool = False
    tau_per_sample: bool = False
    max_backtracks: int = 60
    last_alpha0: float | None = None
    penalise_bias: bool = False
    w_penalty: PenaltyStep = "prox"

    def __post_init__(self) -> None:
        for name in ("w_solver", "a_solver"):
            if getattr(self, name) not in get_args(Solver):
                raise InputError(f"{name} must be one of {get_args(Solver)}, got {getattr(self, name)!r}.")
        if self.w_penalty not in get_args(PenaltyStep):
            raise InputError(f"w_penalty must be one of {get_args(PenaltyStep)}, got {self.w_penalty!r}.")
        for name in ("alpha0", "t0", "last_alpha0"):
            check_setting(
                self, name, float, "a positive number or None (tight)", lambda v: v > 0, optional=True
            )
        check_setting(self, "growth", float, "a number above 1", lambda v: v > 1)
        check_setting(self, "damping", float, "a number >= 0", lambda v: v >= 0)
        for name in ("last_damping", "map_damping"):
            check_setting(self, name, float, "None or a number >= 0", lambda v: v >= 0, optional=True)
        for name in ("ramps", "tau_per_sample", "penalise_bias"):
            check_setting(self, name, bool, "True or False")
        check_setting(self, "max_backtracks", int, "a whole number >= 1", lambda v: v >= 1)

    def start_of_W(self, *, last: bool) -> float | None:
        """Where the backtracking of a block's W starts."""
        return self.last_alpha0 if last and self.last_alpha0 is not None else self.alpha0

    def damping_of(self, n_in: int, *, last: bool) -> float:
        """The damping of a block with ``n_in`` inputs, relative to the mean eigenvalue of its Gram matrix."""
        return self.last_damping * n_in if last and self.last_damping is not None else self.damping

    def behind_maps(self, n_in: int) -> SubproblemOptions:
        """The options of a hidden linear layer behind an image."""
        factor = 1.0 if self.map_damping is None else self.map_damping * math.sqrt(n_in)
        return replace(self, damping=factor * self.damping)

    def damped(self, factor: float) -> SubproblemOptions:
        """The same with ``factor`` times the damping."""
        if factor == 1.0:
            return self
        last = None if self.last_damping is None else factor * self.last_damping
        return replace(self, damping=factor * self.damping, last_damping=last)


def backtracked(required: Tensor, start: float | None, growth: float) -> Tensor:
    """The value at which the backtracking loop of Algorithms 3, 4, 6 and 7 stops.

    phi is quadratic in W and in a, so along a fixed direction the loop's test ``phi > P`` (or ``phi > Q``) is the
    same as ``alpha < required``, where ``required`` is the curvature along that direction. The loop's answer is
    then ``start * growth^j`` with the smallest whole ``j >= 0`` that reaches it. With ``start=None`` the answer is
    ``required`` itself.
    """
    if start is None:
        return required.clamp_min(torch.finfo(torch.float64).tiny)
    floor = torch.full_like(required, start)
    exponent = torch.ceil(torch.log(torch.maximum(required, floor) / floor) / math.log(growth))
    # The logarithm may be off by one unit in the last place exactly where it matters: settle it by the powers.
    exponent = torch.where(floor * growth ** (exponent - 1) >= required, exponent - 1, exponent).clamp_min(0)
    return floor * growth ** torch.where(floor * growth**exponent < required, exponent + 1, exponent)


def line_search(slope: Tensor, curvature: Tensor) -> Tensor:
    """``argmin_s -s slope + (s^2/2) curvature``, at least 0: the best multiple of a move.

    It is 1 for the exact minimiser. A factor that was rounded to float32 resolves stiff directions badly; taking the
    best multiple of what it gives, from products that are computed anyway, keeps every exact solve a descent step.
    """
    return ratio(slope, curvature, 1.0).clamp_min(0.0)


class Trial(NamedTuple):
    """A trial point x+ of a search: ``phi(x+) - phi(x)``, ``<gradient, x+ - x>`` and ``||x+ - x||^2``."""

    rise: float
    linear: float
    squared: float

    @property
    def curvature(self) -> float:
        """What phi has on the way to x+, if it is quadratic there."""
        return 2 * (self.rise - self.linear) / self.squared if self.squared > 0 else 0.0


def searched(
    trial: Callable[[float], Trial],
    start: float,
    slack: Callable[[], float],
    options: SubproblemOptions,
    *,
    leaps: bool = False,
) -> float | None:
    """The first of ``start * growth^j`` at which the majoriser holds, None when the cap is reached.

    With ``leaps`` those are left out that are below the curvature which a failed trial found along its way: of a
    quadratic function they would fail too.

    For functions that are not quadratic. The test is the paper's, on differences:
    ``phi(x+) - phi(x) <= <gradient, x+ - x> + (curvature/2)||x+ - x||^2``, up to ``slack``, the rounding of phi itself.
    """
    curvature = start
    for _ in range(options.max_backtracks):
        rise, linear, squared = tried = trial(curvature)
        excess = rise - linear - curvature / 2 * squared
        if excess <= 0 or excess <= slack():
            return curvature
        curvature *= options.growth
        found = tried.curvature if leaps else 0.0
        while curvature < found < math.inf:
            curvature *= options.growth
    return None


def searched_blindly(excess: Tensor, curvatures: Tensor, slack: Tensor) -> Tensor:
    """What :func:`searched` finds, from the excess at all curvatures: the first that majorises, infinite if none."""
    return torch.where(excess <= slack.clamp_min(0.0), curvatures, torch.inf).min()  # they grow


def rise_of_square(change: Tensor, residual: Tensor, out: Tensor | None = None) -> Tensor:
    """``||residual + change||^2 - ||residual||^2`` as a float64 scalar, without subtracting the two values.

    Entries are multiplied in the given precision and added within a row; rows are added in float64.
    """
    products = torch.add(change, residual, alpha=2, out=out).mul_(change)
    return products.reshape(-1, products.shape[-1]).sum(1).sum(dtype=torch.float64)


def majorised_length(
    d_squared: Tensor, moved_squared: Tensor, anchor: Anchor, term: Term, work: Work
) -> tuple[Tensor, Step]:
    """How far to go against the gradient d, tau by Algorithms 3 and 7 in closed form, and what that promises.

    Everything is over nu: ``q = nu (c ||K d||^2 + ||d||^2) / ||d||^2`` is the curvature along d, for all samples
    together or for each. Given are the squared lengths of the rows of d and of K d, or those of all rows, each as often
    as it counts.
    """
    if d_squared.ndim > 0 and work.counts is not None:
        d_squared, moved_squared = d_squared * work.counts[:, 0], moved_squared * work.counts[:, 0]
    if not work.options.tau_per_sample:
        both = (d_squared, moved_squared)
        d_squared, moved_squared = work.total(*(each.sum() if each.ndim else each for each in both))
    length, squared, rate = _majorised_numbers(
        work.how,
        d_squared,
        moved_squared,
        c=term.weight / anchor.weight,
        nu=anchor.weight,
        start=work.options.t0,
        growth=work.options.growth,
    )
    return length, Step("a", squared, rate, own=work.options.tau_per_sample)


@one_launch("majorised_numbers")
def _majorised_numbers(
    d_squared: Tensor, moved_squared: Tensor, *, c: float, nu: float, start: float | None, growth: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Length of the step, its square with that of the direction, and what it promises."""
    tau = backtracked(nu * (c * ratio(moved_squared, d_squared) + 1), start, growth)
    length = torch.where(d_squared > 0, nu / tau, torch.zeros_like(tau))
    squared = d_squared * length.square()
    total = squared.sum()
    return length, total, ratio((tau * squared).sum(), total, nu) / 2


def solved_step(squared: Tensor, moved_squared: Tensor, c: float, anchor: Anchor) -> Step:
    """What a solved input promises: half its move's squared length in the subproblem's own metric.

    Every sample is solved by itself, so that the lengths are those of this process's rows.
    """
    return Step("a", squared, anchor.weight * (c * ratio(moved_squared, squared) + 1) / 2, own=True)
