"""The experiments of the paper's tables and figures: the TOML files in ``configs/``."""

from __future__ import annotations

from importlib.resources import files

from dladmm.base.errors import InputError
from dladmm.runs.experiment import Experiment, from_toml

ORDER = (
    "mlp-data",
    "mlp-convergence",
    "mlp-divergence",
    "mlp-accuracy",
    "mlp-time-neurons",
    "mlp-time-samples",
    "gcn-data",
    "gcn-convergence",
    "gcn-divergence",
    "gcn-accuracy",
    "gcn-time-neurons",
    "gcn-time-edges",
    "gcn-memory",
)
"""As in the paper's section; gcn-time-edges is no table of the paper, it completes its analysis of complexity."""


def experiment(name: str, scale: str = "full") -> Experiment:
    """The experiment with this ID at this scale."""
    if name not in ORDER:
        raise InputError(f"unknown experiment {name!r}; known are {', '.join(ORDER)}, and all.")
    text = (files("dladmm.reproduce") / "configs" / f"{name}.toml").read_text(encoding="utf-8")
    return from_toml(name, scale, text)


def chosen(names: str) -> list[str]:
    """``all``, an ID, or several with commas."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    return list(ORDER) if wanted == ["all"] else [experiment(name).id for name in wanted]
