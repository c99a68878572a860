"""``train_graph(data, model=network)``: a PyG module trained in place, by streaming mode on the whole graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from dladmm.api.graph_problem import GivenGraph, GraphProblem, GraphSettings, checked_graph, whole_graph
from dladmm.api.handing_back import LARGEST_DIFFERENCE, ModuleDiffers, difference
from dladmm.base.errors import InputError
from dladmm.callbacks import Callback
from dladmm.engine.options import TrainOptions
from dladmm.network.chain import Chain
from dladmm.network.given_module import evaluating, refuse_unseen_parts
from dladmm.network.graph import check_edge_index, check_edge_weight
from dladmm.network.graph_layers import Edges, features, graph_chain
from dladmm.regularizers import Regularizer
from dladmm.training.result import Result
from dladmm.training.trainer import Trainer


def train_graph_model(
    model: nn.Module,
    given: GivenGraph,
    settings: GraphSettings,
    chosen: TrainOptions,
    regularizer: str | dict[str, Any] | Regularizer | None,
    seed: int,
    callbacks: Sequence[Callback],
) -> Result:
    """Train a PyG module, from its own weights; ``result.module`` is the module."""
    if chosen.mode != "streaming":
        raise InputError(f"model is trained by mode='streaming' alone, got mode={chosen.mode!r}.")
    refuse_unseen_parts(model)
    n_nodes = len(given.y)
    source, target = check_edge_index(given.edge_index, n_nodes)
    weight = check_edge_weight(given.edge_weight, len(source))
    made = graph_chain(model, Edges(source, target, weight, n_nodes), settings.dtype, settings.device)
    if not any(made.params):
        raise InputError("the network has no parameters to train, or all have requires_grad=False.")
    chain = Chain(made.blocks)
    outputs = chain.blocks[-1].n_out
    graph = checked_graph(replace(given, n_classes=given.n_classes or outputs), settings)
    if graph.risk.target.shape[1] != outputs:
        raise InputError(f"the network has {outputs} outputs for {graph.risk.target.shape[1]} classes.")
    x = features(graph.features, settings.dtype, settings.device)
    held_out = None if graph.held_risk is None else (x, graph.held_risk)
    problem = GraphProblem(chain, x, graph.risk, held_out)
    trainer = Trainer(
        chain,
        x,
        graph.risk,
        chosen,
        penalty=chosen.penalty(regularizer, graph.risk.n_labelled()),
        params=made.params,
        validation=held_out,
        callbacks=callbacks,
        seed=seed,
        batches=whole_graph(problem),
    )
    result = trainer.fit()
    with torch.no_grad():
        for write, params in zip(made.write, trainer.state.params, strict=True):
            write(params)
        some = next(model.parameters())
        with evaluating(model):
            edges = torch.as_tensor(given.edge_index).to(some.device)
            weights = [] if weight is None else [torch.as_tensor(weight).to(some)]
            handed = model(x.to(some), edges, *weights)
        expected = chain.predict(trainer.state.params, x)
    if difference(handed.to(expected), expected) > LARGEST_DIFFERENCE:
        raise ModuleDiffers(
            f"{type(model).__name__} does not compute what was trained: its forward pass does something that the chain "
            "of its layers does not."
        )
    return replace(result, module=model)
