"""Command lines without the picture of their curves, which takes longer than their training."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """In tests; the runs that a module makes once, before its tests, draw theirs."""
    monkeypatch.setattr("dladmm.training.run_folder.plot_curves", lambda *arguments: False)
