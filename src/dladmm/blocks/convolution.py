"""Convolution block: ``m = K(W) a + b``, an affine block whose matrix repeats one small W at every position."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from dladmm.base.errors import InputError
from dladmm.blocks.base import Anchor, Block, Params, Scope, Step, Term
from dladmm.blocks.quadratic_input import update_linear_input
from dladmm.compute.norms import ratio, squared_norm
from dladmm.regularizers import Regularizer
from dladmm.solvers.proximal_gram import proximal_on_gram
from dladmm.solvers.subproblems import (
    backtracked,
    damped_cholesky,
    full_precision_gram,
    line_search,
)

Sizes = tuple[int, ...]

PART = {"cpu": 1 << 22, "cuda": 1 << 27}
"""Entries of patches that are formed at once."""


class Convolution(Block):
    """``g((W, b), a) = W * a + b`` over one or two dimensions: quadratic in W, in b and in a.

    Its products are the convolution, the transposed convolution and the weight's gradient; with them every formula is
    that of :class:`~dladmm.blocks.Affine`. A row of its matrix A is one patch of one sample, so ``A^T A`` has the size
    of a patch; it is summed over parts of the samples, and with groups there is one for each.
    """

    linear = True
    counts_rows = True
    sharded = True
    knows_of_input = ("gram", "factors", "factor_key")
    penalised = ("W",)

    def __init__(
        self,
        n_in: int,
        n_out: int,
        kernel: Sizes,
        *,
        stride: Sizes | None = None,
        padding: Sizes | None = None,
        dilation: Sizes | None = None,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        if len(kernel) not in (1, 2):
            raise InputError(f"a convolution block has one or two dimensions, got the kernel {kernel}.")
        ones, zeros = (1,) * len(kernel), (0,) * len(kernel)
        if n_in < 1 or n_out < 1 or groups < 1 or n_in % groups or n_out % groups:
            raise InputError(
                f"channels must be >= 1 and multiples of groups, got {n_in} -> {n_out}, groups {groups}."
            )
        self.n_in, self.n_out, self.kernel = n_in, n_out, kernel
        self.stride, self.padding, self.dilation = stride or ones, padding or zeros, dilation or ones
        self.groups, self.bias = groups, bias

    @classmethod
    def from_module(cls, layer: nn.Module) -> Convolution | None:
        """The block of an ``nn.Conv1d`` or ``nn.Conv2d``; None for another module or another padding than zeros."""
        if not isinstance(layer, (nn.Conv1d, nn.Conv2d)) or layer.padding_mode != "zeros":
            return None
        reach = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        if layer.padding == "same" and any(r % 2 for r in reach):
            return None
        if isinstance(layer.padding, str):
            padding = tuple(r // 2 if layer.padding == "same" else 0 for r in reach)
        else:
            padding = tuple(layer.padding)
        return cls(
            layer.in_channels,
            layer.out_channels,
            tuple(layer.kernel_size),
            stride=tuple(layer.stride),
            padding=padding,
            dilation=tuple(layer.dilation),
            groups=layer.groups,
            bias=layer.bias is not None,
        )

    def __repr__(self) -> str:
        return f"Convolution({self.n_in}, {self.n_out}, {'x'.join(map(str, self.kernel))})"

    @property
    def patch(self) -> int:
        """How many entries of the input one output sees."""
        return self.n_in // self.groups * math.prod(self.kernel)

    def initial_parameters(self, generator: torch.Generator | None, scale: float) -> Params:
        shape = (self.n_out, self.n_in // self.groups, *self.kernel)
        W = torch.randn(shape, generator=generator, dtype=torch.float64) * (
            scale * math.sqrt(2.0 / self.patch)
        )
        return {"W": W, "b": torch.zeros(self.n_out, dtype=torch.float64)} if self.bias else {"W": W}

    def forward(self, params: Params, v: Tensor) -> Tensor:
        return self._product(v, params["W"], params.get("b"))

    def to_module(self, params: Params) -> nn.Module:
        W = params["W"]
        make = nn.Conv1d if len(self.kernel) == 1 else nn.Conv2d
        # skip_init: the layer would otherwise draw from the caller's global generator
        module: nn.Conv2d = nn.utils.skip_init(  # type: ignore[no-untyped-call]
            make, self.n_in, self.n_out, self.kernel, stride=self.stride, padding=self.padding,
            dilation=self.dilation, groups=self.groups, bias=self.bias, device=W.device, dtype=W.dtype,
        )  # fmt: skip
        with torch.no_grad():
            module.weight.copy_(W)
            if module.bias is not None:
                module.bias.copy_(params["b"])
        return module

    # Products --------------------------------------------------------------------------------------------------

    def _product(self, v: Tensor, W: Tensor, b: Tensor | None = None) -> Tensor:
        convolve = nn.functional.conv1d if len(self.kernel) == 1 else nn.functional.conv2d
        return convolve(v, W, b, self.stride, self.padding, self.dilation, self.groups)

    def _backward(self, e: Tensor, v: Tensor, W: Tensor, *, of_input: bool) -> Tensor:
        """``K^T e``, or ``e^T A``: what both derivatives of a convolution are."""
        found = torch.ops.aten.convolution_backward(
            e, v, W, None, self.stride, self.padding, self.dilation, False, (0,) * len(self.kernel),
            self.groups, (of_input, not of_input, False),
        )  # fmt: skip
        return found[0 if of_input else 1]  # type: ignore[no-any-return]

    def _gram(self, v: Tensor, rows: Tensor | None) -> Tensor:
        """``A^T A`` of all patches, (groups, patch, patch) in float64."""
        total = v.new_zeros(self.groups, self.patch, self.patch, dtype=torch.float64)
        for part, weights in self._parts(v, rows):
            patches = self._patches_by_sample(part)
            if self.patch <= 4 * patches.shape[2]:  # nothing is copied, and many products keep a GPU busy
                weights = None if weights is None else weights.reshape(-1, 1, 1, 1)
                total += full_precision_gram(patches, weights).sum(0)
            else:
                counted = None if weights is None else weights.repeat_interleave(patches.shape[2], 0)
                total += full_precision_gram(self._patches(part), counted)
        return total

    def _parts(self, v: Tensor, rows: Tensor | None) -> Iterator[tuple[Tensor, Tensor | None]]:
        one = v.new_zeros((1, *v.shape[1:]))
        positions = self._product(one, v.new_zeros(self.n_out, self.n_in // self.groups, *self.kernel))
        entries = positions[0, 0].numel() * self.patch * self.groups
        size = max(1, PART.get(v.device.type, PART["cpu"]) // entries)
        for begin in range(0, len(v), size):
            part = slice(begin, begin + size)
            yield v[part], None if rows is None else rows[part]

    def _patches(self, v: Tensor) -> Tensor:
        """A itself: (groups, samples x positions, patch)."""
        return self._patches_by_sample(v).transpose(0, 1).flatten(1, 2)

    def _patches_by_sample(self, v: Tensor) -> Tensor:
        """(samples, groups, positions, patch)."""
        flat = len(self.kernel) == 1
        image = v.unsqueeze(2) if flat else v
        kernel, dilation = (
            (1, *self.kernel) if flat else self.kernel,
            (1, *self.dilation) if flat else self.dilation,
        )
        padding, stride = (
            (0, *self.padding) if flat else self.padding,
            (1, *self.stride) if flat else self.stride,
        )
        found = nn.functional.unfold(image, kernel, dilation, padding, stride)
        return found.reshape(len(v), self.groups, self.patch, -1).mT

    def patch_lengths(self, v: Tensor) -> Tensor:
        """The length of every patch, over all channels: (samples, 1, positions)."""
        channel = Convolution(
            1, 1, self.kernel, stride=self.stride, padding=self.padding, dilation=self.dilation
        )
        squares = v.square().sum(1, keepdim=True)
        return channel._product(squares, v.new_ones(1, 1, *self.kernel)).clamp_min(0).sqrt()

    # Parameters ------------------------------------------------------------------------------------------------

    def update_parameters(
        self, params: Params, v: Tensor, term: Term, penalty: Regularizer, scope: Scope
    ) -> list[Step]:
        """Lines 5 and 8 of Algorithm 1 in the order of Algorithm 2: b, then W backward; W, then b forward."""
        solve_W = self._exact_W if scope.options.w_solver == "exact" else self._quadratic_W
        if scope.forward:
            return [solve_W(params, v, term, penalty, scope), *self._mean_b(params, term)]
        return [*self._mean_b(params, term), solve_W(params, v, term, penalty, scope)]

    def _mean_b(self, params: Params, term: Term) -> list[Step]:
        """``argmin_b (c/2)||m + b' - target||^2``: a channel's mean residual over samples and positions."""
        if not self.bias:
            return []
        E = term.residual().flatten(2)
        samples = torch.as_tensor(term.samples(), dtype=torch.float64, device=E.device) * E.shape[2]
        (sums,) = term.total(term.counted(E.sum(2)).sum(0))
        shift = -sums / samples.to(E.dtype)
        params["b"] += shift
        term.prediction += shift.reshape(-1, *[1] * len(self.kernel))
        return [Step("b", squared_norm(shift), term.weight / 2 * samples)]

    def _quadratic_W(self, params: Params, v: Tensor, term: Term, penalty: Regularizer, scope: Scope) -> Step:
        """``argmin_W P(W; theta) + Omega(W)``, Equations 9 and 11, theta by Algorithms 4 and 6 in closed form."""
        W, c = params["W"], term.weight
        (d,) = term.total(self._backward(term.counted(term.residual()), v, W, of_input=False))
        if penalty.quadratic is None:
            return self._proximal_W(params, v, d, term, penalty, scope)
        d = d.add(W, alpha=float(penalty.quadratic) / c)
        moved = self._product(v, d)
        d_squared = squared_norm(d)
        alpha = backtracked(
            c * ratio(self._length(moved, term), d_squared), scope.options.alpha0, scope.options.growth
        )
        step = torch.where(d_squared > 0, c / (alpha + penalty.quadratic), torch.zeros_like(alpha))
        W.sub_(d * step.to(d.dtype))
        term.prediction.sub_(moved.mul_(step.to(d.dtype)))
        return Step("W", d_squared * step.square(), (alpha + penalty.quadratic) / 2)

    def _proximal_W(
        self, params: Params, v: Tensor, d: Tensor, term: Term, penalty: Regularizer, scope: Scope
    ) -> Step:
        """The same for a penalty without a quadratic form: the step depends on alpha, so the loop is run."""
        W, c, options = params["W"], term.weight, scope.options
        alpha = options.alpha0
        if alpha is None:
            alpha = float(c * ratio(self._length(self._product(v, d), term), squared_norm(d)))
        alpha = max(alpha, torch.finfo(W.dtype).tiny)
        for _ in range(options.max_backtracks):
            move = penalty.prox(W - d * (c / alpha), 1.0 / alpha) - W
            moved, squared = self._product(v, move), squared_norm(move)
            if float(c * self._length(moved, term)) <= alpha * float(squared) * (1 + 1e-6):
                W.add_(move)
                term.prediction.add_(moved)
                return Step("W", squared, torch.full_like(squared, alpha / 2))
            alpha *= options.growth
        return Step("W", torch.zeros_like(squared), torch.full_like(squared, alpha / 2))

    def _exact_W(self, params: Params, v: Tensor, term: Term, penalty: Regularizer, scope: Scope) -> Step:
        """``argmin_W (c/2)||W * a + b - target||^2 + Omega(W) + (delta/2)||W - W_k||^2``, Equations 8 and 10 solved.

        Group by group, ``(c A^T A + lambda I + delta I)`` factored in float64, delta the damping. The Gram matrices
        live in the block's memory while the input stays.
        """
        W, c, memory = params["W"], term.weight, scope.memory
        if "gram" not in memory:
            (memory["gram"],) = term.total(self._gram(v, term.rows))
            memory.pop("factor_key", None)
        damping = scope.options.damping_of(self.patch, last=scope.last)
        quadratic = penalty.quadratic
        W_all = W.double().reshape(self.groups, -1, self.patch)
        (d,) = term.total(self._backward(term.counted(term.residual()), v, W, of_input=False))
        d = d.double().reshape(W_all.shape)
        shifts = damping * memory["gram"].diagonal(dim1=1, dim2=2).mean(1)
        if quadratic is None:
            found = [
                proximal_on_gram(W_all[g], d[g], memory["gram"][g], c, shifts[g], penalty)
                for g in range(self.groups)
            ]
            move, deltas = torch.stack([f[0] for f in found]), torch.stack([f[1] for f in found])
            rates = deltas / 2
        else:
            d = d + W_all * (quadratic / c)
            key = (c, quadratic, damping)
            if memory.get("factor_key") != key:
                pairs = zip(memory["gram"], shifts + quadratic / c, strict=True)
                memory["factors"] = [damped_cholesky(gram, shift, v.dtype) for gram, shift in pairs]
                memory["factor_key"] = key
            solved = [torch.cholesky_solve(d[g].T, memory["factors"][g][0]).T for g in range(self.groups)]
            move, totals = -torch.stack(solved), torch.stack([total for _, total in memory["factors"]])
            rates = c * totals - quadratic / 2
        moved = self._product(v, move.to(W.dtype).reshape(W.shape))
        each, moved_squared = move.square().sum((1, 2)), self._length(moved, term)
        if quadratic is not None:
            step = line_search(-(d * move).sum(), moved_squared + totals @ each)
            move, moved = move * step, moved.mul_(step.to(W.dtype))
            each, moved_squared = each * step.square(), moved_squared * step.square()
        W.add_(move.to(W.dtype).reshape(W.shape))
        term.prediction.add_(moved)
        squared = each.sum()
        return Step("W", squared, ratio(c * moved_squared / 2 + rates @ each, squared))

    def parameter_stationarity(self, params: Params, v: Tensor, term: Term, penalty: Regularizer) -> Tensor:
        E = term.counted(term.residual())
        own = self._backward(E, v, params["W"], of_input=False), E.flatten(2).sum((0, 2))
        product, sums = term.total(*own)
        total = squared_norm(penalty.stationarity(params["W"], term.weight * product))
        return total + squared_norm(term.weight * sums) if self.bias else total

    def _length(self, moved: Tensor, term: Term) -> Tensor:
        """``||A d^T||^2`` over all samples."""
        return term.total(squared_norm(moved, term.rows))[0]

    # Input -----------------------------------------------------------------------------------------------------

    def update_input(self, params: Params, v: Tensor, anchor: Anchor, term: Term, scope: Scope) -> list[Step]:
        """``argmin_a (nu/2)||a - f(z)||^2 + (c/2)||W * a + b - target||^2``, lines 4 and 9 of Algorithm 1."""
        scope.memory.pop("gram", None)
        W = params["W"]
        return update_linear_input(
            v,
            lambda d: self._product(d, W),
            lambda e: self._backward(e, v, W, of_input=True),
            anchor,
            term,
            scope,
        )

    def input_gradient(self, params: Params, v: Tensor, term: Term) -> Tensor:
        return self._backward(term.weight * term.residual(), v, params["W"], of_input=True)
