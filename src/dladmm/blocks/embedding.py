"""Embedding block: a row of a table for every whole number, solved as least squares on one-hot inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dladmm.base.errors import InputError
from dladmm.blocks.base import Block, Support
from dladmm.compute.passes import squared_norm
from dladmm.compute.work import Work
from dladmm.regularizers import Regularizer
from dladmm.solvers.subproblems import Anchor, Params, Step, Term


class Embedding(Block):
    """``g(W, v)_t = W[v_t]``: tokens v (N, positions) become vectors (N, positions, n_out).

    As a linear layer on one-hot inputs its Gram matrix is diagonal, the number of times each token occurs, so the least
    squares solution is the mean target of every token, with damping and penalty as for other linear layers. Its inputs
    are data: it is the first block of a chain.

    Parameters
    ----------
    n_tokens, n_out : int
        Rows and columns of the table W.
    padding : int, optional
        The token whose row stays as it is (``padding_idx`` of ``nn.Embedding``).
    """

    support = Support.COUNTS | Support.RANKS
    penalised = ("W",)

    def __init__(self, n_tokens: int, n_out: int, padding: int | None = None) -> None:
        self.n_out: int = n_out
        self.n_tokens, self.padding = n_tokens, padding

    @classmethod
    def from_module(cls, layer: nn.Module) -> Embedding | None:
        """The block of an ``nn.Embedding``; None for other layers."""
        if type(layer) is not nn.Embedding:
            return None
        if layer.max_norm is not None or layer.scale_grad_by_freq:
            raise InputError(f"{layer!r}: max_norm and scale_grad_by_freq are not supported; leave them out.")
        return cls(layer.num_embeddings, layer.embedding_dim, layer.padding_idx)

    def __repr__(self) -> str:
        return f"Embedding({self.n_tokens}, {self.n_out})"

    def initial_parameters(self, generator: torch.Generator | None, scale: float) -> Params:
        W = torch.randn(self.n_tokens, self.n_out, generator=generator, dtype=torch.float64) * scale
        if self.padding is not None:
            W[self.padding] = 0.0
        return {"W": W}

    def forward(self, params: Params, v: Tensor) -> Tensor:
        return F.embedding(v.long(), params["W"], self.padding)

    def module_input(self, v: Tensor) -> Tensor:
        return v.long()

    def check_input(self, v: Tensor, name: str) -> None:
        if not bool((v == v.round()).all()) or not bool(((v >= 0) & (v < self.n_tokens)).all()):
            raise InputError(
                f"{name} must hold whole numbers from 0 to {self.n_tokens - 1} for {self!r}; got numbers from "
                f"{float(v.min()):g} to {float(v.max()):g}."
            )

    def to_module(self, params: Params) -> nn.Module:
        table = params["W"].detach().clone()
        return nn.Embedding(self.n_tokens, self.n_out, self.padding, _weight=table, _freeze=False)

    def update_parameters(
        self, params: Params, v: Tensor, term: Term, penalty: Regularizer, work: Work
    ) -> list[Step]:
        """``argmin_W (c/2) sum ||target - W[v]||^2 + Omega(W) + (delta/2)||W - W_k||^2``, lines 5 and 8 of Algorithm 1.

        Token by token: the mean of its targets, pulled towards W_k by delta, then the prox of the penalty.
        """
        W, c = params["W"], term.weight
        wanted, counts = self._sums(v, work.counted(term.target - term.prediction), work)
        shift = work.options.damping * counts.mean()
        curvature = counts + shift
        free = curvature > 0
        inverse = torch.where(free, 1 / curvature.clamp_min(1e-30), 0.0)[:, None]
        new = penalty.prox((W + wanted * inverse).to(W.dtype), (inverse / c).to(W.dtype))
        move = torch.where(free[:, None], new - W, torch.zeros_like(W))
        if self.padding is not None:
            move[self.padding] = 0.0
        squared = squared_norm(move)
        rate = (move.double().square().sum(1) * curvature).sum() * (c / 2) / squared.clamp_min(1e-300)
        work.move(W, move)
        work.move(term.prediction, F.embedding(v.long(), move))
        return [Step("W", squared, rate)]

    def rows_used(self, v: Tensor, work: Work) -> Tensor:
        return self._sums(v, v.new_zeros(*v.shape, self.n_out), work)[1]

    def _sums(self, v: Tensor, rows: Tensor, work: Work) -> tuple[Tensor, Tensor]:
        """Sums of the rows (N, positions, n_out) of every token, and how often it counts; float64, over all ranks."""
        tokens = v.long().flatten()
        times = torch.ones_like(v) if work.counts is None else work.counted(torch.ones_like(v))
        sums = rows.new_zeros(self.n_tokens, self.n_out, dtype=torch.float64)
        sums.index_add_(0, tokens, rows.reshape(-1, self.n_out).double())
        counts = torch.zeros_like(sums[:, 0]).index_add_(0, tokens, times.flatten().double())
        if self.padding is not None:
            sums[self.padding], counts[self.padding] = 0.0, 0.0
        total, count = work.total(sums, counts)
        return total, count

    def parameter_stationarity(
        self, params: Params, v: Tensor, term: Term, penalty: Regularizer, work: Work
    ) -> Tensor:
        sums, _ = self._sums(v, work.counted(term.prediction - term.target), work)
        return squared_norm(penalty.stationarity(params["W"], (term.weight * sums).to(v.dtype)))

    def update_input(self, params: Params, v: Tensor, anchor: Anchor, term: Term, work: Work) -> list[Step]:
        raise InputError("tokens cannot be moved: an Embedding is the first layer of a network.")

    def input_gradient(self, params: Params, v: Tensor, term: Term, work: Work) -> Tensor:
        return torch.zeros_like(v)

    def push_parameters(self, params: Params, moves: Params, v: Tensor, prediction: Tensor) -> Tensor:
        return self.forward(moves, v)
