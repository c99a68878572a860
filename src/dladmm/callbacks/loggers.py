"""Callbacks that write the history during a run, as CSV or JSON lines, and their base class."""

from __future__ import annotations

import csv
import io
import json
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dladmm.base.atomic import replacing
from dladmm.base.errors import DataError, DladmmError, InputError
from dladmm.base.history import History, Value
from dladmm.callbacks.base import Callback, CallbackWarning

if TYPE_CHECKING:
    from dladmm.training.result import Result
    from dladmm.training.trainer import Trainer

T = TypeVar("T")


class Logger(Callback, ABC):
    """Base class of callbacks that write each iteration somewhere.

    Subclasses implement ``_open`` (may raise), ``_first``, ``_log`` and ``_close``. ``_first`` is called before the
    first row of a new or resumed run, when it is known where the run starts. If a logger fails later, a warning is
    issued and logging stops, so that training is not lost to a full disk.
    """

    every_rank = False

    def on_train_begin(self, trainer: Trainer) -> None:
        self._begun, self._broken = False, False
        try:
            self._open(trainer)
        except DladmmError:
            raise
        except Exception as error:
            raise InputError(f"{type(self).__name__} cannot start: {error}") from error

    def on_epoch_end(self, trainer: Trainer) -> None:
        if not self._broken:
            self._guarded(self._write, trainer.history)

    def on_train_end(self, trainer: Trainer, result: Result) -> None:
        self._guarded(self._close, result)

    def _write(self, history: History) -> None:
        if not self._begun:
            self._first(history)
            self._begun = True
        self._log(history.row(-1))

    def _guarded(self, action: Callable[[T], None], argument: T) -> None:
        try:
            action(argument)
        except Exception as error:  # tracking libraries raise errors of their own
            self._broken = True
            message = f"{type(self).__name__} failed: {error}. The run continues without it."
            warnings.warn(message, CallbackWarning, stacklevel=3)

    @abstractmethod
    def _open(self, trainer: Trainer) -> None:
        """Prepare for writing; an error here ends the run before the first iteration."""

    def _close(self, result: Result) -> None:
        """Finish writing; nothing to do for files."""

    def _first(self, history: History) -> None:
        """Called before the first row; does nothing by default."""

    @abstractmethod
    def _log(self, row: dict[str, Value]) -> None:
        """Write one iteration."""


class _FileLogger(Logger):
    """One line per iteration. The file is rewritten from the history at the start, so a resumed run repeats no line."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def _open(self, trainer: Trainer) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab"):
                pass
        except OSError as error:
            raise DataError(f"cannot write {self.path}: {error.strerror}.") from error

    def _first(self, history: History) -> None:
        earlier = History({name: column[:-1] for name, column in history.to_dict().items()})
        lines = self._heading() + "".join(self._line(earlier.row(i)) for i in range(earlier.n_iter))
        with replacing(self.path) as file:
            file.write(lines.encode("utf-8"))

    def _log(self, row: dict[str, Value]) -> None:
        writable = History({name: [value] for name, value in row.items()}).to_dict()
        # closed after each line, so that whole lines are on disk
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write(self._line({name: values[0] for name, values in writable.items()}))

    def _heading(self) -> str:
        return ""

    @abstractmethod
    def _line(self, row: dict[str, Value]) -> str:
        """One iteration as a line of the file."""


class CSVLogger(_FileLogger):
    """Writes the history as a CSV file, one line per iteration; fields that were not measured are empty.

    Parameters
    ----------
    path : str or path
    """

    def _heading(self) -> str:
        return _csv(list(History()))

    def _line(self, row: dict[str, Value]) -> str:
        return _csv([row[name] for name in History()])


class JSONLinesLogger(_FileLogger):
    """Writes the history as JSON lines, one object per iteration; values that were not measured are null.

    Parameters
    ----------
    path : str or path
    """

    def _line(self, row: dict[str, Value]) -> str:
        return json.dumps(row, allow_nan=False) + "\n"


def _csv(values: list[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()


def measured(row: dict[str, Value]) -> dict[str, float]:
    """The measured numbers of a row, without the iteration, which trackers take as their step."""
    return {name: float(value) for name, value in row.items() if value is not None and name != "iteration"}


def settings(trainer: Trainer) -> dict[str, Any]:
    """The settings of the run, for experiment trackers."""
    options = asdict(trainer.options)
    options |= options.pop("subproblems")
    about = {
        "network": repr(trainer.engine.chain)[:500],
        "loss": trainer.engine.risk.loss.name,
        "regularizer": type(trainer.engine.penalty).__name__,
        "samples": len(trainer.engine.x),
        "dtype": str(trainer.state.u.dtype).removeprefix("torch."),
        "device": str(trainer.state.u.device),
    }
    return about | options | {"rho": trainer.state.rho, "nu": trainer.state.nu}
