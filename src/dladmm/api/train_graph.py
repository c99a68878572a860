"""``train_graph``: trains a GCN on the labelled nodes of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from dladmm.activations import Activation
from dladmm.api.arguments import fresh_parameters, shard_graph
from dladmm.api.choosing import with_mode
from dladmm.api.given import check_hidden, check_settings, takes
from dladmm.api.graph_checks import (
    refuse_beside_loader,
    refuse_beside_model,
    refuse_in_streaming,
    refuse_outside_convergent,
    refuse_self_training,
    takes_self_training,
)
from dladmm.api.graph_clusters import ClusterBatches, clustered_graph, in_clusters
from dladmm.api.graph_model import STEPS, is_loader, passes_on_parts, train_graph_model
from dladmm.api.graph_penalty import class_signal, graph_penalty
from dladmm.api.graph_problem import (
    GraphProblem,
    GraphSettings,
    VariableRows,
    given_graph,
    graph_problem,
    part_problem,
    whole_graph,
)
from dladmm.api.self_training import TEACHER_ITERATIONS, self_trained
from dladmm.base.errors import InputError, InputTypeError
from dladmm.blocks import Params
from dladmm.callbacks import Callback, ProgressBar
from dladmm.compute.communicator import ALONE, Communicator
from dladmm.engine.batches import Batches
from dladmm.engine.method import NOTHING, MethodFactory, wanted_by
from dladmm.engine.options import ACCELERATED, make_options
from dladmm.losses import Loss, get_loss
from dladmm.network.chain import Chain
from dladmm.network.given_graph import is_graph
from dladmm.network.scaling import NODE_LENGTH, STREAMED_LENGTH
from dladmm.network.whole_gcn import WholeGCN
from dladmm.regularizers import Regularizer
from dladmm.training.checks import check_callbacks, check_device, check_dtype, check_seed
from dladmm.training.result import Result
from dladmm.training.trainer import Trainer


@shard_graph
def train_graph(
    data: Any,
    edge_index: Any = None,
    y: Any = None,
    train_mask: Any = None,
    *,
    hidden: Sequence[int] = (128,),
    activation: str | dict[str, Any] | Activation = "relu",
    rows: VariableRows | None = None,
    loss: str | dict[str, Any] | Loss = "cross_entropy",
    regularizer: str | dict[str, Any] | Regularizer | None = "auto",
    validation: Any = None,
    edge_weight: Any = None,
    sample_weight: Any = None,
    n_classes: int | None = None,
    mu: float | None = None,
    preset: str = "default",
    prox: str = "auto",
    random_state: int = 0,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "float32",
    callbacks: Sequence[Callback] = (),
    verbose: bool = False,
    method: MethodFactory | None = None,
    communicator: Communicator | None = None,
    partition: Any = None,
    self_training: bool | None = None,
    zeroed: Any = None,
    model: nn.Module | None = None,
    **options: Any,
) -> Result:
    """Train a GCN with dlADMM on the labelled nodes of a graph (Problem 6 of the paper).

    Parameters
    ----------
    data : GraphData, PyG Data, or array of shape (n_nodes, n_features)
        A graph object, or the node features x (dense or sparse) with ``edge_index``, ``y`` and ``train_mask`` beside
        it. Where no rank has the whole graph, a function ``data(rank, world)`` that returns a
        :class:`~dladmm.network.graph_part.GraphPart`. With ``model`` also a loader of such graphs, as PyG's
        ``NeighborLoader`` and ``ClusterLoader``.
    edge_index : array of shape (2, E), optional
        A directed graph is made undirected, a repeated edge counts once, self loops are dropped (A~ adds its own).
        Weights, where there are any, must be the same in both directions.
    y : array of shape (n_nodes,), optional
        Class indices; labels of nodes outside the masks are ignored.
    train_mask : boolean array of shape (n_nodes,), optional
        The labelled nodes.
    hidden : sequence of int, default (128,)
        Widths of the hidden layers.
    activation : str, dict or Activation, default "relu"
    rows : {"all", "train", "fixed"}, optional
        "all" is the paper's problem: every row of every Z_l is a variable. With "train" only the rows of labelled
        nodes are variables and the others follow the forward pass, with "fixed" they stay as they were at the start;
        the theory covers neither. None: "all", and "fixed" with ``preset="authors"``.
    loss : str, dict or Loss, default "cross_entropy"
    regularizer : str, dict, Regularizer or None, default "auto"
    validation : {"val", "test"} or boolean array of shape (n_nodes,), optional
        Nodes on which the history records loss and accuracy.
    edge_weight : array of shape (E,), optional
        Weights of the edges, as PyG's ``gcn_norm`` uses them; 1 each by default, as in the paper. A graph object
        brings its own.
    sample_weight : array of shape (n_nodes,), optional
        How often each labelled node counts, 0 or more; those of other nodes are ignored.
    n_classes : int, optional
        Number of classes, if not all occur among the labels.
    mu : float, optional
        The paper's name of the option ``nu``.
    preset, prox, random_state, device, dtype, callbacks, verbose, method, communicator
        As in :func:`dladmm.train`; ``preset="authors"`` has the settings of the authors' GCN script (docs/theory.md),
        whose penalty differs from graph to graph and is given as ``regularizer``; its ``prox`` is "authors", FISTA that
        stops early ("exact" solves Z_L).
    partition : array of shape (n_nodes,), optional
        The rank of every node, in streaming mode its cluster; computed where it is not given.
    self_training : bool, optional
        Train on the labels first, then on targets for all nodes that this network and the edges suggest
        (docs/graphs.md). None: but in convergent mode, on the whole graph, in one process, with a loss that takes soft
        labels.
    zeroed : {"val", "test"} or boolean array of shape (n_nodes,), optional
        Nodes whose rows of Z_l start at zero; with ``preset="authors"`` the test nodes of a graph that names them.
    model : nn.Module, optional
        Any network ``model(x, edge_index)`` or ``model(x, edge_index, edge_weight)``, as those of PyG, trained in
        place from its own weights; in streaming mode.
    options
        Fields of :class:`~dladmm.TrainOptions` and :class:`~dladmm.SubproblemOptions`. ``mode`` is "streaming" unless
        given; "convergent" is the paper's Algorithm 5.

    Returns
    -------
    Result
        Status, history, certificate, the trained module (called as ``module(x, edge_index)``) and the last iterate.

    Notes
    -----
    A pass of streaming mode is one step on the whole graph; ``max_iter`` counts the steps, 100 unless given.
    With ``batch_size``, or with more than 100,000 nodes, a batch is the subgraph of a few clusters of about so many
    nodes together (:mod:`dladmm.api.graph_clusters`), and ``max_iter`` counts passes over the clusters.

    Where ``torch.distributed`` has been initialised, every rank calls this function with the same graph and keeps its
    own nodes of it (docs/distributed.md).

    Examples
    --------
    >>> from dladmm import datasets
    >>> result = train_graph(datasets.load("karate"), hidden=(16,), max_iter=5)
    >>> result.status.name
    'MAX_ITER'
    """
    comm = ALONE if communicator is None else communicator
    others: dict[str, Any] = {
        "mu": mu,
        "random_state": random_state,
        "rows": rows,
        "device": device,
        "verbose": verbose,
    }
    others |= {"regularizer": regularizer, "self_training": self_training}
    check_settings({"preset": preset, "prox": prox}, method, options | others)
    check_hidden(hidden)
    if mu is not None:
        if "nu" in options:
            raise InputError("mu and nu are two names of one setting; give one of them.")
        options["nu"] = mu
    if model is not None:
        options.setdefault("mode", "streaming")
    options = with_mode(options, preset=preset, method=method)
    options.setdefault("dropout", 0.0)  # it does not help on graphs (docs/acceleration.md)
    chosen = make_options(preset, **options)
    rows = ("fixed" if preset == "authors" else "all") if rows is None else rows
    prox = "authors" if preset == "authors" and prox == "auto" else prox
    if chosen.mode == "streaming":
        refuse_in_streaming(chosen, rows, zeroed, prox, method, comm)
    if chosen.mode != "convergent":
        refuse_outside_convergent(chosen, rows, zeroed)
    if chosen.max_memory is not None:
        raise InputError("max_memory is not supported for graphs, whose rows depend on each other.")
    torch_dtype, torch_device = check_dtype(dtype), check_device(device)
    random_state, callbacks = check_seed(random_state), check_callbacks(callbacks)
    wanted = NOTHING if method is None else wanted_by(method)
    settings = GraphSettings(
        hidden, activation, rows, get_loss(loss), validation, prox, torch_dtype, torch_device,
        scaled=chosen.scale_inputs, comm=comm, zeroed=zeroed, apart=wanted.features,
        node_length=STREAMED_LENGTH if chosen.mode == "streaming" else NODE_LENGTH,
    )  # fmt: skip
    if model is not None:
        refuse_beside_model(data, hidden, activation, self_training)
    clusters: ClusterBatches | None = None
    if model is not None and is_loader(data):
        refuse_beside_loader(edge_index, y, train_mask, edge_weight, sample_weight, partition, chosen)
        return train_graph_model(
            model,
            data,
            settings,
            chosen,
            regularizer,
            random_state,
            callbacks,
            passes_given="max_iter" in options,
        )
    if callable(data) and not is_graph(data):
        if isinstance(data, type) or not takes(data, comm.rank, comm.size):
            raise InputTypeError(
                "data is a function that does not take two arguments, the rank of a process and how many there are. "
                "Give a graph object, or x with edge_index, y and train_mask."
            )
        with comm.together():
            part = data(comm.rank, comm.size)
        problem = part_problem(part, settings)
    else:
        given = given_graph(data, edge_index, y, train_mask, edge_weight, n_classes)
        given = replace(given, sample_weight=sample_weight)
        if preset == "authors" and zeroed is None and given.test_mask is not None and comm.alone:
            settings = replace(settings, zeroed="test")
        if model is not None:
            return train_graph_model(
                model,
                given,
                settings,
                chosen,
                regularizer,
                random_state,
                callbacks,
                partition,
                passes_given="max_iter" in options,
            )
        if chosen.mode == "streaming" and in_clusters(given, chosen.batch_size, partition):
            clusters = clustered_graph(given, settings, chosen.batch_size, random_state, partition)
            problem = clusters.monitor()
        else:
            problem = graph_problem(given, settings, partition)
    labelled = problem.risk.n_labelled() if clusters is None else clusters.at_least
    signal = partial(class_signal, problem) if clusters is None else clusters.class_signal
    judged = ACCELERATED if wanted.accelerated else chosen
    penalty = graph_penalty(judged, regularizer, labelled, problem.risk.target.shape[1], signal)
    if chosen.subproblems.w_penalty == "gradient" and not penalty.has_gradient:
        raise InputError(f"w_penalty='gradient' needs a penalty with a gradient, not {penalty.name!r}.")
    if chosen.mode == "streaming" and "max_iter" not in options:
        chosen = replace(chosen, max_iter=STEPS if clusters is None else passes_on_parts(clusters))
    params = fresh_parameters(
        problem.chain, random_state, chosen.init_scale, chosen.init_std, torch_dtype, torch_device,
        chosen.init_rule,
    )  # fmt: skip
    if self_training is None:
        self_training = takes_self_training(problem, chosen, rows, method, in_parts=clusters is not None)
    if self_training:
        refuse_self_training(problem, chosen, rows, method, in_parts=clusters is not None)
        # As long whatever max_iter is: a run that is resumed with more iterations finds the same targets
        steady = replace(chosen, max_iter=STEPS if chosen.mode == "streaming" else TEACHER_ITERATIONS)

        def learn(near: GraphProblem, start: list[Params]) -> list[Params]:
            copied = [{name: p.clone() for name, p in block.items()} for block in start]
            if steady.mode == "streaming":
                near, copied = streamed(near, copied)
            batches = whole_graph(near) if steady.mode == "streaming" else None
            teacher = Trainer(
                near.chain,
                near.x,
                near.risk,
                steady,
                penalty=penalty,
                params=copied,
                seed=random_state,
                batches=batches,
            )
            teacher.judge = None  # nobody gets its network
            found = teacher.fit().state.params
            return found if batches is None else WholeGCN.layers(found[0])

        problem, params = self_trained(problem, params, random_state, learn)
    if chosen.mode == "streaming":
        problem, params = streamed(problem, params)
        if clusters is not None:
            clusters.network = cast(WholeGCN, problem.chain.blocks[0])
    trainer = Trainer(
        problem.chain,
        problem.x,
        problem.risk,
        chosen,
        penalty=penalty,
        params=params,
        validation=problem.validation,
        callbacks=(ProgressBar(), *callbacks) if verbose else callbacks,
        method=method,
        scaling=problem.scaling,
        seed=random_state,
        batches=_batches(problem, clusters) if chosen.mode == "streaming" else None,
        comm=comm,
        shards=problem.shards,
        zeroed=problem.zeroed,
    )
    trainer.given = problem.given
    return trainer.fit()


def streamed(problem: GraphProblem, params: list[Params]) -> tuple[GraphProblem, list[Params]]:
    """The problem whose network is one block, as streaming mode trains it."""
    block = WholeGCN(problem.chain, problem.scaling)
    return replace(problem, chain=Chain([block]), scaling=None), [block.of_layers(params)]


def _batches(problem: GraphProblem, clusters: ClusterBatches | None) -> Batches:
    return whole_graph(problem) if clusters is None else clusters
