r"""The practical method: the paper's subproblem for W, wherever a weight meets its inputs, one mini-batch at a time.

**The subproblem.** A forward pass is a feasible point of the paper's Problem 1: every link ``z = A W^T + b`` holds. The
gradient ``F = dR/dz`` of the loss, which reverse mode hands to every link, is the multiplier there (Lemma 2), and the
z-update moves the target of the link to ``z - F / rho`` (Equations 4 and 7). What is left for W (Equations 8 and 10) is

.. math:: \min_D\; \langle G, D \rangle + \frac{1}{2 \tau} \lVert D\, S^{-\top} \rVert_2^2,
   \qquad G = F^\top A, \qquad S S^\top = P = (1 + d) \left( C / \bar\lambda + d\, I \right)^{-1},

where C is the running Gram matrix of the inputs A of all uses of W, :math:`\bar\lambda` its mean eigenvalue, and the
proximal term is taken in the spectral norm: no direction of the inputs, seen in their own metric, may move the outputs by
more than any other. Its minimiser is, up to its length,

.. math:: D = -\operatorname{msgn}(G S)\, S^\top,

where msgn replaces the singular values of a matrix by 1 (any S with :math:`S S^\top = P` gives the same D: the method
takes the inverse Cholesky factor). A weight with several uses minimises the sum over them: G is the sum that autograd makes,
C the mean over the rows of all uses.

**The length of a step.** D is in units of its inputs, so that one number serves every network: ``W += lr 0.2
sqrt(max(n_out, n_in)) D``, as long as a step of Adam with the rate ``lr``.

**The rest.** Weights that are in no linear map (gains, biases, positions), tables, and the last map before the outputs,
whose rows are classes and not directions, take Adam's step with three tenths of the rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

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

AGE = 4.0
"""The h-th observation counts ``AGE / (h + AGE - 1)`` in the metric."""

GROWTH = 1.5
"""The metric's factor is renewed when the number of observations has grown by this."""


def is_observed(step: int) -> bool:
    """Whether the inputs of this step's forward passes count in the metric: the first 8, then every 4th, 8th, 16th."""
    return step <= 8 or step % (4 if step <= 128 else 8 if step <= 2048 else 16) == 0


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
        self._module = module
        self._group = process_group
        inner = getattr(module, "_orig_mod", module)
        self._inner = inner
        trainable = [p for p in inner.parameters() if p.requires_grad]
        defaults = {"lr": lr, "weight_decay": weight_decay, "total_steps": total_steps}
        defaults |= {"steps": 0, "observations": 0, "next_renewal": 1}
        super().__init__(trainable, defaults)
        self._weights = {id(p): p for p in trainable}
        self._maps: dict[Tensor, Layout | None] = {}
        """Of every weight in a map; None where its uses do not agree, or one is the last."""
        self._seen: dict[Tensor, list[Tensor]] = {}
        module.register_forward_hook(self._after_forward, with_kwargs=True)

    # What is seen of the forward pass ---------------------------------------------------------------------------

    def _after_forward(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if torch.is_grad_enabled() and is_observed(self.param_groups[0]["steps"] + 1):
            self.observe(output)

    @torch.no_grad()
    def observe(self, *outputs: Any) -> None:
        """Count the inputs of all maps on the way to these outputs (tensors, or what holds them) in the metric."""
        tensors = [t for t in _tensors(outputs) if t.requires_grad]
        uses, opaque = uses_of(tensors, self._weights)
        for use in uses:
            self._take(use)

    def _take(self, use: Use) -> None:
        weight, layout = use.weight, use.layout
        if weight not in self._maps:
            plain = not use.last and min(layout.sizes[1:]) > 1
            self._maps[weight] = layout if plain else None
        if self._maps[weight] is None:
            return
        if self._maps[weight] != layout or use.last:
            self._maps[weight] = None
            self._seen.pop(weight, None)
            return
        metric = metric_of(layout)
        rows = use.inputs(max(MOST_ROWS, 4 * layout.sizes[2]))
        self._seen.setdefault(weight, []).append(metric.moment(rows.float()))

    # The step ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        group = self.param_groups[0]
        group["steps"] += 1
        if self._seen:
            self._count_seen(group)
        length = group["lr"] * self._share(group["steps"], group["total_steps"])
        maps: dict[Any, list[Tensor]] = {}
        rest: list[Tensor] = []
        for p in group["params"]:
            if p.grad is None:
                continue
            layout = self._maps.get(p)
            if layout is None:
                rest.append(p)
            else:
                maps.setdefault((layout.sizes, p.device), []).append(p)
        if group["weight_decay"]:
            for p in group["params"]:
                if p.grad is not None and p.ndim > 1:
                    p.mul_(1 - length * group["weight_decay"])
        for (sizes, _), params in maps.items():
            self._step_of_maps(params, sizes, length)
        if rest:
            self._step_of_rest(rest, REST * length)
        return loss

    def _share(self, k: int, total: int | None) -> float:
        if total is None:
            return min(1.0, k / UNPLANNED_LEAD_IN)
        return min(1.0, k / max(1.0, LEAD_IN * total), (total + 1 - k) / max(1.0, (1 - LEAD_IN) * total))

    def _count_seen(self, group: dict[str, Any]) -> None:
        group["observations"] += 1
        h = group["observations"]
        for weight, moments in self._seen.items():
            state = self.state[weight]
            now = torch.stack(moments).mean(0)
            if "moment" not in state:
                state["moment"] = now
            else:
                state["moment"].lerp_(now, AGE / (h + AGE - 1))
        if h >= group["next_renewal"]:
            group["next_renewal"] = max(h + 1, int(GROWTH * h))
            for weight in self._seen:
                layout = self._maps[weight]
                assert layout is not None
                self.state[weight]["factor"] = metric_of(layout).factor(self.state[weight]["moment"])
        self._seen.clear()

    def _step_of_maps(self, params: list[Tensor], sizes: tuple[int, int, int], length: float) -> None:
        layouts = [self._maps[p] for p in params]
        gradients = torch.stack([l.matrices(p.grad).float() for l, p in zip(layouts, params)])
        for p, g in zip(params, gradients):
            if "momentum" not in self.state[p]:
                self.state[p]["momentum"] = torch.zeros_like(g)
        momentum = [self.state[p]["momentum"] for p in params]
        torch._foreach_lerp_(momentum, list(gradients), 1 - MOMENTUM)
        G = gradients.lerp_(torch.stack(momentum), MOMENTUM)
        S = torch.stack([self.state[p]["factor"] for p in params])
        metric = metric_of(layouts[0])
        D = metric.after(msgn(metric.before(G, S)), S)
        D *= -length * 0.2 * max(sizes[1:]) ** 0.5
        for p, layout, d in zip(params, layouts, D):
            p.add_(layout.parameter(d, p))

    def _step_of_rest(self, params: list[Tensor], length: float) -> None:
        for p in params:
            state = self.state[p]
            if "mean" not in state:
                state["mean"], state["square"] = torch.zeros_like(p), torch.zeros_like(p)
                state["step"] = 0
            state["step"] += 1
        k = self.state[params[0]]["step"]
        grads = [p.grad for p in params]
        means, squares = ([self.state[p][n] for p in params] for n in ("mean", "square"))
        torch._foreach_lerp_(means, grads, 1 - BETAS[0])
        torch._foreach_mul_(squares, BETAS[1])
        torch._foreach_addcmul_(squares, grads, grads, 1 - BETAS[1])
        roots = torch._foreach_sqrt(squares)
        torch._foreach_div_(roots, (1 - BETAS[1] ** k) ** 0.5)
        torch._foreach_add_(roots, EPS)
        torch._foreach_addcdiv_(params, means, roots, -length / (1 - BETAS[0] ** k))


def msgn(G: Tensor, steps: int = 5) -> Tensor:
    """G (..., m, n) with singular values near 1, by Newton and Schulz' iteration with Muon's coefficients."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = G.shape[-2] > G.shape[-1]
    X = G.mT if tall else G
    X = X / X.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-30)
    X = X.bfloat16() if X.is_cuda else X
    for _ in range(steps):
        A = X @ X.mT
        X = a * X + (b * A + c * A @ A) @ X
    X = X.to(G.dtype)
    return X.mT if tall else X


class Full:
    """The metric of a map with few inputs: C and the inverse of its Cholesky factor, as matrices."""

    def moment(self, A: Tensor) -> Tensor:
        return A.mT @ (A / A.shape[1])

    def factor(self, C: Tensor) -> Tensor:
        n = C.shape[-1]
        mean = C.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
        eye = torch.eye(n, device=C.device)
        damped = C / torch.where(mean > 0, mean, 1.0) + DAMPING * eye
        lower = torch.linalg.cholesky_ex(damped)[0]
        inverse = torch.linalg.solve_triangular(lower, eye.expand_as(C), upper=False)
        return inverse.mT * (1 + DAMPING) ** 0.5

    def before(self, G: Tensor, S: Tensor) -> Tensor:
        return G @ S

    def after(self, D: Tensor, S: Tensor) -> Tensor:
        return D @ S.mT


def metric_of(layout: Layout) -> Full:
    return Full()


def _tensors(value: Any) -> Iterable[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)
    elif hasattr(value, "__dict__"):
        yield from _tensors(vars(value))


__all__ = ["StreamingADMM"]
