"""A callback that stops a run when a score no longer improves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torch import Tensor

from dladmm.base.errors import DataError, InputError
from dladmm.base.fields import flag, real, whole
from dladmm.base.history import Status
from dladmm.base.spec import number
from dladmm.callbacks.base import Callback

if TYPE_CHECKING:
    from dladmm.training.result import Result
    from dladmm.training.trainer import Trainer

HIGHER_IS_BETTER = ("train_accuracy", "val_accuracy")
LOWER_IS_BETTER = (
    "loss", "val_loss", "lagrangian", "objective", "primal_residual", "dual_optimality", "stationarity",
)  # fmt: skip


class EarlyStopping(Callback):
    """Stops the run when a column of the history has not improved for ``patience`` measurements.

    Iterations at which the column was not measured are skipped.

    Parameters
    ----------
    monitor : str, default "val_loss"
        A column of the history; accuracies should rise, all others fall.
    patience : int, default 10
        Measurements without improvement before the run ends.
    min_delta : float, default 0
        Changes up to this size do not count as an improvement.
    restore_best : bool, default True
        Restore the best parameters at the end, however the run ended, and set all variables to their forward pass.

    Attributes
    ----------
    best, best_iteration
        The best value and its iteration, or None.
    """

    best: float | None
    best_iteration: int | None
    _params: list[dict[str, Tensor]] | None

    def __init__(
        self,
        monitor: str = "val_loss",
        patience: int = 10,
        min_delta: float = 0.0,
        restore_best: bool = True,
    ) -> None:
        if monitor not in HIGHER_IS_BETTER + LOWER_IS_BETTER:
            allowed = ", ".join(sorted(HIGHER_IS_BETTER + LOWER_IS_BETTER))
            raise InputError(f"monitor must be one of {allowed}; got {monitor!r}.")
        if isinstance(patience, bool) or not isinstance(patience, int) or patience < 1:
            raise InputError(f"patience must be a whole number >= 1, got {patience!r}.")
        self.monitor, self.patience, self.restore_best = monitor, patience, restore_best
        self.min_delta = number("min_delta", min_delta, low=0.0)
        self._resumed = False
        self._reset()

    def on_train_begin(self, trainer: Trainer) -> None:
        if self.monitor.startswith("val_") and trainer.validation is None:
            raise InputError(
                f"EarlyStopping watches {self.monitor!r}, but there is no validation data. Pass validation=(X, y), or "
                "watch another column such as 'loss'."
            )
        if self.monitor.endswith("accuracy") and trainer.engine.risk.loss.kind != "classification":
            raise InputError(
                f"EarlyStopping watches {self.monitor!r}, but a regression has no accuracy. Watch 'val_loss' or 'loss'."
            )
        if not self._resumed:
            self._reset()

    def on_epoch_end(self, trainer: Trainer) -> None:
        self._update(trainer)

    def on_loop_end(self, trainer: Trainer) -> None:
        # another callback may have ended the last iteration before on_epoch_end was called here
        self._update(trainer)
        self._resumed = False
        if self.restore_best and self._params is not None and self.best_iteration != trainer.history.n_iter:
            device = trainer.state.u.device
            params = [{name: p.to(device) for name, p in block.items()} for block in self._params]
            trainer.restore(params, self.best_iteration)

    def on_train_end(self, trainer: Trainer, result: Result) -> None:
        self._params = None

    def _reset(self) -> None:
        self.best = self.best_iteration = self._params = None
        self._waited = self._seen = 0

    def _update(self, trainer: Trainer) -> None:
        """Read the rows not read yet: one, or all in a run resumed from a checkpoint without this callback's state."""
        for k in range(self._seen + 1, trainer.history.n_iter + 1):
            value = trainer.history[self.monitor][k - 1]
            if value is None:
                continue
            if not self._improves(value):
                self._waited += 1
                continue
            self.best, self.best_iteration, self._waited = float(value), k, 0
            present = k == trainer.history.n_iter and self.restore_best
            self._params = trainer.state.clone_parameters() if present else None
        self._seen = trainer.history.n_iter
        if self._waited >= self.patience:
            trainer.request_stop(Status.EARLY_STOPPED)

    def _improves(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        if self.best is None:
            return True
        gain = value - self.best if self.monitor in HIGHER_IS_BETTER else self.best - value
        return gain > self.min_delta

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        params = self._params or []
        tensors = {f"{l}.{name}": p for l, block in enumerate(params) for name, p in block.items()}
        meta = {
            "monitor": self.monitor,
            "best": self.best,
            "best_iteration": self.best_iteration,
            "waited": self._waited,
            "seen": self._seen,
            "parameters": self._params is not None,
        }
        return tensors, meta

    def resume(self, trainer: Trainer, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        self._reset()
        self._resumed = True
        if meta["monitor"] == self.monitor:  # else the new column is read from the start of the history
            if meta["best"] is not None:
                self.best, self.best_iteration = (
                    real("best", meta["best"]),
                    whole("best_iteration", meta["best_iteration"]),
                )
            self._waited, self._seen = whole("waited", meta["waited"]), whole("seen", meta["seen"])
            if flag("parameters", meta["parameters"]):
                self._params = _blocks(tensors, trainer.state.params)
        self._update(trainer)


def _blocks(tensors: dict[str, Tensor], like: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """The parameters of a snapshot, of the shapes and types of ``like``."""
    shapes = {f"{l}.{name}": (p.shape, p.dtype) for l, block in enumerate(like) for name, p in block.items()}
    if {name: (p.shape, p.dtype) for name, p in tensors.items()} != shapes:
        raise DataError("the best parameters of early stopping are those of another network")
    return [{name: tensors[f"{l}.{name}"] for name in block} for l, block in enumerate(like)]
