"""The problem of a run: data, network, loss and penalty, and how its work is executed; and the iterate."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self, cast

import torch
from torch import Tensor

from dladmm.base.errors import InputError
from dladmm.blocks import Params, Support, Term, Work
from dladmm.compute.chunks import Source, concatenated, in_chunks
from dladmm.compute.communicator import ALONE, Communicator, Shards
from dladmm.compute.execution import EAGER, Execution, copied
from dladmm.compute.recording import RECORDED_ENTRIES
from dladmm.compute.workspace import Workspace
from dladmm.losses import Risk
from dladmm.network.chain import Chain
from dladmm.regularizers import NoPenalty, Regularizer
from dladmm.solvers.subproblems import SubproblemOptions


@dataclass
class State:
    """The iterate: B, V, u, the cached predictions ``g_l(B_l, V_{l-1})``, and the penalty weights.

    ``W``, ``b``, ``z``, ``a`` are the paper's names for the pieces of an MLP, in layer order; rows are samples and
    ``W[l]`` is (n_out, n_in) as in torch. ``curvatures`` holds, for every block, the curvatures that its searches
    accepted last, near which the next ones start.
    """

    params: list[Params]
    outputs: list[Tensor]
    predictions: list[Tensor]
    u: Tensor
    rho: float
    nu: float
    stiffness: float = 1.0
    links: tuple[float, ...] = ()
    curvatures: list[dict[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.curvatures:
            self.curvatures = [{} for _ in self.params]

    def weight(self, l: int) -> float:
        """What link l weighs: rho for the last, else nu, times ``stiffness`` once for each link that follows.

        The paper has one nu for all, stiffness 1. A larger one makes links stiffer towards the input, so that a
        backward sweep hands the gradient of R down without weakening it (docs/theory.md). ``links``, where given, are
        factors for single links.
        """
        after = len(self.params) - 1 - l
        own = self.links[l] if self.links else 1.0
        return self.rho if after == 0 else self.nu * self.stiffness**after * own

    @property
    def W(self) -> list[Tensor]:
        return [p["W"] for p in self.params if "W" in p]

    @property
    def b(self) -> list[Tensor]:
        return [p["b"] for p in self.params if "b" in p]

    @property
    def z(self) -> list[Tensor]:
        return [v for p, v in zip(self.params, self.outputs, strict=True) if p]

    @property
    def a(self) -> list[Tensor]:
        return [v for p, v in zip(self.params, self.outputs, strict=True) if not p]

    @property
    def residual(self) -> Tensor:
        """``r = z_L - W_L a_{L-1} - b_L``, line 23 of Algorithm 2."""
        return self.outputs[-1] - self.predictions[-1]

    def clone_parameters(self) -> list[Params]:
        return [{name: p.clone() for name, p in block.items()} for block in self.params]


class Problem:
    """What is optimised, and where an iterate starts. It owns the problem, never the iterate.

    Parameters
    ----------
    chain : Chain
        The network, blocks g_1 .. g_n.
    x : Tensor of shape (N, ...) or Source
        The inputs; a :class:`~dladmm.compute.chunks.Source` only together with ``chunk_rows``.
    risk : Risk
        R(z_L; y).
    penalty : Regularizer, optional
        Omega, on every block's penalised parameters.
    options : SubproblemOptions, optional
        How subproblems are solved.
    counts : Tensor of shape (N, 1), optional
        Multiplicities: the whole Lagrangian of sample i counts ``counts_i`` times, so that training with whole numbers
        equals training with repeated samples, and rho > 2H is the condition as before. (A weight in the risk weighs the
        loss alone, which is how a graph leaves unlabelled nodes out.)
    chunk_rows : int, optional
        Rows worked on at a time (:mod:`dladmm.compute.chunks`). Variables, predictions and u are whole either way.
    comm, shards
        Who else has rows of this problem, and more of those rows where it is known. Parameters are the same on every
        rank; inputs, targets, variables, predictions and u are of a rank's own rows, and sums over the samples are made
        totals of all ranks.
    how : Execution
        Settings of execution; they change speed and rounding only.
    """

    observed: Callable[[], Tensor] | None = None

    def __init__(
        self,
        chain: Chain,
        x: Tensor | Source,
        risk: Risk,
        penalty: Regularizer | None = None,
        options: SubproblemOptions | None = None,
        counts: Tensor | None = None,
        chunk_rows: int | None = None,
        comm: Communicator = ALONE,
        shards: Shards | None = None,
        how: Execution = EAGER,
    ) -> None:
        self.chain, self.risk, self.comm, self.how = chain, risk, comm, how
        # Blocks that work in chunks never look at x whole: to them a source is a tensor
        self.x = cast(Tensor, x)
        self.chunk_rows = None if chunk_rows is None else max(1, min(chunk_rows, len(x)))
        self.penalty = NoPenalty() if penalty is None else penalty
        self.options = SubproblemOptions() if options is None else options
        self.counts = counts
        other = [repr(block) for block in chain if block.penalised and block.kind != "dense"]
        if self.options.penalise_bias and (other or not self.penalty.quadratic):
            what = f"networks of linear layers, not {other[0]}" if other else "an l2 penalty"
            raise InputError(f"penalise_bias is for {what}; leave it out.")
        weighted = "sample weights cannot be used: they do not count in {}."
        self._require(counts is not None, Support.COUNTS, weighted)
        self._require(
            chunk_rows is not None,
            Support.CHUNKS,
            "rows in chunks need a network of linear layers and known activations only; {} cannot.",
        )
        shared = "these blocks cannot be trained on several ranks: {}. Train on one."
        self._require(not comm.alone, Support.RANKS, shared)
        self.shards = Shards.of(comm, len(x), counts) if shards is None else shards
        self.workspace = Workspace()

    def _require(self, asked: bool, support: Support, refusal: str) -> None:
        unable = dict.fromkeys(repr(block) for block in self.chain if not block.supports(support))
        if asked and unable:
            raise InputError(refusal.format(", ".join(unable)))

    def seen_as(
        self,
        *,
        x: Tensor | Source | None = None,
        options: SubproblemOptions | None = None,
        how: Execution | None = None,
    ) -> Self:
        """The same problem with other inputs, options or execution settings; this one stays as it is."""
        other = copy.copy(self)
        other.x = self.x if x is None else cast(Tensor, x)
        other.options, other.how = options or self.options, how or self.how
        return other

    @property
    def recordable(self) -> bool:
        """Whether a sweep never asks the device for a number, so that its launches can be recorded and replayed."""
        able = all(block.supports(Support.RECORDING, self.options) for block in self.chain)
        smooth = all(self.penalty_of(l).quadratic is not None for l in range(len(self.chain)))
        return able and smooth and self.risk.closed_form

    @property
    def foresees(self) -> bool:
        """Whether a recorded sweep makes as many steps of conjugate gradients as were foreseen, where others ask."""
        return any(block.kind in ("convolution", "map", "mapped") for block in self.chain)

    def worth_recording(self, state: State) -> bool:
        """Whether a sweep of this size takes the device no longer than the host; convolutions launch more."""
        return sum(v.numel() for v in state.outputs) <= (2 if self.foresees else 1) * RECORDED_ENTRIES

    @property
    def n_rows(self) -> int:
        """How many rows there are on all ranks."""
        return len(self.x) if self.shards is None else self.shards.n_rows

    @property
    def samples(self) -> float:
        """How many samples those rows count for."""
        if self.shards is not None:
            return self.shards.samples
        return len(self.x) if self.counts is None else float(self.counts.double().sum())

    def work(self, l: int, **changes: Any) -> Work:
        """How an update by block l is executed."""
        settings: dict[str, Any] = {
            "options": self.options,
            "last": l == len(self.chain) - 1,
            "counts": self.counts,
            "chunk_rows": self.chunk_rows,
            "shards": self.shards,
            "how": self.how,
            "workspace": self.workspace,
            "owner": l,
        }
        return Work(**settings | changes)

    def term(self, state: State, l: int) -> Term:
        """What ties V_l to block l. For the hard link that is ``(rho/2)||V_n + u/rho - g_n||^2``."""
        target = state.outputs[l]
        if l == len(self.chain) - 1:
            target = target + state.u / state.rho
        return Term(state.weight(l), target, state.predictions[l])

    def input(self, state: State, l: int) -> Tensor:
        """``V_{l-1}``, the input of block l."""
        return self.x if l == 0 else state.outputs[l - 1]

    def within_constraints(self, params: list[Params]) -> None:
        """Bring parameters to where the constraints on them hold, in place."""
        for l, block in enumerate(self.chain):
            for name in block.penalised:
                params[l][name] = self.penalty_of(l).prox(params[l][name], 0.0)

    # Where an iterate starts -----------------------------------------------------------------------------------

    @torch.no_grad()
    def feasible_state(self, params: list[Params], rho: float, nu: float) -> State:
        """V from the network's own forward pass and ``u = -grad R``: Lemma 2 holds from the start."""
        outputs: list[Tensor] = []
        for l, block in enumerate(self.chain):
            v = outputs[-1] if outputs else self.x
            outputs.append(concatenated(self.chunk_rows, partial(block.forward, params[l]), v))
        u = -self.risk.gradient(outputs[-1])
        return State(params, outputs, [v.clone() for v in outputs], u, rho, nu)

    @torch.no_grad()
    def resynchronise(self, state: State) -> None:
        """:meth:`feasible_state` of the parameters the state has, in the memory the state has."""
        v = self.x
        for l, block in enumerate(self.chain):
            for some, out in in_chunks(self.chunk_rows, v, state.outputs[l]):
                block.write_forward(state.params[l], some, out)
            v = state.outputs[l]
            if state.predictions[l] is not v:
                copied(v, state.predictions[l])
        torch.neg(self.risk.gradient(v), out=state.u)

    @torch.no_grad()
    def paper_state(self, params: list[Params], rho: float, nu: float) -> State:
        """As the authors start: hidden layers from the forward pass, z_L at +1 / -1, u = 0."""
        state = self.feasible_state(params, rho, nu)
        state.outputs[-1].copy_(torch.where(self.risk.target > 0, 1.0, -1.0).reshape(state.u.shape))
        state.u.zero_()
        return state

    @torch.no_grad()
    def starting_state(
        self, start: str, params: list[Params], rho: float, nu: float, zeroed: Tensor | None = None
    ) -> State:
        """``"feasible"``, ``"paper"`` or ``"forward"``, with the rows ``zeroed`` of every hidden variable at zero."""
        state = (self.paper_state if start == "paper" else self.feasible_state)(params, rho, nu)
        if start == "forward":
            state.u.zero_()
        for l in range(1, len(self.chain) if zeroed is not None else 0):
            state.outputs[l - 1][zeroed] = 0
            self.chain.blocks[l].write_forward(state.params[l], state.outputs[l - 1], state.predictions[l])
        return state

    def observe(self, params: Sequence[Params], outputs: Sequence[Tensor] | None = None) -> list[Params]:
        """Renew the statistics of blocks that have them, by ``observed`` rows or by x; the parameters to hand out.

        ``outputs`` are those of x, where they are known.
        """
        known = outputs if self.observed is None else None
        return self.chain.observe(params, self.observed or (lambda: self.x), known)

    def penalty_value(self, params: Sequence[Params]) -> Tensor:
        """``sum_l Omega(W_l)``."""
        zero = torch.zeros((), dtype=torch.float64, device=self.x.device)
        values = (
            self.penalty_of(l).value(p[name]) for l, p in enumerate(params) for name in self.penalised(l)
        )
        return sum(values, zero)

    def penalised(self, l: int) -> tuple[str, ...]:
        """The penalised parameters of block l."""
        block = self.chain.blocks[l]
        biased = self.options.penalise_bias and getattr(block, "bias", False)
        return (*block.penalised, "b") if biased else block.penalised

    def penalty_of(self, l: int) -> Regularizer:
        """The penalty of block l, with the block's constraint if it has one."""
        constraint = self.chain.blocks[l].constraint
        return self.penalty if constraint is None else constraint.beside(self.penalty)
