"""No cell runs twice, and what was broken off goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dladmm.base.errors import InputError
from dladmm.report import read_report
from dladmm.report.data import Run
from dladmm.reproduce import verdicts
from dladmm.reproduce.timing import time_findings
from dladmm.runs import running
from dladmm.runs.estimate import words
from dladmm.runs.evidence import gather, seconds_per_epoch
from dladmm.runs.pausing import Pausing
from dladmm.runs.plan import cells
from dladmm.runs.record import record, run_experiment
from dladmm.runs.running import announce
from small_experiments import ACCURACY, small


def test_other_settings_are_refused_or_run_again(session):
    run_experiment(small(), session)
    with pytest.raises(
        InputError, match=r"holds a run with other settings \(max_iter\); --redo runs it again"
    ):
        run_experiment(small(max_iter=2), session)
    said = []
    assert run_experiment(small(max_iter=2), replace(session, redo=True, say=said.append))[0]
    assert sum("other settings (max_iter)" in line for line in said) == 4
    assert {run.iterations for run in read_report(session.out).runs} == {2}
    said.clear()
    announce([small(ACCURACY, name="gcn-accuracy"), small(max_iter=2)], replace(session, say=said.append))
    assert said[0].startswith("4 cells to run in all, about ")


def test_pieces_made_elsewhere_are_summed_up(session):
    e = small()
    half = replace(session, only="digits-*-neurons-2-*")
    run_experiment(e, half)
    # As a process leaves it that dies while it writes
    broken = session.out / e.id / "cells/.digits-0.partial"
    broken.mkdir()
    (broken / "history.csv").write_text("iteration")
    assert len(read_report(session.out).runs) == 2
    evidence = gather(session.out / e.id, cells(e, "cuda"))  # the device is the cells' own affair
    assert (len(evidence.runs), evidence.missing) == (2, 2)
    assert not gather(session.out / e.id, cells(replace(e, max_iter=9), "cpu")).runs
    late = replace(session, minutes=-1.0)
    assert not run_experiment(e, late)[0]
    assert run_experiment(e, replace(session, collect=True))[0]
    assert {f.verdict for f in time_findings(e, evidence, {})} == {verdicts.MISSING}


def test_shares_divide_the_cells_between_sessions(session):
    e = small()
    shares = [replace(session, share=(i, 3)) for i in (1, 2, 3)]
    names = [
        [cell.name for cell in running.missing_cells(cells(e, "cpu"), share.out / e.id, share)]
        for share in shares
    ]
    assert sorted(name for some in names for name in some) == sorted(cell.name for cell in cells(e, "cpu"))
    for share in shares:
        assert run_experiment(e, share)[0]
    assert running.missing_cells(cells(e, "cpu"), session.out / e.id, session) == []


def test_a_long_cell_goes_on_from_its_checkpoint(session, tmp_path):
    e = small(max_iter=6, grid={"rho": [0.1], "neurons": [3]})
    (cell,) = cells(e, "cpu")
    whole = running.train(cell, session, [])

    class Killed(Exception):
        pass

    class Kill(Pausing):
        def on_epoch_end(self, trainer):
            super().on_epoch_end(trainer)
            if trainer.history.n_iter == 4:
                raise Killed

    folder = tmp_path / "partial"
    with pytest.raises(Killed):
        running.train(cell, session, [Kill(folder, cell.settings, seconds=0.0)])
    pause = Pausing(folder, cell.settings)
    resumed = running.train(cell, session, [pause])
    for name in ("lagrangian", "primal_residual"):
        assert resumed.history[name] == whole.history[name]
    # The first four are those of the killed run
    assert resumed.history["seconds"][3] != whole.history["seconds"][3]
    other = Pausing(folder, cell.settings | {"max_iter": 7})
    running.train(cell, session, [other])
    assert not folder.exists()  # a checkpoint of other settings is not taken up
    pause.clear()


def test_the_seconds_of_a_call_are_those_of_a_whole_one(session):
    e = small(max_iter=2, grid={"rho": [0.1], "neurons": [3]})
    (cell,) = cells(e, "cpu")
    folder = session.out / e.id
    running.run_cell(cell, folder, session)
    evidence = gather(folder, [cell])
    took, metrics = evidence.runs[cell.name].last("seconds"), evidence.metrics[cell.name]
    assert metrics["fit_seconds"] >= took
    assert metrics["fit_cpu_seconds"] > 0
    (kept,) = record(e, evidence)["cells"]
    assert kept["fit_seconds"] == metrics["fit_seconds"]
    (folder / "partial" / cell.name).mkdir(parents=True)  # a checkpoint: what follows is a part of the call
    running.run_cell(cell, folder, session)
    assert "fit_seconds" not in gather(folder, [cell]).metrics[cell.name]


def test_seconds_are_the_median_of_the_epochs_after_the_first():
    columns = {"iteration": [1.0, 2.0, 3.0, 4.0], "seconds": [9.0, 10.0, 11.0, 14.0]}
    assert seconds_per_epoch(Run("r", {}, "", "", columns, None, (), {})) == 1.0
    assert [words(s) for s in (5, 600, 7200)] == ["about 5 s", "about 10 min", "about 2.0 h"]
