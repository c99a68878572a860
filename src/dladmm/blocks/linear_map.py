"""Linear blocks without parameters: average pooling, Flatten, reshaping, padding with zeros, upsampling."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from dladmm.blocks.affine import Affine
from dladmm.blocks.base import Block, Draw, Support
from dladmm.compute.passes import ratio, squared_norm
from dladmm.compute.work import Work
from dladmm.regularizers import Regularizer
from dladmm.solvers.linear_input import update_linear_input
from dladmm.solvers.subproblems import Anchor, Params, Step, Term
from dladmm.solvers.weight_step import Operator

LINEAR_LAYERS: tuple[type[nn.Module], ...] = (
    nn.Flatten, nn.Unflatten, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.ZeroPad1d, nn.ZeroPad2d, nn.PixelShuffle, nn.PixelUnshuffle,
    nn.Upsample,
)  # fmt: skip
"""Torch's layers that are linear, have no parameters and treat every sample apart."""


class LinearMap(Block):
    """``g(v) = A v``, A known by the module that computes it; its transpose comes from autograd.

    Where ``A A^T`` is diagonal (no output shares an input with another: Flatten, pooling of windows that do not
    overlap) the input's subproblem has a closed form.
    """

    kind = "map"
    support = Support.COUNTS | Support.RANKS | Support.RECORDING
    linear = True
    keeps_positions = False

    def __init__(self, module: nn.Module) -> None:
        self.module = copy.deepcopy(module)

    def __repr__(self) -> str:
        return f"LinearMap({self.module!r})"

    def initial_parameters(self, generator: torch.Generator | None, scale: float) -> Params:
        return {}

    def forward(self, params: Params, v: Tensor) -> Tensor:
        output = cast(Tensor, self.module(v))
        return output.clone() if output.data_ptr() == v.data_ptr() else output  # two variables, two memories

    def adjoint(self, e: Tensor, v: Tensor) -> Tensor:
        """``A^T e`` for inputs of v's shape."""
        with torch.enable_grad():
            leaf = torch.zeros_like(v).requires_grad_()
            (found,) = torch.autograd.grad(self.module(leaf), leaf, e)
        return found.detach()

    def to_module(self, params: Params) -> nn.Module:
        return copy.deepcopy(self.module)

    def update_input(self, params: Params, v: Tensor, anchor: Anchor, term: Term, work: Work) -> list[Step]:
        """``argmin_v (nu/2)||v - value||^2 + (c/2)||A v - target||^2``, lines 4 and 9 of Algorithm 1.

        With ``A A^T = D`` diagonal it is ``value + A^T (target - A value) c/(nu + c D)``.
        """
        diagonal = self._diagonal(v, work)
        if diagonal is None:
            return update_linear_input(
                v,
                lambda d: cast(Tensor, self.module(d)),
                lambda e: self.adjoint(e, v[: len(e)]),
                anchor,
                term,
                work,
            )
        pull = (term.target - self.module(anchor.value)) * (
            term.weight / (anchor.weight + term.weight * diagonal)
        )
        found = anchor.value + self.adjoint(pull, v)
        move = found - v
        prediction = self.module(found)
        squared = squared_norm(move, work.counts)
        curvature = ratio(squared_norm(prediction - term.prediction, work.counts), squared)
        work.assign(v, found)
        work.assign(term.prediction, prediction)
        return [Step("a", squared, (anchor.weight + term.weight * curvature) / 2, own=True)]

    def _diagonal(self, v: Tensor, work: Work) -> Tensor | None:
        """The diagonal of ``A A^T`` for one sample, None where it is not diagonal: a random vector tells."""

        def make() -> tuple[bool, Tensor]:
            one = v.new_zeros((1, *v.shape[1:]), dtype=torch.float64)
            output = self.module(one)
            diagonal = self.module(self.adjoint(torch.ones_like(output), one))
            generator = torch.Generator().manual_seed(0)
            probe = torch.rand(output.shape, generator=generator, dtype=torch.float64).to(one.device)
            is_diagonal = torch.allclose(self.module(self.adjoint(probe, one)), diagonal * probe)
            return is_diagonal, diagonal.to(v.dtype)

        is_diagonal, diagonal = work.cached("diagonal", (self,), make, (v.shape[1:], v.dtype))
        return diagonal if is_diagonal else None

    def push_input(self, params: Params, v: Tensor, move: Tensor, prediction: Tensor) -> Tensor:
        return self.forward({}, move)

    def input_gradient(self, params: Params, v: Tensor, term: Term, work: Work) -> Tensor:
        return self.adjoint(term.weight * term.residual(), v)


class Composed(Block):
    """``g(B, v) = h(B, A v)``: a block h behind linear maps without parameters, as one link.

    A Flatten before a Linear, or an average pooling before a convolution, needs no variable of its own: every relaxed
    link weakens what a backward sweep hands down. h is linear in its input, or the block is the chain's ``first`` one,
    whose input is data.
    """

    kind = "mapped"

    def __init__(self, maps: list[LinearMap], block: Block, *, first: bool = False) -> None:
        self.maps, self.block = maps, block
        self.linear, self.continuous = block.linear, block.continuous
        self.own_variables, self.has_statistics = block.own_variables, block.has_statistics
        self.updated_once, self.by_steps = block.updated_once, block.by_steps
        self.starts_by_data = block.starts_by_data
        self.draws, self.weight_set, self._behind = block.draws, block.weight_set, not first
        self.support = block.support & (Support.COUNTS | Support.RANKS | Support.RECORDING)
        self.penalised, self.carried, self.n_out = block.penalised, block.carried, block.n_out
        self.joins_updates = block.joins_updates
        self.positions_share_weights, self.constraint = block.positions_share_weights, block.constraint

    def __repr__(self) -> str:
        return f"Composed({', '.join(repr(m.module) for m in self.maps)}, {self.block!r})"

    def initial_parameters(self, generator: torch.Generator | None, scale: float) -> Params:
        return self.block.initial_parameters(generator, scale)

    def started(self, params: Params, v: Tensor) -> Params:
        return self.block.started(params, self.mapped(v))

    def mapped(self, v: Tensor) -> Tensor:
        """``A v``."""
        for m in self.maps:
            v = m.module(v)
        return v

    def adjoint(self, e: Tensor, v: Tensor) -> Tensor:
        """``A^T e``."""
        inputs = [v]
        for m in self.maps[:-1]:
            inputs.append(m.module(inputs[-1]))
        for m, before in zip(reversed(self.maps), reversed(inputs), strict=True):
            e = m.adjoint(e, before)
        return e

    def forward(self, params: Params, v: Tensor) -> Tensor:
        return self.block.forward(params, self.mapped(v))

    def shown(self, params: Params) -> Params:
        return self.block.shown(params)

    def evaluate(self, params: Params, v: Tensor) -> Tensor:
        return self.block.evaluate(params, self.mapped(v))

    def draw(self, draw: Draw | None) -> None:
        self.block.draw(draw)

    def module_input(self, v: Tensor) -> Tensor:
        return self.block.module_input(v)

    def check_input(self, v: Tensor, name: str) -> None:
        self.block.check_input(v, name)

    def observe(self, params: Params, v: Tensor) -> None:
        self.block.observe(params, self.mapped(v))

    def recompute(self, params: Params, v: Tensor, prediction: Tensor) -> Tensor:
        return self.block.recompute(params, self.mapped(v), prediction)

    def own_energy(self, params: Params, v: Tensor, prediction: Tensor, weight: float, work: Work) -> Tensor:
        return self.block.own_energy(params, self.mapped(v), prediction, weight, work)

    def to_module(self, params: Params) -> nn.Module:
        return nn.Sequential(*(m.to_module({}) for m in self.maps), self.block.to_module(params))

    def update_parameters(
        self, params: Params, v: Tensor, term: Term, penalty: Regularizer, work: Work
    ) -> list[Step]:
        """That of h, whose input is ``A v``; a hidden layer that others wait for is damped by ``map_damping``."""
        if self._behind and isinstance(self.block, Affine):
            work = replace(work, options=work.options.behind_maps(self.block.n_in))
        inner = work.cached("mapped", (v,), lambda: self.mapped(v))
        return self.block.update_parameters(params, inner, term, penalty, work.without_plan())

    def update_input(self, params: Params, v: Tensor, anchor: Anchor, term: Term, work: Work) -> list[Step]:
        """``argmin_v (nu/2)||v - value||^2 + (c/2)||H A v + b - target||^2``, lines 4 and 9 of Algorithm 1.

        Where ``A A^T = I`` (entries are moved about or left out, as all but a layer's last states are), it is h's own
        subproblem over ``A v``, and what A does not see is ``value``.
        """
        inner = self.mapped(v)
        if work.cached("selects entries", (self,), lambda: self.selects_entries(v), v.shape[1:]):
            held = inner.clone()
            mapped = Anchor(anchor.weight, self.mapped(anchor.value))
            steps = self.block.update_input(params, held, mapped, term, work.without_plan())
            if held.numel() == v.numel():
                work.assign(v, self.adjoint(held, v))
                return steps
            unseen = anchor.value - self.adjoint(mapped.value, v)
            squared = squared_norm(unseen + self.adjoint(inner, v) - v, work.counts)
            rate = torch.full_like(squared, anchor.weight / 2)
            work.assign(v, unseen.add_(self.adjoint(held, v)))
            return [*steps, Step("a", squared, rate, own=True)]
        weights = {name: p for name, p in params.items() if name != "b"}
        return update_linear_input(
            v,
            lambda d: self.block.forward(weights, self.mapped(d)),
            lambda e: self.adjoint(
                self.block.input_gradient(params, inner[: len(e)], Term(1.0, torch.zeros_like(e), e), work),
                v[: len(e)],
            ),
            anchor,
            term,
            work,
        )

    def selects_entries(self, v: Tensor) -> bool:
        """Whether ``A A^T = I``: every output is an input of its own. Asked of one random output."""
        generator = torch.Generator().manual_seed(0)
        one = v.new_zeros((1, *v.shape[1:]), dtype=torch.float64)
        probe = torch.rand(self.mapped(one).shape, generator=generator, dtype=torch.float64).to(v.device)
        return torch.allclose(self.mapped(self.adjoint(probe, one)), probe)

    def only_moves_entries(self, v: Tensor) -> bool:
        """Whether the maps are a reshaping or reordering (A is orthogonal), asked of one random sample."""
        generator = torch.Generator().manual_seed(0)
        probe = torch.rand((1, *v.shape[1:]), generator=generator, dtype=torch.float64).to(v.device)
        mapped = self.mapped(probe)
        return mapped.numel() == probe.numel() and torch.allclose(self.adjoint(mapped, probe), probe)

    def parameter_stationarity(
        self, params: Params, v: Tensor, term: Term, penalty: Regularizer, work: Work
    ) -> Tensor:
        return self.block.parameter_stationarity(params, self.mapped(v), term, penalty, work)

    def parameter_gradient(
        self, params: Params, v: Tensor, prediction: Tensor, gradient: Tensor, work: Work
    ) -> Params:
        return self.block.parameter_gradient(params, self.mapped(v), prediction, gradient, work)

    def pull_back(
        self, params: Params, v: Tensor, prediction: Tensor, gradient: Tensor, work: Work
    ) -> Tensor:
        return self.adjoint(self.block.pull_back(params, self.mapped(v), prediction, gradient, work), v)

    def push_parameters(self, params: Params, moves: Params, v: Tensor, prediction: Tensor) -> Tensor:
        return self.block.push_parameters(params, moves, self.mapped(v), prediction)

    def push_input(self, params: Params, v: Tensor, move: Tensor, prediction: Tensor) -> Tensor:
        return self.block.push_input(params, self.mapped(v), self.mapped(move), prediction)

    def linear_operator(self, params: Params, v: Tensor, prediction: Tensor, work: Work) -> Operator | None:
        return self.block.linear_operator(params, self.mapped(v), prediction, work)

    def input_gradient(self, params: Params, v: Tensor, term: Term, work: Work) -> Tensor:
        return self.adjoint(self.block.input_gradient(params, self.mapped(v), term, work), v)
