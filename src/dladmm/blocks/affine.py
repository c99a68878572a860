"""Affine block: ``m = A W^T + b``, the paper's ``z_l = W_l a_{l-1} + b_l`` with samples as rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dladmm.base.errors import InputError
from dladmm.blocks.affine_input import exact_a, quadratic_a
from dladmm.blocks.affine_numbers import majorised_numbers, mean_numbers, plus, solved_numbers
from dladmm.blocks.base import Anchor, Block, Params, Scope, Step, Term
from dladmm.compute.chunks import Again
from dladmm.compute.norms import ratio, squared_norm, unit
from dladmm.compute.passes import advance, blind, by_columns, column_sums, on_gpu, total_square
from dladmm.compute.precision import direction
from dladmm.regularizers import Regularizer
from dladmm.solvers.proximal_gram import proximal_on_gram
from dladmm.solvers.subproblems import (
    SubproblemOptions,
    damped_cholesky,
    full_precision_gram,
    inverse_of_triangular,
)

Products = Again[tuple[Term, Tensor]]
"""``A h^T`` of every chunk of rows, beside the chunk's term: of one chunk it is kept, of several it is made again."""


WELL_DAMPED = 0.01
"""Of the mean eigenvalue: the largest is then at most 100 n times what the damping makes the smallest."""

IN_RANGE = 1e9
"""What is within it and its inverse can be divided by twice in float32."""


class Move(NamedTuple):
    """W has moved by ``multiple * heading``; ``products`` are ``A heading^T``."""

    heading: Tensor
    products: Products
    multiple: Tensor
    step: Step


class Affine(Block):
    """``g((W, b), a) = a W^T + b``, quadratic in W, in b and in a.

    With ``E = m - target`` and ``c`` the term's weight, phi is ``(c/2)||E||^2`` plus what does not depend on the
    variable at hand. The cached ``m`` moves with every update, so each update of W or a costs two products.
    """

    linear = True
    counts_rows = True
    by_rows = True
    sharded = True
    asks_differences = True
    shares_on_device = True
    knows_of_input = ("gram", "factor", "factor_key", "sums", "own sums")
    penalised = ("W",)

    def __init__(self, n_in: int, n_out: int, bias: bool = True) -> None:
        if n_in < 1 or n_out < 1:
            raise InputError(
                f"an affine block needs at least one input and one output, got {n_in} -> {n_out}."
            )
        self.n_in, self.n_out, self.bias = n_in, n_out, bias

    def __repr__(self) -> str:
        return f"Affine({self.n_in}, {self.n_out}{'' if self.bias else ', bias=False'})"

    def recordable(self, options: SubproblemOptions) -> bool:
        return True

    def initial_parameters(self, generator: torch.Generator | None, scale: float) -> Params:
        deviation = scale * math.sqrt(2.0 / self.n_in)
        W = torch.randn(self.n_out, self.n_in, generator=generator, dtype=torch.float64) * deviation
        b = torch.zeros(self.n_out, dtype=torch.float64)
        return {"W": W, "b": b} if self.bias else {"W": W}

    def forward(self, params: Params, v: Tensor) -> Tensor:
        return nn.functional.linear(v, params["W"], params.get("b"))

    def write_forward(self, params: Params, v: Tensor, out: Tensor) -> Tensor:
        if not self.bias:
            return torch.mm(v, params["W"].T, out=out)
        return torch.addmm(params["b"], v, params["W"].T, out=out)

    def to_module(self, params: Params) -> nn.Module:
        W = params["W"]
        # skip_init: nn.Linear would otherwise draw from the caller's global generator
        module: nn.Linear = nn.utils.skip_init(  # type: ignore[no-untyped-call]
            nn.Linear, self.n_in, self.n_out, bias=self.bias, device=W.device, dtype=W.dtype
        )
        with torch.no_grad():
            module.weight.copy_(W)
            if self.bias:
                module.bias.copy_(params["b"])
        return module

    # Parameters ------------------------------------------------------------------------------------------------

    def update_parameters(
        self, params: Params, v: Tensor, term: Term, penalty: Regularizer, scope: Scope
    ) -> list[Step]:
        """Algorithm 2: lines 7, 10 and 12 backward (b, then W), lines 15, 17 and 21 forward (W, then b).

        What b and W do to the column sums of E is known from those of A. So the gap is formed once and the cached m
        moved once for both.
        """
        scope.memory.pop("input", None)
        product, sums = self._gap_products(v, term, scope)
        ones_A = None
        if self.bias:
            d, sums, ones_A = term.total(product, sums, self._own_sums(v, term, scope))
        else:
            (d,) = term.total(product)
        steps: list[Step] = []
        shift = None
        if ones_A is not None and not scope.forward:
            shift, step = self._mean_b(params, sums, term)
            steps.append(step)
        if ones_A is not None and shift is not None:
            d.addr_(shift, ones_A.to(d.dtype))
        move = self._solve_W(params, v, d, term, penalty, scope)
        steps.append(move.step)
        if ones_A is not None and scope.forward:
            sums = sums + move.multiple * (move.heading.double() @ ones_A)
            shift, step = self._mean_b(params, sums, term)
            steps.append(step)
        for part, product in move.products:
            gap = None
            if scope.asked == "term":
                gap = scope.leave("gap", part.prediction, part.target, part)
            multiple = move.multiple.to(d.dtype)
            advance(part.prediction, product, part.target, gap, multiple=multiple, shift=shift)
        return steps

    def turn(self, params: Params, v: Tensor, term: Term, penalty: Regularizer, scope: Scope) -> list[Step]:
        """Lines 10 and 12, then 15 and 17 of Algorithm 2 for l = 1: b, W, W, b with nothing in between.

        The two steps of W are made on the Gram matrix of the data, ``||A h^T||^2 = <h A^T A, h>``, which the second
        gradient follows from as well: two products with the samples instead of four. With few samples those are cheap.
        """
        if penalty.quadratic is None or term.n_rows < 4 * self.n_in:
            return super().turn(params, v, term, penalty, scope)
        scope.memory.pop("input", None)
        W, gram, before = params["W"], self._gram(v, term, scope), params["W"].clone()
        product, sums = term.total(*self._gap_products(v, term, scope))
        product, steps, shifts = product.double(), [], []
        if self.bias:
            ones_A = self._ones(v, term, scope)
            shift, step = self._mean_b(params, sums, term)
            steps.append(step)
            shifts.append(shift)
            product.addr_(shift.double(), ones_A)
        for _ in range(2):
            d = plus(product.clone(), W, penalty.quadratic / term.weight)
            heading = self._heading(d, v, term, penalty, scope).double()
            moved_squared = ((heading @ gram) * heading).sum()
            multiple, step = self._multiple(d, heading, moved_squared, term, penalty, scope)
            move = (heading * multiple).to(W.dtype)
            W.add_(move)
            product.addmm_(move.double(), gram)
            steps.append(step)
        D = W - before
        for part, A in term.parts(v):
            part.prediction.addmm_(A, D.T)
        if self.bias:
            sums = sums + term.samples() * shift.double() + D.double() @ ones_A
            shift, step = self._mean_b(params, sums, term)
            steps.append(step)
            shifts.append(shift)
            advance(term.prediction, None, None, None, multiple=None, shift=sum(shifts))
        return steps

    def _mean_b(self, params: Params, sums: Tensor, term: Term) -> tuple[Tensor, Step]:
        """``argmin_b (c/2)||m + b' - target||^2``: the mean residual over the samples, from its column sums.

        The paper's step 1/nu (Equations 6, 7, 12 and 13) is written for one sample; with N samples the Lipschitz
        constant of the summed gradient is N nu, and the step 1/(N nu) is this minimiser (Lemma 4 with B = N nu). The
        cached m is left to the caller.
        """
        shift, squared, rate = mean_numbers(sums, params["b"], samples=term.samples(), weight=term.weight)
        return shift, Step("b", squared, rate)

    def _solve_W(
        self, params: Params, A: Tensor, d: Tensor, term: Term, penalty: Regularizer, scope: Scope
    ) -> Move:
        """``argmin_W (c/2)||A W^T + b - target||^2 + Omega(W)``, Equations 8 and 10, or its majoriser's, 9 and 11.

        ``d = E^T A``. Either way W moves along a heading, and the product of A with it, which says how far, is what
        the cached m moves by.
        """
        W = params["W"]
        if penalty.quadratic is None:
            solve = self._exact_proximal_W if scope.options.w_solver == "exact" else self._proximal_W
            return solve(params, A, d, term, penalty, scope)
        d = plus(d, W, penalty.quadratic / term.weight)
        heading, power = unit(self._heading(d, A, term, penalty, scope))
        products = self._products(A, heading.to(W.dtype), term, scope)
        multiple, step = self._multiple(d, heading, _squared(products, term), term, penalty, scope, power)
        W.add_((heading * multiple).to(W.dtype))
        return Move(heading, products, multiple, step)

    def _products(self, A: Tensor, heading: Tensor, term: Term, scope: Scope) -> Products:
        """``A heading^T``, in a buffer."""

        def make() -> Iterator[tuple[Term, Tensor]]:
            for part, some in term.parts(A):
                yield part, torch.mm(some, heading.T, out=scope.buffer("moved", part.prediction, part))

        return Again(make, term.whole)

    def _heading(self, d: Tensor, A: Tensor, term: Term, penalty: Regularizer, scope: Scope) -> Tensor:
        """``-d``, or the exact solver's ``-(A^T A + lambda/c I + delta/c I)^-1 d``: d is the gradient over c."""
        if scope.options.w_solver == "quadratic":
            return -d
        factor, _ = self._factor(A, term, penalty, scope)
        if on_gpu(factor):
            return -(d.double() @ factor.T) @ factor
        return -torch.cholesky_solve(d.to(factor.dtype).T, factor).T

    def _multiple(
        self,
        d: Tensor,
        heading: Tensor,
        moved_squared: Tensor,
        term: Term,
        penalty: Regularizer,
        scope: Scope,
        power: Tensor | float = 1.0,
    ) -> tuple[Tensor, Step]:
        """How far along the heading, from ``||A heading^T||^2``, and what that promises; ``-d`` is power * heading.

        Quadratic: ``argmin_W P(W; theta) + Omega(W)``, theta by Algorithms 4 and 6 in closed form: the curvature along
        d is ``q = c ||A d^T||^2 / ||d||^2``. Exact: the best multiple, which is 1 up to rounding.
        """
        c, curvature = term.weight, 0.0 if penalty.quadratic is None else penalty.quadratic
        squared = total_square(heading, None)
        if scope.options.w_solver == "quadratic":
            multiple, length, rate = majorised_numbers(
                squared,
                moved_squared,
                power,
                c=c,
                curvature=curvature,
                start=scope.options.alpha0,
                growth=scope.options.growth,
            )
        else:
            _, total = scope.memory["factor"]
            slope = -(d * heading).sum(dtype=torch.float64)
            multiple, length, rate = solved_numbers(
                squared, moved_squared, slope, total, c=c, curvature=curvature
            )
        return multiple, Step("W", length, rate)

    def _gram(self, A: Tensor, term: Term, scope: Scope) -> Tensor:
        """``A^T A``, which lives in the block's memory while the input stays.

        For the first layer that is always, for the others from the forward sweep to the next backward sweep.
        """
        found: Tensor | None = scope.memory.get("gram")
        if found is None:
            parts = (full_precision_gram(some, part.rows) for part, some in term.parts(A))
            (found,) = term.total(reduce(Tensor.add_, parts))
            scope.memory["gram"] = found
        return found

    def _damping(self, gram: Tensor, scope: Scope) -> Tensor:
        return scope.options.damping_of(self.n_in, last=scope.last) * gram.diagonal().mean()

    def _factor(self, A: Tensor, term: Term, penalty: Regularizer, scope: Scope) -> tuple[Tensor, Tensor]:
        """Cholesky factor, made in float64, of ``A^T A + t I``, and t: (lambda + delta)/c with the damping delta.

        On a GPU the inverse of the factor: a triangular solve is slow there. On a CPU it is rounded to the dtype of A
        where that is harmless: exact products decide how far a heading goes, so what a rounded one promises holds.
        """
        gram = self._gram(A, term, scope)
        key = (term.weight, scope.options.damping_of(self.n_in, last=scope.last))
        made_for = scope.memory.get("factor_key")
        if made_for is None or made_for[0] is not penalty or made_for[1:] != key:
            shift = self._damping(gram, scope)
            if penalty.quadratic is not None:
                shift = shift + penalty.quadratic / term.weight
            factor, total = damped_cholesky(gram, shift, A.dtype, blind=blind(gram))
            if on_gpu(factor):
                factor = inverse_of_triangular(factor)
            elif key[1] >= WELL_DAMPED and not blind(factor) and _in_range(factor.diagonal()):
                factor = factor.to(A.dtype)
            scope.memory["factor"] = factor, total
            scope.memory["factor_key"] = penalty, *key
        found: tuple[Tensor, Tensor] = scope.memory["factor"]
        return found

    def _proximal_W(
        self, params: Params, A: Tensor, d: Tensor, term: Term, penalty: Regularizer, scope: Scope
    ) -> Move:
        """The same for a penalty without a quadratic form: the step depends on alpha, so the loop is run.

        Its test ``phi <= P`` is ``c ||A (zeta - W)^T||^2 <= alpha ||zeta - W||^2``, free of cancellation.
        """
        W, c, options = params["W"], term.weight, scope.options
        alpha = options.alpha0
        if alpha is None:
            heading, _ = unit(d)
            alpha = float(
                c * ratio(_squared(self._products(A, heading, term, scope), term), squared_norm(heading))
            )
        alpha = max(alpha, torch.finfo(W.dtype).tiny)
        for _ in range(options.max_backtracks):
            move = penalty.prox(W - d * (c / alpha), 1.0 / alpha) - W
            moved = self._products(A, move, term, scope)
            squared = squared_norm(move)
            if float(c * _squared(moved, term)) <= alpha * float(squared) * (1 + 1e-6):
                W.add_(move)
                return Move(move, moved, *_taken(squared, torch.full_like(squared, alpha / 2)))
            alpha *= options.growth
        nothing = torch.zeros_like(squared)
        return Move(move, moved, nothing, Step("W", nothing, torch.full_like(squared, alpha / 2)))

    def _exact_proximal_W(
        self, params: Params, A: Tensor, d: Tensor, term: Term, penalty: Regularizer, scope: Scope
    ) -> Move:
        """Equations 8 and 10 with such a penalty: solved on the Gram matrix, whatever the number of samples."""
        W, c, gram = params["W"], term.weight, self._gram(A, term, scope)
        damping = self._damping(gram, scope)
        move, delta = proximal_on_gram(W.double(), d.double(), gram, c, damping, penalty)
        moved = self._products(A, move.to(W.dtype), term, scope)
        squared, moved_squared = squared_norm(move), _squared(moved, term)
        W.add_(move.to(W.dtype))
        return Move(move, moved, *_taken(squared, c * ratio(moved_squared, squared) / 2 + delta / 2))

    def _ones(self, A: Tensor, term: Term, scope: Scope) -> Tensor:
        """The column sums of the data, which stay."""
        found: Tensor | None = scope.memory.get("sums")
        if found is None:
            (found,) = term.total(self._column_sums(A, term))
            scope.memory["sums"] = found
        return found

    def _own_sums(self, A: Tensor, term: Term, scope: Scope) -> Tensor:
        """The column sums of this process's rows of A, kept from a forward sweep to the next backward one."""
        if "own sums" not in scope.memory:
            scope.memory["own sums"] = self._column_sums(A, term)
        found: Tensor = scope.memory["own sums"]
        return found.clone()

    def _column_sums(self, A: Tensor, term: Term) -> Tensor:
        return reduce(Tensor.add_, (column_sums(some, part.rows) for part, some in term.parts(A)))

    def _gap_products(self, A: Tensor, term: Term, scope: Scope) -> tuple[Tensor, Tensor]:
        """``E^T A`` and the column sums of ``E = prediction - target``, every row as often as it counts.

        Over the rows of this process: the caller makes totals of them, together with what else it needs.
        """
        found: list[Tensor] = []
        for part, some in term.parts(A):
            E = scope.difference("gap", part.prediction, part.target, part)
            if part.rows is not None:
                E.mul_(part.rows)
            own = [direction(E.T, some), column_sums(E)]
            found = [total.add_(more) for total, more in zip(found, own, strict=True)] if found else own
        return found[0], found[1]

    def parameter_stationarity(self, params: Params, v: Tensor, term: Term, penalty: Regularizer) -> Tensor:
        product, sums = term.total(*self._gap_products(v, term, Scope(SubproblemOptions())))
        total = squared_norm(penalty.stationarity(params["W"], term.weight * product))
        return total + squared_norm(term.weight * sums) if self.bias else total

    # Input -----------------------------------------------------------------------------------------------------

    def update_input(self, params: Params, v: Tensor, anchor: Anchor, term: Term, scope: Scope) -> list[Step]:
        """Algorithm 2, lines 5 and 19: ``argmin_a (nu/2)||a - f(z)||^2 + (c/2)||a W^T + b - target||^2``."""
        for stale in ("gram", "factor_key", "sums", "own sums"):
            scope.memory.pop(stale, None)
        c = term.weight / anchor.weight
        solve = exact_a if scope.options.a_solver == "exact" else quadratic_a
        return [solve(params["W"], v, c, anchor, term, scope)]

    def input_gradient(self, params: Params, v: Tensor, term: Term) -> Tensor:
        return self.pull_back(params, v, term.prediction, term.weight * term.residual())

    def pull_back(self, params: Params, v: Tensor, prediction: Tensor, force: Tensor) -> Tensor:
        return direction(force, by_columns(params["W"]))


def _squared(products: Products, term: Term) -> Tensor:
    """``||A h^T||^2``."""
    own = reduce(Tensor.add_, (total_square(product, part.rows) for part, product in products))
    return term.total(own)[0]


def _in_range(diagonal: Tensor) -> bool:
    low, high = diagonal.aminmax()
    return bool(low > 1 / IN_RANGE) and bool(high < IN_RANGE)


def _taken(squared: Tensor, rate: Tensor) -> tuple[Tensor, Step]:
    """A heading gone to its end."""
    return torch.ones_like(squared), Step("W", squared, rate)
