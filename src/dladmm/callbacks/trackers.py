"""Callbacks for experiment trackers; each library is imported only when its callback is used."""

from __future__ import annotations

import importlib
import os
import time
from typing import TYPE_CHECKING, Any

from dladmm.base.errors import InputError
from dladmm.base.history import History, Status, Value
from dladmm.callbacks.loggers import Logger, measured, settings

if TYPE_CHECKING:
    from dladmm.training.result import Result
    from dladmm.training.trainer import Trainer


class TensorBoard(Logger):
    """Logs every column of the history as a TensorBoard scalar, and the certificate as text.

    Parameters
    ----------
    log_dir : str or path
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        self.log_dir = os.fspath(log_dir)

    def _open(self, trainer: Trainer) -> None:
        self._library = _imported("torch.utils.tensorboard", "TensorBoard", "tensorboard")
        self._writer: Any = None

    def _first(self, history: History) -> None:
        """``purge_step`` hides what an interrupted run logged after its last checkpoint."""
        self._writer = self._library.SummaryWriter(self.log_dir, purge_step=history.n_iter)

    def _log(self, row: dict[str, Value]) -> None:
        for name, value in measured(row).items():
            self._writer.add_scalar(name, value, row["iteration"])
        self._writer.flush()

    def _close(self, result: Result) -> None:
        if self._writer is not None:
            self._writer.add_text("status", str(result.status), result.history.n_iter)
            self._writer.add_text("certificate", f"```\n{result.certificate}\n```", result.history.n_iter)
            self._writer.close()
        self._writer = self._library = None


class WandB(Logger):
    """Logs to Weights & Biases; an active run is used and left open, else one is started.

    Parameters
    ----------
    init
        Keyword arguments of ``wandb.init``.
    """

    def __init__(self, **init: Any) -> None:
        self.init = init

    def _open(self, trainer: Trainer) -> None:
        wandb = _imported("wandb", "WandB", "wandb")
        self._own = wandb.run is None
        self._run = wandb.init(**self.init) if self._own else wandb.run
        self._run.config.update(settings(trainer), allow_val_change=True)

    def _log(self, row: dict[str, Value]) -> None:
        self._run.log(measured(row), step=row["iteration"])

    def _close(self, result: Result) -> None:
        self._run.summary["status"] = result.status.name
        self._run.summary["certified"] = result.certificate.certified
        if self._own:
            self._run.finish(exit_code=0 if result.status.ok else 1)
        self._run = None


class MLflow(Logger):
    """Logs to MLflow through its client, without its global state.

    Parameters
    ----------
    experiment : str, default "dladmm"
        Name of the experiment of the new run; created if it does not exist.
    run_name : str, optional
    tracking_uri : str, optional
        None uses MLflow's configured URI.
    run_id : str, optional
        Add to this existing run instead of creating one.

    Attributes
    ----------
    last_run_id : str or None
        The run that was written to.
    """

    def __init__(
        self,
        experiment: str = "dladmm",
        run_name: str | None = None,
        tracking_uri: str | None = None,
        run_id: str | None = None,
    ) -> None:
        self.experiment, self.run_name, self.tracking_uri = experiment, run_name, tracking_uri
        self.run_id = run_id
        self.last_run_id: str | None = None

    def _open(self, trainer: Trainer) -> None:
        mlflow = _imported("mlflow", "MLflow", "mlflow")
        self._entities = mlflow.entities
        self._client = mlflow.MlflowClient(tracking_uri=self.tracking_uri)
        self.last_run_id = self.run_id or self._new_run()
        chosen = {name: str(value) for name, value in settings(trainer).items()}
        params = [self._entities.Param(name, value) for name, value in chosen.items()]
        self._client.log_batch(self.last_run_id, params=params)

    def _new_run(self) -> str:
        found = self._client.get_experiment_by_name(self.experiment)
        number = self._client.create_experiment(self.experiment) if found is None else found.experiment_id
        return str(self._client.create_run(number, run_name=self.run_name).info.run_id)

    def _log(self, row: dict[str, Value]) -> None:
        now, step = int(1000 * time.time()), int(row["iteration"] or 0)
        metrics = [self._entities.Metric(name, value, now, step) for name, value in measured(row).items()]
        self._client.log_batch(self.last_run_id, metrics=metrics)

    def _close(self, result: Result) -> None:
        self._client.set_tag(self.last_run_id, "status", result.status.name)
        self._client.set_tag(self.last_run_id, "certified", str(result.certificate.certified))
        if self.run_id is None:
            ended = "KILLED" if result.status is Status.INTERRUPTED else "FINISHED"
            self._client.set_terminated(self.last_run_id, ended if result.status.ok else "FAILED")
        self._client = self._entities = None


def _imported(module: str, callback: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"{callback} needs a library that is not installed ({error}): pip install 'dladmm[{extra}]'."
        ) from error
