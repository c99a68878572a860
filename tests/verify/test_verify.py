"""Portable certificates: honest ones are accepted, tampered ones rejected, by one file that needs numpy alone."""

from __future__ import annotations

import copy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_wine
from typer.testing import CliRunner

import dladmm
from chaos.certificates import honest, judged, tampered
from chaos.ledger import Ledger
from chaos.plan import BY_NAME
from convergent import train
from dladmm import verify
from dladmm.base.errors import InputError
from dladmm.cli.app import app

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


def test_what_cannot_be_saved_says_why(tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 3)), rng.normal(size=20)
    other = dladmm.train(dladmm.mlp([3, 4, 2]), X, np.arange(20) % 2, max_iter=2, mode="accelerated")
    with pytest.raises(InputError, match="no run at hand"):
        other.certificate.save(tmp_path / "c")
    own = dladmm.losses.CallableLoss(lambda z, t: ((z - t) ** 2).sum(1), H=2.0)
    with pytest.raises(InputError, match="loss 'callable'"):
        train(dladmm.mlp([3, 4, 1]), X, y, loss=own, max_iter=2).certificate.save(tmp_path / "c")


# False certificates that were given without any tampering -----------------------------------------------------


def wine():
    X, y = load_wine(return_X_y=True)
    return (X - X.mean(0)) / X.std(0), y


def test_u_that_float32_cannot_hold_is_not_certified():
    X, y = wine()
    assert train(dladmm.mlp([13, 20, 3]), X, y, max_iter=5).certificate.certified
    found = train(dladmm.mlp([13, 20, 3]), X * 1e12, y).certificate
    assert not found.certified
    assert not found.resolved
    assert found.stationarity.recomputed > 1e15
    assert "rounded away" in str(found)


def test_a_run_without_iterations_is_not_certified():
    X, y = wine()
    result = train(dladmm.mlp([13, 20, 3]), X * 1e19, y)
    assert result.history.n_iter == 0
    assert not result.certificate.certified


def test_a_constraint_is_not_certified():
    X, y = wine()
    found = train(dladmm.mlp([13, 6, 3]), X, y, regularizer="non_negative", max_iter=3).certificate
    assert not found.certified
    assert "constraint" in str(found)
