"""Affine block whose weights are of a finite set, or few: ``g = a P(W)^T + b``, P the projection onto the set."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dladmm.blocks.affine import Affine
from dladmm.compute.passes import by_columns
from dladmm.compute.work import Work
from dladmm.regularizers.weight_set import Box, WeightSet
from dladmm.solvers.subproblems import Params

ROOM = 10.0
"""How far latent weights of two levels go, in units of the levels.

Clipped at 1, as in the literature, they lost .002 on held-out images of MNIST. With more levels the outer ones would
swallow the others.
"""


class FiniteAffine(Affine):
    """``g((W, b), a) = a P(W)^T + b``: W are latent weights, P(W) is the nearest point of the set ``weights``.

    P is constant almost everywhere. Streaming mode moves W as if P were the identity (the least-squares step towards
    the targets, in the metric of the inputs), keeps W in a box, and shows the network P(W) in every forward
    pass and wherever targets are handed down.

    While it is trained the largest level is the power of two nearest to ``1/sqrt(n_in)``, so that outputs have the size
    that the rules of streaming mode expect; the network that is handed out has whole numbers where a normalisation or a
    sign follows (:mod:`dladmm.network.finite`).

    Parameters
    ----------
    n_in, n_out, bias
        As in :class:`~dladmm.blocks.Affine`.
    weights : WeightSet
        The finite set.
    """

    def __init__(self, n_in: int, n_out: int, weights: WeightSet, bias: bool = True) -> None:
        super().__init__(n_in, n_out, bias)
        self.weights = self.weight_set = weights
        self.set = WeightSet(weights.levels, weights.per_unit, 2.0 ** round(-math.log2(n_in) / 2))
        bound = {None: math.inf, 2: ROOM}.get(weights.levels, 1.0)
        self.constraint = Box(bound * self.set.scale)

    def __repr__(self) -> str:
        return f"FiniteAffine({self.n_in}, {self.n_out}, {self.weights}{'' if self.bias else ', bias=False'})"

    def initial_parameters(self, generator: torch.Generator | None, scale: float) -> Params:
        found = super().initial_parameters(generator, scale)
        if self.weights.levels is not None:
            found["W"].uniform_(-self.set.scale, self.set.scale, generator=generator)
        return found

    def shown(self, params: Params) -> Params:
        return params | {"W": self.set.prox(params["W"], 1.0)}

    def forward(self, params: Params, v: Tensor) -> Tensor:
        return super().forward(self.shown(params), v)

    def write_forward(self, params: Params, v: Tensor, out: Tensor) -> Tensor:
        return super().write_forward(self.shown(params), v, out)

    def pull_back(
        self, params: Params, v: Tensor, prediction: Tensor, gradient: Tensor, work: Work
    ) -> Tensor:
        return work.how.direction(gradient, by_columns(self.shown(params)["W"], len(gradient)))

    def push_parameters(self, params: Params, moves: Params, v: Tensor, prediction: Tensor) -> Tensor:
        return super().forward(moves, v)

    def push_input(self, params: Params, v: Tensor, move: Tensor, prediction: Tensor) -> Tensor:
        return super().push_input(self.shown(params), v, move, prediction)
