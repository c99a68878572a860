"""How far the hidden z move in an iteration, which the constant of Property 3 counts and Property 2 does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dladmm.base.history import Value
from dladmm.compute.passes import squared_norm

if TYPE_CHECKING:
    from dladmm.training.trainer import Trainer

MOST_ENTRIES = 20_000_000
"""Of the z that are copied before an iteration to measure their moves; more would be felt in memory."""


def hidden_z(trainer: Trainer) -> list[Tensor] | None:
    """Copies of the variables that an activation follows; None in other modes and where they are large."""
    engine, state = trainer.engine, trainer.state
    own = trainer.options.mode == "convergent" and trainer.baseline is None and engine.chunk_rows is None
    followed = [block.kind == "entrywise" for block in engine.chain.blocks[1:]]
    found = [v for v, wanted in zip(state.outputs, followed, strict=False) if wanted]
    if not own or sum(v.numel() for v in found) > MOST_ENTRIES:
        return None
    return [v.clone() for v in found]


def moved_z(trainer: Trainer, before: list[Tensor] | None) -> dict[str, Value]:
    """The squared length of their moves, as a column of the history."""
    after = None if before is None else hidden_z(trainer)
    if before is None or after is None:
        return {}
    counts, comm = trainer.engine.counts, trainer.comm
    own = [squared_norm(new - old, counts) for old, new in zip(before, after, strict=True)]
    return {"z_steps": float(comm.total(torch.stack(own).sum())[0]) if own else 0.0}
