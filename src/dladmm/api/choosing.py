"""``mode="auto"`` at every door: how a network is trained, by the size of the data and by what was asked for.

    1. settings of the solvers (rho, nu, damping, w_solver, a_solver, max_memory, ...)   accelerated
    2. 50,000 rows or more, a stream, or sparse rows that would be large as dense ones   streaming
    3. one network is needed (a module trained in place, a penalty, early stopping, a warm start), step functions, fewer
       than 20 rows, more than 2,000 features, several ranks            accelerated; streaming with batch_size
    4. everything else: tables                                                           cross-fitted

Rule 3 names what needs one network that all rows are seen by in every iteration, or has not been measured otherwise.
Graphs are trained in accelerated mode. The paper's algorithm, ``mode="convergent"``, is taken where it is asked for by
name. docs/defaults.md has the tables that chose these numbers.
"""

from __future__ import annotations

import torch

from dladmm.engine.batches import MANY_ROWS

CROSS_FITTED = "cross-fitted"
"""Streaming mode with cross-fitted copies (:mod:`dladmm.api.cross_fit`)."""

GRAPH_MODE = "accelerated"
"""What "auto" stands for on graphs."""

FEWEST_ROWS, MOST_FEATURES, DENSE_ENTRIES = 20, 2000, 20_000_000

FLOAT64_ENTRIES = 4_000_000
"""Entries of the largest layer up to which ``dtype="auto"`` uses float64, where it is not noticeably slower."""


def best_mode(
    n_rows: int,
    n_features: int,
    *,
    sparse_rows: bool = False,
    solver_settings: bool = False,
    one_network: bool = False,
    batches: bool = False,
) -> str:
    """What "auto" stands for: "accelerated", "streaming" or CROSS_FITTED.

    ``solver_settings``: rho, nu and the like were given. ``one_network``: something was asked for that copies of the
    network do not have. ``batches``: a batch size was given.
    """
    if solver_settings:
        return "accelerated"
    if n_rows >= MANY_ROWS or (sparse_rows and n_rows * n_features > DENSE_ENTRIES):
        return "streaming"
    unusual = n_rows < FEWEST_ROWS or n_features > MOST_FEATURES
    if one_network or unusual:
        return "streaming" if batches else "accelerated"
    return CROSS_FITTED


def best_dtype(n_rows: int, widest: int, mode: str, device: torch.device) -> str:
    """What ``dtype="auto"`` stands for: float64 for small problems on a CPU, but in streaming mode."""
    small = n_rows * widest <= FLOAT64_ENTRIES
    return "float64" if mode != "streaming" and small and device.type == "cpu" else "float32"
