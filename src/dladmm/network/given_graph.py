"""Graph objects of users: :class:`~dladmm.datasets.GraphData` or PyG's ``Data``: what is taken, or refused."""

from __future__ import annotations

from typing import Any, NamedTuple

from dladmm.base.errors import InputError, InputTypeError

UNUSED = {
    "edge_attr": "features of edges are not used. Put one weight per edge into data.edge_weight, or set "
    "data.edge_attr = None to train without them",
    "adj_t": "a transposed adjacency is not read. Give data.edge_index",
    "batch": "it says that data holds several graphs, and graph-level tasks (one label per graph) are not supported: "
    "every node of one graph has its label",
}
"""Fields of a graph object that a GCN would leave out, and why."""


class GraphFields(NamedTuple):
    """What is read of a graph object; None where it has no such field."""

    x: Any
    edge_index: Any
    y: Any
    train_mask: Any
    val_mask: Any
    test_mask: Any
    n_classes: Any
    edge_weight: Any


def is_graph(data: Any) -> bool:
    """Whether data is a graph object, with nodes and edges in one; PyG's ``Data`` is callable besides."""
    return hasattr(data, "edge_index")


def graph_fields(data: Any, *, from_loader: bool = False) -> GraphFields:
    """The fields of a graph object; raises for what would be left out without a word.

    A batch ``from_loader`` may hold several graphs.
    """
    for name, why in UNUSED.items():
        if getattr(data, name, None) is not None and not (from_loader and name == "batch"):
            raise InputError(f"{name} of the graph: {why}.")
    found = GraphFields(*(getattr(data, name, None) for name in GraphFields._fields))
    missing = [name for name in ("x", "edge_index") if getattr(found, name) is None]
    if missing:
        raise InputError(f"the graph has no {' and no '.join(missing)}.")
    return found


def refuse_several_graphs(data: Any) -> None:
    """Raise where data is a collection of graphs or a graph of several kinds of nodes."""
    kind = type(data).__name__
    if any(each.__name__ == "HeteroData" for each in type(data).__mro__):
        raise InputTypeError(
            f"{kind} has several kinds of nodes and edges; convert it with data.to_homogeneous()."
        )
    if (
        is_graph(data)
        or hasattr(data, "shape")
        or not hasattr(data, "__getitem__")
        or not hasattr(data, "__len__")
    ):
        return
    if len(data) > 0 and not isinstance(data, (dict, str, bytes)) and is_graph(data[0]):
        remedy = (
            "give its graph, data[0]" if len(data) == 1 else "train on one graph with a label for every node"
        )
        raise InputTypeError(
            f"{kind} is a collection of {len(data)} graphs; graph-level tasks (one label per graph) are not supported: "
            f"{remedy}."
        )
