"""The verdict on a run: whether it has settled, grown beyond bounds or risen, and its certificate."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dladmm.base.history import History
from dladmm.engine.certificate import Certificate, Recomputed, certify
from dladmm.training.diagnostics import root

if TYPE_CHECKING:
    from dladmm.training.trainer import Trainer


def settled(history: History, eps_rel: float) -> bool:
    """Whether ten iterations together lowered the true objective by less than ``eps_rel`` of it."""
    values = [value for value in history["lagrangian"][-11:] if value is not None]
    return len(values) == 11 and values[0] - values[-1] < eps_rel * abs(values[-1])


def unbounded(history: History, start: float) -> bool:
    """Whether the Lagrangian has grown beyond all bounds."""
    return (history.last("lagrangian") or 0.0) > 1e6 * (1 + abs(start))


def rose(history: History, start: float) -> bool:
    """Whether the run ended above where it began: what divergence looks like in a bounded number of steps."""
    first, last = history["lagrangian"][0], history["lagrangian"][-1]
    return first is not None and last is not None and last > max(first, start)


def certify_run(trainer: Trainer, restored: bool) -> Certificate:
    """The certificate of a run; ``restored`` says that the history's last row tells of another iterate."""
    accelerated = trainer.options.mode == "accelerated"
    certificate = certify(
        trainer.measuring,
        trainer.state,
        trainer.history,
        trainer.start,
        trainer.exempt,
        accelerated,
        trainer.baseline,
        trainer.options.mode == "streaming",
    )
    if not restored:
        return certificate
    energy = trainer.engine.energy(trainer.state)
    measured = {
        "lagrangian": float(energy.lagrangian),
        "primal_residual": root(float(energy.residual_squared)),
        "dual_optimality": root(float(trainer.engine.dual_optimality(trainer.state))),
        "stationarity": root(float(trainer.measuring.stationarity(trainer.state))),
    }
    pairs = {n: Recomputed(value, getattr(certificate, n).recomputed) for n, value in measured.items()}
    return replace(certificate, **pairs)  # type: ignore[arg-type]
