"""When a run raises rho, and nu with it, as the authors' published code does."""

from __future__ import annotations

from dataclasses import replace

from dladmm.base.history import History
from dladmm.engine.options import TrainOptions
from dladmm.engine.problem import State
from dladmm.engine.sweep import Engine

TENFOLD_EVERY = 50
"""Iterations after which ``rho_rule="tenfold"`` raises rho."""


def raises_rho(options: TrainOptions, history: History, state: State, engine: Engine) -> bool:
    """Whether a rule of the authors' code (:class:`TrainOptions`, ``rho_rule``) has raised rho, and nu with it."""
    if options.rho_rule == "tenfold":
        if history.n_iter % TENFOLD_EVERY or state.rho >= 1:
            return False
        _raise_weights(state, min(10 * state.rho, 1.0))
        return True
    losses = [value for value in history["loss"][-4:] if value is not None]
    if len(losses) < 4 or not losses[0] < losses[1] < losses[2] < losses[3] or state.rho >= 0.1:
        return False
    _raise_weights(state, min(10 * state.rho, 0.1))
    o = engine.options
    engine.options = replace(o, alpha0=o.alpha0 and 10 * o.alpha0, t0=o.t0 and 10 * o.t0)
    return True


def _raise_weights(state: State, rho: float) -> None:
    """The authors have one number for rho and nu; where they differ they keep their ratio."""
    state.nu *= rho / state.rho
    state.rho = rho
