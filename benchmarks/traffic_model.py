"""What an iteration on several ranks has to tell, counted before it runs: no term of it has the number of samples.

An MLP with widths n_0..n_L, s bytes a number, exact or quadratic solvers and a penalty with a quadratic form; searches
(l1, FISTA) tell as much as they take steps. docs/scaling.md has the same in words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from dladmm.base.errors import InputError
from dladmm.blocks import Affine
from dladmm.compute.communicator import Traffic
from dladmm.engine.options import TrainOptions
from dladmm.network.chain import Chain
from dladmm.regularizers import Regularizer

AGREEMENT = Traffic(2, 4 * 8)
"""Seconds and fingerprint of the parameters, then the wish to stop."""

SIGNS = 5
"""Risk, coupling, dual term, residual and Lemma 2's residual: what is summed of an iterate besides its steps."""


@dataclass(frozen=True)
class Told:
    """One call of the communicator: numbers of the run's dtype and float64 numbers, one message of each kind."""

    entries: int = 0
    doubles: int = 0

    def traffic(self, size: int) -> Traffic:
        kinds = 1 if size == 8 else (self.entries > 0) + (self.doubles > 0)
        return Traffic(kinds, self.entries * size + 8 * self.doubles)


def iteration_traffic(
    chain: Chain,
    options: TrainOptions,
    penalty: Regularizer,
    n_rows: int,
    dtype: torch.dtype,
    *,
    attempts: int = 1,
    dropping: int = 0,
) -> Traffic:
    """Calls and bytes of an iteration after the first that measures nothing with products.

    In accelerated mode ``attempts`` sweeps were tried (one unless some were refused), ``dropping`` of them with
    entries left out.
    """
    if penalty.quadratic is None or not all(isinstance(b, Affine) or not b.penalised for b in chain):
        raise InputError("the traffic of an iteration is known for MLPs and penalties with a quadratic form.")
    affine = [block for block in chain if isinstance(block, Affine)]
    accelerated = options.mode == "accelerated"
    solved = options.subproblems.a_solver == "exact" or options.subproblems.tau_per_sample
    own_steps = 2 + (2 * (len(affine) - 1) if solved else 0)
    told: list[Told] = []
    for attempt in range(attempts if accelerated else 1):
        told += _sweep(affine, options, n_rows, fresh=accelerated, new_input=attempt < dropping)
        if accelerated:
            shares = 0 if penalty.is_zero else len(affine)
            told += [Told(doubles=2)] * shares + [Told(doubles=1)]
        told.append(Told(doubles=2 * own_steps + SIGNS))
    total = AGREEMENT.copy()
    for each in told:
        traffic = each.traffic(dtype.itemsize)
        total.calls += traffic.calls
        total.bytes += traffic.bytes
    return total


def _sweep(
    affine: list[Affine], options: TrainOptions, n_rows: int, *, fresh: bool, new_input: bool
) -> Iterator[Told]:
    """``fresh``: nothing is remembered of hidden inputs; ``new_input``: nor of the data."""
    solver = options.subproblems
    exact = solver.w_solver == "exact"
    for l, block in enumerate(affine):
        gram = Told(doubles=block.n_in**2)
        first, on_gram = l == 0, l == 0 and n_rows >= 4 * block.n_in
        if on_gram:
            yield Told(block.n_in * block.n_out, block.n_out)
        else:
            yield from 2 * [Told(block.n_in * block.n_out, (block.n_out + block.n_in) * block.bias)]
            yield from 2 * [Told(doubles=1)]
        if first and new_input and (exact or on_gram):
            yield gram
        if on_gram and new_input and block.bias:
            yield Told(doubles=block.n_in)
        if not first and exact:
            yield from (2 if fresh else 1) * [gram]
        if not first and solver.a_solver == "quadratic" and not solver.tau_per_sample:
            yield from 2 * [Told(doubles=2)]
