"""Running sums of one block over mini-batches, and the direction its parameters take from them.

For a block that is linear in its parameters the direction is the damped least-squares step of Equations 8 and 10, with
W and b solved together, in the metric of all inputs seen so far (:func:`dladmm.solvers.least_squares.direction_W_b`).
For any other block it is the running gradient over its running root mean square, entry by entry, in units in which the
block's output moves by about one.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from dladmm.blocks import Block, Params, Work
from dladmm.solvers.factor import damped_cholesky
from dladmm.solvers.least_squares import direction_W_b

TINY = 1e-20
"""Added to running squares before they are divided by."""


class RunningBlock(Protocol):
    """What streaming mode asks of the running sums of a block with parameters."""

    moves: Params
    """The direction, by the names of the parameters."""
    gradient: Params
    """The running mean of ``dR/dB``, in the shapes of the parameters."""
    recordable: bool
    """Whether its sums and directions can be recorded as launches on a GPU."""

    def observe(
        self,
        params: Params,
        v: Tensor,
        prediction: Tensor,
        gradient: Tensor,
        work: Work,
        keep: float,
        share: Tensor | None,
    ) -> None:
        """Take a batch's gradient in g's output, older ones counting ``keep``.

        With a ``share`` take its inputs into the metric too, where they count so much.
        """

    def refactor(self, damping: float) -> None:
        """Make the metric from the sums as they are now."""

    def aim(self, params: Params, decay: Params) -> None:
        """Renew :attr:`moves` from the running gradient plus ``decay``, the penalty's gradient."""

    def tensors(self) -> dict[str, Tensor]:
        """Everything a resumed run needs."""


class RunningLeastSquares:
    """Running gradient, Gram matrix and mean of the inputs of a block ``g = A W^T + b``.

    ``spread`` is the mean square of the gradient in g's output: the step of a block is divided by its root, so that
    every block is asked to move its output by the same amount whatever gradient reaches it.
    """

    recordable = True

    def __init__(self, block: Block, params: Params, groups: int, n_inputs: int) -> None:
        self.block, self.groups, self.n_inputs = block, groups, n_inputs
        W, self.bias = params["W"], "b" in params
        stack = () if groups == 1 else (groups,)
        self.gram = W.new_zeros((*stack, n_inputs, n_inputs), dtype=torch.float64)
        self.mean = W.new_zeros((*stack, n_inputs), dtype=torch.float64)
        self.spread = W.new_zeros((), dtype=torch.float64)
        self.inverse = torch.zeros(self.gram.shape, dtype=W.dtype, device=W.device)
        self.centre = torch.zeros(self.mean.shape, dtype=W.dtype, device=W.device)
        self.scale = torch.zeros((), dtype=W.dtype, device=W.device)
        self.gradient = {name: torch.zeros_like(p) for name, p in params.items()}
        self.moves = {name: torch.zeros_like(p) for name, p in params.items()}

    def observe(
        self,
        params: Params,
        v: Tensor,
        prediction: Tensor,
        gradient: Tensor,
        work: Work,
        keep: float,
        share: Tensor | None,
    ) -> None:
        operator = self.block.linear_operator(params, v, prediction, work)
        assert operator is not None
        product, sums, _ = operator.adjoint(gradient, False)
        W = self.gradient["W"]
        W.lerp_(product.reshape(W.shape), 1 - keep)
        if self.bias:
            self.gradient["b"].lerp_(sums.to(W.dtype), 1 - keep)
        if share is None:
            return
        rows = operator.samples
        self.gram.lerp_(operator.gram() / rows, share)
        if self.bias:
            self.mean.lerp_(operator.column_sums() / rows, share)
        # Per sample, not per row: the gradient is that of a mean over samples
        (squared,) = work.total(work.counted(gradient.square()).sum(dtype=torch.float64))
        outputs = gradient[0].numel() / _positions(gradient)
        self.spread.lerp_(squared * (work.samples(len(v)) / outputs), share)

    def refactor(self, damping: float) -> None:
        centred = self.gram - self.mean[..., :, None] * self.mean[..., None, :]
        # In the run's own precision: damped by the mean eigenvalue or more, the matrix is well conditioned
        centred = centred.to(self.inverse.dtype)
        shift = damping * centred.diagonal(dim1=-2, dim2=-1).mean(-1)
        factor, _ = damped_cholesky(centred, shift, centred.dtype, without_waiting=True)
        self.scale.copy_((self.spread + TINY).rsqrt())
        self.inverse.copy_(torch.cholesky_inverse(factor))
        self.centre.copy_(self.mean)

    def aim(self, params: Params, decay: Params) -> None:
        shape = (-1, self.n_inputs) if self.groups == 1 else (self.groups, -1, self.n_inputs)
        gradient = self.gradient["W"] + decay["W"] if "W" in decay else self.gradient["W"]
        sums = self.gradient["b"] if self.bias else gradient.new_zeros(())
        centre, metric = self.centre if self.bias else None, DenseInverse(self.inverse)
        W, b = direction_W_b(gradient.reshape(shape), sums, centre, metric)
        torch.mul(W.reshape(gradient.shape), self.scale, out=self.moves["W"])
        if b is not None:
            torch.mul(b, self.scale, out=self.moves["b"])

    def tensors(self) -> dict[str, Tensor]:
        names = ("gram", "mean", "spread", "inverse", "centre", "scale")
        found = {name: getattr(self, name) for name in names}
        return found | {f"gradient.{name}": g for name, g in self.gradient.items()}


class DenseInverse:
    """``(C + t I)^-1`` as a matrix, in the place of its factor."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    def solve(self, d: Tensor) -> Tensor:
        """``d (C + t I)^-1`` for the rows of d."""
        return d @ self.matrix


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
        self.length = torch.zeros((), dtype=torch.float64, device=some.device)

    def observe(
        self,
        params: Params,
        v: Tensor,
        prediction: Tensor,
        gradient: Tensor,
        work: Work,
        keep: float,
        share: Tensor | None,
    ) -> None:
        found = self.block.parameter_gradient(params, v, gradient, work)
        for name, g in found.items():
            self.gradient[name].lerp_(g, 1 - keep)
        if share is None:
            return
        for name, g in found.items():
            self.square[name].lerp_(g.square(), share.to(g.dtype))
        change = self.block.push_parameters(params, self._direction({}), v, prediction)
        (squared,) = work.total(work.counted(change.square()).sum(dtype=torch.float64))
        outputs = change[0].numel() / _positions(change)
        self.length.lerp_(squared / (work.samples(len(v)) * outputs), share)

    def refactor(self, damping: float) -> None:
        self.scale.copy_((self.length + TINY).rsqrt() / (1 + damping))

    def aim(self, params: Params, decay: Params) -> None:
        for name, d in self._direction(decay).items():
            torch.mul(d, self.scale, out=self.moves[name])

    def _direction(self, decay: Params) -> Params:
        total = {n: g + decay[n] if n in decay else g for n, g in self.gradient.items()}
        squares = {n: s + decay[n].square() if n in decay else s for n, s in self.square.items()}
        return {name: -g / (squares[name].sqrt() + TINY**0.5) for name, g in total.items()}

    def tensors(self) -> dict[str, Tensor]:
        found = {"scale": self.scale, "length": self.length}
        found |= {f"gradient.{name}": g for name, g in self.gradient.items()}
        return found | {f"square.{name}": g for name, g in self.square.items()}
