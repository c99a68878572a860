"""Every test here starts without $DLADMM_DATA and with an empty cache folder of its own."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from types import ModuleType

import pytest

_REAL = os.environ.get("DLADMM_DATA")


@pytest.fixture(autouse=True)
def own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    cache = tmp_path / "cache"
    monkeypatch.delenv("DLADMM_DATA", raising=False)
    monkeypatch.setattr("dladmm.datasets._locate.cache_folder", lambda: cache)
    return cache


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with the published files."""
    if not _REAL or not Path(_REAL).is_dir():
        pytest.skip("the published data sets are not here; set DLADMM_DATA to their folder")
    return Path(_REAL)


@pytest.fixture(scope="session")
def real_pyg() -> ModuleType:
    """PyTorch Geometric, where it is installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # importing PyG is not free of deprecations
        pytest.importorskip("torch_geometric.datasets")
        import torch_geometric

        return torch_geometric
