"""Streaming mode on the command line."""

from __future__ import annotations

import json
import os
import signal

import numpy as np
import pytest

from command_line import in_this_process as dladmm
from dladmm.cli.run_config import RunConfig, merged
from dladmm.engine.streaming import Streaming
from dladmm.training.checkpoint import load_model

pytestmark = pytest.mark.slow


DIGITS = ("train", "mlp", "--dataset", "digits", "--hidden", "20", "--mode", "streaming")


def test_a_streaming_run(tmp_path):
    done = dladmm(*DIGITS, "--batch-size", 64, "--max-iter", 3, "--out", "r", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "pass 3/3" in done.stderr
    assert "Streaming: a sweep per mini-batch" in done.stderr
    metrics = json.loads(done.stdout)
    assert metrics["run"] == "r"
    settings = (tmp_path / "r" / "config.toml").read_text()
    assert 'mode = "streaming"' in settings
    assert "batch_size = 64" in settings
    assert len((tmp_path / "r" / "history.csv").read_text().splitlines()) == 4


def test_settings_from_a_file(tmp_path):
    (tmp_path / "run.toml").write_text(
        'dataset = "digits"\nmode = "streaming"\nbatch_size = 99\nmax_iter = 2\n'
    )
    config = merged(tmp_path / "run.toml", {"batch_size": 77})
    assert config.options() == {"preset": "default", "mode": "streaming", "batch_size": 77, "max_iter": 2}


def test_passes_by_default(tmp_path):
    config = RunConfig(dataset="digits", mode="streaming")
    assert "max_iter" not in config.options()
    assert "max_iter" not in config.to_toml()
    assert RunConfig(dataset="digits", mode="convergent").options()["max_iter"] == 200
    done = dladmm(*DIGITS, "--batch-size", 700, "--out", "r", cwd=tmp_path)
    assert "pass 100/100" in done.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--rho", "1"), "rho"),
        (("--max-memory", "1KB"), "max_memory is 0.001 MB"),
        (("--preset", "paper"), "preset"),
        (("--batch-size", "0"), "batch_size"),
        (("--max-iter", "0"), "max_iter"),
    ],
)
def test_refused_by_name(tmp_path, flags, words):
    done = dladmm(*DIGITS, *flags, "--out", "r", cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr


def test_batch_size_needs_the_mode(tmp_path):
    done = dladmm("train", "mlp", "--dataset", "digits", "--mode", "convergent", "--batch-size", 5, "--out", "r",
                  cwd=tmp_path)  # fmt: skip
    assert done.returncode == 2
    assert "batch_size is a setting of mode='streaming'" in done.stderr


def test_a_signal_in_mid_pass_and_resume(tmp_path, monkeypatch):
    """The run ends after the present batch, writes where it stood, and goes on as if nothing had been."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 600)
    np.savez(tmp_path / "own.npz", x=rng.normal(size=(600, 10)) + np.eye(3, 10)[y], y=y)
    arguments = ("train", "mlp", "--npz", "own.npz", "--hidden", "8", "--mode", "streaming", "--batch-size", 16,
                 "--max-iter", 2)  # fmt: skip
    whole = dladmm(*arguments, "--out", "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    step, steps = Streaming.step, []

    def interrupted_step(self, batch):
        steps.append(len(steps))
        if len(steps) == 11:
            os.kill(os.getpid(), signal.SIGTERM)
        step(self, batch)

    with monkeypatch.context() as patched:
        patched.setattr(Streaming, "step", interrupted_step)
        cut = dladmm(*arguments, "--out", "cut", cwd=tmp_path)
    assert cut.returncode == 143, cut.stderr
    assert len(steps) == 11, "the batch of the signal is the last, in mid-pass"
    resumed = dladmm("train", "mlp", "--resume", "cut", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    pairs = zip(*(load_model(tmp_path / name / "model.safetensors").module.parameters() for name in ("whole", "cut")),
                strict=True)  # fmt: skip
    assert all(bool((a == b).all()) for a, b in pairs)
