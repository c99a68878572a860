"""Data that stream into ``train``: every kind of source, memory, bad batches, what is refused."""

from __future__ import annotations

import resource

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from convergent import train
from dladmm import InputError, mlp
from dladmm.api import stream_batches
from dladmm.api.given import is_stream
from dladmm.api.stream_sources import DatasetSource, RowSource
from dladmm.base.errors import BatchError
from dladmm.engine.batches import default_batch_size, default_passes

N, WIDTH, CLASSES = 600, 8, 3


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    y = rng.integers(0, CLASSES, N)
    X = (rng.normal(size=(N, WIDTH)) + 4 * np.eye(CLASSES, WIDTH)[y]) * np.logspace(-1, 1, WIDTH)
    return X.astype(np.float32), y


def run(*data, model=None, **options):
    settings = {"mode": "streaming", "max_iter": 4, "device": "cpu"} | options
    return train(mlp([WIDTH, 16, CLASSES]) if model is None else model, *data, **settings)


def accuracy(result, rows):
    X, y = rows
    with torch.no_grad():
        return (result.module(torch.from_numpy(X)).argmax(1).numpy() == y).mean()


class Samples(Dataset):
    def __init__(self, X, y):
        self.X, self.y, self.read = X, y, []

    def __len__(self):
        return len(self.X)

    def __getitem__(self, i):
        self.read.append(i)
        return self.X[i], self.y[i]


class SampleByOne(IterableDataset):
    def __init__(self, X, y):
        self.X, self.y = X, y

    def __iter__(self):
        return zip(self.X, self.y, strict=True)


def unequal(X, y, sizes=(7, 40, 90, 3)):
    """Batches of unequal size, the last one short."""
    start, j = 0, 0
    while start < len(X):
        stop = start + sizes[j % len(sizes)]
        yield X[start:stop], y[start:stop]
        start, j = stop, j + 1


def mapped(X, folder):
    np.save(folder / "x.npy", X)
    return np.load(folder / "x.npy", mmap_mode="r")


KINDS = {
    "arrays": lambda X, y, folder: (X, y),
    "tensors": lambda X, y, folder: (torch.from_numpy(X), torch.from_numpy(y)),
    "pandas": lambda X, y, folder: (pd.DataFrame(X), pd.Series(y)),
    "sparse": lambda X, y, folder: (sparse.csr_matrix(X), y),
    "memmap": lambda X, y, folder: (mapped(X, folder), y),
    "tensor data set": lambda X, y, folder: (TensorDataset(torch.from_numpy(X), torch.from_numpy(y)),),
    "data set": lambda X, y, folder: (Samples(X, y),),
    "iterable data set": lambda X, y, folder: (SampleByOne(X, y),),
    "loader": lambda X, y, folder: (DataLoader(Samples(X, y), batch_size=32, shuffle=True),),
    "function": lambda X, y, folder: (lambda: unequal(X, y),),
    "list": lambda X, y, folder: (list(unequal(X, y)),),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_data_trains(rows, tmp_path, kind):
    result = run(*KINDS[kind](*rows, tmp_path))
    assert result.history.n_iter == 4
    assert accuracy(result, rows) > 0.93


@pytest.mark.parametrize("kind", ["arrays", "memmap", "sparse", "data set", "loader"])
def test_the_order_follows_the_seed_alone(rows, tmp_path, kind):
    def weights(seed):
        found = run(*KINDS[kind](*rows, tmp_path), random_state=seed, max_iter=2)
        return torch.cat([p.detach().flatten() for p in found.module.parameters()])

    outside = torch.get_rng_state()
    first = weights(0)
    torch.manual_seed(5)
    assert torch.equal(first, weights(0))
    assert not torch.equal(first, weights(1))
    torch.set_rng_state(outside)


def test_the_generator_of_the_program_is_left_alone(rows):
    before = torch.get_rng_state()
    run(*KINDS["loader"](*rows, None), max_iter=2)
    assert torch.equal(before, torch.get_rng_state())


def test_an_iterator_gives_one_pass(rows):
    result = train(mlp([WIDTH, 16, CLASSES]), unequal(*rows), mode="streaming", device="cpu")
    assert result.history.n_iter == 1
    assert accuracy(result, rows) > 0.85
    never = unequal(*rows)
    with pytest.raises(InputError, match=r"one pass, but max_iter=3 .* function that returns a new iterator"):
        run(never, max_iter=3)
    assert len(list(never)) == len(list(unequal(*rows))), "refused before anything was read"


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
def test_every_batch_of_an_iterator_is_used_once(rows, monkeypatch):
    """The first rows are read for scaling and monitoring, and learned from as well."""
    monkeypatch.setattr(stream_batches, "FIRST_ROWS", 100)
    seen = []
    step = "dladmm.engine.streaming.Streaming.step"
    monkeypatch.setattr(step, lambda self, batch: seen.append(len(batch.x)))
    run(unequal(*rows), max_iter=1)
    assert seen == [len(x) for x, _ in unequal(*rows)]


def test_a_stream_is_the_array_of_its_rows(rows):
    """One batch of all rows: the same run, from whichever door it comes."""
    X, y = rows
    options = {"max_iter": 3, "dropout": 0.0, "dtype": "float64"}
    whole = run(X, y, batch_size=N, **options)
    stream = run([(X, y)], **options)
    for a, b in zip(whole.module.parameters(), stream.module.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-11)


def test_weights_of_a_stream_count(rows):
    """A weight of two is a row twice: with one batch per pass, to rounding."""
    X, y = rows
    weight = np.where(y == 0, 2.0, 1.0)
    twice = np.concatenate([np.arange(N), np.flatnonzero(y == 0)])
    options = {"max_iter": 3, "dropout": 0.0, "dtype": "float64", "scale_inputs": False}
    options["regularizer"] = {"name": "l2", "strength": 3.0}
    scaled = X / np.abs(X).max(0)
    weighted = run([(scaled, y, weight)], **options)
    repeated = run([(scaled[twice], y[twice])], **options)
    plain = run([(scaled, y)], **options)

    def gap(first, second):
        pairs = zip(first.module.parameters(), second.module.parameters(), strict=True)
        return max(float((a - b).detach().abs().max()) for a, b in pairs)

    assert gap(weighted, repeated) < 1e-6
    assert gap(plain, repeated) > 1e-3


@pytest.mark.parametrize("penalty", ["l2", "l1", "non_negative"])
def test_penalties_hold_in_streams(rows, penalty):
    spec = penalty if penalty == "non_negative" else {"name": penalty, "strength": 20.0}
    found = run(lambda: unequal(*rows), regularizer=spec)
    free = run(lambda: unequal(*rows), regularizer=None)
    W = found.state.params[0]["W"]
    if penalty == "non_negative":
        assert bool((W >= 0).all())
    elif penalty == "l1":
        assert int((W == 0).sum()) > int((free.state.params[0]["W"] == 0).sum())
    else:
        assert float(W.norm()) < 0.95 * float(free.state.params[0]["W"].norm())


def test_a_memmap_is_read_where_it_lies(rows, tmp_path):
    source = RowSource(mapped(rows[0], tmp_path), rows[1], None, 50, seed=3)
    batches = list(source.one_pass(0))
    assert len(batches) == 12
    assert all(len(x) == 50 for x, _, _ in batches)
    x = torch.cat([x for x, _, _ in batches]).numpy()
    assert np.array_equal(np.sort(x[:, 0]), np.sort(rows[0][:, 0])), "every row once"
    assert not np.array_equal(x, rows[0]), "shuffled"
    later = torch.cat([x for x, _, _ in source.one_pass(1)]).numpy()
    assert not np.array_equal(x, later), "anew for every pass"
    resumed = list(source.one_pass(1, skip=5))
    assert torch.equal(torch.cat([x for x, _, _ in resumed]), torch.from_numpy(later[250:]))


def test_a_data_set_is_asked_for_the_samples_of_a_batch_only(rows):
    data = Samples(*rows)
    next(iter(DatasetSource(data, 20, seed=0).one_pass(0)))
    assert len(data.read) == 20


BAD = {
    "NaN": (lambda x, y: (np.full_like(x, np.nan), y), "NaN or infinite"),
    "width": (lambda x, y: (x[:, :5], y), "5 features, but the network's first layer takes 8"),
    "class": (lambda x, y: (x, y + 7), "batch 3 of pass 1: .*class"),
    "empty": (lambda x, y: (x[:0], y[:0]), "empty"),
    "lengths": (lambda x, y: (x, y[:-1]), "rows"),
    "alone": (lambda x, y: x, r"must be \(x, y\)"),
    "dict": (lambda x, y: {"x": x}, r"must be \(x, y\) or \(x, y, weight\), got dict"),
    "negative weight": (lambda x, y: (x, y, -np.ones(len(x))), "positive"),
}


@pytest.mark.parametrize("when", ["first rows", "later"])
@pytest.mark.parametrize("fault", BAD)
def test_a_bad_batch_is_named(rows, monkeypatch, fault, when):
    if when == "later":
        monkeypatch.setattr(stream_batches, "FIRST_ROWS", 20)
    spoil, message = BAD[fault]

    def batches():
        for j, (x, y) in enumerate(unequal(*rows, sizes=(20,))):
            yield spoil(x, y) if j == 2 else (x, y)

    with pytest.raises(BatchError, match="batch 3 of pass 1: ") as caught:
        run(batches)
    assert caught.match(message)
    assert caught.match("Mend or leave out")


def test_a_function_must_return_a_new_iterable(rows):
    same = unequal(*rows)
    with pytest.raises(BatchError, match=r"pass 2 brought no batch: .* new iterable each time"):
        run(lambda: same)
    with pytest.raises(InputError, match="brought no batch"):
        run(lambda: iter(()))
    with pytest.raises(BatchError, match=r"X\(\) must return an iterable of batches, got int"):
        run(lambda: 3)


REFUSED = {
    "compile": {"compile": True},
    "rho": {"rho": 1.0},
    "nu": {"nu": 1.0},
    "preset": {"preset": "paper"},
    "prox": {"prox": "fista"},
    "method": {"method": lambda engine, state: None},
    "w_solver": {"w_solver": "quadratic"},
    "damping": {"damping": 0.7},
    "target_mask": {"target_mask": np.ones(N)},
    "sample_weight": {"sample_weight": np.ones(N)},
    "y": {"y": np.zeros(N)},
    "batch_size": {"batch_size": 10},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_streamed_is_refused_by_name_before_anything_is_read(rows, name):
    def batches():
        raise AssertionError("read")
        yield

    with pytest.raises(InputError, match=name):
        run(batches, **REFUSED[name])


def test_a_stream_needs_the_mode(rows):
    with pytest.raises(InputError, match="mode='streaming'"):
        train(mlp([WIDTH, CLASSES]), DataLoader(Samples(*rows)))
    with pytest.raises(InputError, match="y is missing"):
        run(rows[0])


def test_what_is_a_stream():
    assert all(map(is_stream, (iter(()), [(1, 2)], lambda: [], Samples([], []))))
    assert not any(
        map(is_stream, (np.zeros(2), [[1, 2]], torch.zeros(2), "text", lambda rank, world: None, {}))
    )


def test_images_from_a_loader():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 200)
    X = (rng.normal(size=(200, 1, 8, 8)) + y[:, None, None, None]).astype(np.float32)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    data = TensorDataset(torch.from_numpy(X), torch.from_numpy(y))
    run(DataLoader(data, batch_size=32, drop_last=False), model=model, max_iter=2)
    assert (model(torch.from_numpy(X)).argmax(1).numpy() == y).mean() > 0.95


def test_default_passes():
    for n_rows in (20, 150, 1000, 5000, 20_000, 49_999):
        steps = round(n_rows / default_batch_size(n_rows, convolutions=False)) or 1
        passes = default_passes(steps, n_rows)
        assert 20 <= passes <= 100
        assert passes in (20, 100) or 300 <= passes * steps < 300 + steps


@pytest.mark.slow
def test_a_million_rows_in_little_memory():
    """10^6 x 100 generated rows (400 MB): memory grows by a quarter of that at most, and all are learnt from."""
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(100, 6)).astype(np.float32) / 10, rng.normal(size=(6, 5))

    def labelled(n_rows, seed):
        X = np.random.default_rng(seed).standard_normal((n_rows, 100), dtype=np.float32)
        return X, (np.tanh(3 * X @ first) @ second).argmax(1)

    def batches():
        for j in range(1000):
            yield labelled(1000, j + 1)

    X, y = labelled(4000, 10_001)

    def score(result):
        with torch.no_grad():
            return (result.module(torch.from_numpy(X)).argmax(1).numpy() == y).mean()

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = score(train(mlp([100, 50, 5]), batches(), mode="streaming", device="cpu"))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 1e8
    assert found > 0.85  # 20,000 of the rows, all in memory: 0.79
