"""A callback that judges every row by the copy of the network that never saw it, and ends the run by that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from dladmm.base.history import Status
from dladmm.callbacks.base import Callback
from dladmm.engine.streaming import Streaming
from dladmm.losses import CrossFitted, Risk, Squared
from dladmm.training.standing import r_squared

if TYPE_CHECKING:
    from dladmm.training.trainer import Trainer

SHARPNESS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0, 1.25, 1.5)
"""Multiples of the outputs among which the out-of-fold loss chooses."""

SHRUNK = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 1.0)
"""The same for squared errors, where 0 is the mean of y: a mean of copies needs less shrinking than one of them."""

DOUBTED, DOUBTED_ROWS = 4.0, 100
"""Rows of evenly spread labels that are added when sharpness is chosen, where rows are fewer than so many."""

PATIENCE, LEAST_GAIN, SMALL_ENOUGH = 2, 0.01, 1e-3
"""The run ends after so many looks that gain less than this share, or when the loss is so small."""

FEW_STEPS = {"classification": 60, "regression": 100}
"""Steps that are made at least: a loss may rest for a while after its linear part is learnt."""


class OutOfFold(Callback):
    """Ends a cross-fitted run when the out-of-fold loss no longer falls; keeps the best parameters and their sharpness.

    Attributes
    ----------
    best : float
        The least out-of-fold loss, at ``sharpness`` times the outputs, after iteration ``best_iteration``.
    score : float or None
        The out-of-fold accuracy or R^2 there.
    """

    def __init__(self, loss: CrossFitted) -> None:
        self.loss = loss
        self.best, self.sharpness, self.best_iteration = math.inf, 1.0, 0
        self.score: float | None = None
        self._reference, self._waited = math.inf, 0
        self._params: list[dict[str, Tensor]] | None = None

    def on_epoch_end(self, trainer: Trainer) -> None:
        target = trainer.engine.risk.target
        z, y = self.loss.unseen(trainer.state.outputs[-1], target), target[:, : self.loss.n_outputs]
        counts = trainer.engine.counts
        weight = z.new_ones(len(z)) if counts is None else counts[:, 0]
        weight = weight.double() / weight.double().sum()
        value, sharpness = self._judged(z, y, weight)
        # All variables follow the forward pass: the risk is the training loss, summed over the rows
        risk = trainer.history.last("risk") or 0.0
        trainer.history.amend(loss=risk / trainer.engine.samples, val_loss=value)
        if self.loss.kind == "classification":
            unseen, seen = self.loss.loss.hits(z, y), self.loss.hits(trainer.state.outputs[-1], target)
            for column, hits in (("val_accuracy", unseen), ("train_accuracy", seen)):
                trainer.history.amend(**{column: float(hits.double() @ weight)})
        else:
            trainer.history.amend(val_r2=r_squared(Risk(self.loss.loss, y), z * sharpness, weight[:, None]))
        if not math.isfinite(value):
            trainer.request_stop(Status.NON_FINITE)
            return
        if value < self.best:
            self.best, self.sharpness, self.best_iteration = value, sharpness, trainer.history.n_iter
            self._params = trainer.state.clone_parameters()
            column = "val_accuracy" if self.loss.kind == "classification" else "val_r2"
            self.score = trainer.history[column][-1]
        if value < (1 - LEAST_GAIN) * self._reference:
            self._reference, self._waited = value, 0
        else:
            self._waited += 1
        self._stop_when_settled(trainer)

    def _stop_when_settled(self, trainer: Trainer) -> None:
        assert isinstance(trainer.method, Streaming)
        settled = self._waited >= PATIENCE and trainer.method.step_number >= FEW_STEPS[self.loss.kind]
        if settled or self.best < SMALL_ENOUGH:
            trainer.request_stop(Status.EARLY_STOPPED)

    def _judged(self, z: Tensor, y: Tensor, weight: Tensor) -> tuple[float, float]:
        """The mean loss at the best sharpness, and the sharpness to take.

        They belong together but for classes of few rows, where the sharpness is that of labels with some doubt: a few
        rows may all be right by chance.
        """
        loss = self.loss.loss
        if not loss.takes_soft_labels:
            among = SHRUNK if isinstance(loss, Squared) else (1.0,)
            return self._downhill(among, z, y, weight)
        value, sharpness = self._downhill(SHARPNESS, z, y, weight)
        if len(z) >= DOUBTED_ROWS:
            return value, sharpness
        doubt = DOUBTED / (len(z) + DOUBTED)
        return value, self._downhill(SHARPNESS, z, (1 - doubt) * y + doubt / y.shape[1], weight)[1]

    def _downhill(self, among: Sequence[float], z: Tensor, y: Tensor, weight: Tensor) -> tuple[float, float]:
        """The least mean loss among multiples of the outputs, and its multiple.

        The loss is convex in it: from the best one so far it is followed downhill.
        """
        values: dict[int, float] = {}

        def value(place: int) -> float:
            if place not in values:
                rows = self.loss.loss.rows(z * among[place], y) if 0 <= place < len(among) else None
                values[place] = math.inf if rows is None else float(rows.double() @ weight)
            return values[place]

        place = among.index(self.sharpness)
        while (best := min((place, place - 1, place + 1), key=value)) != place:
            place = best
        return value(place), among[place]

    def on_loop_end(self, trainer: Trainer) -> None:
        if self._params is not None and self.best_iteration != trainer.history.n_iter:
            trainer.restore(self._params)

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        params = self._params or []
        tensors = {f"{l}.{name}": p for l, block in enumerate(params) for name, p in block.items()}
        meta = {
            "best": self.best if math.isfinite(self.best) else None,
            "score": self.score,
            "sharpness": self.sharpness,
            "best_iteration": self.best_iteration,
            "reference": self._reference if math.isfinite(self._reference) else None,
            "waited": self._waited,
        }
        return tensors, meta

    def resume(self, trainer: Trainer, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        if meta["best"] is None:
            return
        self.best, self.score, self.sharpness = float(meta["best"]), meta["score"], float(meta["sharpness"])
        self.best_iteration, self._waited = int(meta["best_iteration"]), int(meta["waited"])
        self._reference = float(meta["reference"])
        self._params = [{} for _ in trainer.state.params]
        for key, tensor in tensors.items():
            l, name = key.split(".", 1)
            self._params[int(l)][name] = tensor.to(trainer.state.u.device)
        self._stop_when_settled(trainer)
