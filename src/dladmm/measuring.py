"""What is measured of an iterate: the cheap quantities of every iteration, and those that cost products."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from dladmm.blocks import Step
from dladmm.engine import Engine
from dladmm.history import Value
from dladmm.losses import Risk
from dladmm.options import TrainOptions
from dladmm.rows import joined
from dladmm.state import State
from dladmm.subproblems import squared_norm


def vital_signs(engine: Engine, state: State, steps: list[Step]) -> Tensor:
    """What :func:`measure` needs of an iteration, in one float64 tensor on the device."""
    promised = [(s.squared, s.rate) for s in steps if s.rate is not None]
    squared = torch.stack([s for s, _ in promised])
    rates = torch.stack([rate for _, rate in promised])
    moved = torch.where(squared > 0, rates, torch.full_like(rates, math.inf))
    energy = engine.energy(state)
    parameters = [p.abs().max().double() for block in state.params for p in block.values()]
    return torch.stack(
        [
            energy.lagrangian,
            energy.objective,
            energy.residual_squared,
            engine.dual_optimality(state),
            squared.sum(),
            moved.min(),
            torch.stack(parameters).max(),
        ]
    )


def measure(state: State, signs: Tensor) -> tuple[dict[str, Value], bool]:
    """The row of the history that these signs make, fetched in one piece, and whether all is finite."""
    values = signs.tolist()
    row: dict[str, Value] = {
        "lagrangian": values[0],
        "objective": values[1],
        "primal_residual": root(values[2]),
        "dual_optimality": root(values[3]),
        "squared_steps": values[4],
        "c2": values[5] if math.isfinite(values[5]) else 0.0,
        "rho": state.rho,
        "nu": state.nu,
    }
    return row, math.isfinite(values[0]) and math.isfinite(values[6])


@torch.no_grad()
def evaluate(engine: Engine, state: State, validation: tuple[Tensor, Risk] | None) -> dict[str, Value]:
    """Loss and accuracy of the network itself, on training and validation data."""
    predict = partial(engine.chain.predict, state.params)
    loss, accuracy = score(engine.risk, joined(engine.at_once, predict, engine.x), engine.rows)
    row: dict[str, Value] = {"loss": loss, "train_accuracy": accuracy}
    if validation is not None:
        x, risk = validation
        row["val_loss"], row["val_accuracy"] = score(risk, joined(engine.at_once, predict, x))
    return row


def score(risk: Risk, output: Tensor, rows: Tensor | None = None) -> tuple[float, float | None]:
    """Mean loss, and accuracy where the loss is one of classification, over the rows that count."""
    output = risk.flat(output)
    counts = None if risk.weight is None else risk.weight[:, 0].double()
    if rows is not None:
        repeated = rows[:, 0].double().repeat_interleave(len(output) // len(rows))
        counts = repeated if counts is None else counts * repeated
    losses = risk.loss.rows(output, risk.target).double()
    loss = float(losses.mean() if counts is None else losses @ counts / counts.sum())
    if risk.loss.kind != "classification":
        return loss, None
    hits = (risk.loss.decision(output) == risk.loss.decision(risk.target)).double()
    return loss, float(hits.mean() if counts is None else hits @ counts / counts.sum())


def converged(engine: Engine, state: State, options: TrainOptions, r: float, g: float) -> bool:
    """Boyd et al.'s test on the primal residual r and the stationarity g (2011, Section 3.3)."""
    rows = engine.rows
    samples = len(state.u) if rows is None else float(rows.sum())
    variables = samples * sum(v[0].numel() for v in state.outputs)
    parameters = sum(p.numel() for block in state.params for p in block.values())
    scales = [squared_norm(v, rows) for v in (state.outputs[-1], state.predictions[-1], state.u)]
    output, prediction, dual = (math.sqrt(float(scale)) for scale in scales)
    primal = options.eps_abs * math.sqrt(samples * state.u[0].numel())
    stationary = options.eps_abs * math.sqrt(variables + parameters)
    return (
        r <= primal + options.eps_rel * max(output, prediction) and g <= stationary + options.eps_rel * dual
    )


def diagnostics_interval(state: State) -> int:
    """Every iteration while a forward pass is small change (below 2 GFLOP), else every tenth."""
    pairs = zip(state.params, state.outputs, strict=True)
    products = sum(v.numel() * p[0].numel() for block, v in pairs for p in block.values() if p.ndim > 1)
    return 1 if 2 * products < 2e9 else 10


def root(value: float) -> float:
    """Square root, NaN where rounding or a fault made the square negative."""
    return math.sqrt(value) if value >= 0 else math.nan
