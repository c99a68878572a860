"""What the processes of the pool do in tests/compute/test_distributed.py."""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from scipy import sparse
from torch import nn
from traffic_model import iteration_traffic

from convergent import train, train_graph
from dladmm import Chain, GCNClassifier, MLPClassifier, MLPRegressor, Recurrent, datasets, mlp
from dladmm.api import same_on_ranks
from dladmm.base.history import Status
from dladmm.blocks import Affine, Elementwise
from dladmm.callbacks import Callback, Checkpoint
from dladmm.callbacks.traffic_log import TrafficLog
from dladmm.compute.halo import halo_matrix
from dladmm.compute.partition import partitioned
from dladmm.distributed import current, share
from dladmm.engine.options import make_options
from dladmm.network.graph_part import GraphPart
from graph_problems import random_graph
from own_gain import Gain


def data(n_rows=61, n_in=5, seed=0, loss="cross_entropy"):
    """Rows of three classes with unequal units, so that scaling has something to do."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n_rows)
    y[:3] = (0, 1, 2)
    X = (rng.normal(size=(n_rows, n_in)) + 2 * np.eye(3, n_in)[y]) * np.logspace(-1, 1, n_in) + 0.3
    return (X, y) if loss in ("cross_entropy", "squared_hinge") else (X, rng.normal(size=(n_rows, 3)))


def told(result, comm=None):
    """Everything of a result that must be the same on all ranks, and the rank's own rows."""
    state = result.state
    return {
        "params": [p.numpy().copy() for block in state.params for p in block.values()],
        "module": [p.detach().numpy().copy() for p in result.module.parameters()],
        "history": result.history.to_dict(),
        "certificate": result.certificate.to_dict(),
        "status": result.status.name,
        "rows": [v.numpy().copy() for v in (*state.outputs, *state.predictions, state.u)],
        "traffic": None if comm is None else (comm.traffic.calls, comm.traffic.bytes),
    }


def quietly(function, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **kwargs)


def trained(comm, settings, n_rows=61, hidden=(7, 6)):
    """A run on arrays that every rank has whole."""
    settings = {"max_iter": 4, "dtype": "float64", "eps_abs": 0.0, "eps_rel": 0.0} | settings
    X, y = data(n_rows, loss=settings.get("loss", "cross_entropy"))
    if settings.pop("weighted", False):
        settings["sample_weight"] = np.random.default_rng(1).uniform(0.5, 2, n_rows)
    if settings.pop("masked", False):
        settings["target_mask"] = np.arange(n_rows) % 3 > 0
    validation = (X[: n_rows // 3], y[: n_rows // 3])
    if settings.pop("mapped", False):
        X = mapped(X)
    chain = mlp([X.shape[1], *hidden, 3], settings.pop("activation", "relu"))
    return told(quietly(train, chain, X, y, validation=validation, communicator=comm, **settings), comm)


def mapped(X):
    """The array in a file, read in chunks where max_memory is given."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.npy"
        np.save(path, X)
        return np.load(path, mmap_mode="r")


def trained_many(comm, cases):
    """Several runs in one order: what takes time is starting, not running."""
    return {name: trained(comm, settings, **more) for name, (settings, more) in cases.items()}


def trained_on_own_rows(comm, cuts):
    """Every rank brings its own rows, as unevenly as ``cuts`` says; some bring none."""
    X, y = data()
    bounds = [0, *cuts, len(X)]

    def shard(rank, world):
        rows = slice(bounds[rank], bounds[rank + 1]) if world > 1 else slice(None)
        return X[rows], y[rows]

    settings = {"max_iter": 5, "dtype": "float64", "mode": "accelerated", "communicator": comm}
    return told(quietly(train, mlp([5, 7, 3]), shard, validation=shard, **settings))


def trained_on_the_default_group(comm):
    """The process group that is there is picked up."""
    X, y = data()
    assert current().size == comm.size
    return told(train(mlp([5, 7, 3]), X, y, max_iter=3, dtype="float64"))


def told_differently(comm, what):
    """The last rank is told something else than the others."""
    X, y = data()
    other = comm.rank == comm.size - 1
    changes = {
        "rho": {"rho": 7.0},
        "loss": {"loss": "squared_hinge"},
        "activation": {"model": mlp([5, 4, 3], "tanh")},
        "widths": {"model": mlp([5, 6, 3])},
        "max_iter": {"max_iter": 4},
        "regularizer": {"regularizer": {"name": "l2", "strength": 0.5}},
        "mode": {"mode": "accelerated"},
        "version": {},
        "nothing": {"rho": None},
    }[what]
    settings = {"model": mlp([5, 4, 3]), "max_iter": 2} | (changes if other else {})
    held = same_on_ranks.__version__
    same_on_ranks.__version__ = "99.0" if other and what == "version" else held
    try:
        return told(quietly(train, X=X, y=y, communicator=comm, **settings))["status"]
    finally:
        same_on_ranks.__version__ = held


def told_differently_of_a_graph(comm):
    """The last rank is told of other hidden layers."""
    graph = datasets.load("karate")
    hidden = (6,) if comm.rank == comm.size - 1 else (4,)
    return quietly(train_graph, graph, hidden=hidden, max_iter=2, communicator=comm).status.name


def given_other_arrays(comm):
    X, y = data(seed=comm.rank)
    train(mlp([5, 7, 3]), X, y, communicator=comm)


def refused_by_one(comm):
    X, y = data()

    def shard(rank, world):
        bad = X[share(len(X), rank, world)].copy()
        if rank == 1:
            bad[0, 0] = np.nan
        return bad, y[share(len(X), rank, world)]

    train(mlp([5, 7, 3]), shard, communicator=comm)


def refused(comm, what):
    """Things that several ranks cannot do, each refused before any work."""
    X, y = data()
    settings = {"communicator": comm, "max_iter": 2}
    if what == "own loss":
        train(mlp([5, 7, 3]), X, X[:, :3], loss=lambda z, t: (z - t).square().sum(1), **settings)
    elif what == "baseline":
        from dladmm import baselines

        baselines.train("adam", mlp([5, 7, 3]), X, y, **settings)
    elif what == "one class":
        train(mlp([5, 7, 3]), X, np.zeros(len(X), int), **settings)
    elif what == "no rows":
        train(mlp([5, 7, 3]), lambda rank, world: (X[:0], y[:0]), **settings)


class SpoilsOneRank(Callback):
    """Makes a variable of one rank NaN after the second iteration."""

    def on_epoch_end(self, trainer):
        if trainer.comm.rank == 1 and trainer.history.n_iter == 2:
            trainer.state.predictions[0][0, 0] = torch.nan


class RoundsOtherwise(Callback):
    """As a processor of another kind would: one parameter of one rank one unit in the last place off."""

    def on_epoch_end(self, trainer):
        if trainer.comm.rank == 1:
            W = trainer.state.W[0]
            W[0, 0] = torch.nextafter(W[0, 0], W[0, 0] + 1)


class StopsOneRank(Callback):
    def on_epoch_end(self, trainer):
        if trainer.comm.rank == 2 and trainer.history.n_iter == 3:
            trainer.request_stop(Status.INTERRUPTED)


def trained_with(comm, callback):
    X, y = data()
    settings = {"max_iter": 6, "dtype": "float64", "eps_abs": 0.0, "eps_rel": 0.0}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = train(mlp([5, 7, 3]), X, y, callbacks=[callback()], communicator=comm, **settings)
    return told(result) | {"warnings": [str(w.message) for w in said]}


class DiesAt(Callback):
    """Ends a rank's run as an error of its own would."""

    def __init__(self, iteration):
        self.iteration = iteration

    def on_epoch_end(self, trainer):
        if trainer.history.n_iter == self.iteration:
            raise MemoryError("as if")


def checkpointed(comm, folder, mode, stop=None, resume=False, max_iter=7):
    """A run that saves at every second iteration; with ``stop`` all its ranks end there."""
    X, y = data()
    callbacks = [Checkpoint(folder, every=2, resume=resume)] + ([DiesAt(stop)] if stop else [])
    settings = {"max_iter": max_iter, "dtype": "float64", "eps_abs": 0.0, "eps_rel": 0.0, "mode": mode}
    try:
        result = train(mlp([5, 7, 3]), X, y, callbacks=callbacks, communicator=comm, **settings)
    except MemoryError:
        return sorted(path.name for path in Path(folder).iterdir())
    return told(result) | {"resumed": str(callbacks[0].resumed_from)}


def counted(comm, settings, n_rows):
    """What the iterations of a run told, and what the formula says they tell."""
    settings = {"max_iter": 6, "diagnostics_every": 100, "eps_abs": 0.0, "eps_rel": 0.0} | settings
    X, y = data(n_rows)
    chain, log, refusals = mlp([5, 7, 6, 3]), TrafficLog(), Refusals()
    quietly(train, chain, X, y, communicator=comm, callbacks=[log, refusals], **settings)
    dtype = getattr(torch, settings.pop("dtype", "float32"))
    penalty = settings.pop("regularizer", "auto")
    options = make_options(**settings)
    formula = [
        iteration_traffic(
            chain,
            options,
            options.penalty(penalty),
            n_rows,
            dtype,
            attempts=attempts,
            dropping=int(options.dropout > 0),
        )
        for attempts in refusals.attempts
    ]
    told = [(t.calls, t.bytes) for t in log.iterations]
    return told, [(t.calls, t.bytes) for t in formula], refusals.attempts


class Refusals(Callback):
    """How many attempts each iteration took."""

    def on_train_begin(self, trainer):
        self.attempts, self._before = [], 0

    def on_epoch_end(self, trainer):
        refused = getattr(trainer.method, "refused", 0)
        self.attempts.append(1 + refused - self._before)
        self._before = refused


class Fails(Callback):
    """One rank dies or hangs in the middle of a run."""

    def __init__(self, how):
        self.how = how

    def on_epoch_end(self, trainer):
        if trainer.comm.rank == 1 and trainer.history.n_iter == 3:
            if self.how == "dies":
                os._exit(9)
            time.sleep(30)


def failing(comm, how):
    X, y = data()
    train(mlp([5, 7, 3]), X, y, callbacks=[Fails(how)], communicator=comm, max_iter=1000)


class Nodes(Callback):
    """Whose rows a rank has, in the order it has them."""

    def on_train_begin(self, trainer):
        shards = trainer.engine.shards
        self.nodes = np.arange(len(trainer.state.u)) if shards is None else shards.nodes.numpy().copy()


def graph_trained(comm, settings, n_nodes=40, folder=None, stop=None):
    """A GCN on a random graph that every rank has whole."""
    rng = np.random.default_rng(3)
    pairs, x, y, labelled = random_graph(rng, n_nodes, 6, 3)
    y[:2], labelled[-1] = (0, 1), False
    settings = {"max_iter": 3, "dtype": "float64", "eps_abs": 0.0, "eps_rel": 0.0, "hidden": (5,)} | settings
    if settings.pop("sparse", False):
        x = sparse.csr_array(x * (rng.random(x.shape) < 0.1))
    callbacks = [nodes := Nodes()]
    if folder is not None:
        callbacks += [Checkpoint(folder, every=2, resume=True)] + ([DiesAt(stop)] if stop else [])
    try:
        result = quietly(
            train_graph, x, pairs.T, y, labelled, validation=~labelled, communicator=comm, callbacks=callbacks,
            **settings,
        )  # fmt: skip
    except MemoryError:
        return None
    return told(result, comm) | {"nodes": nodes.nodes}


def graphs_trained(comm, cases):
    return {name: graph_trained(comm, *case) for name, case in cases.items()}


def halo_products(comm, n_nodes, owner=None):
    """M V, M^T G and both of some rows: this rank's parts, beside the whole ones."""
    rng = np.random.default_rng(n_nodes)
    matrix = sparse.csr_array(sparse.random_array((n_nodes, n_nodes), density=0.2, rng=rng))  # not symmetric
    matrix = sparse.csr_array(matrix + sparse.eye_array(n_nodes))
    V, G = (torch.from_numpy(rng.normal(size=(n_nodes, 3))) for _ in range(2))
    found = partitioned(matrix, comm, owner)
    mine = torch.from_numpy(found.nodes(comm.rank))
    made = halo_matrix(matrix, found, comm, torch.float64, torch.device("cpu"))
    some = torch.arange(0, len(mine), 2)
    marked = torch.zeros(n_nodes, dtype=torch.bool)
    marked[mine[some]] = True
    (everywhere,) = comm.total(marked.double())
    dense = torch.from_numpy(matrix.toarray())
    kept = everywhere > 0
    pairs = [
        (made @ V[mine], (dense @ V)[mine]),
        (made.T @ G[mine], (dense.T @ G)[mine]),
        (made.select(some) @ V[mine], (dense @ V)[mine[some]]),
        (made.select(some).T @ G[mine[some]], (dense.T @ (G * kept[:, None]))[mine]),
        (made.select(some, some).T @ G[mine[some]], (dense.T @ (G * kept[:, None]))[mine[some]]),
    ]
    return [(a.numpy(), b.numpy()) for a, b in pairs], str(found), made.shape


NETWORKS = {
    "convolutions": lambda: nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 2), nn.Tanh(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3),
    ),
    "a module of one's own": lambda: nn.Sequential(nn.Flatten(), Gated(), nn.Linear(6, 3)),
    "a norm of the batch": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
    ),
    "recurrent": lambda: nn.Sequential(Recurrent(nn.RNN(8, 5, batch_first=True)), nn.Linear(5, 3)),
}  # fmt: skip


class Gated(nn.Module):
    """Not linear in its parameters, and unknown to the library."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(64, 6), nn.Linear(64, 6)

    def forward(self, v):
        return torch.tanh(self.a(v)) * torch.sigmoid(self.b(v))


def network_trained(comm, name, settings, n_rows=33):
    """A network of other blocks than an MLP's, on small images."""
    rng = np.random.default_rng(5)
    y = np.arange(n_rows) % 3
    X = rng.normal(size=(n_rows, 1, 8, 8)) + y[:, None, None, None]
    X = X[:, 0] if name == "recurrent" else X
    settings = {"max_iter": 3, "dtype": "float64", "eps_abs": 0.0, "eps_rel": 0.0} | settings
    return told(quietly(train, NETWORKS[name](), X, y, communicator=comm, **settings))


def own_block_trained(comm, settings, n_rows=33):
    """A chain with a block that the library does not know."""
    X, y = data(n_rows)
    settings = {"max_iter": 3, "dtype": "float64", "eps_abs": 0.0, "eps_rel": 0.0} | settings
    if settings.pop("weighted", False):
        settings["sample_weight"] = np.random.default_rng(1).uniform(0.5, 2, n_rows)
    chain = Chain([Affine(5, 6), Gain(6), Elementwise("relu"), Affine(6, 3)])
    return told(quietly(train, chain, X, y, communicator=comm, **settings))


def networks_trained(comm, cases):
    return {case: network_trained(comm, *settings) for case, settings in cases.items()}


def estimators_fitted(comm):
    """scikit-learn's interface on the default group; without a seed rank 0's is taken."""
    assert current().size == comm.size
    X, y = data()
    names = np.array(["a", "b", "c"])[y]
    classifier = quietly(MLPClassifier((6,), max_iter=4).fit, X, names)
    regressor = quietly(MLPRegressor((6,), max_iter=4, random_state=1).fit, X, X[:, :2])
    graph = quietly(GCNClassifier((6,), max_iter=3, random_state=0).fit, datasets.load("karate"))
    return [*classifier.coefs_, *regressor.coefs_, *(p.detach().numpy() for p in graph.module_.parameters())]


def graph_in_parts(comm, mode, spoil=None):
    """The same graph, of which every rank brings its own nodes and the edges that touch them."""
    rng = np.random.default_rng(3)
    pairs, x, y, labelled = random_graph(rng, 40, 6, 3)
    y[:2] = (0, 1)
    owner = np.random.default_rng(0).integers(0, comm.size, 40)
    if comm.size == 4:
        owner[owner == 2] = 3  # a rank without nodes

    def part(rank, world):
        mine = owner == rank
        touching = mine[pairs].any(1)
        if spoil == "edges" and rank == 0:
            touching[:10] = False
        return GraphPart(
            owner, pairs[touching].T, x[mine], y[mine], labelled[mine], n_classes=3, test_mask=~labelled[mine]
        )

    settings = {
        "max_iter": 3,
        "dtype": "float64",
        "eps_abs": 0.0,
        "eps_rel": 0.0,
        "hidden": (5,),
        "mode": mode,
    }
    nodes = Nodes()
    common = {"callbacks": [nodes], "communicator": comm, **settings}
    whole = quietly(train_graph, x, pairs.T, y, labelled, validation=~labelled, partition=owner, **common)
    parts = quietly(train_graph, part, validation="test", **common)
    return told(whole), told(parts) | {"nodes": nodes.nodes}


class Skip(nn.Module):
    """A residual block with a normalisation, which no chain is made of."""

    def __init__(self, norm):
        super().__init__()
        self.first, self.inner, self.head = nn.Linear(5, 7), nn.Linear(7, 7), nn.Linear(7, 3)
        self.norm = norm(7)

    def forward(self, v):
        v = self.first(v)
        return self.head(v + torch.tanh(self.inner(self.norm(v))))


def streamed(comm, kind, settings=None, until=None):
    """A streaming run: arrays that every rank has whole, or a stream of each rank's own batches."""
    X, y = data(240)
    mine = slice(comm.rank, None, comm.size)

    def batches():
        own_x, own_y = X[mine], y[mine]
        size = -(-24 // comm.size)
        last = len(own_x) if until is None else until[comm.rank % len(until)]
        for start in range(0, last, size):
            yield own_x[start : start + size], own_y[start : start + size]

    given = {"arrays": (X, y), "function": (batches,), "ranks": (lambda rank, world: batches,)}[kind]
    options = {"mode": "streaming", "max_iter": 3, "dtype": "float64", "dropout": 0.0} | (settings or {})
    torch.manual_seed(0)
    norm = options.pop("norm", None)
    network = mlp([5, 7, 3]) if norm is None else Skip(getattr(nn, norm))
    result = train(network, *given, validation=(X[:30], y[:30]), communicator=comm, **options)
    return told(result)


class StopOnOneRank(Callback):
    """Asks to stop in the middle of the second pass, on the last rank only."""

    def on_batch_end(self, trainer):
        if (
            trainer.comm.rank == trainer.comm.size - 1
            and trainer.passes.finished == 1
            and trainer.passes.batch == 6
        ):
            trainer.request_stop(Status.EARLY_STOPPED)


def streamed_and_stopped(comm, folder, stop):
    X, y = data(240)
    callbacks = [Checkpoint(folder, resume=True, every_seconds=1e6), *([StopOnOneRank()] if stop else [])]
    options = {
        "mode": "streaming",
        "max_iter": 3,
        "batch_size": 24,
        "callbacks": callbacks,
        "dtype": "float64",
    }
    return told(train(mlp([5, 7, 3]), X, y, communicator=comm, **options))


def streamed_with_a_bad_batch(comm):
    X, y = data(240)

    def batches():
        for j in range(10):
            x = X[24 * j : 24 * (j + 1)]
            yield (np.full_like(x, np.nan) if j == 5 and comm.rank == 1 else x), y[24 * j : 24 * (j + 1)]

    train(mlp([5, 7, 3]), batches, mode="streaming", max_iter=2, communicator=comm)
