"""What a network is worth beside two others that need no training to speak of: a constant answer and a linear model.

A certificate is about optimisation; a network may be certified and useless. This is the measure that comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dladmm.compute.chunks import few
from dladmm.compute.communicator import ALONE, Communicator
from dladmm.losses import Loss, Risk, Squared

MOST_ROWS, MOST_FEATURES, MOST_ENTRIES = 5000, 4000, 8_000_000
"""Rows that a linear model is fitted to at most, and the features and entries of X beyond which there is none."""

STEPS, PENALTY = 60, 1e-3
"""Steps of L-BFGS for a linear classifier, and its penalty on standardised features."""

Pair = tuple[Tensor, Tensor]
"""Inputs (N, ...) and encoded targets (N, n_outputs)."""

NO_BETTER = 0.005
"""A network that is not so much better than another is no better."""


@dataclass(frozen=True)
class Standing:
    """A network's accuracy or R^2 beside that of a constant answer and of a linear model, on the same rows.

    Attributes
    ----------
    measure : {"accuracy", "R^2"}
    rows : str
        Which rows these are: "288 test rows", "1,437 training rows".
    network, constant : float
    linear : float or None
        None where X is too large, sparse or not a table.
    """

    measure: str
    rows: str
    network: float
    constant: float
    linear: float | None

    @property
    def warning(self) -> str | None:
        """In plain words that the network is no better than the constant or the linear model; None if it is."""
        if not self.network > self.constant + NO_BETTER:
            return (
                f"WARNING: on these rows the network is no better than {self._constant}. It has learnt nothing of use: "
                "look at the target, the columns and the scale of the data, or at --loss and --mode."
            )
        if self.linear is not None and self.network < self.linear - NO_BETTER:
            return (
                "WARNING: on these rows a linear model is better than the network. Train it longer, or take the "
                "linear model."
            )
        return None

    @property
    def _constant(self) -> str:
        return (
            "always answering the most frequent class"
            if self.measure == "accuracy"
            else "always answering the mean"
        )

    def lines(self) -> list[str]:
        """The comparison in words, the warning last."""
        linear = "not measured" if self.linear is None else f"{self.linear:.4f}"
        said = (
            f"{self.measure[:1].upper() + self.measure[1:]} on {self.rows}: {self.network:.4f}. "
            f"Beside it: {self._constant} {self.constant:.4f}, a linear model {linear}."
        )
        return [said] if self.warning is None else [said, self.warning]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as ``metrics.json`` has them."""
        return asdict(self) | {"warning": self.warning}


@dataclass
class Evidence:
    """What a result keeps to say how its network stands: its own figure, and a few rows to measure the others by.

    ``network`` is its accuracy or R^2 on ``rows``. Of each split the first are inputs and encoded targets of some of
    these rows, the second those that the others learn from; figures are means over the splits.
    """

    loss: Loss
    network: float
    rows: str
    splits: Sequence[tuple[Pair, Pair]]

    @cached_property
    def standing(self) -> Standing:
        """The comparison, made when it is first asked for."""
        found = [
            _standing(self.loss, self.network, *judged, self.rows, learnt) for judged, learnt in self.splits
        ]
        linear = [each.linear for each in found if each.linear is not None]
        return replace(
            found[0],
            constant=fmean(each.constant for each in found),
            linear=fmean(linear) if linear else None,
        )


@torch.no_grad()
def standing(
    loss: Loss, output: Tensor, target: Tensor, x: Tensor, rows: str, learnt: Pair
) -> Standing | None:
    """How outputs (N, n_outputs) for rows x (N, ...) with encoded targets stand; None where that cannot be said.

    ``learnt`` are inputs and encoded targets of training rows, which the linear model and the constant answer learn
    from. It is the caller who says in ``rows`` whether x is among them.
    """
    if output.ndim != 2 or len(output) == 0 or len(learnt[0]) == 0 or not loss.one_answer_per_row:
        return None
    if loss.kind == "classification":
        network: float | None = _share(loss.decision(output) == loss.decision(target))
    else:
        network = r_squared(Risk(loss, target), output)
    return None if network is None else _standing(loss, network, x, target, rows, learnt)


@torch.no_grad()
def _standing(loss: Loss, network: float, x: Tensor, target: Tensor, rows: str, learnt: Pair) -> Standing:
    known_x, known = (few(each, MOST_ROWS) for each in learnt)
    if loss.kind == "classification":
        truth, seen = loss.decision(target), loss.decision(known)
        common = torch.bincount(seen).argmax()
        answered = _linear_classes(known_x, seen, x)
        linear = None if answered is None else _share(answered == truth)
        return Standing("accuracy", rows, network, _share(truth == common), linear)
    predicted = Risk(Squared(), target)  # the answers are predictions, not outputs that a loss may transform
    constant = r_squared(predicted, known.mean(0).expand_as(target)) or 0.0
    fitted = _linear_values(known_x, known, x)
    return Standing("R^2", rows, network, constant, None if fitted is None else r_squared(predicted, fitted))


def r_squared(
    risk: Risk, output: Tensor, rows: Tensor | None = None, comm: Communicator = ALONE
) -> float | None:
    """The share of the targets' variance that is explained, the mean over outputs; None for classes, constant targets.

    ``rows`` (n_samples, 1) says how often samples count. A loss of one's own may have targets that are not of the
    outputs' shape; then there is none either.
    """
    output, target = risk.loss.decision(risk.flat(output).double()), risk.target
    if risk.loss.kind == "classification" or target.shape != output.shape or not target.is_floating_point():
        return None
    target = target.double()
    weight = target.new_ones(len(target), 1) if risk.weight is None else risk.weight.double()
    if rows is not None:
        weight = weight * rows.double().repeat_interleave(len(output) // max(1, len(rows)), dim=0)
    sums = (weight * (target - output) ** 2).sum(0), (weight * target).sum(0), (weight * target**2).sum(0)
    errors, total, squares, n = comm.total(*sums, weight.sum())
    spread = squares - total**2 / n
    varies = spread > 1e-12 * squares
    explained = 1 - errors[varies] / spread[varies]
    return float(explained.mean()) if len(explained) else None


def _share(hits: Tensor) -> float:
    return float(hits.double().mean())


def _columns(known: Tensor, x: Tensor) -> tuple[Tensor, Tensor] | None:
    """Both as standardised float64 tables with a column of ones; None where that would be too large."""
    features = known[0].numel()
    if features > MOST_FEATURES or len(known) * features > MOST_ENTRIES:
        return None
    tables = [
        (each.to_dense() if each.layout != torch.strided else each).flatten(1).double() for each in (known, x)
    ]
    shift, scale = tables[0].mean(0), tables[0].std(0, correction=0)
    scale = torch.where(scale > 0, scale, torch.inf)
    found = [(table - shift) / scale for table in tables]
    return functional.pad(found[0], (0, 1), value=1.0), functional.pad(found[1], (0, 1), value=1.0)


def _linear_values(known: Tensor, target: Tensor, x: Tensor) -> Tensor | None:
    """Ridge regression: predictions (N, n_outputs) for x."""
    tables = _columns(known, x)
    if tables is None:
        return None
    a, others = tables
    gram = a.T @ a
    ridge = torch.full((len(gram),), PENALTY * len(a), dtype=gram.dtype, device=gram.device)
    ridge[-1] = 0.0  # not of the intercept
    fitted: Tensor = torch.linalg.solve(gram + torch.diag(ridge), a.T @ target.double())
    return others @ fitted


def _linear_classes(known: Tensor, labels: Tensor, x: Tensor) -> Tensor | None:
    """Multinomial logistic regression: classes (N,) for x."""
    tables = _columns(known, x)
    if tables is None:
        return None
    a, others = (table.cpu() for table in tables)
    n, n_classes = len(a), int(labels.max()) + 1
    target = functional.one_hot(labels.cpu(), n_classes).double()

    def value(flat: Any) -> tuple[float, Any]:
        weights = torch.from_numpy(flat).view(-1, n_classes)
        z = a @ weights
        penalised = torch.cat([weights[:-1], torch.zeros(1, n_classes, dtype=z.dtype)])  # not the intercept
        mean_loss = (z.logsumexp(1) - (z * target).sum(1)).mean() + PENALTY / 2 * (penalised**2).sum()
        gradient = a.T @ (z.softmax(1) - target) / n + PENALTY * penalised
        return float(mean_loss), gradient.flatten().numpy()

    start = torch.zeros(a.shape[1] * n_classes, dtype=torch.float64).numpy()
    # A fifth of a second to import, for runs that have something to compare with
    from scipy.optimize import minimize
    from threadpoolctl import threadpool_limits

    # The vectors are short: threads of scipy's BLAS would wait for each other, for seconds where other work has a core
    with threadpool_limits(1, user_api="blas"):
        found = minimize(value, start, jac=True, method="L-BFGS-B", options={"maxiter": STEPS})
    return (others @ torch.from_numpy(found.x).view(-1, n_classes)).argmax(1).to(x.device)
