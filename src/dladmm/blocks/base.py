"""What a block of the chain is."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Flag, auto
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from dladmm.compute.passes import squared_norm
from dladmm.compute.work import Work
from dladmm.regularizers import Box, Regularizer, Signed, WeightSet
from dladmm.solvers.local_step import change_along
from dladmm.solvers.subproblems import Anchor, Params, Step, SubproblemOptions, Term
from dladmm.solvers.weight_step import Operator

Kind = Literal[
    "dense", "entrywise", "dropout", "convolution", "map", "mapped", "positions", "recurrent", "other"
]
"""Affine, activation, convolution, linear map without parameters, a block behind such maps, affine at each position,
states of a recurrent layer."""


class Support(Flag):
    """How the updates of a block may be executed; the one attribute that a block declares about it.

    A block whose every sum over samples goes through its :class:`~dladmm.compute.work.Work` may declare ``ALL``.
    """

    COUNTS = auto()
    """Sample weights: row i counts ``work.counts[i]`` times in every sum over the samples."""
    CHUNKS = auto()
    """g works row by row, and updates work on the chunks of rows that ``work`` hands out."""
    RANKS = auto()
    """Every sum over samples goes through ``work.total`` or ``work.sum``, so each rank may have rows of its own."""
    RECORDING = auto()
    """No update asks the device for a number, so that launches can be recorded and replayed."""
    NONE = 0
    ALL = COUNTS | CHUNKS | RANKS | RECORDING


class Draw(NamedTuple):
    """The draw of one sweep: a seed for every block that draws, and the share of their probabilities that counts."""

    seed: int
    share: float = 1.0


class Block(ABC):
    """One link ``V_l = g_l(B_l, V_{l-1})`` of the chain (Problem 1 of the paper).

    A block knows two subproblems, each with everything else held fixed: the one over its parameters and the one
    over its input. An update writes nothing that it is given: it computes the moves of B or v and of the cached
    prediction, hands them to its ``work`` (:meth:`~dladmm.blocks.Work.move`, :meth:`~dladmm.blocks.Work.assign`, ...),
    which applies them, and returns the steps made.
    Shapes: v is (N, ...), the term's target and prediction are (N, ...) of the block's output.
    """

    support: Support = Support.NONE
    """How its updates may be executed."""

    linear: bool = False
    """Whether g is linear in v (and in B): what the last block has to be."""

    continuous: bool = True
    """Whether g is continuous: what the limit-point theorem needs (Assumption 1)."""

    follows_forward: bool = False
    """Whether some rows of its variables are set to the forward pass: the theory does not speak of that."""

    counted_rows: Tensor | None = None
    """The rows of its output that are variables and count, where the others are held fixed; None where all do."""

    own_variables: bool = False
    """Whether the block has variables of its own, kept as its prediction (:meth:`own_energy` ties them)."""

    updated_once: bool = False
    """Whether accelerated mode updates its parameters on the way back alone (``sweep="backward"``), unless told."""

    has_statistics: bool = False
    """Whether g depends on statistics of the batch, which :meth:`evaluate` replaces by those of the training data."""

    normalises: bool = False
    """Whether g takes the size of its input out, so that a change of the input is to be measured behind it."""

    weight_set: WeightSet | None = None
    """The finite set that its weights are of, where they are; :meth:`shown` has them."""

    begins_with_residual: bool = False
    """Whether its updates begin with ``work.residual(term)`` and ``work.offset(v, anchor)``."""

    rewrites_prediction: bool = False
    """Whether the update of its input writes the prediction without reading it."""

    joins_updates: bool = False
    """Whether several updates of its parameters in a row may be asked for in one call (``work.order``)."""

    kind: Kind = "other"
    """What sort of link it is, for those who treat some sorts apart: scaling of inputs, memory, merging of maps."""

    positions_share_weights: bool = False
    """Whether the same weights act at every position of an image."""

    keeps_positions: bool = True
    """Whether samples that are sequences stay sequences."""

    by_steps: bool = False
    """Whether its products are made step by step of a sequence."""

    starts_by_data: bool = False
    """Whether initial parameters depend on the shape of the input (:meth:`started`)."""

    draws: bool = False
    """Whether g is random in a sweep (dropout): :attr:`drawn` then says which g it is."""

    drawn: Draw | None = None
    """The draw of the sweep that looks; None outside of sweeps, where g is that of the trained network."""

    records_gradients: bool = False
    """Whether :meth:`parameter_gradient` asks the device for no number, so that its launches can be recorded."""

    n_levels: int = 0
    """How many levels the block's output has, 0 where it is continuous."""

    penalised: tuple[str, ...] = ()
    """The parameters the regulariser Omega applies to."""

    constraint: Signed | Box | None = None
    """What the penalised parameters must satisfy beside the regulariser."""

    carried: tuple[str, ...] = ()
    """Cached quantities that cannot be computed again bit for bit, so that a checkpoint must hold them."""

    of_inputs: tuple[str, str] | None = ("W", "b")
    """The names of a first block's weight and bias that its inputs meet, into which their scaling can be folded."""

    of_outputs: tuple[str, str] | None = ("W", "b")
    """The names of a last block's weight and bias that its outputs come from, into which their units can be folded."""

    n_in: int | None = None
    """Features per row that g takes, where that is one number."""

    n_out: int | None = None
    """Features per row that g gives, where that is one number."""

    def supports(self, wanted: Support, options: SubproblemOptions | None = None) -> bool:
        """Whether updates with these options may be executed so."""
        return wanted in self.support

    def draw(self, draw: Draw | None) -> None:
        """Take the draw of a sweep, or none."""
        self.drawn = draw

    @abstractmethod
    def initial_parameters(self, generator: torch.Generator | None, scale: float) -> Params:
        """Fresh parameters, float64 on the CPU. ``scale`` multiplies the usual (He) deviation."""

    @abstractmethod
    def forward(self, params: Params, v: Tensor) -> Tensor:
        """``g(B, v)``."""

    def shown(self, params: Params) -> Params:
        """The parameters as the trained network has them: others where a set that W is of is not that of its steps."""
        return params

    def write_forward(self, params: Params, v: Tensor, out: Tensor) -> Tensor:
        """``g(B, v)``, written into ``out``: fresh pages of memory cost more than many a g."""
        return out.copy_(self.forward(params, v))

    def differentiable_forward(self, params: Params, v: Tensor) -> Tensor:
        """``g(B, v)`` as autograd can follow it, for baselines that back-propagate."""
        return self.forward(params, v)

    def recompute(self, params: Params, v: Tensor, prediction: Tensor) -> Tensor:
        """The prediction without its cache; a block with own variables keeps those in ``prediction``."""
        return self.forward(params, v)

    def own_energy(self, params: Params, v: Tensor, prediction: Tensor, weight: float, work: Work) -> Tensor:
        """What ties a block's own variables, if it has any: their part of the Lagrangian."""
        return torch.zeros((), dtype=torch.float64, device=v.device)

    def started(self, params: Params, v: Tensor) -> Params:
        """The initial parameters for inputs like v, (N, ...), from those drawn without them."""
        return params

    def evaluate(self, params: Params, v: Tensor) -> Tensor:
        """``g(B, v)`` of the trained network: another than ``forward`` where statistics of the batch are part of g."""
        return self.forward(params, v)

    def module_input(self, v: Tensor) -> Tensor:
        """Its input v as :meth:`to_module`'s module takes it."""
        return v

    def check_input(self, v: Tensor, name: str) -> None:
        """Raise where v, the data, is not what a first block of this kind takes."""
        return

    def observe(self, params: Params, v: Tensor) -> None:
        """Take statistics of the training data, where :meth:`evaluate` needs them."""
        return

    def update_parameters(
        self, params: Params, v: Tensor, term: Term, penalty: Regularizer, work: Work
    ) -> list[Step]:
        """Step towards ``argmin_B (weight/2)||target - g(B, v)||^2 + Omega(B)``; nothing where there are none."""
        return []

    def fetch_sums(self, v: Tensor, term: Term, work: Work) -> None:
        """Ask for the sums that :meth:`update_parameters` will need: called where other sums are asked for anyway."""
        return

    @abstractmethod
    def update_input(self, params: Params, v: Tensor, anchor: Anchor, term: Term, work: Work) -> list[Step]:
        """Step towards ``argmin_v (anchor.weight/2)||v - anchor.value||^2 + (weight/2)||target - g(B, v)||^2``."""

    def parameter_stationarity(
        self, params: Params, v: Tensor, term: Term, penalty: Regularizer, work: Work
    ) -> Tensor:
        """Squared distance of 0 to the subdifferential of the parameters' subproblem."""
        return torch.zeros((), dtype=torch.float64, device=v.device)

    @abstractmethod
    def input_gradient(self, params: Params, v: Tensor, term: Term, work: Work) -> Tensor:
        """The gradient of ``(weight/2)||target - g(B, v)||^2`` in v, which is ``weight J^T (g - target)``."""

    def pull_back(
        self, params: Params, v: Tensor, prediction: Tensor, gradient: Tensor, work: Work
    ) -> Tensor:
        """``J^T gradient``: what a gradient in g's output is in v. ``prediction`` is g(B, v)."""
        return self.input_gradient(params, v, Term(1.0, prediction - gradient, prediction), work)

    def input_stationarity(self, params: Params, v: Tensor, anchor: Anchor, term: Term, work: Work) -> Tensor:
        """Squared distance of 0 to the subdifferential of the input's subproblem."""
        gradient = self.input_gradient(params, v, term, work).add_(v - anchor.value, alpha=anchor.weight)
        return squared_norm(gradient, work.counts)

    def tie_margin(self, params: Params, v: Tensor, anchor: Anchor, term: Term) -> float | None:
        """How far the input's subproblem keeps from ties, where its argmin jumps; None where that is not known.

        It never jumps where g is linear: the subproblem is then strongly convex.
        """
        return math.inf if self.linear else None

    # For steps that see the network as a whole (streaming mode) ------------------------------------------------

    def push_parameters(self, params: Params, moves: Params, v: Tensor, prediction: Tensor) -> Tensor:
        """``J_B moves``: how g(B, v), which is ``prediction``, changes along moves of the parameters."""

        def of_parameters(*values: Tensor) -> Tensor:
            return self.differentiable_forward(dict(zip(params, values, strict=True)), v)

        return change_along(of_parameters, list(params.values()), [moves[name] for name in params])

    def push_input(self, params: Params, v: Tensor, move: Tensor, prediction: Tensor) -> Tensor:
        """``J_v move``: how g(B, v) changes along a move of the input."""

        def of_input(value: Tensor) -> Tensor:
            return self.differentiable_forward(params, value)

        return change_along(of_input, [v], [move])

    def linear_operator(self, params: Params, v: Tensor, prediction: Tensor, work: Work) -> Operator | None:
        """A, where g is ``A W^T + b`` (or a function of it) in its parameters W and b; None for other blocks."""
        return None

    def rows_used(self, v: Tensor, work: Work) -> Tensor | None:
        """How often v uses each row of a table W, where g's output is rows of it; None for other blocks."""
        return None

    def parameter_gradient(
        self, params: Params, v: Tensor, prediction: Tensor, gradient: Tensor, work: Work
    ) -> Params:
        """``J_B^T gradient``, summed over the samples of all ranks; ``prediction`` is g(B, v)."""
        names = list(params)
        with torch.enable_grad():
            leaves = [params[name].detach().requires_grad_() for name in names]
            output = self.differentiable_forward(dict(zip(names, leaves, strict=True)), v)
            own = torch.autograd.grad(output, leaves, work.counted(gradient), allow_unused=True)
        filled = [torch.zeros_like(p) if g is None else g for p, g in zip(leaves, own, strict=True)]
        return dict(zip(names, work.total(*(g.detach() for g in filled)), strict=True))

    def certified_as(self) -> dict[str, Any] | None:
        """What a certificate's file says of the block (docs/certificates.md); None where ``verify.py`` knows none."""
        return None

    @abstractmethod
    def to_module(self, params: Params) -> nn.Module:
        """An ordinary torch module that computes ``g(B, .)`` with a copy of these parameters."""


def layer_of(make: Callable[..., nn.Module], *sizes: Any, params: Params, **settings: Any) -> nn.Module:
    """A torch layer with copies of ``W`` and ``b``; nothing is drawn from torch's global generator.

    It is made without memory of its own, and is given its parameters. (``nn.utils.skip_init`` would import torch's
    symbolic shapes on a first call, which takes a second.)
    """
    layer = make(*sizes, bias="b" in params, device="meta", **settings)
    layer.weight = nn.Parameter(params["W"].detach().clone())
    if "b" in params:
        layer.bias = nn.Parameter(params["b"].detach().clone())
    return layer
