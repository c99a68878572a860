"""The best answers that do not look at the inputs: what a network must beat to have learnt anything."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from dladmm.compute.chunks import few
from dladmm.compute.communicator import ALONE, Communicator
from dladmm.losses.base import Loss, Risk
from dladmm.losses.classification import SquaredHinge
from dladmm.solvers.fista import fista

MOST_ROWS = 5000
"""Rows on which the best constant is searched for, where the mean target does not say it."""

TINY = 1e-300

LEVELS, STEPS = 17, 100
"""Quantiles of the targets that are tried first, and steps of FISTA from the best of them."""


@dataclass(frozen=True)
class Constants:
    """Constant answers learnt from the targets of some rows.

    Attributes
    ----------
    output : Tensor of shape (n_outputs,)
        The outputs of least mean loss, or close to them: never better ones than there are.
    mean : Tensor of shape (n_targets,)
        The mean target, the best answer by R^2.
    frequent : Tensor of shape (n_outputs,)
        Outputs that stand for the most frequent class, of several labels for those that most rows have; zeros in a
        regression.
    """

    output: Tensor
    mean: Tensor
    frequent: Tensor


@torch.no_grad()
def constants_of(
    risk: Risk, n_outputs: int, counts: Tensor | None = None, comm: Communicator = ALONE
) -> Constants:
    """What the targets of a risk say without inputs; ``counts`` (n_samples, 1) says how often samples count.

    On several ranks one message, and one more for losses whose best constant is not a function of the mean target.
    """
    target, loss = risk.target, risk.loss
    weight = weights_of(risk, len(target), counts)
    own = target.new_full((), len(target), dtype=torch.float64) if weight is None else weight.sum()
    mean = mean_target(risk, counts, comm)
    output = loss.best_constant(mean)
    if output is None:
        # Of several ranks the mean of what they find: no better than the best one, and seldom much worse
        found = _searched(loss, target, weight, n_outputs)
        total, n = comm.total(found * own, own.clone())
        output = total / n.clamp_min(TINY)
    if loss.kind != "classification":
        frequent = torch.zeros_like(output)
    elif n_outputs > 1 and loss.one_answer_per_row:
        frequent = F.one_hot(mean.argmax(), n_outputs).to(mean)
    else:
        middle = 0.0 if isinstance(loss, SquaredHinge) else 0.5
        frequent = torch.where(mean > middle, 1.0, -1.0).to(mean)
    return Constants(output, mean, frequent)


def mean_target(risk: Risk, counts: Tensor | None = None, comm: Communicator = ALONE) -> Tensor:
    """The mean of the targets of all ranks, (n_targets,) in float64."""
    target, weight = risk.target, weights_of(risk, len(risk.target), counts)
    total = (target.sum(0) if weight is None else weight.to(target) @ target).double()
    n = target.new_full((), len(target), dtype=torch.float64) if weight is None else weight.sum()
    total, n = comm.total(total, n)
    return total / n.clamp_min(TINY)


def weights_of(risk: Risk, n_rows: int, counts: Tensor | None) -> Tensor | None:
    """What every target counts, (N,) in float64: its own weight times how often its sample counts; None for 1 each."""
    weight = None if risk.weight is None else risk.weight[:, 0].double()
    if counts is not None:
        repeated = counts[:, 0].double().repeat_interleave(n_rows // max(1, len(counts)))
        weight = repeated if weight is None else weight * repeated
    return weight


def _searched(loss: Loss, target: Tensor, weight: Tensor | None, n_outputs: int) -> Tensor:
    """argmin_c of the weighted mean of ``l(c, y_i)``, by FISTA from the best of some quantiles."""
    if len(target) == 0 or (weight is not None and not bool(weight.sum() > 0)):
        return target.new_zeros(n_outputs, dtype=torch.float64)
    target = few(target, MOST_ROWS).double()
    weight = target.new_ones(len(target)) if weight is None else few(weight, MOST_ROWS)
    share = weight / weight.sum()

    def value_grad(c: Tensor) -> tuple[Tensor, Tensor]:
        z = c.repeat(len(target), 1)
        losses = loss.rows(z, target)
        value = losses / len(target) if losses.ndim == 0 else losses.double() @ share
        return value, (share @ loss.gradient(z, target).double())[None]

    starts = [target.new_zeros(1, n_outputs)]
    if loss.kind == "regression" and target.shape[1] == n_outputs:
        ordered = target[weight > 0].sort(0).values
        places = torch.linspace(0, len(ordered) - 1, LEVELS).round().long()
        starts += [ordered[place][None] for place in places]
    values = torch.stack([value_grad(c)[0].double() for c in starts])
    start = starts[int(values.nan_to_num(torch.inf).argmin())]
    found = fista(value_grad, start, loss.H, 0.0, 1e-5, STEPS).x
    better = bool(value_grad(found)[0] <= values.min())
    return (found if better else start)[0]
