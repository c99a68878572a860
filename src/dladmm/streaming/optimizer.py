r"""The practical method: the paper's subproblem for W, wherever a weight meets its inputs, one mini-batch at a time.

**The subproblem.** A forward pass is a feasible point of the paper's Problem 1: every link ``z = A W^T + b`` holds. The
gradient ``F = dR/dz`` of the loss, which reverse mode hands to every link, is the multiplier there (Lemma 2), and the
z-update moves the target of the link to ``z - F / rho`` (Equations 4 and 7). What is left for W (Equations 8 and 10) is

.. math:: \min_D\; \langle G, D \rangle + \frac{1}{2 \tau} \lVert D\, S^{-\top} \rVert_2^2,
   \qquad G = F^\top A, \qquad S S^\top = P = (1 + d) \left( C / \bar\lambda + d\, I \right)^{-1},

where C is the running Gram matrix of the inputs A of all uses of W, :math:`\bar\lambda` its mean eigenvalue, and the
proximal term is taken in the spectral norm: no direction of the inputs, seen in their own metric, may move the outputs
by more than any other. Its minimiser is, up to its length,

.. math:: D = -\operatorname{msgn}(G S)\, S^\top,

where msgn replaces the singular values of a matrix by 1. Any S with :math:`S S^\top = P` gives the same D. A weight
with several uses minimises the sum over them: G is the sum that autograd makes, C the mean over the rows of all uses.

**What a use is.** :mod:`dladmm.streaming.uses` finds them in autograd's graph: a row of A is a row of the inputs of a
product, a patch of a convolution (its groups are matrices of their own, so are experts in a stack), a position of a
transposed convolution, a step in time of a recurrent layer.

**The length of a step.** D is in units of its inputs, so that one number serves every network: ``W += lr 0.2
sqrt(max(n_out, n_in)) D``, as long as a step of Adam with the rate ``lr``.

**The rest.** Weights that are in no linear map (gains, biases, positions), tables, and the last map before the outputs,
whose rows are classes and not directions, take Adam's step with three tenths of the rate.

**Memory.** The momentum of G is one number a weight. C and S are n_in x n_in each: at most two where n_in <= n_out.
Maps with more inputs than outputs have a sketch of C with n_out / 2 columns: about one, and a byte for every other
weight of a shape. So the state is at most three times the parameters. While a step observes, the moments of its batch
come on top.
"""

from __future__ import annotations

import functools
import math
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dladmm.streaming.surroundings import (
    Hook,
    averaged,
    checked,
    local,
    recording,
    several,
    shards,
    tensors_in,
    unsharded,
    whole,
)
from dladmm.streaming.uses import Layout, Use, uses_of

DAMPING = 1.0
"""d above, over the mean eigenvalue."""

MOMENTUM = 0.95
"""Of gradients before the orthogonal factor, as Nesterov's."""

REST, BETAS, EPS = 0.3, (0.9, 0.95), 1e-8
"""Adam's rate for the rest, over that of the maps; its averages."""

LEAD_IN = 0.05
"""The part of a planned run in which steps grow to their length; then they fall linearly to 0."""

UNPLANNED_LEAD_IN = 50
"""Steps in which they grow without a plan."""

MOST_ROWS = 4096
"""Rows of a map that one observation counts at most, or four times its inputs."""

MOST_COLUMNS = 1024
"""Columns of a sketch at most."""

AGE = 4.0
"""The h-th observation counts ``AGE / (h + AGE - 1)`` in the metric."""

GROWTH = 1.5
"""The metric's factor is renewed when the number of observations has grown by this."""


def is_observed(step: int) -> bool:
    """Whether the inputs of this step's forward passes count in the metric: the first 8, then ever fewer."""
    return step <= 8 or step % (4 if step <= 128 else 8 if step <= 512 else 16 if step <= 1024 else 32) == 0


def is_renewed(h: int) -> bool:
    """Whether the h-th observation of a weight renews its factor: the first four, the 6th, 9th, 13th, 19th, ..."""
    k = 1
    while k < h:
        k = max(k + 1, int(GROWTH * k))
    return k == h


# The metric and its factor --------------------------------------------------------------------------------------


def msgn(G: Tensor, steps: int = 5) -> Tensor:
    """G (number, m, n) with singular values near 1, by Newton and Schulz' iteration with Muon's coefficients."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = G.shape[-2] > G.shape[-1]
    X = G.mT if tall else G
    exact = torch.promote_types(X.dtype, torch.float32)
    size = torch.linalg.vector_norm(X, dim=(-2, -1), keepdim=True, dtype=exact).clamp_min(1e-30)
    X = X / size.to(X.dtype)
    for _ in range(steps):
        A = X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(A, A, A, beta=b, alpha=c), X, beta=a)
    out: Tensor = X.mT if tall else X
    return out


class Exact:
    """The metric of maps with no more inputs than outputs: C and S as matrices, S the inverse Cholesky factor."""

    def __init__(self, n_in: int, n_out: int) -> None:
        self.columns = self.factor_columns = n_in

    def moment(self, A: Tensor) -> Tensor:
        """Of rows A (groups, rows, n_in)."""
        return A.mT @ (A / A.shape[1])

    def factor(self, C: Tensor) -> Tensor:
        n = C.shape[-1]
        mean = C.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
        eye = torch.eye(n, dtype=C.dtype, device=C.device)
        lower = torch.linalg.cholesky_ex(C / torch.where(mean > 0, mean, 1.0) + DAMPING * eye)[0]
        inverse: Tensor = torch.linalg.solve_triangular(lower, eye.expand_as(C), upper=False)
        return inverse.mT * math.sqrt(1 + DAMPING)

    def before(self, G: Tensor, S: Tensor) -> Tensor:
        """G S."""
        return G @ S

    def after(self, D: Tensor, S: Tensor) -> Tensor:
        """D S^T."""
        return D @ S.mT


class Sketch:
    r"""The metric of maps with more inputs than outputs: ``Y = C Omega`` with k columns of random signs, and the trace.

    :math:`C \approx Y (\Omega^\top Y)^{-1} Y^\top = \bar\lambda\, U \Lambda U^\top` (Nystrom), and the symmetric
    root of P is :math:`S = c (I - Q Q^\top)` with :math:`c^2 = (1 + d) / d` and :math:`Q = U (1 - \sqrt{d / (\Lambda +
    d)})^{1/2}`. The last column of the moment is the diagonal of C.
    """

    def __init__(self, n_in: int, n_out: int) -> None:
        self.n, self.k = n_in, max(1, min(n_out // 2, MOST_COLUMNS))
        self.columns, self.factor_columns = self.k + 1, self.k

    def moment(self, A: Tensor) -> Tensor:
        Y = A.mT @ ((A @ random_signs(self.n, self.k, A.device).to(A.dtype)) / A.shape[1])
        return torch.cat([Y, A.square().mean(-2)[..., None]], -1)

    def factor(self, moment: Tensor) -> Tensor:
        mean = moment[..., -1].mean(-1)[..., None, None]
        mean = torch.where(mean > 0, mean, 1.0)
        signs = random_signs(self.n, self.k, moment.device).to(moment.dtype)
        # inputs with fewer than k directions: a shift by what rounding is, so that the core has an inverse
        Y = moment[..., :-1] / mean + self.n * torch.finfo(moment.dtype).eps * signs
        core = signs.mT @ Y
        lower = torch.linalg.cholesky_ex((core + core.mT) / 2)[0]
        B = torch.linalg.solve_triangular(lower, Y.mT, upper=False).mT
        values, V = torch.linalg.eigh(B.mT @ B)
        damped = values + DAMPING
        Q: Tensor = (B @ V) * (damped + (DAMPING * damped).sqrt()).rsqrt()[..., None, :]
        return Q

    def before(self, G: Tensor, S: Tensor) -> Tensor:
        return torch.baddbmm(G, G @ S, S.mT, alpha=-1).mul_(math.sqrt((1 + DAMPING) / DAMPING))

    after = before


@functools.lru_cache(256)
def random_signs(n: int, k: int, device: torch.device) -> Tensor:
    """The same for all maps of a shape, on all ranks."""
    generator = torch.Generator().manual_seed(n * 65_537 + k)
    return (2 * torch.randint(0, 2, (n, k), generator=generator, dtype=torch.int8) - 1).to(device)


def metric_of(layout: Layout, weight: Tensor) -> Exact | Sketch:
    """The exact one where C and S are together no more than twice the weight."""
    _, n_out, n_in = layout.sizes
    numbers = moment_type(weight).itemsize + weight.dtype.itemsize
    return (Exact if numbers * n_in <= 2 * weight.dtype.itemsize * n_out else Sketch)(n_in, n_out)


def moment_type(weight: Tensor) -> torch.dtype:
    return torch.promote_types(weight.dtype, torch.float32)


def product_type(weight: Tensor) -> torch.dtype:
    """In which the factor is kept and the products of a step are made: their results are directions."""
    if weight.dtype == torch.float64:
        return torch.float64
    return torch.bfloat16 if weight.is_cuda or weight.dtype.itemsize == 2 else torch.float32


# One step of several weights -----------------------------------------------------------------------------------


class Maps:
    """Weights with one layout, whose states lie in one tensor each."""

    def __init__(self, params: list[Tensor], layout: Layout, states: Mapping[Tensor, dict[str, Any]]) -> None:
        self.params, self.layout, self.device = params, layout, params[0].device
        p, (groups, _, n_in) = local(params[0]), layout.sizes
        self.metric = metric_of(layout, p)
        S = p.new_zeros(groups, n_in, self.metric.factor_columns, dtype=product_type(p))
        if isinstance(self.metric, Exact):  # of C = 0
            S.diagonal(dim1=-2, dim2=-1).fill_(math.sqrt((1 + DAMPING) / DAMPING))
        C = p.new_zeros(groups, n_in, self.metric.columns, dtype=moment_type(p))
        fresh = {
            "momentum": torch.zeros_like(p, memory_format=torch.contiguous_format),
            "moment": C,
            "factor": S,
        }
        self.buffers = {name: _stacked(params, states, name, value) for name, value in fresh.items()}
        for p in params:
            states[p].setdefault("observed", [0] * groups)

    def step(self, length: Tensor, decay: Tensor | None, k: Tensor) -> None:
        M, S = self.buffers["momentum"], self.buffers["factor"].flatten(0, 1)
        G = torch.stack([local(p.grad) for p in self.params]).nan_to_num_(0.0, 0.0, 0.0)
        M.lerp_(G, 1 - MOMENTUM)
        G.lerp_(M, MOMENTUM)
        G = self.layout.matrices(whole(G, self.params)).to(S.dtype)
        D = self.metric.after(msgn(self.metric.before(G, S)), S).to(M.dtype)
        D *= length * (0.2 * max(self.layout.sizes[1:]) ** 0.5)
        D = self.layout.parameter(D, D.new_empty(len(self.params), *self.params[0].shape, device="meta"))
        weights = [local(p) for p in self.params]
        if decay is not None:
            torch._foreach_mul_(weights, decay.to(M.dtype))
        torch._foreach_sub_(weights, shards(D, self.params))


class Rest:
    """Everything else of one dtype, end to end in one row: Adam."""

    def __init__(self, params: list[Tensor], states: Mapping[Tensor, dict[str, Any]]) -> None:
        self.params, self.device = params, params[0].device
        self.mean, self.square = (_in_a_row(params, states, name) for name in ("mean", "square"))

    def step(self, length: Tensor, decay: Tensor | None, k: Tensor) -> None:
        g = torch.cat([local(p.grad).reshape(-1) for p in self.params]).nan_to_num_(0.0, 0.0, 0.0)
        self.mean.lerp_(g, 1 - BETAS[0])
        self.square.lerp_(g.square_(), 1 - BETAS[1])
        root = (self.square / (1 - BETAS[1] ** k)).sqrt_().add_(EPS)
        D = self.mean / root
        D *= REST * length / (1 - BETAS[0] ** k)
        weights = [local(p) for p in self.params]
        wide = [p for p in weights if p.ndim > 1]
        if decay is not None and wide:
            torch._foreach_mul_(wide, decay.to(D.dtype))
        parts = torch.split(D, [p.numel() for p in weights])
        torch._foreach_sub_(weights, [d.view(p.shape) for d, p in zip(parts, weights, strict=True)])


def _stacked(
    params: list[Tensor], states: Mapping[Tensor, dict[str, Any]], name: str, fresh: Tensor
) -> Tensor:
    buffer = torch.stack([states[p].get(name, fresh) for p in params])
    for p, view in zip(params, buffer.unbind(), strict=True):
        states[p][name] = view
    return buffer


def _in_a_row(params: list[Tensor], states: Mapping[Tensor, dict[str, Any]], name: str) -> Tensor:
    before = [states[p].get(name, torch.zeros_like(local(p))) for p in params]
    row = torch.cat([each.reshape(-1) for each in before])
    for p, each, view in zip(
        params, before, torch.split(row, [each.numel() for each in before]), strict=True
    ):
        states[p][name] = view.view(each.shape)
    return row


# The optimizer -------------------------------------------------------------------------------------------------


@dataclass
class Pass:
    """What was seen of one forward pass: of each weight its layout (None: no map), and the moments of its parts.

    ``behind`` are the outputs that a weight is the last map before; ``reached`` the outputs that gradients came to, and
    ``handed_on`` those that were inputs of another pass.
    """

    layouts: dict[Tensor, Layout | None] = field(default_factory=dict)
    behind: dict[Tensor, set[int]] = field(default_factory=dict)
    moments: dict[tuple[Tensor, int], Tensor] = field(default_factory=dict)
    outputs: list[weakref.ref[Tensor]] = field(default_factory=list)
    reached: set[int] = field(default_factory=set)
    handed_on: set[int] = field(default_factory=set)


class StreamingADMM(torch.optim.Optimizer):
    """Trains any torch module, in anybody's loop, by streamed ADMM sweeps.

    >>> optimizer = StreamingADMM(module, total_steps=1000)
    >>> # for x, y in batches: optimizer.zero_grad(); loss_of(module(x), y).backward(); optimizer.step()

    Parameters
    ----------
    module : nn.Module
        The network; a compiled or data-parallel module as it is. Parameters with ``requires_grad=False`` stay.
    lr : float, default 0.01
        Length of a step. Schedulers of torch may change it.
    total_steps : int, optional
        Steps of the whole run: they grow over the first 5 % and then fall to 0. Without it they grow over the first 50
        and stay; use a scheduler.
    weight_decay : float, default 0
        Decoupled: ``W -= lr * weight_decay * W`` for parameters with two axes or more.
    process_group : optional
        Ranks that the metric is averaged over; the default group where ``torch.distributed`` is initialised.

    Notes
    -----
    The module must be called (``module(x)``): that is where the method sees which weights meet which inputs. Where you
    call parts of it, say ``optimizer.observe(loss)`` before ``loss.backward()``.

    Entries of a gradient that are not finite count as 0. A step never waits for the device, and can be recorded with
    ``torch.cuda.graph`` after eight steps; what is recorded does not observe. Take the steps of ``is_observed`` without
    the recording to keep the metric up to date.

    With ``fully_shard`` a rank keeps the momentum of its own rows; C and S are on every rank.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        lr: float = 0.01,
        total_steps: int | None = None,
        weight_decay: float = 0.0,
        process_group: Any = None,
    ) -> None:
        params = checked(module, lr, total_steps, weight_decay)
        defaults = {"lr": lr, "weight_decay": weight_decay, "total_steps": total_steps, "steps": 0}
        self._open = True
        super().__init__(params, defaults)
        self._prepare(module, process_group)

    def _prepare(self, module: nn.Module, process_group: Any) -> None:
        self._open = False
        self._module, self._group = module, process_group
        self._maps: dict[Tensor, Layout | None] = {}
        """Of every weight that was seen in a map; None where its uses do not agree, or one is the last."""
        self._pending: list[Pass] = []
        self._sums: dict[tuple[Tensor, int], tuple[int, Tensor]] = {}
        self._clocks: dict[torch.device, Tensor] = {}
        self._planned: list[Tensor] | None = None
        self._stacks: list[Maps | Rest] = []
        self._recorded = self._called = False
        self._opaque: set[str] = set()
        self._warned: set[str] = set()
        self._forget()
        self._hook = Hook(self)
        module.register_forward_hook(self._hook, with_kwargs=True)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if not getattr(self, "_open", False):
            raise ValueError(
                "StreamingADMM has one group, the module's parameters: make another for another module"
            )
        super().add_param_group(param_group)

    # What is seen of the forward pass ---------------------------------------------------------------------------

    def _is_observed(self) -> bool:
        return (
            torch.is_grad_enabled()
            and not recording()
            and (self._recorded or is_observed(self.param_groups[0]["steps"] + 1))
        )

    def observe(self, *outputs: Any) -> None:
        """Count the inputs of all maps on the way to these outputs (tensors, or what holds them) in the metric."""
        if self._is_observed():
            self._observe(outputs, (), None)

    @torch.no_grad()
    def _observe(self, outputs: Any, inputs: Any, again: Callable[[], Any] | None) -> None:
        tensors, before = ([t for t in tensors_in(x) if t.grad_fn is not None] for x in (outputs, inputs))
        weights = {id(p): p for p in self.param_groups[0]["params"]} | unsharded(self._module)
        uses, opaque = uses_of(tensors, weights, before)
        if opaque and again is not None:
            try:
                eager = [t for t in tensors_in(again()) if t.grad_fn is not None]
                uses, opaque = uses_of(eager, weights, before)
            except Exception as error:
                self._warn(f"could not run the module without its compiled code to see into it: {error!r}")
        self._called = self._called or bool(tensors)
        self._opaque |= opaque
        for earlier in self._pending:  # states that are handed on are not the last
            earlier.handed_on |= {
                i for i, t in enumerate(earlier.outputs) if any(t() is each for each in before)
            }
        if uses:
            seen = self._pass_of(uses)
            seen.outputs = [weakref.ref(t) for t in tensors]
            for i, node in enumerate(t.grad_fn for t in tensors):
                if node is not None:
                    node.register_prehook(functools.partial(_reach, seen.reached, i))
            self._settle()
            self._pending = [*self._pending[-7:], seen]

    def _pass_of(self, uses: list[Use]) -> Pass:
        seen = Pass()
        rows: dict[tuple[Tensor, int], list[Use]] = {}
        for use in uses:
            layout, weight = use.layout, use.weight
            plain = not use.table and min(layout.sizes[1:]) > 1 and not weight.is_complex()
            if not plain or seen.layouts.get(weight, layout) != layout:
                seen.layouts[weight] = None
            else:
                seen.layouts[weight] = layout
            seen.behind.setdefault(weight, set()).update(use.outputs)
            rows.setdefault((weight, use.first), []).append(use)
        for (weight, first), of_part in rows.items():
            layout_now = seen.layouts[weight]
            if layout_now is None or self._maps.get(weight, layout_now) != layout_now:
                continue
            most = max(MOST_ROWS, 4 * layout_now.sizes[2])
            each = max(1, most // len(of_part))
            A = torch.cat([use.inputs(each) for use in of_part[:: -(-len(of_part) // most)]], 1)
            if A.shape[1]:
                with torch.autocast(A.device.type, enabled=False):
                    moment = metric_of(layout_now, weight).moment(A.to(moment_type(weight)))
                seen.moments[weight, first] = moment
        return seen

    def _settle(self) -> None:
        """Count the passes that gradients have come to."""
        waiting = []
        for seen in self._pending:
            if not seen.reached:
                waiting.append(seen)
                continue
            for weight, layout in seen.layouts.items():
                last = bool(seen.behind[weight] & seen.reached - seen.handed_on)
                self._is_map(weight, None if last else layout)
            for part, now in seen.moments.items():
                number, total = self._sums.get(part, (0, 0.0))
                self._sums[part] = number + 1, total + now
        self._pending = waiting

    def _is_map(self, weight: Tensor, layout: Layout | None) -> None:
        known = self._maps.get(weight, layout)
        layout = layout if known == layout else None
        if weight not in self._maps or layout != known:
            self._maps[weight] = layout
            self.state[weight] = {
                "layout": None if layout is None else (layout.shape, layout.order, layout.sizes)
            }
            self._planned = None

    # The step ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step on the gradients that are there, or on those that ``closure`` makes; its loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        group, now_recorded = self.param_groups[0], recording()
        active = [p for p in group["params"] if p.grad is not None]
        if now_recorded:
            if self._planned is None or list(map(id, self._planned)) != list(map(id, active)):
                raise RuntimeError(
                    "take the first eight steps without recording, with gradients of the same weights"
                )
            self._recorded = True
        else:
            if self._recorded:  # replays have moved the clock
                group["steps"] = int(next(iter(self._clocks.values())))
            group["steps"] += 1
            self._settle()
            self._pending.clear()
            seen = self._averaged() if self._recorded or is_observed(group["steps"]) else {}
            self._check(active, group)
            self._plan(active)
            self._renew(self._count(seen))
        lengths: dict[torch.device, tuple[Tensor, Tensor | None, Tensor]] = {}
        for stack in self._stacks:
            if stack.device not in lengths:
                lengths[stack.device] = self._length(stack.device, group)
            stack.step(*lengths[stack.device])
        return loss

    def _length(self, device: torch.device, group: dict[str, Any]) -> tuple[Tensor, Tensor | None, Tensor]:
        """The length of this step, what decay leaves, and the number of the step, as tensors on the device."""
        if device in self._clocks:
            k = self._clocks[device].add_(1)
        else:
            exact = torch.float32 if device.type == "mps" else torch.float64
            k = self._clocks[device] = torch.full((), group["steps"], dtype=exact, device=device)
        total = group["total_steps"]
        share = k / UNPLANNED_LEAD_IN
        if total is not None:
            share = torch.minimum(
                k / max(1.0, LEAD_IN * total), (total + 1 - k) / max(1.0, (1 - LEAD_IN) * total)
            )
        length = share.clamp_(0, 1) * group["lr"]
        return length, 1 - length * group["weight_decay"] if group["weight_decay"] else None, k

    def _plan(self, active: list[Any]) -> None:
        """Put the states of the weights that take this step into one tensor for each layout."""
        if self._planned is not None and list(map(id, self._planned)) == list(map(id, active)):
            return
        stay = {p for p in self.state if p.grad is None}
        for p in stay:
            self.state[p].update({n: t.clone() for n, t in self.state[p].items() if isinstance(t, Tensor)})
        alike: dict[Any, list[Tensor]] = {}
        for p in active:
            layout = self._maps.get(p)
            place = (tuple(p.placements), p.device_mesh) if hasattr(p, "placements") else None
            shape = None if layout is None else tuple(p.shape)
            alike.setdefault((layout, shape, p.dtype, p.device, place if layout else None), []).append(p)
        self._stacks = [
            Rest(params, self.state) if key[0] is None else Maps(params, key[0], self.state)
            for key, params in alike.items()
        ]
        self._planned = active

    def _count(self, seen: Mapping[tuple[Tensor, int], Tensor]) -> list[Tensor]:
        """Put an observation into the moments; the weights whose factor is to be renewed."""
        due: dict[Tensor, None] = {}
        for (weight, first), now in seen.items():
            state = self.state[weight]
            if "moment" not in state or self._maps[weight] is None:
                continue
            number = len(now) if first >= 0 else len(state["observed"])
            part = slice(max(first, 0), max(first, 0) + number)
            state["observed"][part] = [h + 1 for h in state["observed"][part]]
            share = torch.tensor([AGE / (h + AGE - 1) for h in state["observed"][part]], dtype=now.dtype)
            share = share.to(now.device, non_blocking=True)[:, None, None] * now.isfinite().all()
            state["moment"][part].lerp_(now.nan_to_num().expand(number, -1, -1), share)
            if any(is_renewed(h) for h in state["observed"][part]):
                due[weight] = None
        return list(due)

    def _renew(self, due: list[Tensor]) -> None:
        alike: dict[Any, list[Tensor]] = {}
        for p in due:
            alike.setdefault((self._maps[p], p.dtype, p.device), []).append(p)
        for (layout, _, _), params in alike.items():
            S = metric_of(layout, params[0]).factor(torch.cat([self.state[p]["moment"] for p in params]))
            for p, factor in zip(params, torch.split(S, layout.sizes[0]), strict=True):
                self.state[p]["factor"].copy_(factor)

    def _averaged(self) -> dict[tuple[Tensor, int], Tensor]:
        """The moments of this step, of all ranks; maps are those that are maps on all ranks."""
        seen = {part: total / number for part, (number, total) in self._sums.items()}
        self._sums = {}
        if not several(self._group):
            return seen
        params = self.param_groups[0]["params"]
        position = {p: i for i, p in enumerate(params)}
        mean, everywhere = averaged(
            {(position[p], first): moment for (p, first), moment in seen.items()},
            {position[p]: layout for p, layout in self._maps.items()},
            [(moment_type(p), p.device) for p in params],
            self._group,
        )
        for maps in everywhere:
            for i, layout in maps.items():
                self._is_map(params[i], layout)
        return {(params[i], first): moment for (i, first), moment in mean.items()}

    # What goes wrong --------------------------------------------------------------------------------------------

    def _check(self, active: list[Tensor], group: dict[str, Any]) -> None:
        wide = [p for p in active if p.ndim > 1 and p not in self._maps]
        if wide and not self._called and not self._maps and is_observed(group["steps"]):
            group["steps"] -= 1
            raise RuntimeError(
                "no forward pass was seen before this step. Call the module itself, module(x), or say "
                "optimizer.observe(loss) before loss.backward()"
            )
        if wide and self._opaque:
            names = {id(p): n for n, p in self._module.named_parameters()}
            what = ", ".join(names.get(id(p), "?") for p in wide[:5]) + (", ..." if len(wide) > 5 else "")
            self._warn(f"cannot see into {', '.join(sorted(self._opaque))}", f": {what} take Adam's steps")
        elif wide and not self._maps and self._called:
            self._warn("no weight of the module was seen in a linear map: all take Adam's steps")
        if group["total_steps"] is not None and group["steps"] > group["total_steps"]:
            self._warn(
                f"the {group['total_steps']} steps of total_steps are done: further ones have length 0"
            )

    def _warn(self, what: str, more: str = "") -> None:
        """Once."""
        if what not in self._warned:
            self._warned.add(what)
            warnings.warn(f"StreamingADMM: {what}{more}", stacklevel=4)

    # Saved and loaded -------------------------------------------------------------------------------------------

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where another run stopped, to the bit."""
        super().load_state_dict(state_dict)
        params = self.param_groups[0]["params"]
        for i, saved in state_dict["state"].items():
            p = params[int(i)]  # the base class changes dtypes
            kept = {
                n: t.to(local(p).device, copy=True) if isinstance(t, Tensor) else t for n, t in saved.items()
            }
            self.state[p] = kept | {name: list(kept[name]) for name in ("observed",) if name in kept}
        self._forget()

    def _forget(self) -> None:
        """Of what is remembered beside the state, keep nothing."""
        layouts = {p: state["layout"] for p, state in self.state.items() if "layout" in state}
        self._maps = {
            p: at if at is None else Layout(*(tuple(part) for part in at)) for p, at in layouts.items()
        }
        self._pending, self._sums, self._clocks = [], {}, {}
        self._planned, self._stacks, self._recorded = None, [], False

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_module": self._module}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_module" in state:  # a copy, not load_state_dict
            self._prepare(self._module, None)


def _reach(reached: set[int], i: int, gradients: Any) -> None:
    reached.add(i)


__all__ = ["StreamingADMM"]
