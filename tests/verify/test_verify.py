"""Portable certificates: honest ones are accepted, tampered ones rejected, by one file that needs numpy alone."""

from __future__ import annotations

import copy
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.datasets import load_wine
from typer.testing import CliRunner

import dladmm
from chaos.certificates import honest, judged, tampered
from chaos.ledger import Ledger
from chaos.plan import BY_NAME
from convergent import train, train_graph
from dladmm import verify
from dladmm.base import container
from dladmm.base.errors import InputError
from dladmm.cli.app import app
from dladmm.training.result import ConvergenceNotGuaranteed

FILE = Path(verify.__file__)


@pytest.mark.parametrize("line", ["honest", "tampered"])
def test_a_share_of_honest_and_tampered_certificates(line):
    ledger = Ledger(line)
    BY_NAME[line].run(ledger, {"honest": 11, "tampered": 80}[line], seed=7)
    assert ledger.faults == []
    assert ledger.tried >= 11


@pytest.fixture(scope="module")
def case():
    return honest(4)


KINDS = {"end", "history", "parameter", "variable", "data", "permuted", "loss", "rho", "nu", "H", "rise", "reused",
         "penalty", "activation", "exempt", "shortened", "steps"}  # fmt: skip


def test_every_kind_of_tampering_is_tried(case):
    rng = np.random.default_rng(0)
    assert {tampered(case, rng)[0] for _ in range(400)} == KINDS


def test_what_a_simple_forger_forgets(case, tmp_path):
    tensors, claims, data = copy.deepcopy(case)
    assert judged((tensors, claims, data), str(tmp_path)).accepted
    claims["options"]["max_iter"] += 1
    report = verify.verify(tensors, claims, data)
    assert report.failures == ["the claims have the checksum they state"]


def test_a_run_that_is_not_covered_cannot_be_made_to_claim_it(tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 3)), np.arange(20) % 2
    with pytest.warns(dladmm.training.result.ConvergenceNotGuaranteed):
        result = train(dladmm.mlp([3, 4, 2]), X, y, rho=0.5, max_iter=5)
    result.certificate.save(tmp_path / "c")
    tensors, claims = verify.read(str(tmp_path / "c"))
    assert verify.verify(tensors, claims, {"X": X, "y": y}).accepted
    claims["verdict"]["certified"] = claims["verdict"]["covered"] = True
    assert not judged((tensors, claims, {"X": X, "y": y}), str(tmp_path)).accepted


def test_the_file_alone_without_dladmm_and_torch(tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 3)), np.arange(20) % 2
    result = train(dladmm.mlp([3, 4, 2]), X, y, max_iter=5)
    result.certificate.save(tmp_path / "c", data=tmp_path / "d.npz")
    shutil.copy(FILE, tmp_path / "alone.py")
    guard = "import sys; sys.modules['torch'] = sys.modules['dladmm'] = None; import alone; sys.exit(alone.main())"

    def status(*arguments):
        command = [sys.executable, "-c", guard, *map(str, arguments)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    code, words = status("c", "--data", "d.npz")
    assert (code, words.splitlines()[-1]) == (0, "ACCEPTED"), words
    np.savez(tmp_path / "other.npz", X=X[::-1], y=y)
    assert status("c", "--data", "other.npz")[0] == 1
    np.save(tmp_path / "X.npy", X)
    np.savetxt(
        tmp_path / "t.csv", np.column_stack([X, y]), delimiter=",", header="a,b,c,y", comments="", fmt="%.17g"
    )
    assert status("c", "--data", "t.csv")[0] == 0
    assert status("c", "--data", "X=X.npy")[0] == 2
    (tmp_path / "cut").write_bytes((tmp_path / "c").read_bytes()[:-1])
    assert status("cut", "--data", "d.npz")[0] == 2
    assert status("missing", "--data", "d.npz")[0] == 2


def test_the_command_line(tmp_path):
    certificate = str(tmp_path / "run.certificate")
    words = [
        "train",
        "mlp",
        "--dataset",
        "digits",
        "--hidden",
        "8",
        "--max-iter",
        "2",
        "--out",
        str(tmp_path / "run"),
    ]
    refused = CliRunner().invoke(app, [*words, "--mode", "accelerated", "--certificate", certificate])
    assert isinstance(refused.exception, InputError)
    done = CliRunner().invoke(app, [*words, "--mode", "convergent", "--certificate", certificate])
    assert done.exit_code == 0, done.output
    good = CliRunner().invoke(app, ["verify", certificate, "--data", f"{certificate}.npz"])
    assert (good.exit_code, good.output.splitlines()[-1]) == (0, "ACCEPTED")


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
def test_what_cannot_be_saved_says_why(tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 3)), rng.normal(size=20)
    for mode in ("accelerated", "streaming"):
        other = dladmm.train(dladmm.mlp([3, 4, 2]), X, np.arange(20) % 2, max_iter=2, mode=mode)
        with pytest.raises(InputError, match=f"mode='{mode}': no theorem speaks of it"):
            other.certificate.save(tmp_path / "c")
    adam = dladmm.baselines.train("adam", dladmm.mlp([3, 4, 2]), X, np.arange(20) % 2, max_iter=2)
    with pytest.raises(InputError, match="written of a baseline"):
        adam.certificate.save(tmp_path / "c")
    held = dladmm.datasets.load("karate")
    fixed = dladmm.train_graph(
        held, rows="fixed", hidden=(4,), max_iter=2, mode="convergent", self_training=False
    )
    with pytest.raises(InputError, match="rows that are held"):
        fixed.certificate.save(tmp_path / "c")
    scaled = train(dladmm.mlp([3, 4, 2]), X, np.arange(20) % 2, max_iter=2, scale_inputs=True)
    with pytest.raises(InputError, match="scaled inputs or targets"):
        scaled.certificate.save(tmp_path / "c")
    signed = dladmm.mlp([3, 4, 2])
    signed.blocks[0].constraint = dladmm.regularizers.Signed(torch.ones(4, 3))
    with pytest.raises(InputError, match="constraints on single weights"):
        train(signed, X, np.arange(20) % 2, max_iter=2).certificate.save(tmp_path / "c")
    plain = train(dladmm.mlp([3, 4, 2]), X, np.arange(20) % 2, max_iter=2).certificate
    for words, without in (
        ("baseline .adam.", replace(plain, writer=None, baseline="adam")),
        ("iteration 1, which was put back", replace(plain, writer=None, restored=1)),
        ("no run at hand", pickle.loads(pickle.dumps(plain))),
    ):
        with pytest.raises(InputError, match=words):
            without.save(tmp_path / "c")
    own = dladmm.losses.CallableLoss(lambda z, t: ((z - t) ** 2).sum(1), H=2.0)
    with pytest.raises(InputError, match="loss 'callable'"):
        train(dladmm.mlp([3, 4, 1]), X, y, loss=own, max_iter=2).certificate.save(tmp_path / "c")


def test_a_graph_with_sparse_features_is_written_as_with_dense_ones(tmp_path):
    rng = np.random.default_rng(0)
    rows = np.where(rng.random((40, 5)) < 0.3, rng.normal(size=(40, 5)), 0.0)
    edges = rng.integers(0, 40, (2, 80))
    arrays, labels, mask = (rows, sparse.csr_matrix(rows)), np.arange(40) % 3, np.arange(40) < 25
    for number, features in enumerate(arrays):
        result = train_graph(features, edges, labels, mask, hidden=[4], n_classes=3, max_iter=3)
        result.certificate.save(tmp_path / f"{number}", data=tmp_path / f"{number}.npz")
        assert verify.main([str(tmp_path / f"{number}"), "--data", str(tmp_path / f"{number}.npz")]) == 0
    first, second = (verify.read(str(tmp_path / f"{number}"))[1] for number in (0, 1))
    assert first["hashes"]["data"] == second["hashes"]["data"]


# False certificates that were given without any tampering -----------------------------------------------------


def wine():
    X, y = load_wine(return_X_y=True)
    return (X - X.mean(0)) / X.std(0), y


def test_u_that_float32_cannot_hold_is_not_certified():
    X, y = wine()
    assert train(dladmm.mlp([13, 20, 3]), X, y, max_iter=5).certificate.certified
    with pytest.warns(ConvergenceNotGuaranteed, match="u is rounded away in float32.*Scale the features"):
        found = train(dladmm.mlp([13, 20, 3]), X * 1e12, y).certificate
    assert not found.certified
    assert not found.resolved
    assert found.stationarity.recomputed > 1e15
    assert "rounded away" in str(found)


def test_a_run_without_iterations_is_not_certified():
    X, y = wine()
    with pytest.warns(ConvergenceNotGuaranteed, match="Scale the features"):
        result = train(dladmm.mlp([13, 20, 3]), X * 1e19, y)
    assert result.history.n_iter == 0
    assert not result.certificate.certified


def test_a_constraint_is_not_certified():
    X, y = wine()
    found = train(dladmm.mlp([13, 6, 3]), X, y, regularizer="non_negative", max_iter=3).certificate
    assert not found.certified
    assert "constraint" in str(found)


def test_pipes_and_devices_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, "/dev/zero"):
        for read in (verify.read, lambda p: verify.read_data([p]), lambda p: verify.read_data([f"X={p}"])):
            with pytest.raises(verify.Unreadable, match="is a folder, a pipe or a device"):
                read(str(path))


def test_a_damaged_file_is_not_parsed(tmp_path, monkeypatch):
    train(dladmm.mlp([2, 2]), np.eye(2), [0, 1], max_iter=1).certificate.save(tmp_path / "one")
    raw = (tmp_path / "one").read_bytes()
    (tmp_path / "two").write_bytes(raw.replace(b"F32", b"F64", 1))
    monkeypatch.setattr(verify.json, "loads", lambda text: pytest.fail("parsed"))
    with pytest.raises(verify.Unreadable, match="does not have the checksum it states"):
        verify.read(str(tmp_path / "two"))
    monkeypatch.undo()
    assert verify.read(str(tmp_path / "one"))[1]["format"] == 1


# Checkpoints of the run --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["float64", "float32", "graph"])
def on_the_way(request, tmp_path_factory):
    """A certificate, its data and the checkpoints of every iteration."""
    folder, rng = tmp_path_factory.mktemp(request.param), np.random.default_rng(0)
    X, y = rng.normal(size=(30, 3)), np.arange(30) % 3
    kept = [dladmm.callbacks.Checkpoint(folder / "kept", every=1, keep=100)]
    data = {"X": X, "y": y}
    if request.param == "graph":
        data |= {"edge_index": rng.integers(0, 30, (2, 60)), "train_mask": np.arange(30) < 20}
        arrays = X, data["edge_index"], y, data["train_mask"]
        result = train_graph(*arrays, hidden=[4], n_classes=3, max_iter=6, callbacks=kept)
    else:
        options = {"dtype": request.param, "max_iter": 6, "nu": 0.5, "callbacks": kept}
        result = train(dladmm.mlp([3, 5, 3]), X, y, regularizer="l2", **options)
    result.certificate.save(folder / "c")
    paths = sorted(map(str, (folder / "kept").glob("checkpoint-*.dladmm")))
    assert len(paths) == 7  # the start is one of them
    return verify.read(str(folder / "c")), data, paths


def test_checkpoints_of_the_run_are_computed_again(on_the_way):
    (tensors, claims), data, paths = on_the_way
    report = verify.verify(tensors, claims, data, paths)
    assert report.accepted, report.failures
    for k in range(7):
        assert any(f"is a checkpoint of this run, after iteration {k}" in line for line in report.lines)
    for name in ("primal_residual", "risk", "coupling", "dual", "stationarity", "loss"):
        assert sum(f".dladmm: {name}: claimed" in line for line in report.lines) == 6
    assert sum(".dladmm: lagrangian: claimed" in line for line in report.lines) == 7
    claims = copy.deepcopy(claims)
    claims["start"] += 0.1 * abs(claims["start"])
    assert "checkpoint-000000" in "".join(verify.verify(tensors, claims, data, paths[:1]).failures)


def test_a_path_that_was_made_up_does_not_pass_through_a_checkpoint(on_the_way, tmp_path):
    """Every number agrees with every other, and the end is true: only the variables on the way can tell."""
    (tensors, claims), data, paths = on_the_way
    claims = copy.deepcopy(claims)
    h, k = claims["history"], 3
    less = 0.4 * h["risk"][k - 1]
    for column in ("risk", "objective", "lagrangian"):
        h[column][k - 1] -= less
    h["objective"][k - 1] = h["risk"][k - 1] + h["penalty"][k - 1] + h["coupling"][k - 1]
    half = h["rho"][k - 1] / 2 * h["primal_residual"][k - 1] ** 2
    h["lagrangian"][k - 1] = h["objective"][k - 1] + h["dual"][k - 1] + half
    values = [claims["start"], *h["lagrangian"]]
    h["descent"] = [before - after for before, after in pairwise(values)]
    rising = [k + 1] if values[k] < values[k + 1] else []
    for name in ("descent_violations", "sufficient_descent_violations"):
        claims["verdict"][name] = rising
    for name in ("monotone", "sufficient_descent", "certified"):
        claims["verdict"][name] = not rising
    claims["digest"] = verify.digest_of(claims)
    assert verify.verify(tensors, claims, data).accepted
    assert not verify.verify(tensors, claims, data, paths[k : k + 1]).accepted
    forged = container.load(paths[k], "training")
    forged[1]["run"]["history"] |= {name: column[:k] for name, column in h.items()}
    container.save(tmp_path / "forged", "training", *forged)
    report = verify.verify(tensors, claims, data, [str(tmp_path / "forged")])
    assert {words.split(": ")[1] for words in report.failures} == {"risk", "objective", "lagrangian"}


def test_checkpoints_of_other_runs_are_refused(on_the_way, tmp_path):
    (tensors, claims), data, paths = on_the_way
    longer = container.load(paths[-1], "training")
    for column in longer[1]["run"]["history"].values():
        column.append(column[-1])
    container.save(tmp_path / "longer", "training", *longer)
    rewritten = container.load(paths[3], "training")
    rewritten[1]["run"]["history"]["squared_steps"][0] *= 2
    container.save(tmp_path / "rewritten", "training", *rewritten)
    moved = container.load(paths[1], "training")
    moved[0]["u"][0, 0] += 0.5
    container.save(tmp_path / "moved", "training", *moved)
    other = "is a checkpoint of this run"
    for name, words in (("longer", other), ("rewritten", other), ("moved", "moved: ")):
        report = verify.verify(tensors, claims, data, [str(tmp_path / name)])
        assert report.failures
        assert all(words in each for each in report.failures)
    container.save(tmp_path / "model", "model", {}, {})
    with pytest.raises(verify.Unreadable, match="no training"):
        verify.verify(tensors, claims, data, [str(tmp_path / "model")])


def test_checkpoints_on_the_command_line(on_the_way, tmp_path):
    (tensors, claims), data, paths = on_the_way
    claims = {"claims": claims}
    container.save(
        tmp_path / "c", "certificate", {n: torch.from_numpy(t.copy()) for n, t in tensors.items()}, claims
    )
    np.savez(tmp_path / "d.npz", **data)
    words = ["verify", str(tmp_path / "c"), "--data", str(tmp_path / "d.npz")]
    done = CliRunner().invoke(app, [*words, "--checkpoint", paths[1], "--checkpoint", paths[5]])
    assert (done.exit_code, done.output.splitlines()[-1]) == (0, "ACCEPTED")
    assert "after iteration 1" in done.output
    assert "after iteration 5" in done.output
    assert verify.main([*words[1:], "--checkpoint", *paths]) == 0
    assert CliRunner().invoke(app, [*words, "--checkpoint", str(tmp_path / "d.npz")]).exit_code == 2
