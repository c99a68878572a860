"""Running the cells of an experiment that are not there yet.

OUT/ID/cells/NAME/      a finished cell: a run folder as of any run, renamed into place the moment it is whole
OUT/ID/partial/NAME/    a checkpoint of a cell that has run for long, removed when the cell is finished
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from dladmm import datasets
from dladmm.base.errors import InputError
from dladmm.base.status import Status
from dladmm.callbacks import Callback
from dladmm.cli.run_data import rows_of
from dladmm.compare.cells import Problem, finished, save
from dladmm.datasets import ImageData
from dladmm.reproduce.estimate import Clock, words
from dladmm.reproduce.experiment import Experiment
from dladmm.reproduce.pausing import Pausing
from dladmm.reproduce.plan import ACTIVATION, DTYPE, LOSS, Cell, cells
from dladmm.training.diagnostics import score
from dladmm.training.trainer import Result, Trainer

Say = Callable[[str], None]


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass
class Session:
    """How a reproduction is run: where to, on what, which cells, for how long.

    ``share`` (i, n) takes the i-th of every n cells, so that n sessions with one ``out`` divide the work. ``redo`` runs
    cells again whose settings have changed; ``collect`` runs none and sums up what is there.
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

    def problem(self, network: str, dataset: str, options: dict[str, Any]) -> Problem:
        """The data, loaded once; only those used last are kept."""
        key = json.dumps([dataset, options], sort_keys=True)
        if key not in self.problems:
            data = datasets.load(dataset, data_dir=self.data_dir, **options)
            whole = rows_of(data) if isinstance(data, ImageData) else data
            self.problems = {key: Problem(network, whole)}
        return self.problems[key]


def missing_cells(experiment: Experiment, session: Session) -> list[Cell]:
    """The cells to run; one with other settings than its file's is refused, or taken up again with ``redo``."""
    hint = "--redo runs it again, another --out keeps it"
    wanted = []
    mine, of = session.share
    for cell in cells(experiment, session.device_kind)[mine - 1 :: of]:
        if session.only is not None and not fnmatch(cell.name, session.only):
            continue
        try:
            done = finished(_folder(session, experiment, cell), cell.settings, hint)
        except InputError as error:
            if not session.redo:
                raise
            session.say(f"again: {str(error).partition(';')[0]}")
            done = False
        if not done:
            wanted.append(cell)
    return wanted


def announce(experiments: list[Experiment], session: Session) -> None:
    """How much is to be done in all; what is refused is refused here, before hours of work."""
    silent = replace(session, say=lambda line: None)
    todo = [(experiment, missing_cells(experiment, silent)) for experiment in experiments]
    seconds = sum(Clock(experiment, missing, session).seconds for experiment, missing in todo)
    total = sum(len(missing) for _, missing in todo)
    session.say(f"{total} cells to run in all, {words(seconds)} on {session.device}")


def run_cells(experiment: Experiment, session: Session) -> bool:
    """Run what is missing; False when it ended before all was done (time over, or interrupted)."""
    todo = missing_cells(experiment, session)
    if not todo:
        return True
    clock = Clock(experiment, todo, session)
    session.say(f"{experiment.id}: {len(todo)} cells to run, {clock.estimate()} on {session.device}")
    for place, cell in enumerate(todo, 1):
        if session.over:
            session.say(
                f"{experiment.id}: the time is over; the same command goes on with the cells that are missing."
            )
            return False
        began = time.perf_counter()
        status = run_cell(experiment, cell, session)
        if status is Status.INTERRUPTED:
            session.say("interrupted; the same command goes on from here.")
            session.interrupted = True
            return False
        took = time.perf_counter() - began
        clock.tell(cell, took)
        session.say(
            f"{experiment.id}: {place} of {len(todo)}, {cell.name}: {status.name} in {took:.1f} s; "
            f"{clock.estimate()} left"
        )
    return True


def run_cell(experiment: Experiment, cell: Cell, session: Session) -> Status:
    """One cell, into its folder; weighed ones run in a process of their own, whose peak is theirs alone."""
    if experiment.kind == "memory":
        from dladmm.reproduce.memory import weigh

        return weigh(experiment, cell, session)
    pause = Pausing(_partial(session, experiment, cell), cell.settings)
    early = [FirstEpochs()] if experiment.kind == "accuracy" else []
    result = train(experiment, cell, session, [pause, *early])
    if result.status is not Status.INTERRUPTED:
        keep(result, experiment, cell, session)
        pause.clear()
    return result.status


class FirstEpochs(Callback):
    """Test accuracy after each of the first ten epochs, whatever the interval of the other measurements."""

    def on_epoch_end(self, trainer: Trainer) -> None:
        if trainer.history.n_iter > 10 or trainer.history["val_accuracy"][-1] is not None:
            return
        if trainer.validation is not None:
            x, risk = trainer.validation
            loss, accuracy = score(risk, trainer.engine.chain.predict(trainer.state.params, x))
            trainer.history.amend(val_loss=loss, val_accuracy=accuracy)


def train(experiment: Experiment, cell: Cell, session: Session, callbacks: list[Any]) -> Result:
    problem = session.problem(experiment.network, cell.dataset, cell.data).first(cell.rows)
    return problem.fit(
        cell.trainer,
        cell.hidden,
        ACTIVATION,
        loss=LOSS,
        dtype=DTYPE,
        device=session.device,
        max_iter=cell.max_iter,
        diagnostics_every=cell.diagnostics_every,
        random_state=cell.seed,
        callbacks=callbacks,
        **cell.options,
    )


def keep(result: Result, experiment: Experiment, cell: Cell, session: Session, **measured: Any) -> None:
    save(result, _folder(session, experiment, cell), cell.settings, curves=False, **measured)


def _folder(session: Session, experiment: Experiment, cell: Cell) -> Path:
    return session.out / experiment.id / "cells" / cell.name


def _partial(session: Session, experiment: Experiment, cell: Cell) -> Path:
    return session.out / experiment.id / "partial" / cell.name
