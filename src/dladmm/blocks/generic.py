"""Generic block: any torch module as a link of the chain, solved with its own local gradient (Algorithm 1)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase

from dladmm.blocks.base import Anchor, Block, Params, Scope, Step, Term, like_rows
from dladmm.compute.norms import squared_norm
from dladmm.regularizers import Regularizer
from dladmm.solvers.subproblems import Trial, rise_of_square, searched


class Generic(Block):
    """``g(B, v) = module(v)`` with ``B`` the module's parameters.

    Both subproblems take one majorised step: gradient of this one block by autograd, backtracking on true values.
    The test of the loop is taken on the difference of the two values, formed entry by entry, so that float32 does
    not decide it by rounding. The accepted curvature is remembered and a quarter of it is the next start.
    """

    remembers = ("B", "V")

    def __init__(self, module: nn.Module, *, linear: bool | None = None, continuous: bool = True) -> None:
        self.module = copy.deepcopy(module).train()
        self.has_statistics = any(isinstance(part, _NormBase) for part in module.modules())
        self.counts_rows = not self.has_statistics  # torch's statistics count every sample once
        self.sharded = not self.has_statistics  # statistics of a batch would be those of one rank
        self.linear = isinstance(module, nn.Linear) if linear is None else linear
        self.continuous = continuous
        self.penalised = tuple(name for name, p in module.named_parameters() if p.ndim > 1)

    def __repr__(self) -> str:
        return f"Generic({self.module!r})"

    def initial_parameters(self, generator: torch.Generator | None, scale: float) -> Params:
        """He-initialised weights and zero biases, from ``generator``; without one, the module's own values.

        Vectors whose entries are all equal stay as they are: those are gains, such as a normalisation's.
        """
        own = {name: p.detach().double().cpu().clone() for name, p in self.module.named_parameters()}
        if generator is None:
            return own
        for p in own.values():
            if p.ndim < 2 and bool((p == p.flatten()[:1]).all()):
                continue
            fan_in = p[0].numel() if p.ndim > 1 else 0
            deviation = scale * (2.0 / fan_in) ** 0.5 if fan_in else 0.0
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) * deviation)
        return own

    def forward(self, params: Params, v: Tensor) -> Tensor:
        output: Tensor = functional_call(self.module, {**self._buffers(v), **params}, (v,))
        return output.clone() if output.data_ptr() == v.data_ptr() else output  # two variables, two memories

    def evaluate(self, params: Params, v: Tensor) -> Tensor:
        if not self.has_statistics:
            return self.forward(params, v)
        self.module.eval()
        try:
            return self.forward(params, v)
        finally:
            self.module.train()

    def observe(self, params: Params, v: Tensor) -> None:
        """Statistics (running mean and variance) of the whole training set, not of a moving average."""
        if not self.has_statistics:
            return
        own = self.module.to(device=v.device, dtype=v.dtype)
        norms = [part for part in own.modules() if isinstance(part, _NormBase)]
        kept = [part.momentum for part in norms]
        for part in norms:
            part.momentum = 1.0
        functional_call(own, params, (v,))
        for part, momentum in zip(norms, kept, strict=True):
            part.momentum = momentum

    def _buffers(self, v: Tensor) -> Params:
        """Copies of the module's buffers where v lives: a forward pass may write into them."""
        return {
            name: b.to(device=v.device, dtype=v.dtype if b.is_floating_point() else b.dtype, copy=True)
            for name, b in self.module.named_buffers()
        }

    def to_module(self, params: Params) -> nn.Module:
        module = copy.deepcopy(self.module).eval()
        some = next(iter(params.values()), None)
        if some is not None:
            module = module.to(device=some.device, dtype=some.dtype)
            with torch.no_grad():
                for name, p in module.named_parameters():
                    p.copy_(params[name])
        return module

    def update_parameters(
        self, params: Params, v: Tensor, term: Term, penalty: Regularizer, scope: Scope
    ) -> list[Step]:
        """``argmin_B (Psi)||V_l - g_l(B, V_{l-1})||^2 + omega(B)``, lines 5 and 8 of Algorithm 1."""
        if not params:
            return []
        names = list(params)
        start = [params[name] for name in names]

        point = proximal_point(params, penalty, self.penalised)

        def evaluate(values: list[Tensor]) -> Tensor:
            return self.forward(dict(zip(names, values, strict=True)), v)

        found = majorised_step(start, evaluate, point, None, term, scope, "B")
        for p, new in zip(start, found.values, strict=True):
            p.copy_(new)
        return [Step("W", found.squared, found.rate)]

    def update_input(self, params: Params, v: Tensor, anchor: Anchor, term: Term, scope: Scope) -> list[Step]:
        """``argmin_V (Psi)||V - g_l||^2 + (Psi)||V_{l+1} - g_{l+1}(B, V)||^2``, lines 4 and 9 of Algorithm 1."""

        def point(curvature: float, gradients: list[Tensor]) -> list[Tensor]:
            return [v - gradients[0] / curvature]

        def evaluate(values: list[Tensor]) -> Tensor:
            return self.forward(params, values[0])

        found = majorised_step([v], evaluate, point, anchor, term, scope, "V")
        v.copy_(found.values[0])
        return [Step("a", found.squared, found.rate)]

    def parameter_stationarity(self, params: Params, v: Tensor, term: Term, penalty: Regularizer) -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device=v.device)
        if not params:
            return total
        names = list(params)
        own = local_gradients(
            [params[name] for name in names],
            lambda values: self.forward(dict(zip(names, values, strict=True)), v),
            term,
            of_parameters=True,
        )[1]
        gradients = term.total(*own)
        for name, gradient in zip(names, gradients, strict=True):
            if name in self.penalised:
                gradient = penalty.stationarity(params[name], gradient)
            total = total + squared_norm(gradient)
        return total

    def input_gradient(self, params: Params, v: Tensor, term: Term) -> Tensor:
        return local_gradients([v], lambda values: self.forward(params, values[0]), term)[1][0]


Evaluate = Callable[[list[Tensor]], Tensor]
Point = Callable[[float, list[Tensor]], list[Tensor]]


class Found:
    """Where a majorised step ended."""

    def __init__(self, values: list[Tensor], squared: Tensor, rate: Tensor) -> None:
        self.values, self.squared, self.rate = values, squared, rate


def local_gradients(
    values: list[Tensor], evaluate: Evaluate, term: Term, *, of_parameters: bool = False
) -> tuple[Tensor, list[Tensor]]:
    """The prediction and the gradient of ``(weight/2)||target - evaluate(values)||^2`` in the values.

    Parameters sum over the samples, each as often as it counts; a sample's own variables know of one sample.
    """
    leaves = [value.detach().requires_grad_() for value in values]
    with torch.enable_grad():
        prediction = evaluate(leaves)
        pull = term.weight * (prediction.detach() - term.target)
        pull = term.counted(pull) if of_parameters else pull
        gradients = torch.autograd.grad(prediction, leaves, pull, allow_unused=True)
    filled = [
        torch.zeros_like(x) if g is None else g.detach() for x, g in zip(leaves, gradients, strict=True)
    ]
    return prediction.detach(), filled


def proximal_point(params: Params, penalty: Regularizer, penalised: Sequence[str]) -> Point:
    """``x+`` of a gradient step at a curvature, with the prox of the penalty on the parameters it applies to."""
    start = dict(params)

    def point(curvature: float, gradients: list[Tensor]) -> list[Tensor]:
        moved = zip(start, start.values(), gradients, strict=True)
        stepped = [(name, p - g / curvature) for name, p, g in moved]
        return [penalty.prox(p, 1.0 / curvature) if name in penalised else p for name, p in stepped]

    return point


def majorised_step(
    start: list[Tensor],
    evaluate: Evaluate,
    point: Point,
    anchor: Anchor | None,
    term: Term,
    scope: Scope,
    kind: str,
) -> Found:
    """One step ``x+ = point(curvature)`` with the smallest tried curvature that majorises the smooth part there.

    A term ``(anchor.weight/2)||x - anchor.value||^2`` is part of phi; its own excess is known in closed form, so
    only the difference of the predictions is searched. When the cap is reached nothing moves.
    """
    old, gradients = local_gradients(start, evaluate, term, of_parameters=anchor is None)
    if anchor is None:  # parameters, which all samples speak of
        gradients = list(term.total(*gradients))
    residual = old - term.target
    rows = (
        None if anchor is None else term.rows
    )  # of what moves: a sample's variables count as often as it does

    def everywhere(*numbers: float) -> Sequence[float]:
        """Sums over the samples of this process as sums over all."""
        if term.shards is None:
            return numbers
        found: list[float] = term.total(old.new_tensor(numbers, dtype=torch.float64))[0].tolist()
        return found

    def lengths(*numbers: float) -> Sequence[float]:
        """The same of sums over the entries of what moves, which parameters have alike on every rank."""
        return numbers if anchor is None else everywhere(*numbers)

    own = 0.0
    if anchor is not None:
        own = anchor.weight
        centre = start[0] - anchor.value
        gradients[0] = gradients[0] + own * centre
    zero = torch.zeros((), dtype=torch.float64, device=old.device)
    first = _first_curvature(scope, kind, term.weight, own)
    if lengths(sum(float(squared_norm(g)) for g in gradients))[0] == 0.0:
        return Found(start, zero, torch.full_like(zero, first / 2))
    values, new = start, old

    @torch.no_grad()
    def trial(curvature: float) -> Trial:
        nonlocal values, new
        values = point(curvature, gradients)
        new = evaluate(values)
        moves = [moved - x for moved, x in zip(values, start, strict=True)]
        pairs = zip(gradients, moves, strict=True)
        change, gap = (_rooted(x.double(), term.rows) for x in (new - old, residual))
        rise = term.weight / 2 * float(rise_of_square(change, gap))
        if anchor is not None:
            rise += own * _inner(moves[0], centre + moves[0] / 2, rows)
        return Trial(
            *everywhere(rise),
            *lengths(
                sum(_inner(g, move, rows) for g, move in pairs),
                sum(float(squared_norm(move, rows)) for move in moves),
            ),
        )

    def slack() -> float:
        squared = float(squared_norm(residual, term.rows))
        return torch.finfo(old.dtype).eps * term.weight / 2 * everywhere(squared)[0]

    curvature = searched(trial, first, slack, scope.options)
    if curvature is None:
        return Found(start, zero, torch.full_like(zero, first / 2))
    scope.memory[kind] = curvature
    term.prediction.copy_(new)
    moves = zip(values, start, strict=True)
    (squared,) = lengths(sum(float(squared_norm(moved - x, rows)) for moved, x in moves))
    return Found(values, zero + squared, torch.full_like(zero, curvature / 2))


def _rooted(x: Tensor, rows: Tensor | None) -> Tensor:
    """Rows times the root of how often they count, so that squares count so often."""
    return x if rows is None else x * like_rows(rows.to(x.dtype).sqrt(), x)


def _inner(x: Tensor, y: Tensor, rows: Tensor | None) -> float:
    """``<x, y>`` in float64, every row as often as it counts."""
    product = x.double() * y.double()
    return float((product if rows is None else product * like_rows(rows.double(), product)).sum())


def _first_curvature(scope: Scope, kind: str, weight: float, own: float) -> float:
    """Where a search starts: t0 or alpha0 where they are given, else a quarter of what was accepted last."""
    given = scope.options.alpha0 if kind == "B" else scope.options.t0
    if given is not None:
        return given
    remembered: float | None = scope.memory.get(kind)
    return max(weight, own) if remembered is None else max(remembered / 4, own)
