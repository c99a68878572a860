"""W and b of a block that is linear in them: ``argmin (c/2)||A W^T + 1 b^T - target||^2 + Omega(W)``.

One solver for every such block; the block gives A as an :class:`Operator`. With ``E = A W^T + 1 b^T - target`` the
problem is known by ``d = E^T A`` (the gradient in W over c), the column sums of E and A, and A's products or its Gram
matrix. What b and W do to these sums is known from the Gram matrix or from the product that measures a step, so E is
formed once and the cached prediction moved once for a whole sequence of updates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from dladmm.compute.execution import one_launch
from dladmm.compute.passes import squared_norm
from dladmm.compute.work import Work
from dladmm.regularizers import Regularizer
from dladmm.solvers.subproblems import Params, Step
from dladmm.solvers.weight_step import Move, Operator, direction_W, grouped, length_W, plus_penalty, step_W


def update_linear_parameters(
    order: Sequence[str], params: Params, A: Operator, penalty: Regularizer, work: Work
) -> list[Step]:
    """One step of W or b for every name in ``order``: Equations 6 to 13 in the order the schedule asks for."""
    if order.count("W") > 1 and penalty.quadratic is not None and A.gram_pays and work.how.shortcuts:
        return _on_gram(order, params, A, penalty, work)
    return [step for part in _with_one_W(order) for step in _on_products(part, params, A, penalty, work)]


def _with_one_W(order: Sequence[str]) -> Iterator[Sequence[str]]:
    """The order cut before every W but the first."""
    cuts = [i for i, name in enumerate(order) if name == "W"][1:]
    return (order[begin:end] for begin, end in pairwise([0, *cuts, len(order)]))


def _on_products(
    order: Sequence[str], params: Params, A: Operator, penalty: Regularizer, work: Work
) -> list[Step]:
    """With products of the rows: the product that says how far W goes is what the prediction moves by."""
    d, sums, ones = A.gradient("b" in order)
    steps: list[Step] = []
    move: Move | None = None
    shifts: list[Tensor] = []
    for i, name in enumerate(order):
        once_more = "b" in order[i + 1 :]
        if name == "W":
            move = step_W(params, d, A, penalty, work)
            steps.append(move.step)
            if once_more:
                assert ones is not None
                sums = sums + move.multiple * _times_ones(move.heading, ones)
            continue
        assert ones is not None
        shift, step = mean_b(params, sums, A, penalty, work)
        steps.append(step)
        shifts.append(shift)
        if once_more:
            sums = sums + A.samples * shift.double()
        if move is None:
            _add_outer(d, shift, ones)
    total = _added(shifts)
    A.advance(None if move is None else move.products, None if move is None else move.multiple, total)
    return steps


def _on_gram(
    order: Sequence[str], params: Params, A: Operator, penalty: Regularizer, work: Work
) -> list[Step]:
    """The same with the Gram matrix, ``||A h^T||^2 = <h A^T A, h>``, from which the next gradient follows as well.

    Two products with the samples, one for E^T A and one for the prediction, however many steps are made.
    """
    W, gram = params["W"], A.gram()
    new = W.clone()
    product, sums, _ = A.gradient(False)
    product, steps = product.double(), []
    ones = A.column_sums() if "b" in order else None
    shifts: list[Tensor] = []
    for i, name in enumerate(order):
        W_follows, b_follows = "W" in order[i + 1 :], "b" in order[i + 1 :]
        if name == "b":
            assert ones is not None
            shift, step = mean_b(params, sums, A, penalty, work)
            shifts.append(shift)
            if W_follows:
                _add_outer(product, shift.double(), ones)
            if b_follows:
                sums = sums + A.samples * shift.double()
        else:
            d = plus_penalty(product.clone(), grouped(new, A), penalty.quadratic, A.weight)
            heading = direction_W(d, A, penalty, work, W.dtype).double()
            curved = heading @ gram
            moved_squared = (curved * heading).sum()
            multiple, step = length_W(d, heading, moved_squared, A, penalty, work, dtype=W.dtype)
            move = (heading * multiple).to(W.dtype)
            new.add_(move.reshape(W.shape))
            if W_follows:
                product.addcmul_(curved, multiple)
            if b_follows and ones is not None:
                sums = sums + _times_ones(move, ones)
        steps.append(step)
    A.advance(A.products(new - W), torch.ones((), dtype=W.dtype, device=W.device), _added(shifts))
    work.assign(W, new)
    return steps


# b -----------------------------------------------------------------------------------------------------------------


def mean_b(
    params: Params, sums: Tensor, A: Operator, penalty: Regularizer, work: Work
) -> tuple[Tensor, Step]:
    """``argmin_b (c/2)||E + 1 b'^T||^2``: the mean residual over the samples, from its column sums.

    The paper's step 1/nu (Equations 6, 7, 12 and 13) is written for one sample; with N samples the Lipschitz
    constant of the summed gradient is N nu, and the step 1/(N nu) is this minimiser (Lemma 4 with B = N nu).
    """
    b = params["b"]
    if work.options.penalise_bias and penalty.quadratic:
        return _penalised_mean_b(b, sums, A, float(penalty.quadratic), work)
    shift, squared, rate = _mean(work.how, sums, dtype=b.dtype, samples=A.samples, weight=A.weight)
    work.move(b, shift)
    return shift, Step("b", squared, rate)


def _penalised_mean_b(
    b: Tensor, sums: Tensor, A: Operator, strength: float, work: Work
) -> tuple[Tensor, Step]:
    """The same with ``(strength/2)||b + b'||^2`` beside it."""
    curvature = A.weight * A.samples + strength
    shift = -((A.weight * sums + strength * b.double()) / curvature).to(b.dtype)
    work.move(b, shift)
    squared = squared_norm(shift)
    return shift, Step("b", squared, torch.ones_like(squared) * (curvature / 2))


@one_launch("mean_shift")
def _mean(
    sums: Tensor, *, dtype: torch.dtype, samples: float | Tensor, weight: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The shift ``-sums / samples`` of b, its squared length and what it promises."""
    shift = -(sums / samples).to(dtype)
    return shift, squared_norm(shift), sums.new_ones(()) * (weight / 2 * samples)


def _added(shifts: Sequence[Tensor]) -> Tensor | None:
    """The shift of all updates of b together; None if there was none."""
    return sum(shifts[1:], shifts[0]) if shifts else None


def _add_outer(d: Tensor, shift: Tensor, ones: Tensor) -> None:
    """``d += shift ones^T``, group by group."""
    if d.ndim == 2:
        d.addr_(shift.to(d.dtype), ones.to(d.dtype))
    else:
        d += shift.to(d.dtype).reshape(*d.shape[:2], 1) * ones.to(d.dtype).reshape(len(d), 1, -1)


def _times_ones(heading: Tensor, ones: Tensor) -> Tensor:
    """``heading 1^T A``, one number per output."""
    return (heading.double() @ ones.double()[..., None])[..., 0].flatten()
