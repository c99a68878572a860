"""Convolution block: ``m = K(W) a + b``, an affine block whose matrix repeats one small W at every position."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from dladmm.base.errors import InputError
from dladmm.blocks.affine import parameter_order
from dladmm.blocks.base import Block, Support, layer_of
from dladmm.blocks.patch_gram import PatchShape, patch_gram
from dladmm.blocks.patches import Patches
from dladmm.compute.passes import squared_norm
from dladmm.compute.work import Work
from dladmm.regularizers import Regularizer
from dladmm.solvers.factor import full_precision_gram
from dladmm.solvers.least_squares import update_linear_parameters
from dladmm.solvers.linear_input import update_linear_input
from dladmm.solvers.subproblems import Anchor, Params, Step, Term

Sizes = tuple[int, ...]

PART = {"cpu": 1 << 22, "cuda": 1 << 27}
"""Entries of patches that are formed at once."""


class Convolution(Block):
    """``g((W, b), a) = W * a + b`` over one or two dimensions: quadratic in W, in b and in a.

    Its products are the convolution, the transposed convolution and the weight's gradient; with them every formula is
    that of :class:`~dladmm.blocks.Affine`. A row of its matrix A is one patch of one sample, so ``A^T A`` has the size
    of a patch; it is summed over parts of the samples, and with groups there is one for each.

    Parameters
    ----------
    n_in, n_out : int
        Channels of the input a (N, n_in, ...) and of the output (N, n_out, ...), one or two dimensions behind them.
    kernel, stride, padding, dilation, groups, bias
        As in ``nn.Conv1d`` and ``nn.Conv2d``; W is (n_out, n_in / groups, *kernel), b (n_out,).
    """

    support = Support.COUNTS | Support.RANKS | Support.RECORDING
    linear = positions_share_weights = True
    kind = "convolution"
    keeps_positions = False
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
        self.channels_in, self.channels_out, self.kernel = n_in, n_out, kernel
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
        return f"Convolution({self.channels_in}, {self.channels_out}, {'x'.join(map(str, self.kernel))})"

    @property
    def patch(self) -> int:
        """How many entries of the input one output sees."""
        return self.channels_in // self.groups * math.prod(self.kernel)

    def initial_parameters(self, generator: torch.Generator | None, scale: float) -> Params:
        shape = (self.channels_out, self.channels_in // self.groups, *self.kernel)
        W = torch.randn(shape, generator=generator, dtype=torch.float64) * (
            scale * math.sqrt(2.0 / self.patch)
        )
        return {"W": W, "b": torch.zeros(self.channels_out, dtype=torch.float64)} if self.bias else {"W": W}

    def forward(self, params: Params, v: Tensor) -> Tensor:
        return self.product(v, params["W"], params.get("b"))

    def to_module(self, params: Params) -> nn.Module:
        make = nn.Conv1d if len(self.kernel) == 1 else nn.Conv2d
        return layer_of(
            make, self.channels_in, self.channels_out, self.kernel, stride=self.stride, padding=self.padding,
            dilation=self.dilation, groups=self.groups, params=params,
        )  # fmt: skip

    # Products --------------------------------------------------------------------------------------------------

    def product(self, v: Tensor, W: Tensor, b: Tensor | None = None) -> Tensor:
        convolve = nn.functional.conv1d if len(self.kernel) == 1 else nn.functional.conv2d
        return convolve(v, W, b, self.stride, self.padding, self.dilation, self.groups)

    def adjoint(self, e: Tensor, v: Tensor, W: Tensor) -> Tensor:
        """``K^T e``: with a stride of 1 a convolution itself, with W turned round, which takes half as long."""
        reach = tuple(d * (k - 1) for d, k in zip(self.dilation, self.kernel, strict=True))
        padding = tuple(r - p for r, p in zip(reach, self.padding, strict=True))
        if any(s != 1 for s in self.stride) or any(p < 0 for p in padding):
            return self._backward(e, v, W, of_input=True)
        by_group = W.reshape(self.groups, -1, *W.shape[1:]).transpose(1, 2)
        turned = by_group.flatten(0, 1).flip(tuple(range(2, W.ndim)))
        convolve = nn.functional.conv1d if len(self.kernel) == 1 else nn.functional.conv2d
        return convolve(e, turned, None, 1, padding, self.dilation, self.groups)

    def _backward(self, e: Tensor, v: Tensor, W: Tensor, *, of_input: bool) -> Tensor:
        """``K^T e``, or ``e^T A``: what both derivatives of a convolution are."""
        found = torch.ops.aten.convolution_backward(
            e, v, W, None, self.stride, self.padding, self.dilation, False, (0,) * len(self.kernel),
            self.groups, (of_input, not of_input, False),
        )  # fmt: skip
        return found[0 if of_input else 1]  # type: ignore[no-any-return]

    def weight_product(self, e: Tensor, v: Tensor) -> Tensor:
        """``e^T A`` in the shape of W."""
        shape = (self.channels_out, self.channels_in // self.groups, *self.kernel)
        return self._backward(e, v, v.new_empty(shape), of_input=False)

    def gram(self, v: Tensor, counts: Tensor | None) -> Tensor:
        """``A^T A`` of all patches, (groups, patch, patch) in float64."""
        image, shape = self._as_image(v)
        if shape.rows_pay(*image.shape[1:]):
            return patch_gram(image, counts, shape)
        total = v.new_zeros(self.groups, self.patch, self.patch, dtype=torch.float64)
        for part, weights in self._parts(v, counts):
            patches = self._patches_by_sample(part)
            if self.patch <= 4 * patches.shape[2]:  # nothing is copied, and many products keep a GPU busy
                weights = None if weights is None else weights.reshape(-1, 1, 1, 1)
                total += full_precision_gram(patches, weights).sum(0)
            else:
                counted = None if weights is None else weights.repeat_interleave(patches.shape[2], 0)
                total += full_precision_gram(self.patches(part), counted)
        return total

    def _parts(self, v: Tensor, counts: Tensor | None) -> Iterator[tuple[Tensor, Tensor | None]]:
        one = v.new_zeros((1, *v.shape[1:]))
        positions = self.product(
            one, v.new_zeros(self.channels_out, self.channels_in // self.groups, *self.kernel)
        )
        entries = positions[0, 0].numel() * self.patch * self.groups
        size = max(1, PART.get(v.device.type, PART["cpu"]) // entries)
        for begin in range(0, len(v), size):
            part = slice(begin, begin + size)
            yield v[part], None if counts is None else counts[part]

    def patches(self, v: Tensor) -> Tensor:
        """A itself: (groups, samples x positions, patch)."""
        return self._patches_by_sample(v).transpose(0, 1).flatten(1, 2)

    def _patches_by_sample(self, v: Tensor) -> Tensor:
        """(samples, groups, positions, patch)."""
        image, shape = self._as_image(v)
        found = nn.functional.unfold(image, shape.kernel, shape.dilation, shape.padding, shape.stride)
        return found.reshape(len(v), self.groups, self.patch, -1).mT

    def _as_image(self, v: Tensor) -> tuple[Tensor, PatchShape]:
        """The input as (N, C, H, W) and its patches; a sequence is an image of one row."""
        flat = len(self.kernel) == 1

        def both(sizes: Sizes, row: int) -> Sizes:
            return (row, *sizes) if flat else sizes

        sizes = both(self.kernel, 1), both(self.stride, 1), both(self.padding, 0), both(self.dilation, 1)
        shape = PatchShape(*sizes, groups=self.groups)  # type: ignore[arg-type]
        return v.unsqueeze(2) if flat else v, shape

    def patch_lengths(self, v: Tensor) -> Tensor:
        """The length of every patch, over all channels: (samples, 1, positions)."""
        channel = Convolution(
            1, 1, self.kernel, stride=self.stride, padding=self.padding, dilation=self.dilation
        )
        squares = v.square().sum(1, keepdim=True)
        return channel.product(squares, v.new_ones(1, 1, *self.kernel)).clamp_min(0).sqrt()

    # Parameters ------------------------------------------------------------------------------------------------

    def update_parameters(
        self, params: Params, v: Tensor, term: Term, penalty: Regularizer, work: Work
    ) -> list[Step]:
        """Lines 5 and 8 of Algorithm 1 in the order of Algorithm 2: b, then W backward; W, then b forward."""
        return update_linear_parameters(
            parameter_order(params, work), params, Patches(self, v, term, work), penalty, work
        )

    def parameter_stationarity(
        self, params: Params, v: Tensor, term: Term, penalty: Regularizer, work: Work
    ) -> Tensor:
        E = work.counted(term.residual())
        product, sums = work.total(self.weight_product(E, v), E.flatten(2).sum((0, 2)))
        total = squared_norm(penalty.stationarity(params["W"], term.weight * product))
        return total + squared_norm(term.weight * sums) if self.bias else total

    # Input -----------------------------------------------------------------------------------------------------

    def update_input(self, params: Params, v: Tensor, anchor: Anchor, term: Term, work: Work) -> list[Step]:
        """``argmin_a (nu/2)||a - f(z)||^2 + (c/2)||W * a + b - target||^2``, lines 4 and 9 of Algorithm 1."""
        W = params["W"]
        return update_linear_input(
            v,
            lambda d: self.product(d, W),
            lambda e: self.adjoint(e, v[: len(e)], W),  # of v its shape
            anchor,
            term,
            work,
        )

    def push_parameters(self, params: Params, moves: Params, v: Tensor, prediction: Tensor) -> Tensor:
        return self.forward(moves, v)

    def push_input(self, params: Params, v: Tensor, move: Tensor, prediction: Tensor) -> Tensor:
        return self.product(move, params["W"])

    def linear_operator(self, params: Params, v: Tensor, prediction: Tensor, work: Work) -> Patches:
        return Patches(self, v, Term(1.0, prediction, prediction), work)

    def input_gradient(self, params: Params, v: Tensor, term: Term, work: Work) -> Tensor:
        return self.adjoint(term.weight * term.residual(), v, params["W"])

    def pull_back(
        self, params: Params, v: Tensor, prediction: Tensor, gradient: Tensor, work: Work
    ) -> Tensor:
        return self.adjoint(gradient, v, params["W"])
