"""Cross-fitted networks for tables: copies of an MLP that are trained at once, each without one fold of the rows.

The copies are one chain (:mod:`dladmm.network.ensemble`), streaming mode trains it, and every row is judged by the copy
that never saw it (:class:`~dladmm.callbacks.out_of_fold.OutOfFold`): that says when to stop, which parameters to keep
and how sharp probabilities are, and no row is lost. docs/defaults.md has the rules and what they are worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dladmm.activations import Activation, get_activation
from dladmm.api.twin_rows import bundles
from dladmm.callbacks import Callback
from dladmm.callbacks.out_of_fold import OutOfFold
from dladmm.compute.chunks import few
from dladmm.compute.communicator import ALONE
from dladmm.engine.batches import Batch
from dladmm.engine.options import make_options
from dladmm.engine.rounds import Rounds
from dladmm.engine.streaming_options import StreamingOptions
from dladmm.engine.sweep import Engine
from dladmm.losses import CrossFitted, Loss, Risk
from dladmm.network.chain import mlp
from dladmm.network.ensemble import EDGE_SCALE, ensemble, ensemble_parameters, merged
from dladmm.network.monotone import constrain
from dladmm.network.soft_clip import SoftClip
from dladmm.network.table_inputs import TableInputs
from dladmm.regularizers import Regularizer
from dladmm.solvers.metric import THIN_FROM
from dladmm.training.checks import check_several_classes
from dladmm.training.result import Result
from dladmm.training.standing import MOST_ROWS, Evidence, Standing, compared
from dladmm.training.trainer import Trainer

Array = NDArray[Any]

PASSES = 60
"""Passes over the rows at most."""

SMALL_TABLE, COPIES_OF_SMALL, COPIES = 1000, 8, 4
"""Copies of the network, more of them below so many rows: there a fold costs most, and time is that of the launches."""

FEW_ROWS, MANY_ROWS = 32, 128
"""Bounds of a batch, which has an eighth of the rows."""

JUDGED_ROWS = 8192
"""Rows at most whose out-of-fold loss is looked at."""

STATE_ROWS = 64
"""Rows of the state that the result holds: no run is resumed from it, and it is saved with the network."""

CONSTANTS = StreamingOptions(
    damping=1.0, momentum=0.9, stretch=0.4, smoothing=0.0, averaging=4.0, planned=False
)
"""Shorter steps and a sharper metric than for images: on tables the step rule is what keeps from overfitting."""

LARGE_TABLE, SLOWING = 5000, {"classification": 100.0, "regression": 1000.0}
"""From so many rows on steps shrink with their number: many of them, as a large table makes, lose units to noise."""

WIDE_DAMPING = 10.0
"""Damping of classes with at least as many columns as rows: their Gram matrix is singular, and steps in its metric give
directions of little variance, which a few rows hardly know, as much weight as those of much."""

CLEAN, CLEAN_ROWS, PROBED_ROWS, PROBE_PENALTY = 0.5, 100, 1000, 0.1
"""Classes of which a linear model explains so much are clean, from so many rows on; rows it is fitted to at most."""


@dataclass(frozen=True)
class CrossFit:
    """The result of a run, with the copies merged into one network, and the passes that were made."""

    result: Result
    passes: int
    copies: int


def fit_cross_fitted(
    widths: Sequence[int],
    activation: str | dict[str, Any] | Activation,
    X: Array,
    y: Array,
    *,
    loss: Loss,
    seed: int,
    device: torch.device,
    dtype: torch.dtype | None = None,
    passes: int | None = None,
    batch_size: int | None = None,
    regularizer: Regularizer | None = None,
    sample_weight: Array | None = None,
    callbacks: Sequence[Callback] = (),
    signs: Sequence[Tensor] | None = None,
    constants: StreamingOptions | None = None,
) -> CrossFit:
    """Train copies of ``mlp(widths, activation)`` on the rows X (N, n_in), and merge them.

    y holds class numbers (N,) or real targets (N, n_outputs), ``sample_weight`` (N,) says how often rows count,
    every copy has the penalty ``regularizer`` that a network of its own would have on its rows, and ``signs``, one
    tensor per layer, what sign weights have (:func:`~dladmm.network.monotone.weight_signs`). The merged network
    takes X and gives y as they are: it is a :class:`~dladmm.network.table_inputs.TableInputs`, with ``signs`` a
    :class:`~dladmm.network.soft_clip.SoftClip`, and an MLP of ``copies`` times the width. Without a ``dtype``
    training is in float32 and the network in float64, so that columns far from zero lose nothing.
    """
    generator = torch.Generator().manual_seed(seed)
    worked, kept = dtype or torch.float32, dtype or torch.float64
    n_rows, n_outputs, copies = len(X), widths[-1], copies_for(len(X))
    inputs = torch.from_numpy(np.ascontiguousarray(X, dtype=np.float64))
    weight = None if sample_weight is None else torch.from_numpy(np.array(sample_weight, np.float64))[:, None]
    # Constraints on the signs of weights cost more where a feature has two columns
    layer = (TableInputs if signs is None else SoftClip).of(inputs, weight)
    ready = layer(inputs)
    x = ready.to(device, worked)
    widths = [layer.n_outputs, *widths[1:]]
    targets = torch.from_numpy(np.ascontiguousarray(y))
    encoded = loss.encode(targets, n_outputs, torch.float64)
    units = loss.units(encoded, weight)
    encoded = (encoded if units is None else units.apply(encoded)).to(worked)
    check_several_classes(loss, encoded, ALONE)
    together = CrossFitted(loss, copies, n_outputs)
    labels = targets if loss.kind == "classification" and targets.ndim == 1 else None
    bundle = bundles(X, y)
    folds = folds_of(labels, bundle, copies, generator)
    target = together.targets(encoded, folds).to(device)

    f = get_activation(activation)
    chain = ensemble(widths, copies, f)
    if signs is not None:
        constrain(chain, signs, copies)
    params = ensemble_parameters(
        chain, generator, worked, device, edge_scale_for(ready, encoded, loss.kind, weight)
    )
    size = min(n_rows, batch_rows(n_rows) if batch_size is None else batch_size)
    counts = None if weight is None else (weight / weight.mean()).to(device, worked)
    n_batches = max(1, round(n_rows / size))
    batches = Rounds(x, target, counts, n_batches, PASSES if passes is None else passes, seed)
    judged = Batch(x, target, None, counts)
    if n_rows > JUDGED_ROWS:
        judged = batches.batch(torch.randperm(n_rows, generator=generator)[:JUDGED_ROWS].to(device))
    looking = OutOfFold(together)
    trainer = Trainer(
        chain,
        judged.x,
        Risk(together, judged.target),
        make_options(
            mode="streaming",
            max_iter=len(batches.ends),
            dropout=0.0,
            scale_inputs=False,
            streaming=constants or constants_for(n_rows, loss.kind, widths[0] / (int(bundle.max()) + 1)),
            diagnostics_every=len(batches.ends),  # the look out of fold measures what is measured
        ),
        # A copy learns from N (copies - 1)/copies rows, each of which counts 1/(copies - 1) in the sum of all copies
        penalty=None if regularizer is None else regularizer.times(1 / (copies - 1)),
        params=params,
        counts=judged.counts,
        callbacks=[looking, *callbacks],
        seed=seed,
        batches=batches,
    )
    learnt = Risk(loss, judged.target[:, :n_outputs])

    def stands(*_: Any) -> Evidence | None:
        found = compared(
            looking.best, looking.score, learnt, None, n_outputs, "training", counts=judged.counts
        )
        return None if found is None else _evidence(loss, found, x, encoded.to(device), folds.to(device))

    trainer.judge = stands
    run = trainer.fit()

    exact = [{name: p.double() for name, p in block.items()} for block in run.state.params]
    found = merged(exact, copies, looking.sharpness)
    found = found if units is None else units.fold(found)
    found = [{name: p.to(kept) for name, p in block.items()} for block in found]
    network = mlp([widths[0], *(copies * n for n in widths[1:-1]), n_outputs], f)
    module = nn.Sequential(layer.to(device, kept), *network.to_module(found).children())
    first = slice(min(n_rows, STATE_ROWS))
    risk = Risk(loss, loss.encode(targets[first], n_outputs, kept).to(device))
    engine = Engine(network, ready[first].to(device, kept), risk)
    state = engine.feasible_state(found, run.state.rho, run.state.nu)
    return CrossFit(
        replace(run, module=module, state=state), batches.passes_until(run.history.n_iter), copies
    )


def _evidence(loss: Loss, measured: Standing, x: Tensor, target: Tensor, folds: Tensor) -> Evidence:
    """The network by rows that its copies never saw, a linear model by rows that it never saw either."""
    said = f"{len(x):,} training rows, each by the copy that never saw it"
    x, target, folds = (few(each, MOST_ROWS) for each in (x, target, folds))
    parts = [folds % COPIES == k for k in range(COPIES)]
    splits = [((x[part], target[part]), (x[~part], target[~part])) for part in parts if bool(part.any())]
    whole = len(splits) == COPIES and loss.one_answer_per_row
    return Evidence(loss, replace(measured, rows=said), splits if whole else ())


def cross_fitted_peak(n_rows: int, widths: Sequence[int]) -> int:
    """The most bytes that a run takes above X and y, and at most twice as many: in float32, two columns a feature."""
    copies, hidden, n_in = copies_for(n_rows), widths[1:-1], 2 * widths[0]
    judged = min(n_rows, JUDGED_ROWS) * copies * (2 * sum(hidden) + widths[-1])
    parameters = copies * (n_in * widths[1] + sum(a * b for a, b in pairwise(widths[1:])))
    grams = n_in**2 // (4 if n_in >= THIN_FROM else 1) + copies * sum(n * n for n in hidden)
    merged_network = copies**2 * sum(a * b for a, b in pairwise(hidden))
    rows = n_rows * (7 * n_in + 2 * (widths[-1] + copies))
    return 4 * (rows + 4 * judged + 6 * (parameters + grams) + 2 * merged_network)


def copies_for(n_rows: int) -> int:
    """8 copies for small tables, else 4."""
    return COPIES_OF_SMALL if n_rows < SMALL_TABLE else COPIES


def constants_for(n_rows: int, kind: str, columns_per_row: float = 0.0) -> StreamingOptions:
    """Those of streaming mode; large tables slow down, classes of wide ones are damped more.

    ``columns_per_row`` counts columns of the first layer, and rows that stand in the table twice once.
    """
    if n_rows >= LARGE_TABLE:
        return replace(CONSTANTS, slowing=SLOWING[kind])
    wide = kind == "classification" and columns_per_row >= 1
    return replace(CONSTANTS, damping=WIDE_DAMPING) if wide else CONSTANTS


def edge_scale_for(x: Tensor, target: Tensor, kind: str, weight: Tensor | None = None) -> float:
    """The share of He's size that first and last layers start at: 1 for clean classes, else ``EDGE_SCALE``.

    Large initial weights keep the copies apart, so that their mean is better. Where labels are noisy they fit noise.
    """
    if kind != "classification" or len(x) < CLEAN_ROWS:
        return EDGE_SCALE
    few_weights = None if weight is None else few(weight, PROBED_ROWS)
    explained = linear_share(few(x, PROBED_ROWS), few(target, PROBED_ROWS), few_weights)
    return 1.0 if explained > CLEAN else EDGE_SCALE


def linear_share(x: Tensor, target: Tensor, weight: Tensor | None = None) -> float:
    """R^2 of ``argmin_B ||T - XB||^2 + p N ||B||^2``, p = .1, every row by the fit to the others.

    x is (N, n), the target (N, m), weights (N, 1). With ``H = X (X^T X + p N)^-1 X^T`` the residual of
    row i is ``(T - HT)_i / (1 - H_ii)``, and ``1 - H = p N (X X^T + p N)^-1`` where rows are fewer than columns.
    """
    x, target, n_rows = x.double(), target.to(x.device, torch.float64), len(x)
    weight = x.new_ones(n_rows, 1) if weight is None else weight.to(x) / weight.double().mean().to(x)
    x, target = (weight.sqrt() * (each - (weight * each).mean(0)) for each in (x, target))
    penalty = PROBE_PENALTY * n_rows
    if n_rows < x.shape[1]:
        rest = penalty * torch.linalg.inv(x @ x.T + penalty * torch.eye(n_rows).to(x))
        residual, free = rest @ target, rest.diagonal()
    else:
        solved = torch.linalg.solve(x.T @ x + penalty * torch.eye(x.shape[1]).to(x), x.T)
        residual, free = target - x @ (solved @ target), 1 - (x * solved.T).sum(1)
    spread = target.square().sum()
    left = (residual / free[:, None]).square().sum()
    return float(1 - left / spread) if bool(spread > 0) else 0.0


def batch_rows(n_rows: int) -> int:
    """An eighth of the rows, between 32 and 128."""
    return max(FEW_ROWS, min(MANY_ROWS, n_rows // 8))


def folds_of(labels: Tensor | None, bundle: Tensor, copies: int, generator: torch.Generator) -> Tensor:
    """The fold of every row, at random, one for all rows of a ``bundle`` (N,).

    Every class of ``labels`` (N,) is dealt out evenly.
    """
    n_bundles = int(bundle.max()) + 1
    order = torch.randperm(n_bundles, generator=generator)
    if labels is not None:
        label = labels.new_empty(n_bundles)
        label[bundle] = labels
        order = order[torch.argsort(label[order], stable=True)]
    fold = torch.empty(n_bundles, dtype=torch.long)
    fold[order] = torch.arange(n_bundles) % copies
    return fold[bundle]
