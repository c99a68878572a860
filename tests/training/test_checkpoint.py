"""Saving and resuming runs: a resumed run is bit-equal to an unbroken one, and a folder never loses its last."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import killing
from convergent import train
from dladmm import Callback, DataError, InputError, Status, mlp
from dladmm.callbacks import Checkpoint, EarlyStopping
from dladmm.training.checkpoint import (
    CheckpointWarning,
    _keyed,
    checkpoints,
    iteration_of,
    latest,
    load_training,
    resume_training,
    save_training,
)


@pytest.fixture(scope="module")
def blobs():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 90)
    return rng.normal(size=(90, 5)) + 2.5 * np.eye(3, 5)[y], y


class Stop(Callback):
    """Ends a run after some iterations, as a signal would."""

    def __init__(self, at):
        self.at = at

    def on_epoch_end(self, trainer):
        if trainer.history.n_iter == self.at:
            raise KeyboardInterrupt


def equal(first, second):
    pairs = zip(
        [*first.state.W, *first.state.b, *first.state.z, *first.state.a, first.state.u],
        [*second.state.W, *second.state.b, *second.state.z, *second.state.a, second.state.u],
        strict=True,
    )
    return all(torch.equal(a, b) for a, b in pairs) and all(
        first.history[name] == second.history[name] for name in first.history if name != "seconds"
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("stop", [1, 10, 13])
@pytest.mark.parametrize("order", [1, -1])
def test_a_run_resumed_from_disk_is_bit_equal(blobs, tmp_path, dtype, stop, order):
    X, y = blobs
    settings = {"max_iter": 30, "dtype": dtype}
    whole = train(mlp([5, 8, 3]), X, y, **settings)
    train(mlp([5, 8, 3]), X, y, callbacks=[Checkpoint(tmp_path, every=4), Stop(stop)][::order], **settings)
    assert checkpoints(tmp_path)[0].name == f"checkpoint-{stop:06d}.dladmm"
    resume = Checkpoint(tmp_path, every=4, resume=True)
    resumed = train(mlp([5, 8, 3]), X, y, callbacks=[resume], **settings)
    assert resume.resumed_from.name == f"checkpoint-{stop:06d}.dladmm"
    assert equal(whole, resumed)
    assert whole.certificate == resumed.certificate


def test_generic_blocks_resume_bit_equal_with_what_they_remember(blobs, tmp_path):
    X, y = blobs

    def module():
        return torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.SiLU(), torch.nn.Linear(8, 3))

    whole = train(module(), X, y, max_iter=12)
    train(module(), X, y, max_iter=12, callbacks=[Checkpoint(tmp_path), Stop(5)])
    resumed = train(module(), X, y, max_iter=12, callbacks=[Checkpoint(tmp_path, resume=True)])
    assert equal(whole, resumed)


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("stop", [2, 5, 9])
def test_early_stopping_resumes_too(blobs, tmp_path, order, stop):
    X, y = blobs
    data = {"max_iter": 60, "validation": (X[:30], np.roll(y, 1)[:30])}
    whole = train(mlp([5, 8, 3]), X, y, callbacks=[EarlyStopping(patience=8)], **data)
    assert whole.history.n_iter < 60
    first = [Checkpoint(tmp_path, every=3), EarlyStopping(patience=8), Stop(stop)]
    train(mlp([5, 8, 3]), X, y, callbacks=first[::order], **data)
    again = [Checkpoint(tmp_path, every=3, resume=True), EarlyStopping(patience=8)]
    resumed = train(mlp([5, 8, 3]), X, y, callbacks=again[::order], **data)
    assert equal(whole, resumed)


def test_a_finished_run_resumed_is_the_same_result(blobs, tmp_path):
    X, y = blobs
    settings = {"regularizer": {"name": "l2", "strength": 20.0}, "max_iter": 5000, "eps_rel": 1e-2}
    whole = train(mlp([5, 3]), X, y, callbacks=[Checkpoint(tmp_path, every=50)], **settings)
    resumed = train(mlp([5, 3]), X, y, callbacks=[Checkpoint(tmp_path, resume=True)], **settings)
    assert whole.status is resumed.status is Status.CONVERGED
    assert equal(whole, resumed)


def test_rotation_keeps_the_newest(blobs, tmp_path):
    X, y = blobs
    train(mlp([5, 3]), X, y, max_iter=9, callbacks=[Checkpoint(tmp_path / "new" / "folder", every=2, keep=3)])
    names = [p.name for p in checkpoints(tmp_path / "new" / "folder")]
    assert names == [f"checkpoint-{k:06d}.dladmm" for k in (9, 8, 6)]
    assert checkpoints(tmp_path / "missing") == []
    assert latest(tmp_path / "missing") is None


def test_a_damaged_newest_falls_back_to_the_older(blobs, tmp_path):
    X, y = blobs
    whole = train(mlp([5, 8, 3]), X, y, max_iter=20)
    train(mlp([5, 8, 3]), X, y, max_iter=20, callbacks=[Checkpoint(tmp_path, every=4), Stop(9)])
    newest, older = checkpoints(tmp_path)
    newest.write_bytes(newest.read_bytes()[:-5])
    with pytest.warns(CheckpointWarning, match=rf"{newest.name} .*cut off.* Falling back to {older.name}"):
        assert latest(tmp_path) == older
    resume = Checkpoint(tmp_path, every=4, keep=1, resume=True)
    with pytest.warns(CheckpointWarning, match="Falling back"):
        resumed = train(mlp([5, 8, 3]), X, y, max_iter=20, callbacks=[resume])
    assert equal(whole, resumed)
    assert [p.name for p in checkpoints(tmp_path)] == ["checkpoint-000020.dladmm"]
    assert (tmp_path / f"{newest.name}.damaged").exists()


def test_nothing_loadable_is_an_error_not_a_fresh_start(blobs, tmp_path):
    X, y = blobs
    (tmp_path / "checkpoint-000007.dladmm").write_bytes(b"rubbish")
    with pytest.raises(DataError, match=r"none of the checkpoints in .* can be loaded: .*000007"):
        train(mlp([5, 3]), X, y, max_iter=3, callbacks=[Checkpoint(tmp_path, resume=True)])


def test_a_folder_with_another_run_is_refused(blobs, tmp_path):
    X, y = blobs
    train(mlp([5, 3]), X, y, max_iter=3, callbacks=[Checkpoint(tmp_path)])
    with pytest.raises(InputError, match=r"already holds checkpoint-000003\.dladmm .* resume=True"):
        train(mlp([5, 3]), X, y, max_iter=3, callbacks=[Checkpoint(tmp_path)])
    with pytest.raises(
        InputError, match=r"000003\.dladmm cannot be resumed here: .*network \(.*Affine\(5, 4\)"
    ):
        train(mlp([5, 4, 3]), X, y, max_iter=3, callbacks=[Checkpoint(tmp_path, resume=True)])


def test_a_disk_that_fills_up_does_not_end_the_run(blobs, tmp_path, monkeypatch):
    X, y = blobs
    whole = train(mlp([5, 8, 3]), X, y, max_iter=12)
    real = os.replace

    def full(source, target):
        if target.name > "checkpoint-000004.dladmm":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(CheckpointWarning, match=r"No space left .* last checkpoint is that of iteration 4\."):
        result = train(mlp([5, 8, 3]), X, y, max_iter=12, callbacks=[Checkpoint(tmp_path, every=2)])
    assert equal(whole, result)
    assert latest(tmp_path).name == "checkpoint-000004.dladmm"
    shutil.rmtree(tmp_path)
    tmp_path.write_text("a file")
    with pytest.raises(DataError, match=r"cannot (make|read) the folder"):
        train(mlp([5, 3]), X, y, max_iter=3, callbacks=[Checkpoint(tmp_path)])


@pytest.mark.parametrize("arguments", [{"every": 0}, {"keep": 0}, {"every": True}, {"keep": 1.5}])
def test_settings_are_checked(tmp_path, arguments):
    with pytest.raises(InputError, match=f"{next(iter(arguments))} must be a whole number >= 1"):
        Checkpoint(tmp_path, **arguments)


def test_single_files_and_no_pickle_anywhere(blobs, tmp_path, monkeypatch):
    X, y = blobs

    def forbidden(*args, **kwargs):
        raise AssertionError("pickle was used")

    for module, names in (
        (pickle, ("dump", "dumps", "load", "loads", "Unpickler")),
        (torch, ("save", "load")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, forbidden)

    class Save(Callback):
        def on_epoch_end(self, trainer):
            if trainer.history.n_iter == 5:
                save_training(trainer, tmp_path / "five")

    class Resume(Callback):
        def __init__(self, action):
            self.action = action

        def on_train_begin(self, trainer):
            self.action(trainer)

    whole = train(mlp([5, 8, 3]), X, y, max_iter=9, callbacks=[Save()])
    for action in (
        lambda trainer: trainer.resume(*load_training(tmp_path / "five")),
        lambda trainer: resume_training(trainer, tmp_path / "five"),
    ):
        assert equal(whole, train(mlp([5, 8, 3]), X, y, max_iter=9, callbacks=[Resume(action)]))


def test_killed_processes_always_leave_a_loadable_checkpoint():
    """10 kills here; ``python tests/killing.py 200`` for more."""
    with warnings.catch_warnings():
        # Later Pythons' word on forks in a threaded process
        warnings.simplefilter("ignore", DeprecationWarning)
        found = killing.main(10, 0)
    assert found["killed"] == 10
    assert found["lost"] == 0
    assert found["equal"]
    assert found["remaining"] == ["checkpoint-000119.dladmm", "checkpoint-000120.dladmm"]


def test_keep_one_keeps_the_newest(blobs, tmp_path):
    X, y = blobs
    train(mlp([5, 3]), X, y, max_iter=5, callbacks=[Checkpoint(tmp_path, every=2, keep=1)])
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-000005.dladmm"]
    assert latest(tmp_path).name == "checkpoint-000005.dladmm"
    for k in (4, 12):
        shutil.copy(tmp_path / "checkpoint-000005.dladmm", tmp_path / f"checkpoint-{k:06d}.dladmm")
    assert [path.name[11:17] for path in checkpoints(tmp_path)] == ["000012", "000005", "000004"]


class Taken(Callback):
    """A snapshot with numbers of its own, or such a snapshot taken up and looked at."""

    def __init__(self, snapshot=None, **changes):
        self.snapshot_, self.changes = snapshot, changes

    def on_train_begin(self, trainer):
        if self.snapshot_ is None:
            tensors, meta = trainer.snapshot()
            self.taken = {n: t.clone() for n, t in tensors.items()}, json.loads(json.dumps(meta))
            return
        tensors, meta = self.snapshot_
        trainer.resume(tensors, meta | self.changes)
        self.found = (
            trainer.start,
            trainer.exempt,
            trainer.state.rho,
            trainer.state.nu,
            trainer.engine.options,
        )


def test_a_resumed_run_knows_where_it_began(blobs):
    X, y = blobs
    taken = Taken()
    settings = {"max_iter": 1, "w_solver": "quadratic"}
    train(mlp([5, 3]), X, y, callbacks=[taken], **settings)
    changes = {"start": 123.0, "exempt": [1, 7], "rho": 2.5, "nu": 0.25, "alpha0": 3.0, "t0": 4.0}
    again = Taken(taken.taken, **changes)
    train(mlp([5, 3]), X, y, callbacks=[again], **settings)
    assert again.found[:4] == (123.0, [1, 7], 2.5, 0.25)
    assert (again.found[4].alpha0, again.found[4].t0) == (3.0, 4.0)
    with pytest.raises(InputError, match="run with dladmm accelerated"):
        train(mlp([5, 3]), X, y, callbacks=[Taken(taken.taken, iteration="dladmm accelerated")], **settings)
    with pytest.raises(InputError, match="does not fit this run's data, network or dtype: outputs"):
        train(mlp([5, 3]), X, y, callbacks=[Taken(taken.taken)], dtype="float64", **settings)


def test_the_newest_checkpoint_is_that_of_the_highest_iteration(tmp_path):
    for number in ("000009", "999999", "1000000", "000010"):
        (tmp_path / f"checkpoint-{number}.dladmm").touch()
    assert [iteration_of(path) for path in checkpoints(tmp_path)] == [1_000_000, 999_999, 10, 9]


def test_callbacks_of_one_class_have_states_of_their_own():
    first, second, third = (
        type("One", (Callback,), {}),
        type("Two", (Callback,), {}),
        type("One", (Callback,), {}),
    )
    trainer = SimpleNamespace(callbacks=[first(), second(), third(), second()])
    assert [key for key, _ in _keyed(trainer)] == ["One.0", "Two.0", "One.1", "Two.1"]
