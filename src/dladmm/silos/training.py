"""``dladmm.train`` as one silo: its own rows, the rule of the smallest silo, and a new beginning when one is lost."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dladmm.api.handing_back import copy_into
from dladmm.api.train import train
from dladmm.base.errors import InputError, InputTypeError
from dladmm.callbacks import Callback
from dladmm.compute.communicator import DistributedError
from dladmm.network.chain import Chain
from dladmm.silos.communicator import Silo, SiloLost
from dladmm.training.result import Result

if TYPE_CHECKING:
    from dladmm.training.trainer import Trainer


class Reached(Callback):
    """Keeps the network of the last whole iteration, how many iterations there were, and how many were planned."""

    def __init__(self) -> None:
        self.iterations = 0
        self.planned: int | None = None
        self.network: nn.Module | None = None

    def on_train_begin(self, trainer: Trainer) -> None:
        if self.planned is None:
            self.planned = trainer.options.max_iter

    def on_epoch_end(self, trainer: Trainer) -> None:
        self.iterations += 1
        self.network = trainer.present_network()


def smallest_silo(model: nn.Module | Chain) -> int:
    """The fewest rows a silo of this ``model`` may bring: one more than the widest layer's inputs, its bias counted.

    With fewer rows than inputs a Gram matrix has the span of the rows themselves for its range, and of a single row it
    is the row but for its sign. With more, infinitely many sets of rows have the same Gram matrix. That is no
    protection by itself (docs/silos.md).
    """
    if isinstance(model, Chain):
        inputs = [int(getattr(block, "n_in", None) or 0) for block in model.blocks]
    elif isinstance(model, nn.Module):
        inputs = [math.prod(p.shape[1:]) for p in model.parameters() if p.ndim > 1]
    else:
        raise InputTypeError(f"model must be a module or a chain, got {type(model).__name__}.")
    return 2 + max(inputs, default=0)


def train_silo(
    silo: Silo,
    model: nn.Module | Chain,
    X: Any,
    y: Any,
    *,
    sample_weight: Any = None,
    validation: tuple[Any, ...] | None = None,
    smallest: int | None = None,
    max_iter: int | None = None,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> Result:
    """Train one network with the rows of all silos, each of which calls this with its own.

    The network is that of :func:`dladmm.train` on all rows together, to rounding.

    Parameters
    ----------
    silo : Silo
        This silo's communicator.
    model : nn.Module or Chain
        As in :func:`dladmm.train`, the same on all silos.
    X, y : arrays of shape (n_rows, ...) and (n_rows,) or (n_rows, n_outputs)
        The rows of this silo alone; there may be none in the modes that see all rows in every iteration.
    sample_weight : array of shape (n_rows,), optional
        How much each row counts. All silos give weights, or none does.
    validation : tuple of arrays, optional
        This silo's part of the validation data, ``(X, y)``. All silos give some, or none does.
    smallest : int, optional
        The fewest rows with which a silo takes part (:func:`smallest_silo` unless given); none at all are always
        allowed. 1 lifts the rule.
    max_iter : int, optional
        Iterations, in streaming mode (the default) passes over the rows; None is the default of the mode.
    callbacks : sequence of Callback
        As in :func:`dladmm.train`, those of this silo.
    **settings
        Of :func:`dladmm.train`.

    Returns
    -------
    Result
        The same network on every silo.
    """
    reached = Reached()
    rows = (X, y) if sample_weight is None else (X, y, sample_weight)
    held = None if validation is None else (lambda rank, world: tuple(validation))
    while True:
        try:
            done = _begun(silo, reached, partial(check_rows, model, y, smallest))
            begin, network = dict(settings), model
            planned = max_iter if reached.planned is None else reached.planned
            if planned is not None:
                begin["max_iter"] = max(1, planned - done)
            if done:
                begin["init"], network = "keep", reached.network or _any_network(model)
                reached.iterations = done
            result = train(
                network,
                lambda rank, world: rows,
                validation=held,
                communicator=silo,
                callbacks=[*callbacks, reached],
                **begin,
            )
            if network is not model and isinstance(model, nn.Module):
                copy_into(model, result.module)
            return result
        except SiloLost:
            silo.begin_again()


def _begun(silo: Silo, reached: Reached, check: Callable[[], None]) -> int:
    """The iterations that the others have made already; what one silo refuses, all refuse, in the same message."""
    refusal: Exception | None = None
    try:
        check()
    except Exception as error:
        refusal = error
    own = "" if refusal is None else f"{type(refusal).__name__}: {refusal}"
    told = [json.loads(text) for text in silo.texts(json.dumps([reached.iterations, own]))]
    if refusal is not None:
        raise refusal
    for rank, (_, text) in enumerate(told):
        if text:
            raise DistributedError(f"rank {rank} of {silo.size} refused: {text}")
    return max(int(iterations) for iterations, _ in told)


def check_rows(model: nn.Module | Chain, y: Any, smallest: int | None) -> None:
    """Raise if this silo's rows are too few for the network, or the network is none."""
    check_size(len(y), smallest_silo(model) if smallest is None else smallest)


def check_size(n_rows: int, smallest: int) -> None:
    """Raise if so few rows would be told too much of; no rows at all tell nothing."""
    if 0 < n_rows < smallest:
        raise InputError(
            f"this silo has {n_rows} rows, of which sums would tell too much: at least {smallest} are needed for this "
            "network. Leave it out, join it with another, or lower smallest= (docs/silos.md says what that tells)."
        )


def _any_network(model: nn.Module | Chain) -> nn.Module:
    """A network of these shapes for a silo that has none yet: the first silo's parameters replace its own."""
    if isinstance(model, nn.Module):
        return model
    drawn = model.initial_parameters(torch.Generator(), 1.0, dtype=torch.float32, device=torch.device("cpu"))
    return model.to_module(drawn)
