"""Running sums of a block whose output is rows of its table W: the Gram matrix of its one-hot inputs is diagonal."""

from __future__ import annotations

import torch
from torch import Tensor

from dladmm.blocks import Block, Params, Work
from dladmm.engine.running import TINY, norm


class RunningTable:
    """Running direction ``-dR/dW`` over how often every row is used: the least-squares step, row by row.

    ``often`` is the running number of times that a sample uses each row; ``spread`` as in
    :class:`~dladmm.engine.running.RunningLeastSquares`.
    """

    recordable, linear, observes_apart = False, True, True

    def __init__(self, block: Block, params: Params) -> None:
        self.block, W = block, params["W"]
        self.often, self.scale = W.new_zeros(len(W)), W.new_zeros(len(W))
        self.spread, self._moves = W.new_zeros(()), torch.zeros_like(W)

    @property
    def moves(self) -> Params:
        return {"W": self._moves}

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
        slope = self.block.parameter_gradient(params, v, prediction, gradient, work)["W"]
        slope = slope + decay["W"] if "W" in decay else slope
        self._moves.lerp_(-slope * self.scale[:, None], 1 - keep)

    def observe_inputs(
        self, params: Params, v: Tensor, prediction: Tensor, gradient: Tensor, work: Work, share: Tensor
    ) -> None:
        used = self.block.rows_used(v, work)
        assert used is not None
        self.often.lerp_((used / work.samples(len(v))).to(self.often.dtype), share)
        root = norm(gradient, work) * (work.samples(len(v)) / gradient.shape[-1]) ** 0.5
        self.spread.lerp_(root.square().to(self.spread.dtype), share)

    def refactor(self, damping: float) -> None:
        shift = damping * self.often.mean()
        self.scale.copy_((self.spread + TINY).rsqrt() / (self.often + shift).clamp_min(TINY))

    def tensors(self) -> dict[str, Tensor]:
        return {"often": self.often, "scale": self.scale, "spread": self.spread, "moves": self._moves}
