"""A problem and its iterate in float64: the end of a run in float32 is measured again with twice the digits."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from dladmm.blocks import Affine, Block, Elementwise, GraphConv
from dladmm.compute.chunks import Source
from dladmm.compute.sparse import SparseMatrix
from dladmm.engine.problem import State
from dladmm.engine.sweep import Engine
from dladmm.network.chain import Chain

MOST_ENTRIES = 1 << 24
"""Entries of data and variables up to which a certificate is recomputed in float64 at the end of every run."""

CHUNK_ENTRIES, CHUNKS = 1 << 16, 8
"""Rows are brought to float64 in so many chunks at least, of at most so many entries of the widest link."""


def in_double(engine: Engine, state: State, *, in_chunks: bool = False) -> tuple[Engine, State] | None:
    """The same problem and iterate in float64; None for networks of other blocks, chunks of rows and several ranks.

    ``in_chunks`` brings rows to float64 when they are read, where blocks work on chunks of them, so that the copies
    take no memory worth speaking of.
    """
    x = engine.x
    blocks = [_doubled(block) for block in engine.chain]
    whole = engine.comm.alone and engine.chunk_rows is None and isinstance(x, Tensor)
    if not whole or any(block is None for block in blocks):
        return None
    risk = engine.risk
    weight = None if risk.weight is None else risk.weight.double()
    counts = None if engine.counts is None else engine.counts.double()
    risk = replace(risk, target=risk.target.double(), weight=weight)
    chain = Chain([block for block in blocks if block is not None])
    at_once = None
    if in_chunks and not any(type(block) is GraphConv for block in chain):
        widest = max(x.shape[1], *(v.shape[1] for v in state.outputs))
        at_once = max(1, min(CHUNK_ENTRIES // widest, -(-len(x) // CHUNKS)))

    def doubled(v: Tensor) -> Tensor:
        if at_once is None:
            return v.double()
        return cast(Tensor, Source(lambda rows: v[rows], tuple(v.shape), torch.float64, v.device))

    other = Engine(chain, doubled(x), risk, engine.penalty, engine.options, counts, chunk_rows=at_once)
    params = [{name: p.double() for name, p in block.items()} for block in state.params]
    outputs = [*map(doubled, state.outputs[:-1]), state.outputs[-1].double()]
    again = State(
        params, outputs, outputs, state.u.double(), state.rho, state.nu, state.stiffness, state.links
    )
    return other, replace(again, predictions=other.raw_predictions(again))


def resolvable(state: State) -> bool:
    """Whether ``z_L + u/rho``, which the updates work on, holds u: beside a large z_L it is rounded away.

    It does where rounding changes u by a tenth at most, or by little beside rho: then u itself is next to nothing.
    """
    z, step = state.outputs[-1], state.u / state.rho
    lost = (z + step).double() - z.double() - step.double()
    error = float(torch.linalg.vector_norm(lost))
    size = float(torch.linalg.vector_norm(step, dtype=torch.float64))
    return error <= 0.1 * size or error <= 1e-3 * max(1, z.numel()) ** 0.5


def small_enough(engine: Engine, state: State) -> bool:
    """Whether float64 copies of data and variables take little memory."""
    held = [v.numel() for v in state.outputs]
    return sum(held) + getattr(engine.x, "nelement", int)() <= MOST_ENTRIES


def _doubled(block: Block) -> Block | None:
    if type(block) in (Affine, Elementwise):
        return block
    if type(block) is not GraphConv or block.graph.rows is not None:
        return None
    adjacency = block.graph.adjacency
    if adjacency is None:
        return block
    if type(adjacency) is not SparseMatrix:
        return None
    csr = adjacency.csr.double()
    same = adjacency.transposed is adjacency.csr
    return GraphConv(
        block.n_in,
        block.n_out,
        block.activation,
        SparseMatrix(csr, csr if same else adjacency.transposed.double()),
    )
