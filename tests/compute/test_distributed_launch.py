"""The command line under torchrun: real processes, and one of them killed."""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import pytest
import torch

import killing_ranks
from dladmm import load_model
from dladmm.base.errors import InputError
from dladmm.cli import launch
from dladmm.cli.launch import check_folder_is_known, launched, local_device
from dladmm.cli.run_config import RunConfig
from dladmm.cli.run_train import Execution, run_training

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


@pytest.mark.slow
def test_torchrun_trains_as_one_process_does(tmp_path):
    """Kills are in tests/killing_ranks.py, and without torchrun in tests/compute/test_distributed.py."""
    npz = killing_ranks.data(tmp_path)
    process = killing_ranks.started(tmp_path / "two", npz, 6, more=["--profile"])
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    assert json.loads(stdout)["iterations"] == 6
    assert stderr.count("data       ") == 1  # the first rank speaks for all
    assert "30 training rows, 8 test rows, 5 features, 3 classes on rank 0 of 2" in stderr
    assert "bytes per iteration on each of 2 ranks" in stderr
    assert json.loads(stdout)["traffic"]["ranks"] == 2
    shared = {"hidden": (6,), "mode": "convergent", "max_iter": 6, "dtype": "float64"}
    settings = RunConfig(npz=str(npz), out=str(tmp_path / "one"), **shared)
    run_training(settings, resume=False)
    one, two = (load_model(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for a, b in zip(one.module.parameters(), two.module.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(one.history["val_loss"], two.history["val_loss"], rtol=1e-10)


def test_a_run_that_may_be_restarted_needs_a_folder(monkeypatch):
    check_folder_is_known(None)
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    check_folder_is_known("runs/here")
    with pytest.raises(InputError, match="give --out"):
        check_folder_is_known(None)


def test_without_a_launcher_there_is_one_process(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with launched("cpu") as comm:
        assert comm.alone
        assert comm.texts("so") == ["so"]
    assert local_device("auto") == "auto"


def test_a_rank_waits_for_some_time_at_least():
    with pytest.raises(InputError, match="timeout must be a number of seconds above 0"):
        Execution(timeout=0.0)


def test_profile_of_one_process(tmp_path, capsys):
    from typer.testing import CliRunner

    from dladmm.cli.app import app

    arguments = [
        "train",
        "mlp",
        "--dataset",
        "digits",
        "--hidden",
        "4",
        "--max-iter",
        "2",
        "--profile",
        "--json",
    ]
    answer = CliRunner().invoke(app, [*arguments, "--out", os.fspath(tmp_path / "run")])
    assert answer.exit_code == 0
    assert json.loads(answer.stdout)["traffic"]["ranks"] == 1
    assert "communication  none: one process" in answer.stderr


def test_other_commands_are_refused_under_torchrun(monkeypatch):
    from typer.testing import CliRunner

    from dladmm.cli.app import app

    monkeypatch.setenv("WORLD_SIZE", "2")
    answer = CliRunner().invoke(app, ["datasets", "list"])
    assert isinstance(answer.exception, InputError)
    assert "dladmm datasets runs in one process" in str(answer.exception)


def test_several_agents_with_restarts_are_told_what_they_need(monkeypatch):
    for name, value in {
        "RANK": "0", "WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2", "TORCHELASTIC_MAX_RESTARTS": "1",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(launch, "rendezvous", lambda *_, **__: iter([("store", 0, 2)]))
    with pytest.raises(InputError, match="TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"), launched("cpu"):
        pass
