"""The penalty on a graph: a share of the one at which the network would learn nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dladmm.base.scipy_sparse import sparse
from dladmm.blocks import GraphConv
from dladmm.blocks.propagation import Propagation
from dladmm.engine.options import TrainOptions
from dladmm.losses import Risk
from dladmm.regularizers import L2, Regularizer

if TYPE_CHECKING:
    from dladmm.api.graph_problem import GraphProblem

PENALTY_SHARE = 0.25
"""lambda over the signal of a middling class direction (docs/graphs.md has the table that chose it)."""

LABELS_PER_CLASS = 20
"""With more labels a class the signal grows in proportion, but the penalty no more: labels should then decide."""

SMALLEST_SIGNAL = 1e-4
"""Directions below this part of the strongest are none: softmax gradients, for one, sum to zero over the classes."""


def graph_penalty(
    options: TrainOptions,
    spec: str | dict[str, Any] | Regularizer | None,
    labelled: float,
    n_classes: int,
    signal: Callable[[], float],
) -> Regularizer:
    """The penalty that ``spec`` stands for; ``"auto"`` follows the signal of the labels, but in convergent mode."""
    if spec != "auto" or options.mode == "convergent":
        return options.penalty(spec, labelled)
    size = signal()
    if size == 0.0:
        return options.penalty(spec, labelled)
    return L2(PENALTY_SHARE * size * min(1.0, LABELS_PER_CLASS * n_classes / labelled))


@torch.no_grad()
def class_signal(problem: GraphProblem) -> float:
    """The median singular value of ``dR/dM`` at ``M = 0``, for the linear network ``A~^L X M`` without hidden units.

    With (lambda/2)||W||^2 on both factors of ``M = W_1 W_2`` a direction whose singular value is below lambda is not
    learned at all (the two penalties together are lambda times the nuclear norm of M). So this is the unit for lambda:
    features of any scale, dense or sparse, with a strong common part or without, have their classes shrunk alike.
    """
    risk, blocks = problem.risk, [cast(GraphConv, block) for block in problem.chain.blocks]
    gradient = risk.gradient(torch.zeros_like(risk.target))
    for block in reversed(blocks[1:]):
        if block.graph.adjacency is not None:
            gradient = block.graph.adjacency.T @ gradient
    first = blocks[0]
    on_all_rows = Propagation(first.n_in, gradient.shape[1], first.graph.adjacency, None)
    (product,) = risk.comm.total(on_all_rows.weight_gradient(first.graph.operand(problem.x), gradient))
    return median_signal(product)


def signal_of_labels(
    features: sparse.csr_array | NDArray[Any],
    joined: sparse.csr_array,
    risk: Risk,
    layers: int = 2,
    scale: Tensor | None = None,
) -> float:
    """The same without a chain, for any network as if it were a GCN of so many layers.

    ``joined`` is A + I, ``scale`` what every feature will be divided by.
    """
    gradient = risk.gradient(torch.zeros_like(risk.target)).cpu().double().numpy()
    root = 1 / np.sqrt(joined.sum(axis=1))[:, None]
    for _ in range(layers):
        gradient = root * (joined @ (root * gradient))
    product = torch.from_numpy(np.asarray(features.T @ gradient))
    return median_signal(product if scale is None else product / scale.double()[:, None])


def median_signal(product: Tensor) -> float:
    """The median singular value of a matrix, tiny ones left out; 0 where there is none."""
    values = torch.linalg.svdvals(product.double().cpu())
    values = values[values > SMALLEST_SIGNAL * values[0]]
    return float(values.median()) if len(values) and bool(values.isfinite().all()) else 0.0
