"""What a block of the chain is, and what one update of it says about itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from dladmm.blocks.scratch import Scratch
from dladmm.compute.chunks import over
from dladmm.compute.norms import squared_norm
from dladmm.compute.passes import difference
from dladmm.compute.shards import Shards
from dladmm.regularizers import Regularizer
from dladmm.solvers.subproblems import SubproblemOptions

Params = dict[str, Tensor]
"""B_l of the paper: the named parameters of one block."""


class Step(NamedTuple):
    """One variable's move: its squared length and the decrease of the Lagrangian the theory promises for it.

    The Lagrangian falls by at least ``rate * squared``; ``rate`` is the paper's theta/2, tau/2, nu/2 ... and
    ``None`` where only "does not rise" is promised (the hidden z_l, whose length nobody needs then). ``own`` says that
    both speak of this process's rows alone; over all ranks ``squared`` and ``rate * squared`` add up.

    ``tie`` is ``||v - value||^2`` of the anchor once v has moved, of this process's rows, where the update knows it;
    ``link`` says of which link, and is given where nothing moves that link any more before the iteration ends.
    """

    variable: str
    squared: Tensor | None
    rate: Tensor | None
    own: bool = False
    tie: Tensor | None = None
    link: int | None = None


class Anchor(NamedTuple):
    """``(weight/2) ||v - value||^2``: what ties a variable to the block that produces it."""

    weight: float
    value: Tensor


@dataclass
class Term:
    """``(weight/2) ||target - prediction||^2``: what ties a block's output variable to the block.

    ``prediction`` is the cached ``g(B, v)``. Updates move it along with B and v, in place, so that it never has to
    be computed again. ``rows``, where given, are multiplicities (N, 1): row i counts ``rows_i`` times in every sum over
    the samples, as if it stood there so often. ``at_once`` is how many rows a block that works ``by_rows`` may work on
    at a time; None is all. ``shards``, where given, says that these are one rank's rows of many: whatever is summed
    over the samples goes through :meth:`total`.
    """

    weight: float
    target: Tensor
    prediction: Tensor
    rows: Tensor | None = None
    at_once: int | None = None
    shards: Shards | None = None

    @property
    def whole(self) -> bool:
        """Whether all rows are worked on at once."""
        return self.at_once is None or self.at_once >= len(self.target)

    def parts(self, *others: Tensor) -> Iterator[tuple[Any, ...]]:
        """The term of every chunk of rows, each with the chunks of ``others``."""
        for target, prediction, rows, *rest in over(
            self.at_once, self.target, self.prediction, self.rows, *others
        ):
            yield Term(self.weight, target, prediction, rows, self.at_once, self.shards), *rest

    def residual(self) -> Tensor:
        """``E = prediction - target``."""
        return self.prediction - self.target

    def counted(self, x: Tensor) -> Tensor:
        """Each row of ``x`` as often as it counts: what a sum over the samples sums."""
        return x if self.rows is None else x * like_rows(self.rows, x)

    def samples(self) -> float | Tensor:
        """How many samples there are, each row counted as often as it counts."""
        if self.shards is not None:
            return self.shards.samples
        return len(self.target) if self.rows is None else self.rows.double().sum()

    @property
    def n_rows(self) -> int:
        """How many rows there are on all ranks."""
        return len(self.target) if self.shards is None else self.shards.n_rows

    def total(self, *sums: Tensor) -> Sequence[Tensor]:
        """Sums over the rows of this process, which gives them up, made sums over the rows of all ranks."""
        return sums if self.shards is None else self.shards.comm.total(*sums)


def like_rows(rows: Tensor, x: Tensor) -> Tensor:
    """One number a sample, shaped so that it multiplies the samples of ``x``, however many dimensions those have."""
    return rows.reshape(-1, *[1] * (x.ndim - 1))


@dataclass
class Scope:
    """What an update needs besides the mathematics: options, sweep direction, the block's memory.

    ``memory`` holds what stays valid between updates (a Gram matrix while the input stays, a factor while W
    stays, the last accepted step of a search); a block clears what its own update makes stale. ``last`` says that the
    block is the chain's last one. ``scratch`` are buffers that all blocks share, and nothing in them outlives an update
    but one difference: ``asked`` says that the next update will begin with that of the term's prediction and target, or
    with that of the anchor's value and v, so that this one may leave it there; ``goes_on``, that the next sweep will
    begin where this one ends.
    """

    options: SubproblemOptions
    forward: bool = False
    memory: dict[str, Any] = field(default_factory=dict)
    last: bool = False
    scratch: Scratch = field(default_factory=Scratch)
    asked: Literal["term", "anchor"] | None = None
    goes_on: bool = False

    def buffer(self, name: str, like: Tensor, part: Term) -> Tensor:
        """A buffer with the shape of ``like``, the same one for every chunk of rows."""
        if part.at_once is None:
            return self.scratch.take(name, like)
        return self.scratch.take(name, like, rows=max(part.at_once, len(like)))[: len(like)]

    def difference(self, name: str, first: Tensor, second: Tensor, part: Term) -> Tensor:
        """``first - second`` in a buffer, where the update before may have left it."""
        buffer = self.buffer(name, first, part)
        if not self.scratch.left(name, first, second):
            difference(buffer, first, second)
        return buffer

    def leave(self, name: str, first: Tensor, second: Tensor, part: Term, *, stays: bool = False) -> Tensor:
        """A buffer into which the caller writes ``first - second`` for the next update, or a later one."""
        self.scratch.leave(name, first, second, stays=stays)
        return self.buffer(name, first, part)


class Block(ABC):
    """One link ``V_l = g_l(B_l, V_{l-1})`` of the chain (Problem 1 of the paper).

    A block knows two subproblems, each with everything else held fixed: the one over its parameters and the one
    over its input. Both work in place on what they are given and return the steps they made.
    """

    linear: bool = False
    """Whether g is linear in v (and in B): what the last block has to be."""

    continuous: bool = True
    """Whether g is continuous: what the limit-point theorem needs (Assumption 1)."""

    follows_forward: bool = False
    """Whether some rows of its variables are set to the forward pass: the theory does not speak of that."""

    counts_rows: bool = False
    """Whether the block knows row multiplicities (``Term.rows``)."""

    by_rows: bool = False
    """Whether its updates work on as many rows at a time as ``Term.at_once`` says, and its g row by row."""

    sharded: bool = False
    """Whether every sum over samples goes through ``Term.total``, so that each rank may have rows of its own."""

    own_variables: bool = False
    """Whether the block has variables of its own, kept as its prediction (:meth:`own_energy` ties them)."""

    asks_differences: bool = False
    """Whether its updates begin with ``prediction - target`` and ``v - value``, taken by :meth:`Scope.difference`."""

    shares_on_device: bool = False
    """Whether its updates take a penalty whose strength only the device knows."""

    has_statistics: bool = False
    """Whether g depends on statistics of the batch, which :meth:`evaluate` replaces by those of the training data."""

    penalised: tuple[str, ...] = ()
    """The parameters the regulariser Omega applies to."""

    remembers: tuple[str, ...] = ()
    """Entries of the memory that cannot be computed again bit for bit, so that a checkpoint must hold them."""

    knows_of_input: tuple[str, ...] = ()
    """Entries of the memory that depend on the input alone."""

    def recordable(self, options: SubproblemOptions) -> bool:
        """Whether no update asks the device for a number."""
        return False

    @abstractmethod
    def initial_parameters(self, generator: torch.Generator | None, scale: float) -> Params:
        """Fresh parameters, float64 on the CPU. ``scale`` multiplies the usual (He) deviation."""

    @abstractmethod
    def forward(self, params: Params, v: Tensor) -> Tensor:
        """``g(B, v)``."""

    def write_forward(self, params: Params, v: Tensor, out: Tensor) -> Tensor:
        """``g(B, v)``, written into ``out``: fresh pages of memory cost more than many a g."""
        return out.copy_(self.forward(params, v))

    def recompute(self, params: Params, v: Tensor, prediction: Tensor) -> Tensor:
        """The prediction without its cache; a block with own variables keeps those in ``prediction``."""
        return self.forward(params, v)

    def own_energy(
        self, params: Params, v: Tensor, prediction: Tensor, weight: float, rows: Tensor | None = None
    ) -> Tensor:
        """What ties a block's own variables, if it has any: their part of the Lagrangian, rows as in Term."""
        return torch.zeros((), dtype=torch.float64, device=v.device)

    def evaluate(self, params: Params, v: Tensor) -> Tensor:
        """``g(B, v)`` of the trained network: another than ``forward`` where statistics of the batch are part of g."""
        return self.forward(params, v)

    def observe(self, params: Params, v: Tensor) -> None:
        """Take statistics of the training data, where :meth:`evaluate` needs them."""
        return

    @abstractmethod
    def update_parameters(
        self, params: Params, v: Tensor, term: Term, penalty: Regularizer, scope: Scope
    ) -> list[Step]:
        """Step towards ``argmin_B (weight/2)||target - g(B, v)||^2 + Omega(B)``."""

    def turn(self, params: Params, v: Tensor, term: Term, penalty: Regularizer, scope: Scope) -> list[Step]:
        """Both updates of the first block: the last backward, the first forward, with nothing in between."""
        both = (replace(scope, forward=forward) for forward in (False, True))
        return [step for each in both for step in self.update_parameters(params, v, term, penalty, each)]

    @abstractmethod
    def update_input(self, params: Params, v: Tensor, anchor: Anchor, term: Term, scope: Scope) -> list[Step]:
        """Step towards ``argmin_v (anchor.weight/2)||v - anchor.value||^2 + (weight/2)||target - g(B, v)||^2``."""

    @abstractmethod
    def parameter_stationarity(self, params: Params, v: Tensor, term: Term, penalty: Regularizer) -> Tensor:
        """Squared distance of 0 to the subdifferential of the parameters' subproblem."""

    @abstractmethod
    def input_gradient(self, params: Params, v: Tensor, term: Term) -> Tensor:
        """The gradient of ``(weight/2)||target - g(B, v)||^2`` in v, which is ``weight J^T (g - target)``."""

    def pull_back(self, params: Params, v: Tensor, prediction: Tensor, force: Tensor) -> Tensor:
        """``J^T force``: what a gradient in g's output is in v. ``prediction`` is g(B, v)."""
        return self.input_gradient(params, v, Term(1.0, prediction - force, prediction))

    def input_stationarity(self, params: Params, v: Tensor, anchor: Anchor, term: Term) -> Tensor:
        """Squared distance of 0 to the subdifferential of the input's subproblem."""
        gradient = self.input_gradient(params, v, term).add_(v - anchor.value, alpha=anchor.weight)
        return squared_norm(gradient, term.rows)

    @abstractmethod
    def to_module(self, params: Params) -> nn.Module:
        """An ordinary torch module that computes ``g(B, .)`` with a copy of these parameters."""
