"""What a checkpoint says of a run besides its tensors, each field checked before anything of the run is changed."""

from __future__ import annotations

from typing import Any, NamedTuple

from dladmm.base.fields import fields, items, real, whole
from dladmm.base.history import History
from dladmm.engine.options import LARGEST_WEIGHT


class RunFields(NamedTuple):
    """Weights, starts of line searches, the Lagrangian at the start, exempt iterations, and the history."""

    rho: float
    nu: float
    alpha0: float | None
    t0: float | None
    start: float
    exempt: list[int]
    history: History
    method: dict[str, Any]


def checked_run(meta: dict[str, Any]) -> RunFields:
    """The fields of a run; raises DataError for any that is of another type or beyond its bounds."""
    return RunFields(
        rho=real("rho", meta["rho"], 0.0, 1e3 * LARGEST_WEIGHT),
        nu=real("nu", meta["nu"], 0.0, 1e3 * LARGEST_WEIGHT),
        alpha0=None if meta["alpha0"] is None else real("alpha0", meta["alpha0"], 0.0),
        t0=None if meta["t0"] is None else real("t0", meta["t0"], 0.0),
        start=real("start", meta["start"]),
        exempt=[whole("exempt", k) for k in items("exempt", meta["exempt"])],
        history=History.from_dict(meta["history"]),
        method=fields("method", meta.get("method", {})),
    )
