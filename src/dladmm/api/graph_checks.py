"""What :func:`dladmm.train_graph` refuses to combine, with words, before any work is done."""

from __future__ import annotations

from typing import Any

from dladmm.api.graph_problem import GraphProblem, VariableRows, check_names
from dladmm.api.self_training import has_other_nodes
from dladmm.base.errors import InputError
from dladmm.compute.communicator import Communicator
from dladmm.engine.method import MethodFactory
from dladmm.engine.options import TrainOptions
from dladmm.network.given_graph import is_graph


def refuse_outside_convergent(chosen: TrainOptions, rows: VariableRows, zeroed: Any) -> None:
    """The other modes put every variable to the forward pass again and again."""
    refused = {
        "rows='fixed'": rows == "fixed",
        "zeroed": zeroed is not None,
        "w_penalty='gradient'": chosen.subproblems.w_penalty == "gradient",
    }
    for name, holds in refused.items():
        if holds:
            raise InputError(f"{name} is a setting of mode='convergent', got mode={chosen.mode!r}.")


def refuse_self_training(
    problem: GraphProblem,
    chosen: TrainOptions,
    rows: VariableRows,
    method: MethodFactory | None,
    *,
    in_parts: bool,
) -> None:
    for name, holds in _without_self_training(problem, chosen, rows, method, in_parts).items():
        if holds:
            raise InputError(f"self_training cannot be used with {name}; leave it out.")


def takes_self_training(
    problem: GraphProblem,
    chosen: TrainOptions,
    rows: VariableRows,
    method: MethodFactory | None,
    *,
    in_parts: bool,
) -> bool:
    """Whether a run has self-training unless it is told otherwise."""
    return not any(_without_self_training(problem, chosen, rows, method, in_parts).values())


def _without_self_training(
    problem: GraphProblem,
    chosen: TrainOptions,
    rows: VariableRows,
    method: MethodFactory | None,
    in_parts: bool,
) -> dict[str, bool]:
    return {
        f"mode={chosen.mode!r}": chosen.mode == "convergent",
        "method": method is not None,
        f"rows={rows!r}": rows != "all",
        "clusters of the graph (batch_size)": in_parts,
        "several ranks, labels on all nodes, no hidden layer, or a loss without soft labels": (
            not has_other_nodes(problem)
        ),
    }


def refuse_beside_model(data: Any, hidden: Any, activation: Any, self_training: bool | None) -> None:
    refused = {
        "hidden": tuple(hidden) != (128,),
        "activation": activation != "relu",
        "self_training": bool(self_training),
        "a graph in parts": callable(data) and not is_graph(data) and not hasattr(data, "__iter__"),
    }
    for name, holds in refused.items():
        if holds:
            raise InputError(f"{name} cannot be used with model, which is trained as it is; leave it out.")


def refuse_beside_loader(
    edge_index: Any,
    y: Any,
    train_mask: Any,
    edge_weight: Any,
    sample_weight: Any,
    partition: Any,
    chosen: TrainOptions,
) -> None:
    refused = {
        "edge_index": edge_index,
        "y": y,
        "train_mask": train_mask,
        "edge_weight": edge_weight,
        "sample_weight": sample_weight,
        "partition": partition,
        "batch_size": chosen.batch_size,
    }
    for name, value in refused.items():
        if value is not None:
            raise InputError(f"{name} cannot be used with a loader, whose batches are graphs; leave it out.")


def refuse_in_streaming(
    chosen: TrainOptions,
    rows: VariableRows,
    zeroed: Any,
    prox: str,
    method: MethodFactory | None,
    comm: Communicator,
) -> None:
    check_names(rows, prox)
    refused = {
        f"rows={rows!r}": rows != "all",
        "zeroed": zeroed is not None,
        "prox": prox != "auto",
        "method": method is not None,
        "batch_size on several ranks": not comm.alone and chosen.batch_size is not None,
    }
    for name, holds in refused.items():
        if holds:
            raise InputError(
                f"{name} cannot be used with mode='streaming', the default, on graphs; leave it out, or use "
                "mode='convergent'."
            )
