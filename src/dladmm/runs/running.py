"""Running the cells that are not there yet.

FOLDER/cells/NAME/      a finished cell: a run folder as of any run, renamed into place the moment it is whole
FOLDER/partial/NAME/    a checkpoint of a cell that has run for long, removed when the cell is finished
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from dladmm import datasets
from dladmm.api.choosing import CROSS_FITTED
from dladmm.base.errors import InputError
from dladmm.base.history import Status
from dladmm.callbacks import Callback, ProgressBar
from dladmm.cli.measures import of_test_rows
from dladmm.cli.run_data import rows_of
from dladmm.datasets import ImageData
from dladmm.losses import get_loss
from dladmm.runs.accuracy import AccuracyAt
from dladmm.runs.estimate import Clock, words
from dladmm.runs.experiment import Experiment
from dladmm.runs.pausing import Pausing
from dladmm.runs.plan import Cell, cells
from dladmm.runs.problem import NETWORKS, Build, Problem
from dladmm.runs.store import CELLS, MEASURED, PARTIAL, finished, save, save_accuracy
from dladmm.training.result import Result
from dladmm.training.trainer import Trainer

Say = Callable[[str], None]
Measure = Callable[[Cell], float]
"""Test accuracy of something that dladmm does not train, such as another library's estimator."""


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass
class Session:
    """How cells are run: where to, on what, which of them, for how long.

    ``share`` (i, n) takes the i-th of every n cells, so that n sessions with one ``out`` divide the work. ``redo`` runs
    cells again whose settings have changed; ``collect`` runs none and sums up what is there. ``networks`` and
    ``measures`` are what an experiment may name besides the library's own networks and trainers; ``load`` reads the
    data of a cell. ``bars`` shows a progress bar per cell instead of a line, ``curves`` draws a picture into each
    folder, ``tested`` stores more measures of the test rows than the history has.
    """

    out: Path
    device: str = "cpu"
    data_dir: str | None = None
    only: str | None = None
    share: tuple[int, int] = (1, 1)
    minutes: float | None = None
    redo: bool = False
    collect: bool = False
    say: Say = to_stderr
    hint: str = "--redo runs it again, another --out keeps it"
    networks: Mapping[str, Build] = field(default_factory=lambda: NETWORKS)
    measures: Mapping[str, Measure] = field(default_factory=dict)
    load: Callable[[Cell], Problem] | None = None
    bars: bool = False
    curves: bool = False
    tested: bool = False
    interrupted: bool = False
    problems: dict[str, Problem] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)

    @property
    def device_kind(self) -> str:
        """cpu or cuda, whichever of several it is."""
        return self.device.partition(":")[0]

    @property
    def over(self) -> bool:
        """Whether no further cell should begin."""
        return self.minutes is not None and time.perf_counter() - self.began > 60 * self.minutes

    def problem(self, cell: Cell) -> Problem:
        """The data of a cell; only those used last are kept."""
        key = json.dumps([cell.network, cell.dataset, cell.data, cell.shuffle], sort_keys=True)
        if key not in self.problems:
            self.problems = {key: self._named(cell) if self.load is None else self.load(cell)}
        return self.problems[key].holding_out(cell.held_out).first(cell.rows)

    def _named(self, cell: Cell) -> Problem:
        data = datasets.load(cell.dataset, data_dir=self.data_dir, **cell.data)
        rows = rows_of(data) if isinstance(data, ImageData) else data
        problem = Problem(cell.network, rows, self.networks)
        return problem.shuffled() if cell.shuffle else problem


def missing_cells(wanted: Sequence[Cell], folder: Path, session: Session) -> list[Cell]:
    """The cells to run; one with other settings than its file's is refused, or run again with ``redo``."""
    missing = []
    mine, of = session.share
    for cell in wanted[mine - 1 :: of]:
        if session.only is not None and not fnmatch(cell.name, session.only):
            continue
        try:
            done = finished(folder / CELLS / cell.name, cell.settings, session.hint)
        except InputError as error:
            if not session.redo:
                raise
            session.say(f"again: {str(error).partition(';')[0]}")
            done = False
        if not done:
            missing.append(cell)
    return missing


def announce(experiments: list[Experiment], session: Session) -> None:
    """How much is to be done in all; what is refused is refused here, before hours of work."""
    silent = replace(session, say=lambda line: None)
    todo = [
        cell
        for e in experiments
        for cell in missing_cells(cells(e, session.device_kind), session.out / e.id, silent)
    ]
    seconds = Clock(todo, session.device).seconds
    session.say(f"{len(todo)} cells to run in all, {words(seconds)} on {session.device}")


def run_cells(wanted: Sequence[Cell], folder: Path, session: Session, title: str = "") -> bool:
    """Run what is missing; False when it ended before all was done (time over, or interrupted)."""
    todo = missing_cells(wanted, folder, session)
    if not todo:
        return True
    clock = Clock(todo, session.device) if not session.bars else None
    if clock is not None:
        session.say(f"{title}: {len(todo)} cells to run, {clock.estimate()} on {session.device}")
    for place, cell in enumerate(todo, 1):
        if session.over:
            session.say(
                f"{title}: the time is over; the same command goes on with the cells that are missing."
            )
            return False
        began = time.perf_counter()
        status = run_cell(cell, folder, session, f"{place} of {len(todo)}")
        if status is Status.INTERRUPTED:
            session.say("interrupted; the same command goes on from here.")
            session.interrupted = True
            return False
        if clock is not None:
            took = time.perf_counter() - began
            clock.tell(cell, took)
            ended = MEASURED if status is None else status.name
            session.say(
                f"{title}: {place} of {len(todo)}, {cell.name}: {ended} in {took:.1f} s; {clock.estimate()} left"
            )
    return True


def run_cell(cell: Cell, folder: Path, session: Session, place: str = "") -> Status | None:
    """One cell, into its folder; weighed ones run in a process of their own, whose peak is theirs alone."""
    into = folder / CELLS / cell.name
    if cell.kind == "memory":
        from dladmm.runs.memory import weigh

        return weigh(cell, into, session)
    if cell.trainer in session.measures:
        began = time.perf_counter()
        accuracy = session.measures[cell.trainer](cell)
        save_accuracy(accuracy, time.perf_counter() - began, into, cell.settings)
        return None
    pause, refused = Pausing(folder / PARTIAL / cell.name, cell.settings), Refused()
    callbacks: list[Callback] = [pause, refused]
    if cell.kind == "accuracy":
        callbacks.append(AccuracyAt())
    if session.bars:
        held = "unseen" if cell.trainer == CROSS_FITTED else "test"
        callbacks.append(ProgressBar(f"{cell.settings['method']}, seed {cell.seed} ({place})", held=held))
    session.problem(cell)  # read before the clock starts
    fresh, began, worked = not pause.folder.exists(), time.perf_counter(), time.process_time()
    result = train(cell, session, callbacks)
    if result.status is not Status.INTERRUPTED:
        measured: dict[str, float] = {} if refused.count is None else {"refused": refused.count}
        if fresh:  # all of it: with the first networks of self-training, which the history does not count
            measured["fit_seconds"] = time.perf_counter() - began
            if session.device_kind == "cpu":  # of all threads; other work on the machine does not count
                measured["fit_cpu_seconds"] = time.process_time() - worked
        keep(result, cell, into, session, **measured)
        pause.clear()
    return result.status


class Refused(Callback):
    """How many attempts the safeguard of accelerated mode has refused; None for other methods."""

    count: int | None = None

    def on_epoch_end(self, trainer: Trainer) -> None:
        self.count = getattr(trainer.method, "refused", None)


def train(cell: Cell, session: Session, callbacks: list[Any]) -> Result:
    return session.problem(cell).fit(
        cell.trainer,
        cell.hidden,
        cell.activation,
        loss=cell.loss,
        dtype=cell.dtype,
        device=session.device,
        max_iter=cell.max_iter,
        diagnostics_every=cell.diagnostics_every,
        random_state=cell.seed,
        callbacks=callbacks,
        **cell.options,
    )


def keep(result: Result, cell: Cell, into: Path, session: Session, **measured: Any) -> None:
    """Store a finished run; how many rows it was trained on goes with it."""
    problem = session.problem(cell)
    measured |= {} if problem.samples is None else {"samples": problem.samples}
    if session.tested:
        measured["tested"] = of_test_rows(result.module, problem.data, get_loss(cell.loss))
    save(result, into, cell.settings, curves=session.curves, **measured)
