"""What ``mode="auto"`` stands for, at every door: one practical method.

    1. preset="paper", start, rho_rule: they are of the paper's algorithm alone, and name it     convergent
    2. tables that an estimator or the command line makes the network for                        cross-fitted copies
    3. everything else                                                                           streaming

The copies are trained by streaming mode too. One network is trained in their place where there are 50,000 rows or
more, sparse rows that would be large as dense ones, more than 2,000 columns, a penalty with kinks (copies end before
its zeros come), or copies would break ``max_memory``; and with units that jump, sets of weights, several ranks or a
warm start. Early stopping, other penalties and constraints change nothing. Settings that streaming mode does not have
(rho, nu, damping, w_solver, a_solver, ...) belong to more than one other mode: they are refused, with a message that
names those modes, unless ``mode`` says which. docs/defaults.md has the tables that chose the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dladmm.api.cross_fit import cross_fitted_peak
from dladmm.engine.batches import MANY_ROWS
from dladmm.engine.memory import MARGIN
from dladmm.engine.memory_limit import bytes_of
from dladmm.engine.options import TrainOptions
from dladmm.regularizers import Regularizer

CROSS_FITTED = "cross-fitted"
"""Streaming mode with cross-fitted copies (:mod:`dladmm.api.cross_fit`)."""

MOST_FEATURES, DENSE_ENTRIES = 2000, 20_000_000
"""Columns of a table up to which copies are trained, and entries up to which sparse rows become dense for them."""

OF_THE_PAPER = ("start", "rho_rule")
"""Options that name the paper's algorithm by themselves."""


def table_mode(
    n_rows: int,
    widths: Sequence[int],
    penalty: Regularizer,
    *,
    max_memory: int | str | None = None,
    sparse_rows: bool = False,
    one_network: bool = False,
) -> str:
    """What "auto" stands for on a table, for a network of these ``widths``: CROSS_FITTED or "streaming".

    ``one_network``: something was asked for that copies of a network cannot have.
    """
    large = n_rows >= MANY_ROWS or (sparse_rows and n_rows * widths[0] > DENSE_ENTRIES)
    kinks = penalty.quadratic is None and not penalty.is_constraint
    if one_network or large or kinks or widths[0] > MOST_FEATURES:
        return "streaming"
    fits = max_memory is None or cross_fitted_peak(n_rows, widths) <= MARGIN * bytes_of(max_memory)
    return CROSS_FITTED if fits else "streaming"


def with_mode(options: dict[str, Any], *, preset: str, method: Any) -> dict[str, Any]:
    """The options of :func:`dladmm.train` or :func:`dladmm.train_graph`, with the mode that is meant.

    ``method`` is another method's, without modes.
    """
    if options.get("mode", "auto") != "auto":
        return options
    asked = {name: value for name, value in options.items() if name != "mode"}
    return asked if method is not None else {"mode": _meant(asked, preset)} | asked


def _meant(asked: dict[str, Any], preset: str) -> str:
    defaults = TrainOptions()
    changed = {
        name for name, value in asked.items() if value is not None and value != getattr(defaults, name, None)
    }
    return "convergent" if preset != "default" or changed & {*OF_THE_PAPER} else "streaming"
