"""Callbacks: early stopping, and loggers against the real libraries."""

from __future__ import annotations

import copy
import csv
import json
import signal
import struct
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from convergent import train
from dladmm import Callback, DataError, InputError, Status, mlp
from dladmm.base.history import History
from dladmm.callbacks import (
    CallbackWarning,
    Checkpoint,
    CSVLogger,
    EarlyStopping,
    JSONLinesLogger,
    MLflow,
    ProgressBar,
    StopOnSignal,
    TensorBoard,
    WandB,
)


@pytest.fixture(scope="module")
def blobs():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 90)
    return rng.normal(size=(90, 5)) + 2.5 * np.eye(3, 5)[y], y


@pytest.fixture(scope="module")
def overfitting(blobs):
    """Validation labels that are partly wrong: the validation loss falls, then rises."""
    X, y = blobs
    rng = np.random.default_rng(1)
    wrong = np.where(rng.random(90) < 0.25, rng.integers(0, 3, 90), y)
    return {"validation": (X + rng.normal(size=X.shape), wrong), "max_iter": 80}


class Keep(Callback):
    """All parameters of every iteration."""

    def __init__(self):
        self.params = []

    def on_epoch_end(self, trainer):
        self.params.append(trainer.state.clone_parameters())


class Stop(Callback):
    def __init__(self, at):
        self.at = at

    def on_epoch_end(self, trainer):
        if trainer.history.n_iter == self.at:
            raise KeyboardInterrupt


# Early stopping ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("monitor", ["val_loss", "val_accuracy"])
def test_early_stopping_restores_the_best(blobs, overfitting, monitor):
    keep, stop = Keep(), EarlyStopping(monitor, patience=4)
    result = train(mlp([5, 8, 3]), *blobs, callbacks=[keep, stop], **overfitting)
    values = result.history[monitor]
    best = int(np.argmax(values) if monitor == "val_accuracy" else np.argmin(values))
    assert result.status is Status.EARLY_STOPPED
    assert result.history.n_iter == best + 1 + 4
    assert (stop.best, stop.best_iteration) == (values[best], best + 1)
    for kept, found in zip(keep.params[best], result.state.params, strict=True):
        assert all(torch.equal(kept[name], found[name]) for name in kept)
    x, y = (torch.from_numpy(np.asarray(part)) for part in overfitting["validation"])
    outputs = result.module(x.float()).detach()
    if monitor == "val_loss":
        assert float(torch.nn.functional.cross_entropy(outputs, y)) == pytest.approx(stop.best, rel=1e-5)
    else:
        assert float((outputs.argmax(1) == y).double().mean()) == stop.best


def test_after_restoring_all_variables_fit_and_the_certificate_speaks_of_them(blobs, overfitting):
    result = train(mlp([5, 8, 3]), *blobs, callbacks=[EarlyStopping(patience=4)], **overfitting)
    x = torch.from_numpy(blobs[0]).float()
    assert torch.equal(result.state.z[-1], result.module(x))
    assert result.certificate.primal_residual.reported == 0.0
    assert result.certificate.primal_residual.recomputed < 1e-5  # in float64, what float32 rounded
    assert result.certificate.agrees


def test_a_restored_network_is_not_certified_by_the_history_of_another_iterate(blobs, overfitting):
    stop = EarlyStopping(patience=4)
    result = train(mlp([5, 8, 3]), *blobs, callbacks=[stop], **overfitting)
    certificate = result.certificate
    assert certificate.restored == stop.best_iteration < result.history.n_iter
    assert certificate.covered
    assert certificate.sufficient_descent
    assert not certificate.certified
    assert f"Not certified: the network handed back is that of iteration {stop.best_iteration}" in str(
        certificate
    )
    assert f"those of the run of {result.history.n_iter} iterations" in str(certificate)
    whole = train(
        mlp([5, 8, 3]), *blobs, callbacks=[EarlyStopping(patience=4, restore_best=False)], **overfitting
    )
    assert whole.certificate.restored is None
    assert whole.certificate.certified, str(whole.certificate)


def test_without_restoring_the_last_iterate_stays(blobs, overfitting):
    keep = Keep()
    stop = EarlyStopping(patience=4, restore_best=False)
    result = train(mlp([5, 8, 3]), *blobs, callbacks=[keep, stop], **overfitting)
    assert result.status is Status.EARLY_STOPPED
    assert torch.equal(result.state.W[0], keep.params[-1][0]["W"])


def test_the_best_is_restored_however_the_run_ended(blobs, overfitting):
    keep, stop = Keep(), EarlyStopping(patience=50)
    result = train(mlp([5, 8, 3]), *blobs, callbacks=[keep, Stop(20), stop], **overfitting)
    assert result.status is Status.INTERRUPTED
    assert stop.best_iteration < 20
    assert torch.equal(result.state.W[0], keep.params[stop.best_iteration - 1][0]["W"])


def test_an_improvement_below_min_delta_is_none(blobs):
    runs = {}
    for delta in (0.0, 0.05):
        stop = EarlyStopping("loss", patience=3, min_delta=delta)
        runs[delta] = train(mlp([5, 8, 3]), *blobs, max_iter=100, callbacks=[stop]).history.n_iter
    assert runs[0.05] < runs[0.0]


def test_iterations_without_a_measurement_are_passed_over(blobs, overfitting):
    stop = EarlyStopping(patience=3)
    result = train(mlp([5, 8, 3]), *blobs, callbacks=[stop], diagnostics_every=3, **overfitting)
    measured = [(k + 1, v) for k, v in enumerate(result.history["val_loss"]) if v is not None]
    best = min(measured, key=lambda pair: pair[1])[0]
    assert stop.best_iteration == best
    assert result.history.n_iter == best + 3 * 3


def test_one_callback_can_serve_many_runs(blobs, overfitting):
    stop = EarlyStopping(patience=4)
    first, second = (train(mlp([5, 8, 3]), *blobs, callbacks=[stop], **overfitting) for _ in range(2))
    assert first.history.n_iter == second.history.n_iter
    assert torch.equal(first.state.W[0], second.state.W[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"monitor": "val_los"}, "monitor must be one of dual_optimality, .*; got 'val_los'"),
        ({"monitor": "seconds"}, "monitor must be one of"),
        ({"patience": 0}, "patience must be a whole number >= 1, got 0"),
        ({"min_delta": -1.0}, "min_delta must be a finite number >= 0"),
    ],
)
def test_settings_of_early_stopping_are_checked(arguments, message):
    with pytest.raises(InputError, match=message):
        EarlyStopping(**arguments)


def test_a_score_that_does_not_exist_is_an_error_at_the_start(blobs):
    X, y = blobs
    with pytest.raises(InputError, match=r"'val_loss', but there is no validation data.*validation=\(X, y\)"):
        train(mlp([5, 3]), X, y, max_iter=3, callbacks=[EarlyStopping()])
    with pytest.raises(InputError, match="a regression has no accuracy"):
        train(mlp([5, 3]), X, X[:, :3], loss="squared", callbacks=[EarlyStopping("train_accuracy")])


# Files ---------------------------------------------------------------------------------------------------------


def read(path):
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    with path.open(newline="", encoding="utf-8") as file:
        return [{n: json.loads(v) if v else None for n, v in row.items()} for row in csv.DictReader(file)]


@pytest.mark.parametrize(("logger", "name"), [(CSVLogger, "a.csv"), (JSONLinesLogger, "a.jsonl")])
def test_the_file_holds_the_history(blobs, tmp_path, logger, name):
    path = tmp_path / "new" / name
    seen = []

    class Look(Callback):
        def on_epoch_end(self, trainer):
            seen.append(len(read(path)))

    result = train(mlp([5, 8, 3]), *blobs, max_iter=7, diagnostics_every=3, callbacks=[logger(path), Look()])
    assert seen == [1, 2, 3, 4, 5, 6, 7]
    assert read(path) == [result.history.row(k) for k in range(7)]
    assert [p.name for p in path.parent.iterdir()] == [name]


@pytest.mark.parametrize(("logger", "name"), [(CSVLogger, "a.csv"), (JSONLinesLogger, "a.jsonl")])
@pytest.mark.parametrize("order", [1, -1])
def test_a_resumed_run_leaves_no_line_twice_and_none_torn(blobs, tmp_path, logger, name, order):
    path, folder = tmp_path / name, tmp_path / "checkpoints"
    train(mlp([5, 8, 3]), *blobs, max_iter=20, callbacks=[Checkpoint(folder, every=4), logger(path), Stop(9)])
    (folder / "checkpoint-000009.dladmm").unlink()
    with path.open("a") as file:
        file.write('{"iteration": 10, "lagr')
    again = [Checkpoint(folder, every=4, resume=True), logger(path)][::order]
    result = train(mlp([5, 8, 3]), *blobs, max_iter=20, callbacks=again)
    assert read(path) == [result.history.row(k) for k in range(20)]


def test_a_log_that_cannot_be_written(blobs, tmp_path, monkeypatch):
    with pytest.raises(DataError, match=f"cannot write {tmp_path}: Is a directory"):
        train(mlp([5, 3]), *blobs, max_iter=2, callbacks=[CSVLogger(tmp_path)])
    logger = CSVLogger(tmp_path / "a.csv")

    def fail(row):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(logger, "_log", fail)
    with pytest.warns(
        CallbackWarning, match="CSVLogger failed: .*No space left.* continues without it"
    ) as caught:
        result = train(mlp([5, 3]), *blobs, max_iter=5, callbacks=[logger])
    assert result.history.n_iter == 5
    assert len(caught) == 1


# Trackers ------------------------------------------------------------------------------------------------------


def expected(result, column):
    return [
        (k, v)
        for k, v in zip(result.history["iteration"], result.history[column], strict=True)
        if v is not None
    ]


def test_tensorboard(blobs, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tmp_path / "checkpoints"
    first = [Checkpoint(folder, every=4), TensorBoard(tmp_path / "log"), Stop(7)]
    train(mlp([5, 8, 3]), *blobs, max_iter=12, diagnostics_every=2, callbacks=first)
    (folder / "checkpoint-000007.dladmm").unlink()
    again = [TensorBoard(tmp_path / "log"), Checkpoint(folder, every=4, resume=True)]
    result = train(mlp([5, 8, 3]), *blobs, max_iter=12, diagnostics_every=2, callbacks=again)
    events = EventAccumulator(str(tmp_path / "log")).Reload()
    for column in ("lagrangian", "loss", "stationarity", "train_accuracy", "rho"):
        logged = [(event.step, event.value) for event in events.Scalars(column)]
        assert [step for step, _ in logged] == [k for k, _ in expected(result, column)]
        assert [v for _, v in logged] == pytest.approx([v for _, v in expected(result, column)], rel=1e-6)
    text = events.Tensors("certificate/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert str(result.certificate) in text


def test_mlflow(blobs, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "store").as_uri()
    callback = MLflow(experiment="digits", run_name="first", tracking_uri=uri)
    result = train(mlp([5, 8, 3]), *blobs, max_iter=6, diagnostics_every=2, callbacks=[callback])
    client = mlflow.MlflowClient(tracking_uri=uri)
    run = client.get_run(callback.last_run_id)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "first"
    assert run.data.tags["status"] == "MAX_ITER"
    assert run.data.params["samples"] == "90"
    assert run.data.params["rho"] == "1.5"
    for column in ("lagrangian", "loss", "stationarity"):
        logged = client.get_metric_history(callback.last_run_id, column)
        assert sorted((m.step, m.value) for m in logged) == expected(result, column)
    joined = MLflow(tracking_uri=uri, run_id=client.create_run(run.info.experiment_id).info.run_id)
    train(mlp([5, 3]), *blobs, max_iter=2, callbacks=[joined])
    assert client.get_run(joined.run_id).info.status == "RUNNING"
    assert mlflow.active_run() is None


def test_a_tracker_that_cannot_start_says_so(blobs, tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    callback = MLflow(tracking_uri=(tmp_path / "store").as_uri(), run_id="missing")
    with pytest.raises(InputError, match=r"MLflow cannot start: .*missing"):
        train(mlp([5, 3]), *blobs, max_iter=2, callbacks=[callback])


def records(content):
    """The records of W&B's offline file: seven bytes of heading, then a LevelDB log in blocks of 32 KiB."""
    assert content[:4] == b":W&B"
    place, parts = 7, b""
    while place + 7 <= len(content):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        if kind == 0:
            break
        parts += content[place + 7 : place + 7 + length]
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""
        place += 7 + length


def finished(path, kind):
    """The parsed records, once the last is there: W&B's own process writes the file shortly after ``finish``."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = [kind.FromString(data) for data in records(path.read_bytes())]
        if any(record.HasField("exit") for record in found):
            return found
        time.sleep(0.01)
    raise AssertionError(f"no exit record in {path}")


def test_wandb_offline(blobs, tmp_path):
    wandb = pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    callback = WandB(
        mode="offline",
        project="dladmm",
        dir=str(tmp_path),
        settings=wandb.Settings(silent=True, console="off"),
    )
    result = train(mlp([5, 8, 3]), *blobs, max_iter=6, diagnostics_every=2, callbacks=[callback])
    assert wandb.run is None
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    rows, config, summary = [], {}, {}
    for record in finished(path, wandb_internal_pb2.Record):
        for kind, found in ((record.run.config, config), (record.config, config), (record.summary, summary)):
            found |= {item.key or item.nested_key[0]: json.loads(item.value_json) for item in kind.update}
        items = record.history.item
        rows += [{i.key or i.nested_key[0]: json.loads(i.value_json) for i in items}] if items else []
    for column in ("lagrangian", "loss", "stationarity"):
        assert [(row["_step"], row[column]) for row in rows if column in row] == expected(result, column)
    assert config["samples"] == 90
    assert summary["status"] == "MAX_ITER"


@pytest.mark.parametrize(
    ("callback", "module", "extra"),
    [
        (TensorBoard("log"), "torch.utils.tensorboard", "tensorboard"),
        (WandB(), "wandb", "wandb"),
        (MLflow(), "mlflow", "mlflow"),
    ],
)
def test_a_missing_library_names_the_extra(blobs, monkeypatch, callback, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    name = type(callback).__name__
    with pytest.raises(InputError, match=rf"{name} needs .* pip install 'dladmm\[{extra}\]'"):
        train(mlp([5, 3]), *blobs, max_iter=2, callbacks=[callback])


def test_nothing_is_imported_before_it_is_used():
    libraries = ("tensorboard", "wandb", "mlflow", "safetensors")
    code = f"import sys, dladmm.callbacks; print([m for m in {libraries} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_callbacks_can_be_copied_as_sklearn_clone_does(tmp_path):
    all_of_them = [
        Checkpoint(tmp_path), CSVLogger("a"), EarlyStopping(), JSONLinesLogger("a"), MLflow(), ProgressBar(),
        TensorBoard("a"), WandB(),
    ]  # fmt: skip
    copied = copy.deepcopy([c for c in all_of_them if not isinstance(c, ProgressBar)])
    assert [type(c) for c in copied] == [type(c) for c in all_of_them if not isinstance(c, ProgressBar)]


class Told:
    """What early stopping asks of a trainer, with a history that is made up."""

    def __init__(self):
        self.history, self.state, self.stopped = History(), self, None

    def clone_parameters(self):
        return [{"W": self.history.n_iter}]

    def request_stop(self, status):
        self.stopped = self.stopped or (status, self.history.n_iter)


@pytest.mark.parametrize(
    ("monitor", "values", "best"),
    [
        ("val_accuracy", [0.5, 0.8, 0.8, 0.7, 0.9, 0.1, 0.1, 0.1, 0.1], (0.9, 5, 8)),
        ("val_loss", [0.5, 0.2, 0.2, 0.2, 0.2, 0.1], (0.2, 2, 5)),
        ("val_loss", [0.5, 0.2, 0.3, 0.19, 0.4, 0.4], (0.19, 4, None)),
    ],
)
def test_the_best_is_the_best_not_the_last(monitor, values, best):
    stopping, trainer = EarlyStopping(monitor, patience=3), Told()
    for k, value in enumerate(values, 1):
        trainer.history.append(iteration=k, **{monitor: value})
        stopping.on_epoch_end(trainer)
        if trainer.stopped:
            break
    value, iteration, stopped = best
    assert (stopping.best, stopping.best_iteration) == (value, iteration)
    assert stopping._params == [{"W": iteration}]
    assert trainer.stopped == (None if stopped is None else (Status.EARLY_STOPPED, stopped))


@pytest.mark.parametrize("hook", ["on_train_begin", "on_epoch_end", "on_loop_end", "on_train_end"])
def test_signal_handlers_are_restored_when_a_callback_raises(blobs, hook):
    class Fails(Callback):
        pass

    def fail(self, *args):
        raise RuntimeError("from a callback")

    setattr(Fails, hook, fail)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    X, y = blobs[:2]
    with pytest.raises(RuntimeError, match="from a callback"):
        train(mlp([5, 3]), X, y, max_iter=2, callbacks=[StopOnSignal(), Fails()])
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
