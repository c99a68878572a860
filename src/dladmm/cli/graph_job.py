"""A GCN on a graph as a run of the command line."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dladmm.api.train_graph import train_graph
from dladmm.callbacks import Callback
from dladmm.cli.measures import of_test_rows
from dladmm.cli.run_config import RunConfig
from dladmm.cli.run_data import load_graph
from dladmm.cli.run_job import Job, announce, mode_words
from dladmm.compute.communicator import Communicator
from dladmm.compute.partition import partitioned
from dladmm.datasets import GraphData
from dladmm.losses import get_loss
from dladmm.network.graph import normalised_adjacency
from dladmm.training.result import Result
from dladmm.training.standing import Standing


def prepared_graph(config: RunConfig, found: RunConfig, comm: Communicator) -> GraphJob:
    """Load the graph, from the paths of ``found``, and decide what is "auto" in ``config``."""
    with comm.together():
        graph = load_graph(found)
    mode, dtype = config.mode, "float32" if config.dtype == "auto" else config.dtype
    if mode == "auto":
        mode = "streaming" if config.preset == "default" else "convergent"
    loss = config.loss or "cross_entropy"
    decided = replace(config, mode=mode, dtype=dtype, task="classification", loss=loss)
    return GraphJob(decided, config.mode, comm, graph)


@dataclass(frozen=True)
class GraphJob(Job):
    """A GCN on a graph."""

    data: GraphData

    @property
    def arrays(self) -> dict[str, Any]:
        graph = self.data
        # Sparse features have the fingerprint of dense ones, and Coauthor Physics would take 1.2 GB
        x = graph.x.to_dense().numpy() if isinstance(graph.x, torch.Tensor) else graph.x
        named = {"x": x, "edge_index": np.asarray(graph.edge_index), "y": np.asarray(graph.y)}
        named["train_mask"] = np.asarray(graph.train_mask)
        own = self.comm.rank == 0  # every rank has the whole graph
        return named if own else {name: array[:0] for name, array in named.items()}

    @property
    def extra(self) -> dict[str, Any]:
        return {"classes": list(range(self.data.n_classes))}

    @property
    def _widths(self) -> list[int]:
        return [self.data.n_features, *self.config.widths, self.data.n_classes]

    def announce(self, folder: Path) -> None:
        memory = graph_bytes(self._widths, -(-self.data.n_nodes // self.comm.size), self.config.dtype)
        mode = mode_words(self.config, self.asked, self.data.n_nodes)
        announce(self.config, repr(self.data), self._widths, memory, folder, mode=mode)

    def fit(self, callbacks: list[Callback]) -> Result:
        config, data, comm, partition = self.config, self.data, self.comm, None
        if not comm.alone:
            found = partitioned(normalised_adjacency(data.edge_index, data.n_nodes), comm)
            partition = found.owner
            if comm.rank == 0:
                print(f"partition  {found}", file=sys.stderr, flush=True)
        return train_graph(
            data,
            hidden=config.widths,
            activation=config.activation,
            rows=config.rows,  # type: ignore[arg-type]  # checked there
            loss=str(config.loss),
            regularizer=config.penalty(),
            validation="test" if bool(data.test_mask.any()) else None,
            random_state=config.seed,
            device=config.device,
            dtype=config.dtype,
            callbacks=callbacks,
            communicator=comm,
            partition=partition,
            **config.options(),
        )

    def standing(self, result: Result) -> Standing | None:
        found = result.standing
        if found is None:
            return None
        names = {"held-out rows": "test nodes", "training rows": "labelled nodes"}
        rows = found.rows
        for word, better in names.items():
            rows = rows.replace(word, better)
        return replace(found, rows=rows)

    def tested(self, result: Result) -> dict[str, Any] | None:
        loss = get_loss(str(self.config.loss))
        return of_test_rows(result.module, self.data, loss) if self.comm.alone else None


def graph_bytes(widths: list[int], n_rows: int, dtype: str) -> float:
    """Estimated bytes: input, z, a and predictions of every layer, temporaries of the widest, float64 Gram matrices."""
    size = 8 if dtype == "float64" else 4
    per_row = widths[0] + 4 * sum(widths[1:-1]) + 4 * widths[-1] + 3 * max(widths)
    grams = 3 * max(widths) ** 2 * 8 + sum(w**2 for w in widths[:-1]) * 8
    return float(n_rows * per_row * size + grams)
