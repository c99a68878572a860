"""Cross-fitted networks for tables: copies of an MLP that are trained at once, each without one fold of the rows.

The copies are one chain (:mod:`dladmm.network.ensemble`), streaming mode trains it, and every row is judged by the copy
that never saw it (:class:`~dladmm.callbacks.out_of_fold.OutOfFold`): that says when to stop, which parameters to keep
and how sharp probabilities are, and no row is lost. docs/defaults.md has the rules and what they are worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dladmm.activations import Activation
from dladmm.blocks import Params
from dladmm.callbacks import Callback
from dladmm.callbacks.out_of_fold import OutOfFold
from dladmm.engine.batches import Batch
from dladmm.engine.options import make_options
from dladmm.engine.rounds import Rounds
from dladmm.engine.streaming_options import StreamingOptions
from dladmm.engine.sweep import Engine
from dladmm.losses import CrossFitted, Loss, Risk
from dladmm.network.chain import mlp
from dladmm.network.ensemble import ensemble, ensemble_parameters, merged
from dladmm.network.scaling import Scaling
from dladmm.training.result import Result
from dladmm.training.trainer import Trainer

Array = NDArray[Any]

COPIES, PASSES = 4, 60
"""Copies of the network, and passes over the rows at most."""

STATE_ROWS = 64
"""Rows of the state that the result holds: nobody goes on from it, and it is saved with the network."""

JUDGED_ROWS = 8192
"""Rows at most whose out-of-fold loss is looked at."""

CONSTANTS = StreamingOptions(damping=1.0, momentum=0.9, stretch=0.2, smoothing=0.0, planned=False)
"""Shorter steps and a sharper metric than for images: on tables the step rule is what keeps from overfitting."""


@dataclass(frozen=True)
class CrossFit:
    """The merged network's result, and how many passes were made."""

    result: Result
    passes: int
    sharpness: float


def batch_rows(n_rows: int) -> int:
    """A sixteenth of the rows, between 32 and 128."""
    return min(n_rows, max(32, min(128, n_rows // 16)))


def folds_of(y: Tensor, classes: bool, generator: torch.Generator) -> Tensor:
    """The fold of every row: every class is dealt out evenly, in random order; y is (N,) or (N, n)."""
    order = torch.randperm(len(y), generator=generator)
    if classes:
        order = order[torch.argsort(y[order], stable=True)]
    fold = torch.empty(len(y), dtype=torch.long)
    fold[order] = torch.arange(len(y)) % COPIES
    return fold


def fit_cross_fitted(
    widths: Sequence[int],
    activation: str | Activation,
    X: Array,
    y: Array,
    *,
    loss: Loss,
    seed: int,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    passes: int | None = None,
    batch_size: int | None = None,
    callbacks: Sequence[Callback] = (),
    constants: StreamingOptions = CONSTANTS,
) -> CrossFit:
    """Train copies of ``mlp(widths, activation)`` on the rows X (N, n_in), and merge them.

    y holds class numbers (N,) or real targets (N, n_outputs). The merged network takes X and gives y as they are, and
    lies in float64: weights for unscaled X may be tiny or nearly cancel.
    """
    generator = torch.Generator().manual_seed(seed)
    classes, n_rows, n_outputs = loss.kind == "classification", len(X), widths[-1]
    inputs = torch.from_numpy(np.ascontiguousarray(X, dtype=np.float64))
    targets = torch.from_numpy(np.ascontiguousarray(y))
    scaling = Scaling.standard(inputs)
    x = scaling.apply(inputs).to(device, dtype)
    outputs = None if classes else Scaling.standard(targets, constant=1.0)
    encoded = loss.encode(targets if outputs is None else outputs.apply(targets), n_outputs, dtype)
    fold = folds_of(targets, classes, generator)
    together = CrossFitted(loss, COPIES, n_outputs)
    target = together.targets(encoded, fold).to(device)

    chain = ensemble(widths, COPIES, activation)
    params = ensemble_parameters(chain, generator, dtype, device)
    size = batch_rows(n_rows) if batch_size is None else batch_size
    n_batches = max(1, round(n_rows / min(size, n_rows)))
    batches = Rounds(x, target, n_batches, PASSES if passes is None else passes, seed)
    judged = torch.randperm(n_rows, generator=generator)[:JUDGED_ROWS].to(device)
    shown = Batch(x, target) if n_rows <= JUDGED_ROWS else batches.batch(judged)
    looking = OutOfFold(together)
    options = make_options(
        mode="streaming", max_iter=len(batches.ends), dropout=0.0, scale_inputs=False, streaming=constants
    )
    trainer = Trainer(
        chain,
        shown.x,
        Risk(together, shown.target),
        options,
        params=params,
        callbacks=[looking, *callbacks],
        seed=seed,
        batches=batches,
    )
    result = trainer.fit()
    made = batches.passes_until(result.history.n_iter)
    params = [{name: p.double() for name, p in block.items()} for block in result.state.params]
    found = scaling.fold(merged(params, COPIES, looking.sharpness))
    if outputs is not None:
        found[-1] = unscaled(found[-1], outputs)
    network = mlp([widths[0], *(COPIES * n for n in widths[1:-1]), n_outputs], activation)
    few = slice(min(n_rows, STATE_ROWS))
    risk = Risk(loss, loss.encode(targets[few], n_outputs, torch.float64).to(device))
    state = Engine(network, inputs[few].to(device), risk).feasible_state(found, result.state.rho, result.state.nu)
    whole = Result(result.status, result.history, result.certificate, network.to_module(found), state)
    return CrossFit(whole, made, looking.sharpness)


def unscaled(last: Params, outputs: Scaling) -> Params:
    """The last layer with outputs in the targets' own units."""
    return {"W": last["W"] * outputs.scale[:, None], "b": last["b"] * outputs.scale + outputs.shift}
