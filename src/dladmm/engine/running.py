"""Running sums of one block over mini-batches, and the direction its parameters take from them.

For a block that is linear in its parameters the direction is the damped least-squares step of Equations 8 and 10, with
W and b solved together, in the metric of all inputs seen so far (:func:`dladmm.solvers.least_squares.joint_metric`).
For any other block it is the running gradient over its running root mean square, entry by entry, in units in which the
block's output moves by about one.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from dladmm.blocks import Block, Params, Work
from dladmm.compute.passes import squared_norm
from dladmm.solvers.factor import damped_inverse
from dladmm.solvers.least_squares import joint_metric
from dladmm.solvers.weight_step import Operator

TINY = 1e-20
"""Added to running squares before they are divided by."""


class RunningBlock(Protocol):
    """What streaming mode asks of the running sums of a block with parameters."""

    recordable: bool
    """Whether its sums and directions can be recorded as launches on a GPU."""

    @property
    def moves(self) -> Params:
        """The direction, by the names of the parameters."""

    @property
    def gradient(self) -> Params:
        """The running mean of ``dR/dB``, in the shapes of the parameters."""

    def observe_gradient(
        self, params: Params, v: Tensor, prediction: Tensor, gradient: Tensor, work: Work, keep: float
    ) -> None:
        """Take a batch's ``gradient`` in g's output, older ones counting ``keep``."""

    def observe_inputs(
        self, params: Params, v: Tensor, prediction: Tensor, gradient: Tensor, work: Work, share: Tensor
    ) -> None:
        """Take the batch's inputs into the metric, where they count ``share``."""

    def refactor(self, damping: float) -> None:
        """Make the metric from the sums as they are now."""

    def aim(self, params: Params, decay: Params) -> None:
        """Renew :attr:`moves` from the running gradient plus ``decay``, the penalty's gradient."""

    def slope(self) -> Tensor:
        """``<gradient + decay, moves>``: what the loss changes by along the moves, to first order."""

    def tensors(self) -> dict[str, Tensor]:
        """Everything a resumed run needs."""


ALIGNED = 8
"""Rows of matrices are padded to a multiple of so many entries: products are twice as fast on a GPU then."""


class RunningLeastSquares:
    """Running gradient and running moments of the inputs of a block ``g = A W^T + b``.

    The bias is a column beside W: gradient, moves and metric have ``n_in + 1`` columns (and zeros up to a multiple of
    ``ALIGNED``), so that a direction is one product (:func:`dladmm.solvers.least_squares.joint_metric`).

    ``second`` and ``first`` are the moments of the inputs about ``centre``, their mean when the metric was made last:
    about it nothing cancels in float32. ``spread`` is the mean square of the gradient in g's output: the step of a
    block is divided by its root, so that every block is asked to move its output by the same amount whatever gradient
    reaches it.
    """

    recordable = True

    def __init__(self, block: Block, params: Params, operator: Operator) -> None:
        self.block, self.n_inputs = block, operator.n_inputs
        W, self.bias = params["W"], "b" in params
        n, stack = operator.n_inputs, () if operator.groups == 1 else (operator.groups,)
        n_outputs = len(W) // operator.groups
        padded = -(-(n + 1) // ALIGNED) * ALIGNED
        self.second, self.first = W.new_zeros(*stack, n, n), W.new_zeros(*stack, n)
        self.centre, self.spread = W.new_zeros(*stack, n), W.new_zeros(())
        self.metric = W.new_zeros(*stack, padded, padded)
        self._gradient, self._moves = (W.new_zeros(*stack, n_outputs, padded) for _ in range(2))
        self._headed, self._shape = self._gradient, W.shape
        if self.bias:
            self.centre.copy_(operator.mean())

    @property
    def gradient(self) -> Params:
        return self._by_name(self._gradient)

    @property
    def moves(self) -> Params:
        return self._by_name(self._moves)

    def _by_name(self, both: Tensor) -> Params:
        """Views of W and b, made when they are asked for: a copy of this object has views of its own."""
        found = {"W": both[..., : self.n_inputs].view(self._shape)}
        return found | {"b": both[..., self.n_inputs].view(-1)} if self.bias else found

    def observe_gradient(
        self, params: Params, v: Tensor, prediction: Tensor, gradient: Tensor, work: Work, keep: float
    ) -> None:
        operator = self.block.linear_operator(params, v, prediction, work)
        assert operator is not None
        sums = self._gradient[..., self.n_inputs].view(-1) if self.bias else None
        operator.blend(gradient, self._gradient[..., : self.n_inputs], sums, keep)

    def observe_inputs(
        self, params: Params, v: Tensor, prediction: Tensor, gradient: Tensor, work: Work, share: Tensor
    ) -> None:
        operator = self.block.linear_operator(params, v, prediction, work)
        assert operator is not None
        second, first = operator.moments(self.centre if self.bias else None)
        self.second.lerp_(second.to(self.second.dtype), share)
        if first is not None:
            self.first.lerp_(first.to(self.first.dtype), share)
        # Per sample, not per row: the gradient is that of a mean over samples
        outputs = gradient[0].numel() / _positions(gradient)
        root = norm(gradient, work) * (work.samples(len(v)) / outputs) ** 0.5
        self.spread.lerp_(root.square().to(self.spread.dtype), share)

    def refactor(self, damping: float) -> None:
        if self.bias:
            self.second -= self.first[..., :, None] * self.first[..., None, :]
            self.centre += self.first
            self.first.zero_()
        inverse = damped_inverse(self.second, damping)
        if self.bias:
            joint_metric(inverse, self.centre, out=self.metric)
        else:
            self.metric[..., : self.n_inputs, : self.n_inputs] = -inverse
        self.metric *= (self.spread + TINY).rsqrt()

    def aim(self, params: Params, decay: Params) -> None:
        self._headed = self._gradient
        if "W" in decay:
            self._headed = self._gradient.clone()
            self._headed[..., : self.n_inputs] += decay["W"].reshape(
                *self.second.shape[:-2], -1, self.n_inputs
            )
        torch.matmul(self._headed, self.metric, out=self._moves)

    def slope(self) -> Tensor:
        return torch.dot(self._headed.flatten(), self._moves.flatten())

    def tensors(self) -> dict[str, Tensor]:
        names = ("second", "first", "centre", "spread", "metric")
        return {name: getattr(self, name) for name in names} | {"gradient": self._gradient}


def norm(x: Tensor, work: Work) -> Tensor:
    """``||x||`` over the samples of all ranks, in as few launches as there can be."""
    if work.counts is None and work.shards is None:
        found: Tensor = torch.linalg.vector_norm(x)
        return found
    (squared,) = work.total(squared_norm(x, work.counts))
    return squared.sqrt().to(x.dtype)


def _positions(gradient: Tensor) -> int:
    """How many rows of A one sample has: positions of an image, or of a sequence."""
    return gradient[0, 0].numel() if gradient.ndim > 2 else 1


class RunningGradient:
    """Running gradient and running square of it, for a block that is not linear in its parameters."""

    recordable = False

    def __init__(self, block: Block, params: Params) -> None:
        self.block = block
        self.gradient = {name: torch.zeros_like(p) for name, p in params.items()}
        self.square = {name: torch.zeros_like(p) for name, p in params.items()}
        self.moves = {name: torch.zeros_like(p) for name, p in params.items()}
        some = next(iter(params.values()))
        self.scale = torch.zeros((), dtype=some.dtype, device=some.device)
        self.length = torch.zeros((), dtype=some.dtype, device=some.device)
        self._headed = self._latest = self.gradient

    def observe_gradient(
        self, params: Params, v: Tensor, prediction: Tensor, gradient: Tensor, work: Work, keep: float
    ) -> None:
        self._latest = self.block.parameter_gradient(params, v, gradient, work)
        for name, g in self._latest.items():
            self.gradient[name].lerp_(g, 1 - keep)

    def observe_inputs(
        self, params: Params, v: Tensor, prediction: Tensor, gradient: Tensor, work: Work, share: Tensor
    ) -> None:
        for name, g in self._latest.items():
            self.square[name].lerp_(g.square(), share)
        change = self.block.push_parameters(params, self._direction(self.gradient), v, prediction)
        outputs = change[0].numel() / _positions(change)
        root = norm(change, work) / (work.samples(len(v)) * outputs) ** 0.5
        self.length.lerp_(root.square().to(self.length.dtype), share)

    def refactor(self, damping: float) -> None:
        self.scale.copy_((self.length + TINY).rsqrt() / (1 + damping))

    def aim(self, params: Params, decay: Params) -> None:
        self._headed = {n: g + decay[n] if n in decay else g for n, g in self.gradient.items()}
        for name, d in self._direction(self._headed).items():
            torch.mul(d, self.scale, out=self.moves[name])

    def slope(self) -> Tensor:
        found = [(g * self.moves[name]).sum() for name, g in self._headed.items()]
        return torch.stack(found).sum()

    def _direction(self, gradient: Params) -> Params:
        return {name: -g / (self.square[name].sqrt() + TINY**0.5) for name, g in gradient.items()}

    def tensors(self) -> dict[str, Tensor]:
        found = {"scale": self.scale, "length": self.length}
        found |= {f"gradient.{name}": g for name, g in self.gradient.items()}
        return found | {f"square.{name}": g for name, g in self.square.items()}
