"""Generic block: any torch module as a link of the chain, solved with its own local gradient (Algorithm 1)."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.random import fork_rng

from dladmm.blocks.base import Block, Support
from dladmm.compute.passes import squared_norm
from dladmm.compute.work import Work
from dladmm.regularizers import Regularizer
from dladmm.solvers.local_step import Found, local_gradients, majorised_step, proximal_point
from dladmm.solvers.subproblems import Anchor, Params, Step, Term


class Generic(Block):
    """``g(B, v) = module(v)`` with ``B`` the module's parameters.

    Both subproblems take one majorised step: gradient of this one block by autograd, backtracking on true values.
    The test of the loop is taken on the difference of the two values, formed entry by entry, so that float32 does
    not decide it by rounding. The accepted curvature is remembered and a quarter of it is the next start.

    Parameters
    ----------
    module : nn.Module
        Maps v (N, ...) to g (N, ...), differentiably.
    linear : bool, optional
        Whether it is linear in v, which a last block must be; only ``nn.Linear`` is taken to be unless given.
    continuous : bool
        Whether it is continuous, which the limit-point theorem needs.
    """

    def __init__(self, module: nn.Module, *, linear: bool | None = None, continuous: bool = True) -> None:
        self.module = copy.deepcopy(module).train()
        self._rates = list(dropout_rates(self.module))
        self.draws = bool(self._rates)
        for part, name, _ in self._rates:  # in training mode, but nothing is dropped outside of sweeps
            setattr(part, name, 0.0)
        self._attends = any(isinstance(part, nn.MultiheadAttention) for part in module.modules())
        # Of torch's kernels for attention, one alone can be differentiated twice
        self._kernel = partial(sdpa_kernel, SDPBackend.MATH) if self._attends else nullcontext
        self.has_statistics = any(isinstance(part, _NormBase) for part in module.modules())
        # Torch's statistics count every sample once, and those of a batch would be those of one rank
        self.support = Support.NONE if self.has_statistics else Support.COUNTS | Support.RANKS
        self.linear = isinstance(module, nn.Linear) if linear is None else linear
        self.continuous = continuous
        self.n_out = module.out_features if isinstance(module, nn.Linear) else None
        self.frozen = frozenset(name for name, p in module.named_parameters() if not p.requires_grad)
        """Parameters that are not trained: the module's own values hold."""
        trained = ((name, p) for name, p in module.named_parameters() if name not in self.frozen)
        self.penalised = tuple(name for name, p in trained if p.ndim > 1)

    def __repr__(self) -> str:
        return f"Generic({self.module!r})"

    def initial_parameters(self, generator: torch.Generator | None, scale: float) -> Params:
        """He-initialised weights and zero biases, from ``generator``; without one, the module's own values.

        Vectors whose entries are all equal stay as they are: those are gains, such as a normalisation's. Attention is
        drawn as torch draws it.
        """
        trained = ((name, p) for name, p in self.module.named_parameters() if name not in self.frozen)
        own = {name: p.detach().double().cpu().clone() for name, p in trained}
        if generator is None:
            return own
        if self._attends:
            drawn = self._drawn_by_torch(generator)
            return {name: drawn[name].double() for name in own}
        for p in own.values():
            if p.ndim < 2 and bool((p == p.flatten()[:1]).all()):
                continue
            fan_in = p[0].numel() if p.ndim > 1 else 0
            deviation = scale * (2.0 / fan_in) ** 0.5 if fan_in else 0.0
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) * deviation)
        return own

    def _drawn_by_torch(self, generator: torch.Generator) -> Params:
        """The module's parameters as its parts initialise themselves, from ``generator``."""
        copied = copy.deepcopy(self.module).cpu()
        with fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**31 - 1, (), generator=generator)))
            for part in copied.modules():
                reset = getattr(part, "_reset_parameters", None) or getattr(part, "reset_parameters", None)
                if reset is not None:
                    reset()
        return {name: p.detach() for name, p in copied.named_parameters()}

    def forward(self, params: Params, v: Tensor) -> Tensor:
        with self._kernel(), self._dropping(v):
            output: Tensor = functional_call(self.module, {**self._buffers(v), **params}, (v,))
        return output.clone() if output.data_ptr() == v.data_ptr() else output  # two variables, two memories

    @contextmanager
    def _dropping(self, v: Tensor) -> Iterator[None]:
        """Dropout of the module's parts by the sweep's draw; torch's own generators are as before afterwards."""
        if self.drawn is None or not self.draws:
            yield
            return
        with fork_rng(devices=[v.device] if v.is_cuda else []):
            torch.manual_seed(self.drawn.seed)
            for part, name, rate in self._rates:
                setattr(part, name, rate * self.drawn.share)
            try:
                yield
            finally:
                for part, name, _ in self._rates:
                    setattr(part, name, 0.0)

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
        """Copies of the module's buffers where v lives (a forward pass may write into them), and frozen parameters."""
        held = [(name, p.detach()) for name, p in self.module.named_parameters() if name in self.frozen]
        return {
            name: b.to(device=v.device, dtype=v.dtype if b.is_floating_point() else b.dtype, copy=True)
            for name, b in [*self.module.named_buffers(), *held]
        }

    def to_module(self, params: Params) -> nn.Module:
        copied = copy.deepcopy((self.module, self._rates))
        module = copied[0].eval()
        for part, name, rate in copied[1]:
            setattr(part, name, rate)
        some = next(iter(params.values()), None)
        if some is not None:
            module = module.to(device=some.device, dtype=some.dtype)
            with torch.no_grad():
                for name, value in params.items():
                    module.get_parameter(name).copy_(value)
        return module

    def update_parameters(
        self, params: Params, v: Tensor, term: Term, penalty: Regularizer, work: Work
    ) -> list[Step]:
        """``argmin_B (Psi)||V_l - g_l(B, V_{l-1})||^2 + omega(B)``, lines 5 and 8 of Algorithm 1."""
        if not params:
            return []
        names = list(params)
        start = [params[name] for name in names]

        point = proximal_point(params, penalty, self.penalised)

        def evaluate(values: list[Tensor]) -> Tensor:
            return self.forward(dict(zip(names, values, strict=True)), v)

        found = majorised_step(start, evaluate, point, None, term, work, "B")
        _hand_over(found, start, term, work)
        return [Step("W", found.squared, found.rate)]

    def update_input(self, params: Params, v: Tensor, anchor: Anchor, term: Term, work: Work) -> list[Step]:
        """``argmin_V (Psi)||V - g_l||^2 + (Psi)||V_{l+1} - g_{l+1}(B, V)||^2``, lines 4 and 9 of Algorithm 1."""

        def point(curvature: float, gradients: list[Tensor]) -> list[Tensor]:
            return [v - gradients[0] / curvature]

        def evaluate(values: list[Tensor]) -> Tensor:
            return self.forward(params, values[0])

        found = majorised_step([v], evaluate, point, anchor, term, work, "V")
        _hand_over(found, [v], term, work)
        return [Step("a", found.squared, found.rate)]

    def parameter_stationarity(
        self, params: Params, v: Tensor, term: Term, penalty: Regularizer, work: Work
    ) -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device=v.device)
        if not params:
            return total
        names = list(params)
        own = local_gradients(
            [params[name] for name in names],
            lambda values: self.forward(dict(zip(names, values, strict=True)), v),
            term,
            work.counts,
        )[1]
        gradients = work.total(*own)
        for name, gradient in zip(names, gradients, strict=True):
            if name in self.penalised:
                gradient = penalty.stationarity(params[name], gradient)
            total = total + squared_norm(gradient)
        return total

    def input_gradient(self, params: Params, v: Tensor, term: Term, work: Work) -> Tensor:
        return local_gradients([v], lambda values: self.forward(params, values[0]), term)[1][0]


def dropout_rates(module: nn.Module) -> Iterator[tuple[nn.Module, str, float]]:
    """The parts of a module that drop entries in training, with the name and value of the probability."""
    for part in module.modules():
        if isinstance(part, _DropoutNd) and part.p > 0:
            yield part, "p", part.p
        elif isinstance(part, nn.MultiheadAttention) and part.dropout > 0:
            yield part, "dropout", part.dropout


def _hand_over(found: Found, variables: list[Tensor], term: Term, work: Work) -> None:
    """What a step found, for the work to put where it belongs."""
    for x, new in zip(variables, found.values, strict=True):
        work.assign(x, new)
    if found.prediction is not None:
        work.assign(term.prediction, found.prediction)
