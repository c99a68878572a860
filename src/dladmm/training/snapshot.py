"""A run as tensors and plain values, and back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dladmm.base.errors import InputError
from dladmm.base.history import History

if TYPE_CHECKING:
    from dladmm.training.trainer import Trainer


def take_snapshot(trainer: Trainer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Everything a later run needs to go on bit for bit: tensors by name, and what JSON can hold."""
    tensors = {"u": trainer.state.u}
    for l in range(len(trainer.engine.chain)):
        tensors |= {f"params.{l}.{name}": p for name, p in trainer.state.params[l].items()}
        tensors |= {
            f"outputs.{l}": trainer.state.outputs[l],
            f"predictions.{l}": trainer.state.predictions[l],
        }
        for name, number in trainer.state.curvatures[l].items():
            tensors[f"memory.{l}.{name}"] = torch.as_tensor(number, dtype=torch.float64)
    tensors |= {f"memory.{name}": tensor for name, tensor in trainer.engine.carried(trainer.state).items()}
    options = trainer.engine.options
    held, method = trainer.method.snapshot()
    tensors |= {f"method.{name}": tensor for name, tensor in held.items()}
    meta = {
        "iteration": trainer.iteration_kind,
        "method": method,
        "rho": trainer.state.rho,
        "nu": trainer.state.nu,
        "alpha0": options.alpha0,
        "t0": options.t0,
        "start": trainer.start,
        "exempt": list(trainer.exempt),
        "history": trainer.history.to_dict(),
    }
    return tensors, meta


def resume_snapshot(trainer: Trainer, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
    """Take up a snapshot of a run on the same data and network; ``fit`` then goes on where it stood."""
    expected, _ = take_snapshot(trainer)
    if meta.get("iteration", trainer.iteration_kind) != trainer.iteration_kind:
        raise InputError(
            f"the snapshot is of a run with {meta['iteration']}, this run has {trainer.iteration_kind}."
        )
    varying = ("memory.", "method.")  # what blocks remember and a method holds may grow as a run goes
    named = {name for name in tensors if not name.startswith(varying)}
    wrong = sorted(named ^ {name for name in expected if not name.startswith(varying)})
    wrong += [n for n in sorted(named & set(expected)) if tensors[n].shape != expected[n].shape]
    wrong += [n for n in sorted(named & set(expected)) if tensors[n].dtype != expected[n].dtype]
    if wrong:
        raise InputError(f"the snapshot does not fit this run's data, network or dtype: {', '.join(wrong)}.")
    for name in named:
        expected[name].copy_(tensors[name])
    held = {n.removeprefix("method."): t for n, t in tensors.items() if n.startswith("method.")}
    trainer.method.resume(held, meta.get("method", {}))
    for name, value in tensors.items():
        if name.startswith("memory."):
            _, l, key = name.split(".", 2)
            if value.ndim == 0:
                trainer.state.curvatures[int(l)][key] = float(value)
            else:
                trainer.engine.carry(trainer.state, int(l), key, value.to(trainer.state.u.device))
    trainer.state.rho, trainer.state.nu = float(meta["rho"]), float(meta["nu"])
    trainer.engine.options = replace(trainer.engine.options, alpha0=meta["alpha0"], t0=meta["t0"])
    trainer.start, trainer.exempt = float(meta["start"]), [int(k) for k in meta["exempt"]]
    trainer.history = History(meta["history"])
