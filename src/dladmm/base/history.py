"""The history of a run, one entry per iteration and column, and the status with which it ended."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import pairwise
from typing import Any

from dladmm.base.errors import DataError
from dladmm.base.fields import fields, items, real, whole

Value = float | int | None

COLUMNS = (
    "iteration",
    "seconds",
    "lagrangian",
    "objective",
    "loss",
    "primal_residual",
    "dual_optimality",
    "stationarity",
    "descent",
    "squared_steps",
    "c2",
    "rho",
    "nu",
    "train_accuracy",
    "val_loss",
    "val_accuracy",
    "train_r2",
    "val_r2",
    "risk",
    "penalty",
    "coupling",
    "dual",
    "z_steps",
)


class History(dict[str, list[Value]]):
    """A dictionary of equal-length lists, one per column: ``pandas.DataFrame(history)`` is a table of the run.

    ``None`` marks what was not measured at that iteration.

    ========================  ==================================================================================
    ``iteration``             from 1 on; passes over the rows in streaming mode, one or several of them where
                              ``mode="auto"`` trains cross-fitted copies
    ``seconds``               since the start, measuring and callbacks not counted
    ``lagrangian``            L_rho of Equation 1, ``objective`` is F of Problem 4
    ``loss``                  mean loss of the network itself (its forward pass), not of the relaxed z_L
    ``primal_residual``       ``||r||``
    ``dual_optimality``       ``||grad R(z_L) + u||`` (Lemma 2)
    ``stationarity``          ``dist(0, dL_rho)`` (Property 3)
    ``descent``               by how much the Lagrangian fell
    ``train_r2``, ``val_r2``  share of the targets' variance that a regression explains, on training and held-out rows
    ``squared_steps``         the sum in Property 2, and ``c2`` the constant it holds with at that iteration
    ``z_steps``               the squared length of the moves of the hidden z, where stationarity is measured
    ``rho``, ``nu``           weights of the hard and of the relaxed constraints
    ``train_accuracy``        share of the training rows told rightly, of classifiers
    ``risk``                  R(z_L), a part of F beside ``penalty`` and ``coupling`` (of the relaxed constraints)
    ``dual``                  ``<u, r>``
    ``val_loss``              mean loss on rows that were not learnt from, ``val_accuracy`` the accuracy there
    ========================  ==================================================================================
    """

    def __init__(self, columns: Mapping[str, list[Value]] | None = None) -> None:
        super().__init__({name: [] for name in COLUMNS})
        self.moves: list[list[float | None] | None] = []
        for name, values in (columns or {}).items():
            self[name] = list(values)
        longest = max(len(column) for column in self.values())
        for name, column in self.items():
            if columns is not None and name not in columns:  # an older file lacks some
                column += [None] * longest
            elif len(column) != longest:
                raise DataError(f"column {name} of a history has {len(column)} entries, others {longest}.")
        self.moves += [None] * longest

    def append(self, moves: list[float | None] | None = None, **row: Value) -> None:
        """Add one iteration. Columns not named get ``None``.

        ``moves`` are squared lengths of the updates that promise a rate, then these rates; they are kept beside the
        columns, for a portable certificate, and not in files of a run.
        """
        self.moves.append(moves)
        for name, column in self.items():
            column.append(row.get(name))

    def amend(self, **row: Value) -> None:
        """Set columns of the last iteration that were measured later."""
        for name, value in row.items():
            self[name][-1] = value

    def last(self, column: str) -> Value:
        """The last value that was measured, or ``None``."""
        return next((value for value in reversed(self[column]) if value is not None), None)

    def row(self, index: int) -> dict[str, Value]:
        """All columns of one iteration; ``index`` counts from 0, -1 is the last."""
        return {name: column[index] for name, column in self.items()}

    @property
    def n_iter(self) -> int:
        """Number of recorded iterations."""
        return len(self["iteration"])

    def __repr__(self) -> str:
        return f"History({self.n_iter} iterations, columns: {', '.join(self)})"

    def to_dict(self) -> dict[str, list[Value]]:
        """The columns as lists; numbers that JSON cannot represent (NaN, infinity) become ``None``."""
        return {name: [_writable(value) for value in column] for name, column in self.items()}

    def to_json(self) -> str:
        """The history as a JSON object of lists."""
        return json.dumps(self.to_dict(), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> History:
        """The history that :meth:`to_json` wrote."""
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, columns: Any) -> History:
        """The history that :meth:`to_dict` wrote; raises DataError where it is not one of numbers."""
        for name, column in fields("a history", columns).items():
            for value in items(f"column {name} of a history", column):
                if value is not None:
                    real(f"column {name} of a history", value)
        found = cls(columns)
        for value in found["iteration"]:
            whole("an iteration of a history", value)
        return found


def _writable(value: Value) -> Value:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def largest_rise(values: Sequence[float]) -> float:
    """The largest rise from one value to the next, relative to the value it rose from; 0 if there was none."""
    rises = ((after - before) / max(abs(before), 1e-300) for before, after in pairwise(values))
    return max(0.0, max(rises, default=0.0))


class Status(Enum):
    """How a run ended. ``ok`` is false when the run failed and the command line should exit with 1."""

    CONVERGED = "Converged: primal residual and stationarity are below their tolerances."
    MAX_ITER = "Stopped after max_iter iterations, before the tolerances were met."
    PASSES_MADE = "All planned passes over the data were made."
    # Baselines end with this status too, so it gives no advice about rho: the certificate does where it applies.
    DIVERGED = (
        "Diverged: the augmented Lagrangian, which should fall, has grown; "
        "the certificate says what is promised."
    )
    NON_FINITE = (
        "Stopped because a value became NaN or infinite; the last finite parameters were kept and the other "
        "variables set to their forward pass."
    )
    STALLED = "Stopped because no shorter step lowers the training objective any more."
    INTERRUPTED = "Interrupted by the user; the parameters of the last whole iteration were kept."
    EARLY_STOPPED = "Stopped early: the validation score has not improved for the given patience."
    NO_BETTER_THAN_CONSTANT = (
        "No better than a constant answer: the run ended, and its network has learnt nothing of use."
    )

    @property
    def ok(self) -> bool:
        """Whether the run did not fail."""
        return self not in (Status.DIVERGED, Status.NON_FINITE)

    @property
    def complete(self) -> bool:
        """Whether all iterations that were asked for were made."""
        return self in (Status.MAX_ITER, Status.PASSES_MADE)

    @property
    def of_no_use(self) -> Status:
        """What the status becomes where the network is no better than a constant answer.

        A run that failed or was interrupted says so first.
        """
        return self if not self.ok or self is Status.INTERRUPTED else Status.NO_BETTER_THAN_CONSTANT

    def __str__(self) -> str:
        return self.value


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
