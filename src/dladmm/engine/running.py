"""Running sums of one block over mini-batches, and the direction its parameters take from them.

For a block that is linear in its parameters the direction is the damped least-squares step of Equations 8 and 10, with
W and b solved together, in the metric of all inputs seen so far (:mod:`dladmm.solvers.metric`).
For any other block it is the gradient over its running root mean square, entry by entry, in units in which the block's
output moves by about one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from dladmm.blocks import Block, Params, Work
from dladmm.compute.passes import squared_norm
from dladmm.solvers.metric import metric_for, padded
from dladmm.solvers.weight_step import Operator, grouped

TINY = 1e-20
"""Added to running squares before they are divided by."""

MOST_SPREADS = 10.0
"""Root mean squares that an entry moves by at most: one that has a gradient for the first time had a mean of zero."""


MOST_GROWTH = 2.0
"""How much longer moves of blocks not linear in their parameters may be than when the step length was measured."""

Run = Callable[[Hashable, Callable[[], Any]], Any]
"""``run(name, part)``: how a part of a sweep is executed; what it returns."""


def called(name: Hashable, part: Callable[[], Any]) -> Any:
    """The part as it is."""
    return part()


class Shares:
    """Numbers that the host sets before a sweep and the sweep reads on the device."""

    def __init__(self, like: Tensor) -> None:
        self.metric, self.lengths, self.average, self.fading = (like.new_zeros(()) for _ in range(4))


def in_turn(calls: Sequence[Callable[[], None]]) -> None:
    """Make calls that need one another's results."""
    for call in calls:
        call()


class RunningBlock(Protocol):
    """What streaming mode asks of the running sums of a block with parameters."""

    block: Block
    """The block, in a graph's part that of the part."""
    recordable: bool
    """Whether its sums and directions can be recorded as launches on a GPU."""
    linear: bool
    """Whether the block's output is linear in its parameters."""
    observes_apart: bool
    """Whether :meth:`observe_inputs` needs nothing of :meth:`aim`: their sums may then travel together."""

    @property
    def moves(self) -> Params:
        """The direction, by the names of the parameters."""

    def aim(
        self,
        params: Params,
        v: Tensor,
        prediction: Tensor,
        gradient: Tensor,
        decay: Params,
        work: Work,
        keep: float,
    ) -> None:
        """Turn :attr:`moves` towards where a batch's ``gradient`` in g's output points; what they were counts ``keep``.

        ``decay`` is the penalty's gradient.
        """

    def observe_inputs(
        self, params: Params, v: Tensor, prediction: Tensor, gradient: Tensor, work: Work, share: Tensor
    ) -> None:
        """Take the batch's inputs into the metric, where they count ``share``."""

    def refactor(self, damping: float) -> None:
        """Make the metric from the sums as they are now."""

    def tensors(self) -> dict[str, Tensor]:
        """Everything a resumed run needs."""


class RunningLeastSquares:
    """Running direction and running moments of the inputs of a block ``g = A W^T + b``.

    The bias is a column beside W, so that a direction is one product.

    ``metric.second`` and ``first`` are the moments of the inputs about ``centre``, their mean when the metric was made
    last: about it nothing cancels in float32. ``spread`` is the mean square of the gradient in g's output: the step of
    a block is divided by its root, so that every block is asked to move its output by the same amount whatever gradient
    reaches it.
    """

    recordable = linear = observes_apart = True

    def __init__(self, block: Block, params: Params, operator: Operator) -> None:
        self.block, self.n_inputs = block, operator.n_inputs
        W, self.bias = params["W"], "b" in params
        n, stack = operator.n_inputs, () if operator.groups == 1 else (operator.groups,)
        n_outputs = len(W) // operator.groups
        self.metric = metric_for(W, n, operator.groups)
        self.centre, self.first = W.new_zeros(*stack, n), W.new_zeros(*stack, n)
        self.spread = W.new_zeros(())
        self._moves, self._shape = W.new_zeros(*stack, n_outputs, padded(n)), W.shape
        if self.bias:
            self.centre.copy_(operator.mean())

    @property
    def moves(self) -> Params:
        """Views, made when they are asked for: a copy of this object has views of its own."""
        W = self._moves[..., : self.n_inputs].view(self._shape)
        return {"W": W, "b": self._moves[..., self.n_inputs].view(-1)} if self.bias else {"W": W}

    def aim(
        self,
        params: Params,
        v: Tensor,
        prediction: Tensor,
        gradient: Tensor,
        decay: Params,
        work: Work,
        keep: float,
    ) -> None:
        operator = self.block.linear_operator(params, v, prediction, work)
        assert operator is not None
        of_W = grouped(decay["W"], operator) if "W" in decay else None
        operator.add_direction(self._moves, keep, gradient, of_W, self.metric)

    def observe_inputs(
        self, params: Params, v: Tensor, prediction: Tensor, gradient: Tensor, work: Work, share: Tensor
    ) -> None:
        operator = self.block.linear_operator(params, v, prediction, work)
        assert operator is not None
        centre, sketch = self.centre if self.bias else None, self.metric.sketch
        (second, first), length = work.at_once(
            partial(operator.moments, centre, sketch), partial(norm, gradient, work)
        )
        self.metric.second.lerp_(second.to(self.centre.dtype), share)
        if first is not None:
            self.first.lerp_(first.to(self.first.dtype), share)
        # Per sample, not per row: the gradient is that of a mean over samples
        outputs = gradient[0].numel() / _positions(gradient)
        root = length * (work.samples(len(v)) / outputs) ** 0.5
        self.spread.lerp_(root.square().to(self.spread.dtype), share)

    def refactor(self, damping: float) -> None:
        if self.bias:
            self.metric.recentre(self.first)
            self.centre += self.first
            self.first.zero_()
        self.metric.renew(self.centre if self.bias else None, damping, (self.spread + TINY).rsqrt())

    def tensors(self) -> dict[str, Tensor]:
        found = {name: getattr(self, name) for name in ("first", "centre", "spread")}
        return found | self.metric.tensors() | {"moves": self._moves}


def norm(x: Tensor, work: Work) -> Tensor:
    """``||x||`` over the samples of all ranks, in as few launches as there can be."""
    if work.counts is None and work.shards is None:
        found: Tensor = torch.linalg.vector_norm(x)
        return found
    (squared,) = work.total(squared_norm(x, work.counts))
    return squared.sqrt().to(x.dtype)


def inner(x: Tensor, y: Tensor, work: Work) -> Tensor:
    """``<x, y>`` over the samples of all ranks."""
    if work.counts is None and work.shards is None:
        return torch.dot(x.flatten(), y.flatten())
    return work.total(work.counted(x * y).sum())[0]


def _positions(gradient: Tensor) -> int:
    """How many rows of A one sample has: positions of an image, or of a sequence."""
    return gradient[0, 0].numel() if gradient.ndim > 2 else 1


class RunningGradient:
    """Running direction, the gradient over its running root mean square, for a block not linear in its parameters."""

    observes_apart = False

    def __init__(self, block: Block, params: Params) -> None:
        self.block, self.recordable = block, block.records_gradients
        self.linear = block.normalises  # a normalisation is, in its weight and bias
        self.square, self._moves, self._latest = (
            {name: torch.zeros_like(p) for name, p in params.items()} for _ in range(3)
        )
        some = next(iter(params.values()))
        self.scale, self.length = (torch.zeros((), dtype=some.dtype, device=some.device) for _ in range(2))

    @property
    def moves(self) -> Params:
        return self._moves

    def aim(
        self,
        params: Params,
        v: Tensor,
        prediction: Tensor,
        gradient: Tensor,
        decay: Params,
        work: Work,
        keep: float,
    ) -> None:
        for name, g in self.block.parameter_gradient(params, v, prediction, gradient, work).items():
            self._latest[name].copy_(g)  # in its place: recorded launches find it there
        for name, d in self._direction(self._latest, decay).items():
            self._moves[name].lerp_(d * self.scale, 1 - keep)

    def observe_inputs(
        self, params: Params, v: Tensor, prediction: Tensor, gradient: Tensor, work: Work, share: Tensor
    ) -> None:
        for name, g in self._latest.items():
            self.square[name].lerp_(g.square(), share)
        change = self.block.push_parameters(params, self._direction(self._latest, {}), v, prediction)
        outputs = change[0].numel() / _positions(change)
        root = norm(change, work) / (work.samples(len(v)) * outputs) ** 0.5
        self.length.lerp_(root.square().to(self.length.dtype), share)

    def refactor(self, damping: float) -> None:
        self.scale.copy_((self.length + TINY).rsqrt() / (1 + damping))

    def _direction(self, gradient: Params, decay: Params) -> Params:
        """``-(gradient + decay)`` over the running root mean square, in which the decay counts too.

        Without it the penalty would pull entries without a gradient of their own (the weights of words that few nodes
        have) harder than any loss, and no step would be short enough. Nor would one be where an input that was zero in
        all batches before is not in this one: without a bound on the ratio its weights alone would move.
        """
        found: Params = {}
        for name, g in gradient.items():
            own, square = decay.get(name), self.square[name]
            square = square if own is None else square + own.square()
            pull = g if own is None else g + own
            found[name] = -pull / (torch.maximum(square.sqrt(), pull.abs() / MOST_SPREADS) + TINY**0.5)
        return found

    def tensors(self) -> dict[str, Tensor]:
        found = {"scale": self.scale, "length": self.length}
        found |= {f"moves.{name}": m for name, m in self._moves.items()}
        return found | {f"square.{name}": g for name, g in self.square.items()}


def set_reach(blocks: Iterable[RunningBlock], reach: Tensor) -> None:
    """Let moves of blocks not linear in their parameters be ``MOST_GROWTH`` times as long as they are now."""
    length = _length_of_curved(blocks)
    if length is not None:
        reach.copy_(MOST_GROWTH * length)


def within_reach(step: Tensor, blocks: Iterable[RunningBlock], reach: Tensor) -> Tensor:
    """The step length, less where moves are longer than ``reach``: curvature measured along short ones says little.

    Where a fit is close gradients are small beside their running root mean square, and measured steps become long. A
    batch that does not fit then has moves ten times as long: it threw GRUs and LSTMs out of the fit for good.
    """
    length = _length_of_curved(blocks)
    return step if length is None else step * (reach / length.clamp_min(TINY)).clamp_max(1.0)


def _length_of_curved(blocks: Iterable[RunningBlock]) -> Tensor | None:
    moves = [move for running in blocks if not running.linear for move in running.moves.values()]
    if not moves:
        return None
    found: Tensor = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(move) for move in moves]))
    return found


def running_block(block: Block, params: Params, v: Tensor, prediction: Tensor, work: Work) -> RunningBlock:
    """Empty running sums of a block with parameters: least squares where it is linear in them."""
    if block.rows_used(v, work) is not None:
        from dladmm.engine.running_table import RunningTable

        return RunningTable(block, params)
    operator = block.linear_operator(params, v, prediction, work)
    if operator is None:
        return RunningGradient(block, params)
    return RunningLeastSquares(block, params, operator)
