"""What is measured of an iterate, and the verdict on a run.

Cheap quantities are measured in every iteration, those that cost products now and then.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dladmm.base.history import Status, Value, settled
from dladmm.blocks import Step
from dladmm.compute.chunks import concatenated, few
from dladmm.compute.passes import ratio, squared_norm
from dladmm.engine.certificate import Certificate, Recomputed, certify
from dladmm.engine.lagrangian import Energy
from dladmm.engine.method import Look
from dladmm.engine.options import TrainOptions
from dladmm.engine.problem import State
from dladmm.engine.sweep import Engine
from dladmm.losses import Risk
from dladmm.training.certificate_file import writer_of
from dladmm.training.standing import MOST_ENTRIES, MOST_ROWS, Evidence, compared, r_squared, score

if TYPE_CHECKING:
    from dladmm.training.trainer import Trainer


def vital_signs(engine: Engine, state: State, steps: list[Step]) -> Tensor:
    """What :func:`measure` needs of the iteration that has just made this state, in one float64 tensor there."""
    squared, rates, energy, dual = _over_all_rows(engine, state, steps)
    moved = torch.where(squared > 0, rates, torch.full_like(rates, math.inf))
    parameters = [p for block in state.params for p in block.values()]
    largest = torch.stack(torch._foreach_norm(parameters, math.inf)).max()
    signs = torch.stack(
        [
            energy.lagrangian,
            energy.objective,
            energy.residual_squared,
            dual,
            squared.sum(),
            moved.min(),
            largest.double(),
            *(energy.risk, energy.penalty, energy.coupling, energy.dual),
        ]
    )
    return torch.cat([signs, squared.double(), rates.double()])


def _over_all_rows(engine: Engine, state: State, steps: list[Step]) -> tuple[Tensor, Tensor, Energy, Tensor]:
    """Squared lengths and rates of the steps that promise one, energy and Lemma 2's residual.

    What is computed from one rank's rows is summed over the ranks in one go.
    """
    promised = [(s.squared, s.rate, s.own) for s in steps if s.squared is not None and s.rate is not None]
    squared = torch.stack([s for s, _, _ in promised])
    rates = torch.stack([rate for _, rate, _ in promised])
    if engine.comm.alone:
        return squared, rates, engine.energy(state, steps=steps), engine.dual_optimality(state)
    own = torch.tensor([mine for _, _, mine in promised], device=squared.device)
    energy = engine.local_energy(state, steps=steps)
    parts = squared[own], (squared * rates)[own], *energy.sums, engine.local_dual_optimality(state)
    lengths, falls, risk, coupling, dual, residual, optimality = engine.comm.total(*parts)
    squared[own], rates[own] = lengths, ratio(falls, lengths)
    return squared, rates, energy.with_sums(risk, coupling, dual, residual), optimality


def look_of(trainer: Trainer) -> Look[Tensor]:
    """:func:`vital_signs`; where messages are dear, with the agreement on the iteration in the same one."""
    look: Look[Tensor] = partial(vital_signs, trainer.engine)
    if trainer.agreement is None or not trainer.comm.few_messages:
        return look
    return trainer.agreement.look(look, trainer.began)


def agreed_seconds(trainer: Trainer, calls: Sequence[Callable[[], Any]]) -> tuple[float, list[Any]]:
    """The seconds of the iteration, the same on all ranks, and what these calls measure."""
    took, agreement, comm = time.perf_counter() - trainer.began, trainer.agreement, trainer.comm
    if agreement is None or comm.few_messages:
        return took if agreement is None else agreement.took, comm.at_once(*calls)
    took, *measured = comm.at_once(partial(agreement.seconds, took, trainer.state.params), *calls)
    return took, measured


def measured_with_products(trainer: Trainer) -> dict[str, Value]:
    """What costs products of its own: loss and accuracy of the network, and the stationarity."""
    engine, state = trainer.engine, trainer.state
    evaluated = partial(evaluate, engine, state, trainer.validation)
    if trainer.options.mode == "streaming":  # no stationary point of the monitor sample's own problem
        return evaluated()
    row, squared, trainer.scales = trainer.comm.at_once(
        evaluated, partial(trainer.measuring.stationarity, state), partial(scales, engine, state)
    )
    return {**row, "stationarity": math.sqrt(float(squared))}


def measure(state: State, signs: Tensor) -> tuple[dict[str, Any], bool]:
    """The row of the history that these signs make, fetched in one piece, and whether all is finite."""
    values = signs.tolist()
    row: dict[str, Any] = {
        "lagrangian": values[0],
        "objective": values[1],
        "primal_residual": root(values[2]),
        "dual_optimality": root(values[3]),
        "squared_steps": values[4],
        "c2": values[5] if math.isfinite(values[5]) else 0.0,
        "rho": state.rho,
        "nu": state.nu,
        **dict(zip(("risk", "penalty", "coupling", "dual"), values[7:11], strict=True)),
        "moves": [value if math.isfinite(value) else None for value in values[11:]],
    }
    return row, math.isfinite(values[0]) and math.isfinite(values[6])


@torch.no_grad()
def evaluate(engine: Engine, state: State, validation: tuple[Tensor, Risk] | None) -> dict[str, Value]:
    """Loss, and accuracy or R^2, of the network itself, on training and validation data."""
    predict = partial(engine.chain.predict, state.params)
    feasible = state.predictions[-1] is state.outputs[-1]  # then its outputs are those of the network,
    own = engine.observed is None  # also behind statistics, where those are of the same rows
    if feasible and all(not b.has_statistics or (own and b.normalises) for b in engine.chain):
        output = state.outputs[-1]
    else:
        output = concatenated(engine.chunk_rows, predict, engine.x)
    measured_of = [(engine.risk, output, engine.counts, engine.comm)]
    if validation is not None:
        x, risk = validation
        measured_of.append((risk, concatenated(engine.chunk_rows, predict, x), None, engine.comm))
    second = r_squared if engine.risk.loss.kind == "regression" else (lambda *_: None)
    calls = [partial(measured, *args) for args in measured_of for measured in (score, second)]
    (loss, accuracy), train_r2, *held = engine.comm.at_once(*calls)
    row: dict[str, Value] = {"loss": loss, "train_accuracy": accuracy, "train_r2": train_r2}
    if held:
        (row["val_loss"], row["val_accuracy"]), row["val_r2"] = held
    return row


def evidence_of(trainer: Trainer, restored: bool) -> Evidence | None:
    """How the network that is handed out stands, by held-out rows where there are any; all ranks call this.

    It was measured last, unless another was ``restored``.
    """
    engine, held, history = trainer.engine, trainer.validation, trainer.history
    risk, loss = engine.risk, engine.risk.loss
    known = history.last("loss") is not None and not restored
    measured = history if known else evaluate(engine, trainer.state, held)
    name = "train" if held is None else "val"

    def figure(column: str) -> float | None:
        value = history.last(column) if known else measured.get(column)
        return None if value is None else float(value)  # type: ignore[arg-type]

    found = compared(
        figure("loss" if held is None else "val_loss"),
        figure(f"{name}_accuracy" if loss.kind == "classification" else f"{name}_r2"),
        risk,
        None if held is None else held[1],
        trainer.state.outputs[-1].shape[-1],
        "training" if held is None else "held-out",
        counts=engine.counts,
        comm=engine.comm,
        unseen=held is not None,
    )
    if found is None:
        return None
    learnt = _rows_of(engine.x, risk) if held is not None and _is_table(trainer) else None
    judged = None if held is None or learnt is None else _rows_of(*held)
    return Evidence(loss, found, () if learnt is None or judged is None else ((judged, learnt),))


def _is_table(trainer: Trainer) -> bool:
    """Whether rows lie in this process and have one answer each, as those of a linear model."""
    engine = trainer.engine
    plain = trainer.comm.alone and isinstance(engine.x, Tensor) and engine.risk.loss.one_answer_per_row
    return plain and trainer.state.outputs[-1].ndim == 2 and len(engine.risk.target) == len(engine.x)


def _rows_of(x: Any, risk: Risk) -> tuple[Tensor, Tensor] | None:
    """Some of the rows that count, and their targets; None where x is large and sparse, or no tensor."""
    if not isinstance(x, Tensor) or (x.layout != torch.strided and x.numel() > MOST_ENTRIES):
        return None
    place = x.device
    count = torch.arange(len(x), device=place) if risk.weight is None else risk.weight[:, 0].nonzero()[:, 0]
    some = few(count, MOST_ROWS)
    return (x.to_dense() if x.layout != torch.strided else x)[some], risk.target[some]


def scales(engine: Engine, state: State) -> tuple[float, ...]:
    """The lengths of z_L, of the last prediction and of u, which relative tolerances are relative to."""
    found = engine.comm.total(
        *(squared_norm(v, engine.counts) for v in (state.outputs[-1], state.predictions[-1], state.u))
    )
    return tuple(math.sqrt(float(square)) for square in found)


def converged(
    engine: Engine,
    state: State,
    options: TrainOptions,
    r: float,
    g: float,
    known: tuple[float, ...] | None = None,
) -> bool:
    """Boyd et al.'s test on the primal residual r and the stationarity g (2011, Section 3.3)."""
    samples = engine.samples
    variables = samples * sum(math.prod(v.shape[1:]) for v in state.outputs)
    parameters = sum(p.numel() for block in state.params for p in block.values())
    output, prediction, dual = scales(engine, state) if known is None else known
    primal = options.eps_abs * math.sqrt(samples * math.prod(state.u.shape[1:]))
    stationary = options.eps_abs * math.sqrt(variables + parameters)
    return (
        r <= primal + options.eps_rel * max(output, prediction) and g <= stationary + options.eps_rel * dual
    )


def diagnostics_interval(state: State, n_rows: int) -> int:
    """Every iteration while a forward pass over all rows is small change (below 2 GFLOP), else every twentieth."""
    pairs = zip(state.params, state.outputs, strict=True)
    weights = ((math.prod(v.shape[1:]), p) for block, v in pairs for p in block.values() if p.ndim > 1)
    products = n_rows * sum(outputs * p[0].numel() for outputs, p in weights)
    return 1 if 2 * products < 2e9 else 20


def root(value: float) -> float:
    """Square root, NaN where rounding or a fault made the square negative."""
    return math.sqrt(value) if value >= 0 else math.nan


def has_converged(trainer: Trainer) -> bool:
    """Whether the last iterate meets the tolerances; accelerated mode also ends when its objective settles."""
    options, history = trainer.options, trainer.history
    if options.mode == "streaming":
        return False
    if options.mode == "accelerated" and settled(history, options.eps_rel):
        return True
    r, g = history["primal_residual"][-1], history["stationarity"][-1]
    if r is None or g is None:
        return False
    return converged(trainer.engine, trainer.state, options, r, g, trainer.scales)


def certify_run(trainer: Trainer, restored: bool, status: Status) -> Certificate:
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
    failed, iteration = status is Status.NON_FINITE, trainer.restored_from if restored else None
    certificate = replace(certificate, failed=failed, restored=iteration, compared=trainer.compared)
    if not restored:
        known = trainer.given is not None and trainer.options.mode == "convergent"
        writer = writer_of(trainer, status) if known else None
        return replace(certificate, writer=writer)
    energy = trainer.engine.energy(trainer.state)
    measured = {
        "lagrangian": float(energy.lagrangian),
        "primal_residual": root(float(energy.residual_squared)),
        "dual_optimality": root(float(trainer.engine.dual_optimality(trainer.state))),
    }
    if not certificate.streaming:
        measured["stationarity"] = root(float(trainer.measuring.stationarity(trainer.state)))
    pairs = {n: Recomputed(value, getattr(certificate, n).recomputed) for n, value in measured.items()}
    return replace(certificate, **pairs)  # type: ignore[arg-type]
