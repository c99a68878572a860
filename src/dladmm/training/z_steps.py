"""How far the hidden z move in an iteration, which the constant of Property 3 counts and Property 2 does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dladmm.base.history import Value
from dladmm.compute.passes import squared_norm
from dladmm.engine.memory import COPIED_Z

if TYPE_CHECKING:
    from dladmm.training.trainer import Trainer


def hidden_z(trainer: Trainer) -> list[Tensor] | None:
    """The variables that an activation follows; None in other modes, in chunks of rows, and where they are large."""
    engine, state = trainer.engine, trainer.state
    own = trainer.options.mode == "convergent" and trainer.baseline is None and engine.chunk_rows is None
    followed = [block.kind == "entrywise" for block in engine.chain.blocks[1:]]
    found = [v for v, wanted in zip(state.outputs, followed, strict=False) if wanted]
    return found if own and sum(v.numel() for v in found) <= COPIED_Z else None


def copied_z(trainer: Trainer) -> list[Tensor] | None:
    """Copies of them, to measure their moves by."""
    found = hidden_z(trainer)
    return None if found is None else [v.clone() for v in found]


def moved_z(trainer: Trainer, copies: list[Tensor] | None) -> dict[str, Value]:
    """The squared length of their moves, as a column of the history; the copies are used up."""
    after = None if copies is None else hidden_z(trainer)
    if copies is None or after is None:
        return {}
    counts, comm = trainer.engine.counts, trainer.comm
    own = [squared_norm(old.sub_(new), counts) for old, new in zip(copies, after, strict=True)]
    return {"z_steps": float(comm.total(torch.stack(own).sum())[0]) if own else 0.0}
