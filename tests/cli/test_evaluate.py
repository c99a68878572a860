"""``dladmm evaluate`` and ``dladmm export``: measures that agree with their definitions, and networks that agree."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from test_defaults_cli import prices, rings
from typer.testing import CliRunner

from command_line import in_this_process
from dladmm import datasets
from dladmm import packed as packed_reader
from dladmm.api.packed_onnx import run_packed_onnx
from dladmm.base.errors import DataError, InputError
from dladmm.cli.app import app
from dladmm.cli.evaluating import evaluate_run, export_run
from dladmm.cli.run_config import RunConfig
from dladmm.cli.run_train import run_training
from dladmm.network.table_inputs import features_taken
from dladmm.packed import PackedNetwork
from dladmm.training.checkpoint import load_model


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    prices(folder / "own.csv")
    rings(folder / "rings.csv")
    for name, file, target in (("price", "own.csv", "price"), ("kind", "rings.csv", "kind")):
        settings = {"csv": str(folder / file), "target": target, "hidden": (20,), "max_iter": 20}
        assert run_training(RunConfig(**settings, out=str(folder / name)), False).exit_code == 0
    graph = RunConfig(network="gcn", dataset="karate", hidden=(4,), max_iter=5, out=str(folder / "graph"))
    assert run_training(graph, False).exit_code == 0
    return folder


def test_regression_on_the_test_rows_and_on_a_table(runs):
    own = evaluate_run(runs / "price")
    assert own["n_rows"] == 84
    standing = json.loads((runs / "price" / "metrics.json").read_text())["standing"]
    assert own["r2"] == pytest.approx(standing["network"], abs=1e-6)
    whole = evaluate_run(runs / "price", runs / "own.csv")
    truth = np.loadtxt(runs / "own.csv", delimiter=",", skiprows=1)
    with torch.no_grad():
        module = load_model(runs / "price" / "model.safetensors").module
        predicted = module(torch.from_numpy(truth[:, :-1]))[:, 0].numpy()
    wrong = predicted - truth[:, -1]
    assert whole["mae"] == pytest.approx(np.abs(wrong).mean())
    assert whole["rmse"] == pytest.approx(np.sqrt((wrong**2).mean()))
    assert whole["r2"] == pytest.approx(
        1 - (wrong**2).sum() / ((truth[:, -1] - truth[:, -1].mean()) ** 2).sum()
    )
    pairs = whole["predicted_against_true"]
    assert [part["rows"] for part in pairs] == [42] * 10
    assert [part["predicted"] for part in pairs] == sorted(part["predicted"] for part in pairs)


def test_classes(runs):
    found = evaluate_run(runs / "kind", runs / "rings.csv")
    confusion = np.array(found["confusion"])
    assert confusion.sum() == found["n_rows"] == 300
    assert found["classes"] == ["in", "out"]
    assert found["accuracy"] == pytest.approx(np.trace(confusion) / 300)
    assert found["balanced_accuracy"] == pytest.approx((confusion.diagonal() / confusion.sum(1)).mean())
    assert found["accuracy"] > 0.9
    assert 0.95 < found["auc"] <= 1
    assert 0 < found["log_loss"] < 0.4
    assert found["most_frequent_class"] == pytest.approx(confusion.sum(1).max() / 300)


def test_graphs_are_evaluated_by_their_test_nodes(runs):
    found = evaluate_run(runs / "graph")
    last = json.loads((runs / "graph" / "metrics.json").read_text())["last"]
    assert found["n_rows"] == 30
    assert found["accuracy"] == pytest.approx(last["val_accuracy"])
    with pytest.raises(InputError, match="its own graph"):
        evaluate_run(runs / "graph", runs / "own.csv")


def test_what_cannot_be_evaluated(runs, tmp_path):
    other = (runs / "rings.csv").read_text().replace(",in", ",inside", 1)
    (tmp_path / "other.csv").write_text(other)
    with pytest.raises(DataError, match="inside, which the network was not trained with"):
        evaluate_run(runs / "kind", tmp_path / "other.csv")
    (tmp_path / "lacks.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="kind"):
        evaluate_run(runs / "kind", tmp_path / "lacks.csv")


def test_the_commands(runs):
    answer = CliRunner().invoke(app, ["evaluate", str(runs / "kind")])
    assert answer.exit_code == 0, answer.output
    assert "Confusion matrix" in answer.output
    answer = CliRunner().invoke(app, ["evaluate", str(runs / "price")])
    assert "Predicted against true" in answer.output
    assert "R^2" in answer.output
    answer = CliRunner().invoke(app, ["evaluate", str(runs / "price"), "--json"])
    assert json.loads(answer.stdout)["task"] == "regression"
    answer = CliRunner().invoke(app, ["export", str(runs / "price"), "--format", "state-dict", "--json"])
    assert json.loads(answer.stdout)["file"].endswith("model.pt")


def test_exports_compute_what_the_network_does(runs, tmp_path):
    module = load_model(runs / "price" / "model.safetensors").module
    x = torch.rand(7, 4, dtype=torch.float64) * 100
    with torch.no_grad():
        expected = module(x)
    weights = torch.load(export_run(runs / "price", "state-dict", tmp_path / "m.pt"), weights_only=True)
    assert set(weights) == set(module.state_dict())
    assert all(torch.equal(weights[name], value) for name, value in module.state_dict().items())
    program = torch.export.load(export_run(runs / "price", "torch-export", tmp_path / "m.pt2"))
    torch.testing.assert_close(program.module()(x), expected)
    with pytest.raises(InputError, match="must be one of onnx"):
        export_run(runs / "price", "keras")
    with pytest.raises(InputError, match="only state-dict"):
        export_run(runs / "graph", "torch-export")


@pytest.mark.parametrize("name", ["price", "kind"])
def test_onnx_gives_the_same_outputs(name, runs, tmp_path):
    import onnx
    import onnxruntime

    file = export_run(runs / name, "onnx", tmp_path / "m.onnx")
    onnx.checker.check_model(str(file))
    module = load_model(runs / name / "model.safetensors").module
    first = next(module.parameters())
    # Rows of the units that training saw, and of another number than the exporter's example
    x = torch.tensor(
        np.loadtxt(runs / "own.csv", delimiter=",", skiprows=1)[:7, : features_taken(module)]
    ).to(first)
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": x.numpy()})
    with torch.no_grad():
        wanted = module(x).numpy()
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


def test_onnx_without_its_package_is_refused_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("dladmm.cli.evaluating.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'dladmm\[onnx\]'"):
        export_run(tmp_path / "nowhere", "onnx")
    with pytest.raises(InputError, match="packed-onnx needs the package onnx"):
        export_run(tmp_path / "nowhere", "packed-onnx")


def test_a_network_of_signs_is_trained_packed_and_counted(tmp_path):
    words = (
        "train mlp --dataset digits --activation sign --weights binary --hidden 24,16 --max-iter 2 --out run"
    )
    assert in_this_process(*words.split(), cwd=tmp_path).returncode == 0
    answer = in_this_process("export", "run", "--packed", "--out", "digits.npz", cwd=tmp_path)
    assert answer.stdout == "Wrote digits.npz.\n"
    model = load_model(tmp_path / "run" / "model.safetensors")
    data = datasets.load("digits")
    packed = PackedNetwork(tmp_path / "digits.npz")
    with torch.no_grad():
        expected = model.module(torch.as_tensor(data.x_test, dtype=torch.float32)).double().numpy()
    assert (packed.decision_function(data.x_test) == expected).all()
    assert packed.predict(data.x_test).tolist() == expected.argmax(1).tolist()
    own = (tmp_path / "packed.py").read_text(encoding="utf-8")
    assert own == Path(packed_reader.__file__).read_text(encoding="utf-8")
    answer = in_this_process("export", "run", "--format", "packed-onnx", cwd=tmp_path)
    assert answer.stdout == "Wrote run/model.packed.onnx.\n"
    found = run_packed_onnx(tmp_path / "run" / "model.packed.onnx", data.x_test, 1 / 16)
    assert (found == expected).all()
    size = evaluate_run(tmp_path / "run")["network"]
    assert (size["additions"], size["bit_operations"]) == (64 * 24 + 16 * 10, 24 * 16)
    assert size["bytes"] == (64 * 24 + 24 * 16) // 8 + 4 * (24 + 16) + 4 * (16 * 10 + 10)
    assert "bit operations per row" in CliRunner().invoke(app, ["evaluate", str(tmp_path / "run")]).output


def test_what_cannot_be_packed_is_said(runs, tmp_path):
    for kind in ("packed", "packed-onnx"):
        with pytest.raises(InputError, match="cannot be packed"):
            export_run(runs / "kind", kind)
    with pytest.raises(InputError, match="trained with --mode streaming"):
        RunConfig(dataset="digits", weights="binary", mode="accelerated")
