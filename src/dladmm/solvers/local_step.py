"""One majorised step with the local gradient of a single block, for blocks without closed forms (Algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dladmm.compute.passes import squared_norm
from dladmm.compute.work import Work, like_rows
from dladmm.regularizers import Regularizer
from dladmm.solvers.subproblems import Anchor, Params, Term, Trial, rise_of_square, searched

Evaluate = Callable[[list[Tensor]], Tensor]
Point = Callable[[float, list[Tensor]], list[Tensor]]


MARGIN, LONGER = 1.1, 4.0
"""Above the curvature that was met last; how much smaller than the accepted one it is believed to be at most."""


class Found(NamedTuple):
    """Where a majorised step ends: the values and their prediction, which is None where nothing moves."""

    values: list[Tensor]
    prediction: Tensor | None
    squared: Tensor
    rate: Tensor


class Known(NamedTuple):
    """What a caller of :func:`majorised_step` has already.

    Attributes
    ----------
    prediction, residual : Tensor
        At the start; the residual is ``prediction - target``.
    gradients : list of Tensor
        Those of :func:`local_gradients`, of ``further`` too.
    further : callable, optional
        How much another smooth function of the values rises to those evaluated last.
    centre : Tensor, optional
        ``start - anchor.value``.
    """

    prediction: Tensor
    residual: Tensor
    gradients: list[Tensor]
    further: Callable[[], float] | None = None
    centre: Tensor | None = None


def local_gradients(
    values: list[Tensor], evaluate: Evaluate, term: Term, counts: Tensor | None = None
) -> tuple[Tensor, list[Tensor]]:
    """The prediction and the gradient of ``(weight/2)||target - evaluate(values)||^2`` in the values.

    Parameters sum over the samples, row i ``counts_i`` times; a sample's own variables know of one sample.
    """
    leaves = [value.detach().requires_grad_() for value in values]
    with torch.enable_grad():
        prediction = evaluate(leaves)
        pull = term.weight * (prediction.detach() - term.target)
        pull = pull if counts is None else pull * like_rows(counts, pull)
        gradients = torch.autograd.grad(prediction, leaves, pull, allow_unused=True)
    filled = [
        torch.zeros_like(x) if g is None else g.detach() for x, g in zip(leaves, gradients, strict=True)
    ]
    return prediction.detach(), filled


def change_along(
    function: Callable[..., Tensor], values: Sequence[Tensor], moves: Sequence[Tensor]
) -> Tensor:
    """``J moves``: how a function changes along moves of its arguments.

    By two backward passes: ``J^T u`` is linear in u, and its derivative in u along the moves is J's product with them.
    """
    with torch.enable_grad():
        leaves = [value.detach().requires_grad_() for value in values]
        output = function(*leaves)
        u = torch.zeros_like(output, requires_grad=True)
        pulled = torch.autograd.grad(output, leaves, u, create_graph=True, allow_unused=True)
        pairs = [
            (g, move) for g, move in zip(pulled, moves, strict=True) if g is not None and g.requires_grad
        ]
        if not pairs:
            return torch.zeros_like(output)
        (change,) = torch.autograd.grad([g for g, _ in pairs], u, [move for _, move in pairs])
    return change.detach()


def proximal_point(params: Params, penalty: Regularizer, penalised: Sequence[str]) -> Point:
    """``x+`` of a gradient step at a curvature, with the prox of the penalty on the parameters it applies to."""
    start = dict(params)

    def point(curvature: float, gradients: list[Tensor]) -> list[Tensor]:
        moved = zip(start, start.values(), gradients, strict=True)
        stepped = [(name, p - g / curvature) for name, p, g in moved]
        return [penalty.prox(p, 1.0 / curvature) if name in penalised else p for name, p in stepped]

    return point


def majorised_step(
    start: list[Tensor],
    evaluate: Evaluate,
    point: Point | None,
    anchor: Anchor | None,
    term: Term,
    work: Work,
    kind: str,
    known: Known | None = None,
) -> Found:
    """One step ``x+ = point(curvature)`` with the smallest tried curvature that majorises the smooth part there.

    Without ``point`` it is ``x - gradient / curvature``: then lengths are known in closed form, and a trial that fails
    says by its own curvature where to try next.

    A term ``(anchor.weight/2)||x - anchor.value||^2`` is part of phi; its own excess is known in closed form, so
    only the difference of the predictions is searched. When the cap is reached nothing moves.
    Nothing is written: the caller hands what was found to its work.
    """
    if known is None:
        old, gradients = local_gradients(start, evaluate, term, work.counts if anchor is None else None)
        known = Known(old, old - term.target, gradients)
    old, residual, gradients, further, centre = known
    if anchor is None:  # parameters, which are shared by all samples
        gradients = list(work.total(*gradients))
    # Of what moves: a sample's variables count as often as it does
    counts = None if anchor is None else work.counts

    def everywhere(*numbers: float) -> Sequence[float]:
        """Sums over the samples of this process as sums over all."""
        if work.shards is None:
            return numbers
        found: list[float] = work.total(old.new_tensor(numbers, dtype=torch.float64))[0].tolist()
        return found

    def lengths(*numbers: float) -> Sequence[float]:
        """The same of sums over the entries of what moves, which parameters have alike on every rank."""
        return numbers if anchor is None else everywhere(*numbers)

    own = 0.0
    if anchor is not None:
        own = anchor.weight
        centre = start[0] - anchor.value if centre is None else centre
        gradients = [gradients[0].add(centre, alpha=own)]
    zero = torch.zeros((), dtype=torch.float64, device=old.device)
    first = _first_curvature(work, kind, term.weight, own, leaps=point is None)
    straight = sum(float(squared_norm(g, counts)) for g in gradients)
    if lengths(straight)[0] == 0.0:
        return Found(start, None, zero, torch.full_like(zero, first / 2))
    values, new, tried = start, old, Trial(0.0, 0.0, 0.0)
    towards = _inner(gradients[0], centre, counts) if point is None and centre is not None else 0.0

    @torch.no_grad()
    def trial(curvature: float) -> Trial:
        nonlocal values, new, tried
        if point is None:
            values = [x.sub(g, alpha=1 / curvature) for x, g in zip(start, gradients, strict=True)]
        else:
            values = point(curvature, gradients)
        new = evaluate(values)
        change, gap = (_rooted(x, work.counts) for x in (new - old, residual))
        rise = term.weight / 2 * float(rise_of_square(change, gap))
        if further is not None:
            rise += further()
        if point is None:
            linear, squared = -straight / curvature, straight / curvature / curvature  # without overflow
            rise += own * (squared / 2 - towards / curvature)
        else:
            moves = [moved - x for moved, x in zip(values, start, strict=True)]
            pairs = zip(gradients, moves, strict=True)
            if centre is not None:
                rise += own * _inner(moves[0], centre + moves[0] / 2, counts)
            linear = sum(_inner(g, move, counts) for g, move in pairs)
            squared = sum(float(squared_norm(move, counts)) for move in moves)
        tried = Trial(*everywhere(rise), *lengths(linear, squared))
        return tried

    def slack() -> float:
        squared = float(squared_norm(residual, work.counts))
        return torch.finfo(old.dtype).eps * term.weight / 2 * everywhere(squared)[0]

    curvature = searched(trial, first, slack, work.options, leaps=point is None)
    if curvature is None:
        return Found(start, None, zero, torch.full_like(zero, first / 2))
    if point is None:  # what rounding accepted may measure any curvature: never more than what was taken
        work.curvatures[kind] = max(min(tried.curvature, curvature), curvature / LONGER)
    else:
        work.curvatures[kind] = curvature
    return Found(values, new, zero + tried.squared, torch.full_like(zero, curvature / 2))


def _rooted(x: Tensor, counts: Tensor | None) -> Tensor:
    """Rows times the root of how often they count, so that squares count so often."""
    return x if counts is None else x * like_rows(counts.to(x.dtype).sqrt(), x)


def _inner(x: Tensor, y: Tensor, counts: Tensor | None) -> float:
    """``<x, y>`` added in float64, every row as often as it counts."""
    product = x * y
    return float(
        (product if counts is None else product * like_rows(counts, product)).sum(dtype=torch.float64)
    )


def _first_curvature(work: Work, kind: str, weight: float, own: float, *, leaps: bool) -> float:
    """Where a search starts: t0 or alpha0 where they are given, else a quarter of what was accepted last.

    A search that leaps remembers the curvature it met, and starts a little above it.
    """
    given = work.options.alpha0 if kind == "B" else work.options.t0
    if given is not None:
        return given
    remembered = work.curvatures.get(kind)
    if remembered is None:
        return max(weight, own)
    return max(MARGIN * remembered if leaps else remembered / 4, own)
