"""Self-training on a graph: the nodes without labels get targets from a first network and from their neighbours.

Twenty labels a class say little about thousands of nodes, and a network with two layers sees two steps far. A first
network, the *teacher*, is trained on the labels alone. Its class probabilities are spread along the edges,

    F <- alpha A~ F + (1 - alpha) P,        P = its probabilities, the labels themselves where they are known,

as in label propagation (Zhou et al. 2004), sharpened by squaring, and become the targets of the other nodes in the same
problem: an EM step of semi-supervised learning (Nigam et al. 2000; Lee 2013). After a few such steps the targets stay,
and the run that the user sees begins. The network itself stays the one asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from dladmm.api.graph_problem import GraphProblem
from dladmm.base.scipy_sparse import sparse
from dladmm.blocks import GraphConv, Params
from dladmm.compute.sparse import SparseMatrix, csr_tensor, scipy_matrix
from dladmm.losses import Risk
from dladmm.network.graph import DENSE_ENTRY_COST
from dladmm.network.graph_chain import gcn

ROUNDS = 3
"""How often targets are made; those of the last round are the run's own."""

TEACHER_ITERATIONS = 200
"""At most; a teacher mostly converges after 20 to 100."""

SAMPLED_NODES = 1000
"""Nodes without a label that a teacher learns from after the first round, at most: enough to say what all do."""

SPREAD, SPREADING_STEPS = 0.5, 10
"""alpha, and how often targets are spread: further than two layers see, not so far that classes mix."""

SHARPENING = 2.0
"""Targets are raised to this power: an average of probabilities is too soft."""

WEIGHT_OF_OTHERS = 1.0
"""What all nodes without a label count together, over what the labelled ones do."""

LEAST_AGREEMENT = 0.5
"""Neighbours must name the class of so many labelled nodes rightly, or edges do not join nodes of a kind."""


def adjacency_of(problem: GraphProblem) -> SparseMatrix | None:
    """A~ as the last layer holds it; None where ``A~ X`` was formed and nothing else needs it."""
    return cast(GraphConv, problem.chain.blocks[-1]).graph.adjacency


def has_other_nodes(problem: GraphProblem) -> bool:
    """Whether nodes without labels can have targets of their own."""
    risk = problem.risk
    if not risk.comm.alone or not risk.loss.takes_soft_labels or adjacency_of(problem) is None:
        return False
    return risk.n_labelled() < len(risk.target)


Learn = Callable[[GraphProblem, list[Params]], list[Params]]
"""Trains on a problem from some parameters on, which it leaves alone, and returns those learned."""


def self_trained(
    problem: GraphProblem, params: list[Params], seed: int, learn: Learn
) -> tuple[GraphProblem, list[Params]]:
    """The problem with targets for all nodes, and the parameters of the teacher that made them.

    Where edges do not join nodes of a kind, the problem and the parameters as they were.
    """
    learned = learn(near_problem(problem, problem.risk), params)
    targets = problem
    generator = torch.Generator().manual_seed(seed)
    for number in range(1, ROUNDS + 1):
        risk = spread_labels(problem, learned)
        if risk is None:
            return problem, params
        targets = replace(problem, risk=risk)
        if number < ROUNDS:
            learned = learn(near_problem(problem, _sampled(risk, problem.risk, generator)), learned)
    return targets, learned


def near_problem(problem: GraphProblem, risk: Risk) -> GraphProblem:
    """The same problem on the nodes that those of positive weight see: loss and gradients are the whole graph's.

    For L layers those are the nodes up to L - 1 edges away, with ``A~ X`` formed from all nodes; of 34,493 nodes with
    100 labels a few thousand are left.
    """
    adjacency = adjacency_of(problem)
    assert adjacency is not None
    assert risk.weight is not None
    blocks = [cast(GraphConv, block) for block in problem.chain.blocks]
    matrix = adjacency.to_scipy()
    nodes = torch.nonzero(risk.weight[:, 0] > 0)[:, 0].cpu().numpy()
    for _ in blocks[1:]:
        nodes = np.unique(matrix[nodes].indices)
    chosen = torch.from_numpy(nodes).to(risk.weight.device, torch.long)
    near = SparseMatrix.of(
        sparse.csr_array(matrix[nodes][:, nodes]), adjacency.csr.dtype, adjacency.csr.device, symmetric=True
    )
    widths = [blocks[0].n_in, *(block.n_out for block in blocks)]
    return replace(
        problem,
        chain=gcn(widths, near, blocks[0].activation, propagated=True),
        x=_propagated_rows(problem.x, blocks[0], nodes),
        risk=replace(risk, target=risk.target[chosen], weight=risk.weight[chosen]),
        validation=None,
    )


def _sampled(risk: Risk, labelled: Risk, generator: torch.Generator) -> Risk:
    """The loss on the labelled nodes and on a few of the others, which weigh as much as all of them did."""
    assert risk.weight is not None
    assert labelled.weight is not None
    others = torch.nonzero(labelled.weight[:, 0] == 0)[:, 0]
    order = torch.randperm(len(others), generator=generator)[:SAMPLED_NODES].to(others.device)
    weight = labelled.weight.clone()
    weight[others[order]] = risk.weight[others[order]] * (len(others) / len(order))
    return replace(risk, weight=weight)


def _propagated_rows(x: Tensor, first: GraphConv, nodes: Any) -> Tensor:
    """``A~ X`` of some nodes, dense or sparse, whichever is cheaper to multiply by."""
    if x.layout == torch.strided and first.graph.adjacency is None:
        return x[torch.as_tensor(nodes, device=x.device)]
    features = scipy_matrix(x) if x.layout != torch.strided else x.cpu().numpy()
    adjacency = first.graph.adjacency
    rows = features[nodes] if adjacency is None else adjacency.to_scipy()[nodes] @ features
    if not sparse.issparse(rows):
        return torch.from_numpy(rows).to(x.device, x.dtype)
    entries = rows.shape[0] * rows.shape[1]
    if rows.nnz > entries * DENSE_ENTRY_COST:
        return torch.from_numpy(rows.toarray()).to(x.device, x.dtype)
    return csr_tensor(rows, x.dtype, x.device)


@torch.no_grad()
def spread_labels(problem: GraphProblem, params: list[Params]) -> Risk | None:
    """The loss on all nodes, with targets from a teacher's parameters; None where edges do not join nodes of a kind."""
    adjacency, risk = adjacency_of(problem), problem.risk
    assert adjacency is not None
    assert risk.weight is not None
    labelled = risk.weight > 0
    output = problem.chain.predict(params, problem.x)
    known = torch.where(labelled, risk.target, risk.loss.probabilities(output))
    if not _joins_alike(adjacency, known, risk):
        return None
    spread = known
    for _ in range(SPREADING_STEPS):
        spread = (adjacency @ spread).mul_(SPREAD).add_(known, alpha=1 - SPREAD)
    # Spreading favours the classes of well-connected nodes: every class keeps the mass that the teacher gave it
    spread = _to_probabilities(spread)
    spread = spread / spread.mean(0).clamp_min(torch.finfo(spread.dtype).tiny)
    sharpened = _to_probabilities(spread * known.mean(0)) ** SHARPENING
    targets = torch.where(labelled, risk.target, _to_probabilities(sharpened))
    others = int((~labelled).sum())
    share = WEIGHT_OF_OTHERS * float(risk.weight.sum()) / max(others, 1)
    return replace(risk, target=targets, weight=torch.where(labelled, risk.weight, share))


def _to_probabilities(rows: Tensor) -> Tensor:
    return rows / rows.sum(1, keepdim=True)


def _joins_alike(adjacency: SparseMatrix, known: Tensor, risk: Risk) -> bool:
    """Whether the neighbours of labelled nodes, these nodes themselves left out, mostly name their class."""
    assert risk.weight is not None
    rows = torch.nonzero(risk.weight[:, 0] > 0)[:, 0]
    diagonal = torch.from_numpy(adjacency.to_scipy().diagonal()).to(known)
    around = (adjacency @ known - diagonal[:, None] * known)[rows]
    joined = around.sum(1) > 0
    right = around.argmax(1) == risk.target[rows].argmax(1)
    return bool(right[joined].double().mean() >= LEAST_AGREEMENT) if bool(joined.any()) else False
