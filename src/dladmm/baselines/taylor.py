"""The ADMM of Taylor et al., *Training Neural Networks Without Gradients* (ICML 2016), at any depth.

    min  R(z_L; y) + <u, z_L - m_L> + (rho/2)||z_L - m_L||^2
         + sum_{l<L} (beta/2)||z_l - m_l||^2 + (gamma/2)||a_l - f(z_l)||^2,        m_l = a_{l-1} W_l^T + b_l

One iteration goes forward only, each line an exact minimiser (their Algorithm 1):

    for l < L:   W_l, b_l   least squares of z_l on a_{l-1}
                 a_l        (gamma I + c W_{l+1}^T W_{l+1})^{-1}, c = beta, and rho for the last layer
                 z_l        entry by entry, to the global minimum
    W_L, b_L     least squares of z_L on a_{L-1}
    z_L          prox of the loss at m_L - u/rho
    u            u + rho (z_L - m_L), after the first ``warmup`` iterations

As in the original, the multiplier belongs to the last layer only and enters the z_L-update only: W_L and a_{L-1} fit
z_L itself, not z_L + u/rho. If every inner problem were solved to the end this would make no difference; with one sweep
per iteration it does: once z_L = m_L and u = -grad R nothing moves any more, whatever W is. Hence the warm-up.

Taylor et al. start from normal z and a, and so does this implementation unless ``variables="forward"`` selects the
forward pass of the initial weights. Differences: the squares here have the factor 1/2 with which u + rho r is the
method of multipliers, there is a bias, and in directions that no sample spans they take the shortest W, while here W is
left unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from dladmm.base.errors import InputError
from dladmm.base.spec import number
from dladmm.blocks import Anchor, Step, Term
from dladmm.compute.passes import squared_norm
from dladmm.compute.workspace import Workspace
from dladmm.engine.lagrangian import Energy
from dladmm.engine.method import Look, MethodFactory, Seen
from dladmm.engine.problem import State
from dladmm.engine.sweep import Engine

BETA, GAMMA, RHO, WARMUP = 1.0, 10.0, 1.0, 30
"""beta and gamma are those of Taylor et al., rho is the paper's; the warm-up was tuned on digits (10 is worse)."""

Variables = Literal["random", "forward"]


class TaylorEngine(Engine):
    """Sweep and energy of the problem above: beta is the state's nu, gamma ties a_l to f(z_l)."""

    def __init__(self, problem: Engine, gamma: float) -> None:
        blocks = problem.chain.blocks
        kinds = all(block.kind == ("dense", "entrywise")[l % 2] for l, block in enumerate(blocks))
        if not kinds or len(blocks) % 2 == 0:
            raise InputError(
                "admm (Taylor et al.) trains networks of linear layers with one known activation between two."
            )
        # large enough that rounding does not move W in directions no sample spans, too small to matter elsewhere
        damping = torch.finfo(problem.x.dtype).eps ** 0.75
        options = replace(problem.options, w_solver="exact", a_solver="exact", damping=damping)
        super().__init__(problem.chain, problem.x, problem.risk, problem.penalty, options, problem.counts)
        self.gamma = gamma

    @torch.no_grad()
    def forward_sweep(self, state: State) -> list[Step]:
        """All primal variables once, from the first layer to the last; u is left alone."""
        last = len(self.chain) - 1
        steps: list[Step] = []
        for l in range(0, last, 2):
            steps += self._least_squares(state, l)
            steps += self._update_variable(state, l + 1)
            steps += self._update_variable(state, l)
        steps += self._least_squares(state, last)
        steps.append(self._update_last(state))
        # a rate of zero: no descent is guaranteed
        return [
            step._replace(rate=None if step.squared is None else torch.zeros_like(step.squared))
            for step in steps
        ]

    def _least_squares(self, state: State, l: int) -> list[Step]:
        """``argmin_{W,b} (c/2)||a W^T + b - z||^2 + Omega(W)``: over W with centred inputs, then b from the means."""
        block, params, term = self.chain.blocks[l], state.params[l], self._tie(state, l)
        work, A = self.work(l, order=(True,), last=False), self.input(state, l)
        if "b" not in params:
            return block.update_parameters(params, A, term, self.penalty, work)
        mean = work.counted(A).sum(0) / work.samples(len(A))
        before = params["W"].clone()
        centred = work.cached("centred", (A,), lambda: A - mean)
        steps = block.update_parameters(params, centred, term, self.penalty, work)
        params["b"].sub_((params["W"] - before) @ mean)
        return steps

    def _update_variable(self, state: State, l: int) -> list[Step]:
        """Update a_l or z_l, given the layers before and after it."""
        anchor, term = self._anchor(state, l), self._tie(state, l + 1)
        work = self.work(l + 1, last=False)
        return self.chain.blocks[l + 1].update_input(
            state.params[l + 1], state.outputs[l], anchor, term, work
        )

    def _weight(self, state: State, l: int) -> float:
        if l == len(self.chain) - 1:
            return state.rho
        return state.nu if l % 2 == 0 else self.gamma

    def _tie(self, state: State, l: int) -> Term:
        """The quadratic term of block l, whose target is V_l itself, in the last layer too."""
        return Term(self._weight(state, l), state.outputs[l], state.predictions[l])

    def _anchor(self, state: State, l: int) -> Anchor:
        return Anchor(self._weight(state, l), state.predictions[l])

    @torch.no_grad()
    def energy(
        self, state: State, predictions: Sequence[Tensor] | None = None, steps: Sequence[Step] = ()
    ) -> Energy:
        """The terms of the augmented Lagrangian with these weights."""
        energy = super().energy(state, predictions)
        used = state.predictions if predictions is None else predictions
        pairs = zip(state.outputs[:-1], used, strict=False)
        zero = torch.zeros_like(energy.risk)
        terms = [
            self._weight(state, l) / 2 * squared_norm(v - g, self.counts) for l, (v, g) in enumerate(pairs)
        ]
        return replace(energy, coupling=sum(terms, zero))

    @torch.no_grad()
    def stationarity(self, state: State, predictions: Sequence[Tensor] | None = None) -> Tensor:
        """``dist(0, dL)^2`` of the augmented Lagrangian with these weights."""
        probe = replace(state, predictions=list(state.predictions if predictions is None else predictions))
        last = len(self.chain) - 1
        r = probe.residual
        z_L = self.risk.gradient(probe.outputs[-1]) + probe.u + probe.rho * r
        total = squared_norm(z_L, self.counts) + squared_norm(r, self.counts)
        for l, block in enumerate(self.chain):
            term = self.term(probe, l) if l == last else self._tie(probe, l)
            params, v = probe.params[l], self.input(probe, l)
            work = self.work(l, workspace=Workspace())
            total = total + block.parameter_stationarity(params, v, term, self.penalty, work)
            if l > 0:
                total = total + block.input_stationarity(params, v, self._anchor(probe, l - 1), term, work)
        return total


class TaylorADMM:
    """Taylor's sweep, with a fixed multiplier during the first ``warmup`` iterations."""

    name = "admm"

    def __init__(self, engine: Engine, state: State, gamma: float, warmup: int, seed: int | None) -> None:
        self._problem = TaylorEngine(engine, gamma)
        self.engine: Engine = self._problem
        self.warmup, self.iterations = warmup, 0
        state.u.zero_()
        if seed is not None:
            # a seed of its own, independent of the random numbers of W
            generator = torch.Generator().manual_seed(seed + 1_000_003)
            for v in state.outputs:
                v.copy_(torch.randn(v.shape, generator=generator, dtype=torch.float64))
            state.predictions = self.engine.raw_predictions(state)

    @torch.no_grad()
    def iterate(self, state: State, look: Look[Seen]) -> Seen | None:
        steps = self._problem.forward_sweep(state)
        self.iterations += 1
        if self.iterations > self.warmup:
            state.u.add_(state.residual, alpha=state.rho)
        return look(state, steps)

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {}, {"iterations": self.iterations}

    def resume(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        self.iterations = int(meta["iterations"])


def taylor_method(
    seed: int, gamma: float = GAMMA, warmup: int = WARMUP, variables: Variables = "random"
) -> MethodFactory:
    """The factory of Taylor's ADMM; rho and beta (the option nu) are options of the run."""
    if variables not in get_args(Variables):
        raise InputError(f"variables must be one of {get_args(Variables)}, got {variables!r}.")
    weight = number("gamma", gamma, low=0.0, strict=True)
    if isinstance(warmup, bool) or not isinstance(warmup, int) or warmup < 0:
        raise InputError(f"warmup must be a whole number >= 0, got {warmup!r}.")
    drawn = seed if variables == "random" else None
    return lambda engine, state: TaylorADMM(engine, state, weight, warmup, drawn)
