"""What is measured of an iterate, what all ranks agree on after it, and the verdict on a run.

Cheap quantities are measured in every iteration, those that cost products now and then.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dladmm.base.history import History, Status, Value
from dladmm.blocks import Step
from dladmm.compute.chunks import concatenated
from dladmm.compute.communicator import ALONE, Communicator
from dladmm.compute.passes import ratio, squared_norm
from dladmm.engine.certificate import Certificate, Recomputed, certify
from dladmm.engine.lagrangian import Energy
from dladmm.engine.options import TrainOptions
from dladmm.engine.problem import State
from dladmm.engine.sweep import Engine
from dladmm.losses import Risk
from dladmm.training.certificate_file import writer_of
from dladmm.training.standing import Evidence, r_squared

if TYPE_CHECKING:
    from dladmm.training.trainer import Trainer


def vital_signs(engine: Engine, state: State, steps: list[Step]) -> Tensor:
    """What :func:`measure` needs of the iteration that has just made this state, in one float64 tensor there."""
    squared, rates, energy, dual = _over_all_rows(engine, state, steps)
    moved = torch.where(squared > 0, rates, torch.full_like(rates, math.inf))
    parameters = [p.abs().max().double() for block in state.params for p in block.values()]
    signs = torch.stack(
        [
            energy.lagrangian,
            energy.objective,
            energy.residual_squared,
            dual,
            squared.sum(),
            moved.min(),
            torch.stack(parameters).max(),
            *(energy.risk, energy.penalty, energy.coupling, energy.dual),
        ]
    )
    return torch.cat([signs, squared.double(), rates.double()])


def _over_all_rows(engine: Engine, state: State, steps: list[Step]) -> tuple[Tensor, Tensor, Energy, Tensor]:
    """Squared lengths and rates of the steps that promise one, energy and Lemma 2's residual.

    Whatever of it speaks of one rank's rows is summed over the ranks in one go.
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
    feasible = state.predictions[-1] is state.outputs[-1]  # then its outputs are those of the network
    if feasible and not any(block.has_statistics for block in engine.chain):
        output = state.outputs[-1]
    else:
        output = concatenated(engine.chunk_rows, predict, engine.x)
    loss, accuracy = score(engine.risk, output, engine.counts, engine.comm)
    row: dict[str, Value] = {"loss": loss, "train_accuracy": accuracy}
    row["train_r2"] = r_squared(engine.risk, output, engine.counts, engine.comm)
    if validation is not None:
        x, risk = validation
        output = concatenated(engine.chunk_rows, predict, x)
        row["val_loss"], row["val_accuracy"] = score(risk, output, comm=engine.comm)
        row["val_r2"] = r_squared(risk, output, comm=engine.comm)
    return row


def evidence_of(trainer: Trainer, restored: bool) -> Evidence | None:
    """What says how the network that is handed out stands: it was measured last, unless another was restored."""

    def measured() -> dict[str, Value]:
        if restored:
            return evaluate(trainer.engine, trainer.state, trainer.validation)
        return {name: trainer.history.last(name) for name in trainer.history}

    return Evidence.of(trainer, measured)


def score(
    risk: Risk, output: Tensor, rows: Tensor | None = None, comm: Communicator = ALONE
) -> tuple[float, float | None]:
    """Mean loss, and accuracy where the loss is one of classification, over the rows that count."""
    output = risk.flat(output)
    counts = None if risk.weight is None else risk.weight[:, 0].double()
    if rows is not None:
        repeated = rows[:, 0].double().repeat_interleave(len(output) // len(rows))
        counts = repeated if counts is None else counts * repeated
    losses = risk.loss.rows(output, risk.target).double()
    classifies = risk.loss.kind == "classification"
    hits = torch.zeros_like(losses)
    if classifies:
        hits = risk.loss.hits(output, risk.target).double()
    if counts is None:
        sums = [losses.sum(), hits.sum(), losses.new_full((), losses.numel())]
    else:
        sums = [losses @ counts, hits @ counts, counts.sum()]
    loss, hit, count = torch.stack(list(comm.total(*sums))).tolist()
    return loss / count, hit / count if classifies else None


def converged(engine: Engine, state: State, options: TrainOptions, r: float, g: float) -> bool:
    """Boyd et al.'s test on the primal residual r and the stationarity g (2011, Section 3.3)."""
    counts, samples = engine.counts, engine.samples
    variables = samples * sum(math.prod(v.shape[1:]) for v in state.outputs)
    parameters = sum(p.numel() for block in state.params for p in block.values())
    scales = engine.comm.total(
        *(squared_norm(v, counts) for v in (state.outputs[-1], state.predictions[-1], state.u))
    )
    output, prediction, dual = (math.sqrt(float(scale)) for scale in scales)
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


STATUSES = list(Status)


class RanksDiffered(UserWarning):
    """Warning: the same computation gave different bits on different ranks."""


class Agreement:
    """Makes seconds, parameters and stop requests the same on every rank."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self._device = getattr(comm, "device", torch.device("cpu"))
        self._warned = False

    def seconds(self, own: float, params: Sequence[dict[str, Tensor]]) -> float:
        """The seconds of the slowest rank; also makes the parameters bitwise equal on all ranks, in place.

        All ranks compute the parameters from the same totals. Different processors may still round differently, so a
        fingerprint is compared; where it differs, rank 0's parameters are broadcast and a warning is issued.
        """
        if self.comm.alone:
            return own
        mark = fingerprint(params)
        nanoseconds = int(own * 1e9)
        own_values = torch.tensor([nanoseconds, mark, ~mark], dtype=torch.int64, device=self._device)
        slowest, largest_mark, largest_complement = self.comm.largest(own_values)[0].tolist()
        if largest_mark != ~largest_complement:
            self.comm.from_first(*(p for block in params for p in block.values()))
            if not self._warned:
                self._warned = True
                warnings.warn(
                    "the ranks rounded the parameters differently (different processors or libraries); those of "
                    "rank 0 are taken from now on, at the price of one broadcast per iteration.",
                    RanksDiffered,
                    stacklevel=2,
                )
        return float(slowest) / 1e9

    def status(self, own: Status | None) -> Status | None:
        """The status with which any rank was requested to stop, or None."""
        if self.comm.alone:
            return own
        code = 0 if own is None else 1 + STATUSES.index(own)
        codes = torch.tensor([code], dtype=torch.int64, device=self._device)
        largest = int(self.comm.largest(codes)[0])
        return None if largest == 0 else STATUSES[largest - 1]


def fingerprint(params: Sequence[dict[str, Tensor]]) -> int:
    """A checksum of the parameters' bits."""
    mark = 0
    for block in params:
        for p in block.values():
            bits = torch.int64 if p.element_size() == 8 else torch.int32
            own = int(p.detach().contiguous().view(bits).sum(dtype=torch.int64))
            mark = (mark * 1000003 + own) & 0x7FFFFFFFFFFFFFFF
    return mark


def has_converged(engine: Engine, state: State, options: TrainOptions, history: History) -> bool:
    """Whether the last iterate meets the tolerances; accelerated mode also ends when its objective settles."""
    if options.mode == "streaming":
        return False
    if options.mode == "accelerated" and settled(history, options.eps_rel):
        return True
    r, g = history["primal_residual"][-1], history["stationarity"][-1]
    return r is not None and g is not None and converged(engine, state, options, r, g)


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
    certificate = replace(certificate, failed=failed, restored=iteration)
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
