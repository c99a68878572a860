"""``mode="auto"`` at every door: how a network is trained, by the size of the data and by what was asked for.

    1. settings of the solvers (rho, nu, damping, w_solver, a_solver, max_memory, ...)   accelerated
    2. 50,000 rows or more, a stream, or sparse rows that would be large as dense ones   streaming
    3. step functions, whose batches may be normalised inside the network, and recurrent layers        streaming
    4. one network is needed (a module trained in place, a penalty, early stopping, a warm start), fewer than 12 rows,
       more than 2,000 features, several ranks                          accelerated; streaming with batch_size
    5. everything else: tables                                                           cross-fitted

Rule 4 names what needs one network that all rows are seen by in every iteration, or has not been measured otherwise.
Graphs are trained in accelerated mode. The paper's algorithm, ``mode="convergent"``, is taken where it is asked for by
name. docs/defaults.md has the tables that chose these numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from dladmm.api.given import is_stream
from dladmm.base.scipy_sparse import sparse
from dladmm.compute.communicator import Communicator
from dladmm.engine.batches import MANY_ROWS
from dladmm.engine.options import TrainOptions
from dladmm.network.chain import Chain
from dladmm.solvers.subproblems import SubproblemOptions

CROSS_FITTED = "cross-fitted"
"""Streaming mode with cross-fitted copies (:mod:`dladmm.api.cross_fit`)."""

GRAPH_MODE = "accelerated"
"""What "auto" stands for on graphs."""

FEWEST_ROWS, FEWEST_IN_BATCHES, MOST_FEATURES, DENSE_ENTRIES = 12, 20, 2000, 20_000_000


def best_mode(
    n_rows: int,
    n_features: int,
    *,
    sparse_rows: bool = False,
    solver_settings: bool = False,
    one_network: bool = False,
    batches: bool = False,
    jumps: bool = False,
    recurrent: bool = False,
) -> str:
    """What "auto" stands for: "accelerated", "streaming" or CROSS_FITTED.

    ``solver_settings``: rho, nu and the like were given. ``one_network``: something was asked for that copies of the
    network do not have. ``batches``: a batch size was given. ``jumps``: activations have levels, and batches may be
    normalised inside the network. ``recurrent``: there is a recurrent layer.
    """
    if solver_settings:
        return "accelerated"
    if n_rows >= MANY_ROWS or (sparse_rows and n_rows * n_features > DENSE_ENTRIES):
        return "streaming"
    if (jumps or recurrent) and n_rows >= FEWEST_IN_BATCHES:
        return "streaming"
    unusual = n_rows < FEWEST_ROWS or n_features > MOST_FEATURES
    if one_network or unusual:
        return "streaming" if batches else "accelerated"
    return CROSS_FITTED


OF_THE_PAPER, OF_BATCHES = ("start", "rho_rule"), ("batch_size", "streaming")
"""Options that name the paper's algorithm, or streaming mode, by themselves."""

OF_SOLVERS = {
    "rho",
    "nu",
    "max_memory",
    "compile",
    "subproblems",
    "sweep",
    *SubproblemOptions.__dataclass_fields__,
}
"""Options that streaming mode refuses."""


def with_mode(
    options: dict[str, Any], model: Any, X: Any, comm: Communicator, *, preset: str, prox: str, method: Any
) -> dict[str, Any]:
    """The options of :func:`dladmm.train`, whose mode is "auto" or not given, with the mode that this stands for.

    One network is trained in place, so there are no cross-fitted copies. ``method`` is another method's, without modes.
    """
    asked = {name: value for name, value in options.items() if name != "mode"}
    if method is not None:
        return asked
    named = _named(asked, preset)
    if named is None and (is_stream(X) or sparse.issparse(X)):
        named = "streaming"
    if named is None:
        shape = _shape(X)
        n_rows = sum(int(text) for text in comm.texts(str(shape[0])))
        solvers = prox != "auto" or any(asked.get(name) is not None for name in OF_SOLVERS)
        asked_for = {"solver_settings": solvers, "one_network": True, "recurrent": is_recurrent(model)}
        named = best_mode(n_rows, int(np.prod(shape[1:])), **asked_for)
    return {"mode": named} | asked


def is_recurrent(model: Any) -> bool:
    """Whether a module, or a chain, has a recurrent layer."""
    if isinstance(model, Chain):
        return any(block.own_variables for block in model)
    return isinstance(model, nn.Module) and any(isinstance(m, nn.RNNBase) for m in model.modules())


def with_graph_mode(options: dict[str, Any], *, preset: str, method: Any) -> dict[str, Any]:
    """The same for :func:`dladmm.train_graph`."""
    asked = {name: value for name, value in options.items() if name != "mode"}
    return asked if method is not None else {"mode": _named(asked, preset) or GRAPH_MODE} | asked


def _named(asked: dict[str, Any], preset: str) -> str | None:
    """The mode that a preset or an option is of."""
    defaults = TrainOptions()
    changed = {
        name for name, value in asked.items() if value is not None and value != getattr(defaults, name, None)
    }
    if preset != "default" or changed & {*OF_THE_PAPER}:
        return "convergent"
    return "streaming" if changed & {*OF_BATCHES} else None


def _shape(X: Any) -> tuple[int, ...]:
    try:
        shape = tuple(X.shape) if hasattr(X, "shape") else np.shape(X)
    except (TypeError, ValueError):  # refused with words where it is read
        shape = ()
    return shape or (0,)
