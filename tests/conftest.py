"""Shared fixtures. Warnings are errors (pyproject.toml)."""

from __future__ import annotations

import os

# One worker a core: threads of theirs, and of what they start, would collide
if os.environ.get("PYTEST_XDIST_WORKER"):
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

import skips
from dladmm.training import diagnostics

settings.register_profile("suite", max_examples=32, deadline=None, derandomize=True)
settings.register_profile("nightly", max_examples=200, deadline=None, derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))

if os.environ.get("PYTEST_XDIST_WORKER"):
    torch.set_num_threads(1)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not os.environ.get("PYTEST_XDIST_WORKER"):
        skips.judge(session)


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def short_teachers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs' self-training with teachers of a few iterations, for tests of something else."""
    monkeypatch.setattr("dladmm.api.train_graph.TEACHER_ITERATIONS", 5)


@pytest.fixture(autouse=True)
def no_accelerated_run_rises(monkeypatch: pytest.MonkeyPatch) -> None:
    """The safeguard's promise, asked of every accelerated run that any test of this process makes."""
    certify = diagnostics.certify

    def checked(*args, **kwargs):
        certificate = certify(*args, **kwargs)
        assert certificate.monotone or not certificate.accelerated, str(certificate)
        return certificate

    monkeypatch.setattr(diagnostics, "certify", checked)
