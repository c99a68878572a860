"""Packed networks: equal to the network bit for bit, by a reader that needs numpy alone; bad files are refused."""

from __future__ import annotations

import ast
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import dladmm.packed
from dladmm import InputError, MLPClassifier, datasets, train
from dladmm.activations.staircase import Staircase
from dladmm.api import packed_onnx
from dladmm.api.packed_onnx import run_packed_onnx, save_packed_onnx
from dladmm.api.packing import cost_of, save_packed, unit_of
from dladmm.packed import PackedNetwork

FOUR = {"name": "quantised", "levels": 4, "low": -1.0, "high": 1.0}
ODD = {"name": "quantised", "levels": 4, "low": 0.0, "high": 1.0}
NETWORKS = {
    "binary": {"activation": "sign", "weights": "binary"},
    "ternary": {"activation": "sign", "weights": "ternary"},
    "two bits": {"activation": FOUR, "weights": 2},
    "three bits behind steps": {"activation": "step", "weights": 3},
    "levels from zero": {"activation": ODD, "weights": "binary"},
    "few": {"activation": "sign", "weights": {"levels": 3, "per_unit": 9}},
    "binary to the end": {"activation": "sign", "weights": ["binary"] * 3},
}


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X[:900].astype(np.float32), y[:900], X[900:].astype(np.float32)


def outputs(module, X):
    with torch.no_grad():
        return module(torch.from_numpy(X)).double().numpy()


@pytest.mark.parametrize("name", NETWORKS)
def test_the_packed_network_is_the_network_bit_for_bit(digits, name, tmp_path):
    X, y, X_test = digits
    fitted = MLPClassifier((33, 20), max_iter=3, random_state=0, **NETWORKS[name]).fit(X, y)
    save_packed(fitted.module_, tmp_path / "m.npz", classes=fitted.classes_)
    packed = PackedNetwork(tmp_path / "m.npz")
    assert (packed.decision_function(X_test.astype(np.uint8)) == outputs(fitted.module_, X_test)).all()
    assert (packed.predict(X_test) == fitted.predict(X_test)).all()
    assert fitted.score(X, y) > 0.5


@pytest.mark.parametrize("falling", [False, True])
def test_thresholds_by_hand(falling, tmp_path):
    """z = 2 (x1 - x2) + 3 is normalised to (z - 1) / 4, and +1 from 0 on: for x1 - x2 >= -1; or for <= -1."""
    linear, norm = nn.Linear(2, 1), nn.BatchNorm1d(1, eps=0.0).eval()
    last = nn.Linear(1, 2)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[2.0, -2.0]]))
        linear.bias.fill_(3.0)
        norm.running_mean.fill_(1.0)
        norm.running_var.fill_(16.0)
        norm.weight.fill_(-1.0 if falling else 1.0)
        last.weight.copy_(torch.tensor([[0.5], [-0.5]]))
        last.bias.copy_(torch.tensor([0.25, 0.0]))
    module = nn.Sequential(linear, norm, Staircase([-1.0, 1.0], [0.0]), last)
    save_packed(module, tmp_path / "m.npz")
    packed = PackedNetwork(tmp_path / "m.npz")
    assert packed.layers[0].thresholds.tolist() == [[1 if falling else -1]]
    rows = np.array([[0, 2], [0, 1], [1, 1]])
    assert packed.codes(rows)[:, 0].tolist() == ([1, 1, 0] if falling else [0, 1, 1])
    assert (packed.predict(rows) == outputs(module, rows.astype(np.float32))).all()


def test_the_eps_of_a_normalisation_counts(tmp_path):
    """(z - 0) / sqrt(1 + 3) - 1 is reached from z = 2 on, not from 1."""
    linear, norm, last = nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1, eps=3.0).eval(), nn.Linear(1, 2)
    with torch.no_grad():
        linear.weight.fill_(1.0)
        norm.bias.fill_(-1.0)
    save_packed(nn.Sequential(linear, norm, Staircase([-1.0, 1.0], [0.0]), last), tmp_path / "m.npz")
    assert PackedNetwork(tmp_path / "m.npz").layers[0].thresholds.tolist() == [[2]]


def test_costs_by_hand():
    """Weights -1, 0 and 1 from 16 inputs to 8 units of 4 levels; -3, -1, 1 and 3 to 5 signs; a real last layer."""
    first, second, last = (
        nn.Linear(16, 8, bias=False),
        nn.Linear(8, 5, bias=False),
        nn.Linear(5, 3, bias=False),
    )
    with torch.no_grad():
        first.weight.copy_((torch.arange(128) % 3 - 1.0).view(8, 16))
        second.weight.copy_((torch.arange(40) % 4 * 2 - 3.0).view(5, 8))
    levels = Staircase([-1.0, -0.5, 0.5, 1.0], [-0.7, 0.0, 0.7])
    found = cost_of(nn.Sequential(first, levels, second, Staircase([-1.0, 1.0], [0.0]), last))
    assert found == {
        "parameters": 128 + 40 + 15,
        "bytes": 128 * 2 // 8 + 4 * 3 * 8 + 40 * 2 // 8 + 4 * 5 + 4 * (15 + 3),
        "bit_operations": 40 * 2 * 2,
        "additions": 128 + 15,
        "multiplications": 0,
    }


@pytest.mark.parametrize("count", [True, False], ids=["bitwise_count", "table"])
def test_sums_are_those_of_the_matrix(digits, count, tmp_path, monkeypatch):
    X, y, X_test = digits
    fitted = MLPClassifier((70, 20), FOUR, weights=2, max_iter=1, random_state=0).fit(X, y)
    save_packed(fitted.module_, tmp_path / "m.npz")
    if not count:
        monkeypatch.delattr(np, "bitwise_count", raising=False)
    monkeypatch.setattr(dladmm.packed, "AT_ONCE", 1)  # a row at a time
    first, second = PackedNetwork(tmp_path / "m.npz").layers
    numbers = first.reached(X_test @ first.matrix().T)
    levels = 2 * numbers.astype(int) - 3
    assert (second.sums(numbers, 2) == levels @ second.matrix().T).all()


def test_the_reader_stands_alone():
    tree = ast.parse(Path(dladmm.packed.__file__).read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) == {"numpy"}


def broken(path, **changes):
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    meta = json.loads(bytes(arrays["meta"]))
    for key, value in changes.items():
        if key in arrays:
            arrays[key] = value
        else:
            meta[key] = value
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "out of bounds"),
        ({"layers": []}, "out of bounds"),
        (
            {"layers": [{"n_in": 2, "n_out": 10**9, "planes": 1, "levels": 2, "masked": False}]},
            "out of bounds",
        ),
        ({"n_in": 7}, "out of bounds"),
        ({"classes": ["a"]}, "out of bounds"),
        ({"unit": "x"}, "no packed network"),
        ({"signs_0": np.zeros((1, 1, 2), np.uint8)}, "signs_0 is uint8"),
        ({"thresholds_0": np.zeros((1, 1))}, "thresholds_0 is float64"),
    ],
    ids=str,
)
def test_bad_files_are_refused(changes, message, tmp_path):
    module = nn.Sequential(nn.Linear(2, 1), Staircase([-1.0, 1.0], [0.0]), nn.Linear(1, 2))
    with torch.no_grad():
        module[0].weight.fill_(1.0)
    save_packed(module, tmp_path / "m.npz")
    with pytest.raises(ValueError, match=message):
        PackedNetwork(broken(tmp_path / "m.npz", **changes))


def test_files_of_something_else_are_refused(tmp_path):
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(ValueError, match="no packed network"):
        PackedNetwork(tmp_path / "other.npz")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="pickle"):
        np.load(tmp_path / "objects.npy", allow_pickle=False)


def test_what_cannot_be_packed_is_said(digits, tmp_path):
    X, y, _ = digits
    sign = Staircase([-1.0, 1.0], [0.0])
    for module, message in (
        (nn.Sequential(nn.Linear(4, 3), sign, nn.Linear(3, 2)), "has real weights"),
        (nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), "found Linear followed by ReLU"),
        (nn.Sequential(nn.Linear(4, 3)), "has hidden layers"),
    ):
        with pytest.raises(InputError, match=message):
            save_packed(module, tmp_path / "m.npz")
    three, first, second = Staircase([-1.0, 0.0, 1.0], [-0.5, 0.5]), nn.Linear(4, 4), nn.Linear(4, 4)
    with torch.no_grad():
        first.weight.fill_(1.0)
        second.weight.fill_(1.0)
    with pytest.raises(InputError, match="equally spaced levels, not 3 before"):
        save_packed(nn.Sequential(first, three, second, sign, nn.Linear(4, 2)), tmp_path / "m.npz")
    module = nn.Sequential(nn.Linear(64, 5), nn.BatchNorm1d(5), sign, nn.Linear(5, 10))
    train(module, X, y, weights=5, max_iter=1)
    with pytest.raises(InputError, match="2 classes for 10 outputs"):
        save_packed(module, tmp_path / "m.npz", classes=["a", "b"])


def test_rows_that_do_not_fit_are_refused(tmp_path):
    module = nn.Sequential(nn.Linear(2, 1), Staircase([-1.0, 1.0], [0.0]), nn.Linear(1, 2))
    with torch.no_grad():
        module[0].weight.fill_(1.0)
    save_packed(module, tmp_path / "m.npz", unit=1 / 16)
    packed = PackedNetwork(tmp_path / "m.npz")
    assert (packed.predict([[1 / 16, 0.5]]) == packed.predict([[1, 8]])).all()
    with pytest.raises(ValueError, match="shape"):
        packed.predict([[1.0]])
    with pytest.raises(ValueError, match="whole multiples of 0"):
        packed.predict([[0.03, 0.5]])


def test_units():
    assert [unit_of([[0, 3 * u]]) for u in (1, 1 / 16, 1 / 255, 0.1)] == [1, 1 / 16, 1 / 255, 0.1]
    with pytest.raises(InputError, match="whole multiples"):
        unit_of([[0.1234567]])


@pytest.mark.realdata
@pytest.mark.slow
def test_all_test_images_of_mnist(tmp_path):
    if not os.environ.get("DLADMM_DATA"):
        pytest.skip("DLADMM_DATA does not point at a folder with the benchmark data sets")
    data = datasets.load("mnist")
    X, X_test = (np.rint(255 * np.asarray(part)).astype(np.float32) for part in (data.x_train, data.x_test))
    fitted = MLPClassifier((150, 100), "sign", weights="binary", max_iter=2, random_state=0)
    fitted.fit(X[:2000], np.asarray(data.y_train)[:2000])
    save_packed(fitted.module_, tmp_path / "m.npz", classes=fitted.classes_)
    packed = PackedNetwork(tmp_path / "m.npz")
    assert len(X_test) == 10_000
    assert (packed.decision_function(X_test.astype(np.uint8)) == outputs(fitted.module_, X_test)).all()


@pytest.mark.parametrize("name", NETWORKS)
def test_onnx_with_integer_types_is_the_network_bit_for_bit(digits, name, tmp_path):
    import onnx
    import onnxruntime

    X, y, X_test = digits
    fitted = MLPClassifier((33, 20), max_iter=1, random_state=0, **NETWORKS[name]).fit(X, y)
    n_bytes = save_packed_onnx(fitted.module_, tmp_path / "m.onnx", classes=fitted.classes_)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": X_test.astype(np.uint8)})
    assert (found == outputs(fitted.module_, X_test)).all()
    model = onnx.load(tmp_path / "m.onnx")
    kinds = {each.name: each.data_type for each in model.graph.initializer}
    assert [kinds[f"weights_{l}"] for l in (0, 1)] == [onnx.TensorProto.INT8] * 2
    assert [node.op_type for node in model.graph.node].count("MatMulInteger") == 2
    assert 64 * 33 + 33 * 20 < n_bytes < (tmp_path / "m.onnx").stat().st_size < 10_000
    meta = {each.key: each.value for each in model.metadata_props}
    assert meta == {"unit": "1.0", "classes": json.dumps(list(range(10)))}


def test_onnx_without_onnxruntime_is_run_by_onnx_itself(digits, tmp_path, monkeypatch):
    X, y, X_test = digits
    fitted = MLPClassifier((9, 7), FOUR, weights=2, max_iter=1, random_state=0).fit(X, y)
    save_packed_onnx(fitted.module_, tmp_path / "m.onnx")
    monkeypatch.setattr(packed_onnx, "find_spec", lambda name: None)
    found = run_packed_onnx(tmp_path / "m.onnx", X_test, 1.0)
    assert (found == outputs(fitted.module_, X_test)[:256]).all()
    with pytest.raises(InputError, match="from 0 to 255"):
        run_packed_onnx(tmp_path / "m.onnx", X_test - 1, 1.0)


def test_onnx_with_integer_types_has_at_most_six_bits(tmp_path):
    linear, last = nn.Linear(3, 2), nn.Linear(2, 2)
    linear.weight.data.copy_(torch.tensor([[1.0, 3.0, 65.0], [-1.0, 1.0, 5.0]]))
    with pytest.raises(InputError, match="more than 6 bits"):
        save_packed_onnx(nn.Sequential(linear, Staircase([-1.0, 1.0], [0.0]), last), tmp_path / "m.onnx")
    linear.weight.data.normal_()
    with pytest.raises(InputError, match="real weights"):
        save_packed_onnx(nn.Sequential(linear, Staircase([-1.0, 1.0], [0.0]), last), tmp_path / "m.onnx")
