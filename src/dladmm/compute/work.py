"""What an update is given besides the mathematics: one block's view of how its work is executed.

An update computes moves from tensors; everything else goes through its :class:`Work`: rows in chunks, sums over chunks
and ranks, buffers, cached products, and the application of a move. Parameters, variables and cached predictions are
written here and nowhere else in ``blocks`` and ``solvers``. So what the next update begins with can be written in the
same pass over memory (:class:`~dladmm.compute.workspace.UpdatePlan`), and no update knows what comes next.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from torch import Tensor

from dladmm.compute.chunks import in_chunks
from dladmm.compute.communicator import Shards
from dladmm.compute.execution import EAGER, Execution, part_rows
from dladmm.compute.passes import (
    EntryProblem,
    RowProblem,
    advance,
    descend,
    difference,
    move_along,
    solve_entries,
    solve_rows,
)
from dladmm.compute.workspace import NO_PLAN, UpdatePlan, Workspace

if TYPE_CHECKING:
    from dladmm.solvers.subproblems import Anchor, SubproblemOptions, Term

Made = TypeVar("Made")


@dataclass(frozen=True)
class Work:
    """How one update of one block is executed.

    Parameters
    ----------
    options : SubproblemOptions
        How subproblems are solved.
    order : tuple of bool
        The parameter updates asked for: False for one of the backward sweep, True for one of the forward sweep.
    last : bool
        Whether the block is the chain's last one.
    counts : Tensor of shape (N, 1) or None
        Row i counts ``counts_i`` times in every sum over the samples.
    chunk_rows : int or None
        How many rows are worked on at a time; None is all.
    shards : Shards or None
        These are one rank's rows of many.
    how, workspace, owner
        The execution settings, the engine's buffers and cached quantities, and the number of the block in the chain.
    plan : UpdatePlan
        What to compute along with the application of a move.
    curvatures : dict
        Where searches start, part of the state: the curvatures accepted last.
    sweep_values : dict
        Quantities that are made once per sweep.
    shared : bool
        Whether the penalty counts by the share of the loss's gradient that reaches this block: one with variables of
        its own then multiplies it by what of that reaches its parameters.
    """

    options: SubproblemOptions
    order: tuple[bool, ...] = (False,)
    last: bool = False
    counts: Tensor | None = None
    chunk_rows: int | None = None
    shards: Shards | None = None
    how: Execution = EAGER
    workspace: Workspace = field(default_factory=Workspace)
    owner: int = 0
    plan: UpdatePlan = NO_PLAN
    curvatures: dict[str, float] = field(default_factory=dict)
    sweep_values: dict[Hashable, Any] = field(default_factory=dict)
    shared: bool = False

    # Sums over samples -----------------------------------------------------------------------------------------

    def samples(self, n_own: int) -> float | Tensor:
        """How many samples there are on all ranks, each row as often as it counts; ``n_own`` rows are here."""
        if self.shards is not None:
            return self.shards.samples
        return n_own if self.counts is None else self.counts.double().sum()

    def n_rows(self, n_own: int) -> int:
        """How many rows there are on all ranks."""
        return n_own if self.shards is None else self.shards.n_rows

    def total(self, *sums: Tensor, halves: Collection[int] = ()) -> Sequence[Tensor]:
        """Sums over the rows of this process, which gives them up, made sums over the rows of all ranks.

        ``halves`` are the places of symmetric matrices.
        """
        return sums if self.shards is None else self.shards.comm.total(*sums, halves=halves)

    def at_once(self, *calls: Callable[[], Any]) -> list[Any]:
        """What these calls return, none of which needs another's result; their sums may travel together."""
        return [call() for call in calls] if self.shards is None else self.shards.comm.at_once(*calls)

    @property
    def few_messages(self) -> bool:
        """Whether sums are to be joined, at the price of sending more; what was fetched ahead must be kept."""
        return self.shards is not None and self.shards.comm.few_messages and self.how.shortcuts

    def counted(self, x: Tensor) -> Tensor:
        """Each row of ``x`` times how often it counts: what a sum over the samples sums."""
        return x if self.counts is None else x * like_rows(self.counts, x)

    def own_sum(self, function: Callable[..., tuple[Tensor, ...]], *rows: Any) -> list[Tensor]:
        """``function(work, *chunks)``, which returns sums over its rows, added up over the chunks of this process."""
        if self.chunk_rows is None:
            return list(function(self, *rows))
        found: list[Tensor] = []
        for work, *some in self.chunks(*rows):
            own = function(work, *some)
            found = [s.add_(more) for s, more in zip(found, own, strict=True)] if found else list(own)
        return found

    def sum(self, function: Callable[..., tuple[Tensor, ...]], *rows: Any) -> Sequence[Tensor]:
        """The same over all ranks."""
        return self.total(*self.own_sum(function, *rows))

    # Rows in chunks --------------------------------------------------------------------------------------------

    def chunks(self, *rows: Any) -> Iterator[tuple[Any, ...]]:
        """``(work, *chunks)`` of every chunk of rows, ``work`` having the counts of those rows."""
        for counts, *some in in_chunks(self.chunk_rows, self.counts, *rows):
            yield self if counts is self.counts else replace(self, counts=counts), *some

    def parts(self, *rows: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Chunks of rows so small that what is made of one on the way takes little memory."""
        return in_chunks(part_rows(*rows), *rows)

    def terms(self, term: Term, *rows: Any) -> Iterator[tuple[Any, ...]]:
        """``(work, term, *chunks)`` of every chunk of rows."""
        for work, target, prediction, *some in self.chunks(term.target, term.prediction, *rows):
            whole = target is term.target and prediction is term.prediction
            yield work, term if whole else replace(term, target=target, prediction=prediction), *some

    def one_chunk(self, n_own: int) -> bool:
        """Whether all rows are worked on at once."""
        return self.chunk_rows is None or self.chunk_rows >= n_own

    def repeated(self, times: int) -> Work:
        """The same where every sample has ``times`` rows."""
        counts = self.counts
        if counts is not None:
            once = counts
            counts = self.cached("repeated counts", (once,), lambda: once.repeat_interleave(times, 0), times)
        shards = None if self.shards is None else self.shards.repeated(times)
        return replace(self, counts=counts, shards=shards, chunk_rows=None, plan=NO_PLAN)

    def without_plan(self) -> Work:
        """The same with nothing prepared for the next update."""
        return replace(self, plan=NO_PLAN)

    # Buffers and cached quantities -----------------------------------------------------------------------------

    def buffer(self, name: str, like: Tensor, columns: int | None = None, rows: int | None = None) -> Tensor:
        """A buffer with the rows and columns of ``like``, the same one for every chunk of rows."""
        n_rows, width = len(like) if rows is None else rows, like.shape[1:] if columns is None else (columns,)
        if self.chunk_rows is None:
            return self.workspace.buffer(name, (n_rows, *width), like)
        return self.workspace.buffer(name, (max(self.chunk_rows, n_rows), *width), like)[:n_rows]

    def swap(self, name: str, replacement: Tensor) -> None:
        """Give a tensor away in exchange for the buffer of that name, which the caller keeps."""
        self.workspace.swap(name, replacement)

    def cached(
        self, name: str, sources: Sequence[Any], make: Callable[[], Made], numbers: Hashable = ()
    ) -> Made:
        """A quantity of this block made from ``sources`` and ``numbers``, kept while they stay as they are."""
        if not self.how.shortcuts:
            return make()
        return self.workspace.cached((self.owner, name), sources, make, numbers)

    def find(self, name: str, sources: Sequence[Any]) -> Any | None:
        """A kept quantity that is still valid."""
        return self.workspace.find((self.owner, name), sources) if self.how.shortcuts else None

    def keep(self, name: str, value: Made, sources: Sequence[Any]) -> Made:
        """Keep a quantity that was moved along with its sources."""
        return self.workspace.keep((self.owner, name), value, sources)

    def memory(self, name: str, sources: Sequence[Any], shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Where to make what was not found and will be kept."""
        if self.how.never_waits(like):  # what a recording writes to is its own
            return like.new_empty(shape)
        return self.workspace.memory((self.owner, name), sources, shape, like)

    def once_per_sweep(self, name: str, make: Callable[[], Made]) -> Made:
        """A quantity that stays for the rest of this sweep, whatever happens to what it was made from."""
        key = (self.owner, name)
        if key not in self.sweep_values:
            self.sweep_values[key] = make()
        return cast("Made", self.sweep_values[key])

    def residual(self, term: Term) -> Tensor:
        """``E = prediction - target``, in a buffer."""
        return self._difference("residual", self.owner, term.prediction, term.target)

    def offset(self, v: Tensor, anchor: Anchor) -> Tensor:
        """``v - value``, in a buffer."""
        return self._difference("offset", self.owner - 1, v, anchor.value)

    def _difference(self, name: str, link: int, first: Tensor, second: Tensor) -> Tensor:
        found: Tensor | None = None
        if self.how.shortcuts and self.chunk_rows is None:
            found = self.workspace.find((name, link), (first, second))
        if found is None:
            found = self.buffer(self._named(name, link), first)
            difference(self.how, found, first, second)
        return found

    def _named(self, name: str, link: int) -> str:
        return f"{name} {link}" if name == "offset" and self.plan.offsets_last else name

    def _prepared(self, wanted: bool, name: str, like: Tensor) -> Tensor | None:
        return self.buffer(name, like) if wanted and self.chunk_rows is None else None

    # Applying a move -------------------------------------------------------------------------------------------

    def move(self, x: Tensor, by: Tensor, rows: Tensor | None = None) -> None:
        """``x += by``, for a parameter, a variable or a prediction; on ``rows`` alone where they are given."""
        if rows is None:
            x.add_(by)
        else:
            x.index_add_(0, rows, by)

    def move_along(self, x: Tensor, d: Tensor, length: Tensor | float) -> None:
        """``x -= length d``, without asking the device for the length."""
        move_along(x, d, length)

    def assign(self, x: Tensor, new: Tensor | Callable[[Tensor], object]) -> None:
        """``x = new``; a function writes the new value into x itself, which saves a copy."""
        if isinstance(new, Tensor):
            x.copy_(new)
        else:
            new(x)

    def advance(self, term: Term, move: Tensor | None, multiple: Tensor | None, shift: Tensor | None) -> None:
        """``prediction += multiple move + shift``."""
        residual = self._prepared(self.plan.out_residual, "residual", term.prediction)
        advance(self.how, term.prediction, move, term.target, residual, multiple=multiple, shift=shift)
        if residual is not None:
            self.workspace.keep(("residual", self.owner), residual, (term.prediction, term.target))

    def descend(
        self, v: Tensor, d: Tensor, moved: Tensor, far: Tensor, anchor: Anchor, term: Term
    ) -> Tensor | None:
        """``v -= far d`` and ``prediction -= far moved``; ``||v - value||^2`` after that, where it stays."""
        residual = self._prepared(self.plan.out_residual, "residual", term.prediction)
        target = None if residual is None else term.target
        descend(self.how, term.prediction, moved, far, target, residual=residual)
        if residual is not None:
            self.workspace.keep(("residual", self.owner), residual, (term.prediction, term.target))
        if not self.plan.in_settled:
            descend(self.how, v, d, far)
            return None
        offset = self._prepared(self.plan.in_offset_lasts, self._named("offset", self.owner - 1), v)
        tie = descend(self.how, v, d, far, anchor.value, residual=offset, counts=self.counts, measured=True)
        if offset is not None:
            self.workspace.keep(("offset", self.owner - 1), offset, (v, anchor.value))
        return tie

    def solve_entries(
        self, v: Tensor, anchor: Anchor, term: Term, activation: EntryProblem, weight: float
    ) -> Tensor:
        """``v = argmin (v - value)^2 + weight (target - f(v))^2``, the prediction f(v); ``||v - value||^2``."""
        residual = self._prepared(self.plan.in_residual, "residual", v)
        offset = self._prepared(self.plan.out_offset, self._named("offset", self.owner), v)
        f = None if self.plan.out_prediction_dead else term.prediction
        tie = solve_entries(
            self.how, v, f, anchor.value, term.target, self.counts, residual, offset,
            activation=activation, weight=weight,
        )  # fmt: skip
        if residual is not None:
            self.workspace.keep(("residual", self.owner - 1), residual, (anchor.value, v))
        if offset is not None and f is not None:
            self.workspace.keep(("offset", self.owner), offset, (term.target, f))
        return tie

    def solve_rows(
        self, v: Tensor, anchor: Anchor, term: Term, solve: RowProblem, **constants: Any
    ) -> Tensor:
        """``v, prediction = solve(v, prediction, value, target)``, each row by itself; the move's squared length."""
        rows = (v, term.prediction, anchor.value, term.target, self.counts)
        return solve_rows(self.how, *rows, solve=solve, **constants)


def like_rows(counts: Tensor, x: Tensor) -> Tensor:
    """One number per sample, shaped so that it multiplies the samples of ``x``, whatever their dimensions."""
    return counts.reshape(-1, *[1] * (x.ndim - 1))
