"""Ten silos with one class each train the network that all rows together train."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from dladmm import mlp, train
from dladmm.compute.communicator import DistributedError
from dladmm.silos import Hub, Silo, SiloError, run_silos, smallest_silo, train_silo

# Silos are threads, and filters of warnings are not theirs alone
pytestmark = pytest.mark.filterwarnings("ignore")

WIDTHS = [64, 12, 10]


def digits(n_rows=600):
    X, y = load_digits(return_X_y=True)
    # Rows of a silo lie side by side: those of the pool in that order
    order = np.argsort(y[:n_rows], kind="stable")
    return X[:n_rows][order] / 16, y[:n_rows][order]


def silos_of(parts, settings=None, hub=None, **options):
    """The results of all silos; ``parts`` are (X, y) or (X, y, weight), ``held`` their validation rows."""
    held = options.pop("held", [None] * len(parts))

    def task(part, own):
        def run(silo):
            given = dict(zip(("X", "y", "sample_weight"), part, strict=False))
            return train_silo(silo, mlp(WIDTHS), validation=own, smallest=1, **given, **options), silo

        return run

    tasks = [task(part, own) for part, own in zip(parts, held, strict=True)]
    found = run_silos(tasks, hub=hub, patience=300, **(settings or {}))
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found


def by_class(X, y):
    return [(X[y == k], y[y == k]) for k in range(10)]


def furthest(one, other):
    """The distance of the parameters, relative to their length."""
    mine, theirs = (torch.nn.utils.parameters_to_vector(r.module.parameters()) for r in (one, other))
    return float(((mine - theirs).norm() / theirs.norm()).detach())


@pytest.mark.slow  # twenty iterations of ten silos: the issue's own size
@pytest.mark.parametrize(("mode", "dtype", "close"), [
    ("convergent", "float32", 1e-5),
    ("accelerated", "float32", 1e-5),
    ("accelerated", "float64", 1e-10),
])  # fmt: skip
def test_one_class_each(mode, dtype, close):
    X, y = digits()
    pooled = train(mlp(WIDTHS), X, y, mode=mode, dtype=dtype, max_iter=20)
    found = silos_of(by_class(X, y), mode=mode, dtype=dtype, max_iter=20)
    assert furthest(found[0][0], pooled) < close
    rows = torch.tensor(X, dtype=getattr(torch, dtype))
    with torch.no_grad():
        assert torch.equal(found[0][0].module(rows).argmax(1), pooled.module(rows).argmax(1))
    for result, _ in found[1:]:
        pairs = zip(result.module.parameters(), found[0][0].module.parameters(), strict=True)
        assert all(torch.equal(p, q) for p, q in pairs)


def test_streaming_is_the_same_too():
    X, y = digits(200)
    parts = [(X[k::2], y[k::2]) for k in range(2)]
    settings = {"mode": "streaming", "dtype": "float64", "max_iter": 2, "batch_size": 50}
    (one, _), (other, _) = silos_of(parts, **settings)
    pairs = zip(one.module.parameters(), other.module.parameters(), strict=True)
    assert all(torch.equal(p, q) for p, q in pairs)
    pooled = train(mlp(WIDTHS), X, y, **settings)
    assert one.history.last("train_accuracy") > 0.5
    assert one.history.last("train_accuracy") == pytest.approx(
        pooled.history.last("train_accuracy"), abs=0.15
    )


def test_uneven_empty_and_single_row_silos_with_weights_and_validation():
    X, y = digits(160)
    weight = np.linspace(0.2, 2.0, len(y))
    cuts = [slice(0, 1), slice(1, 1), slice(1, 40), slice(40, 160)]
    parts = [(X[cut], y[cut], weight[cut]) for cut in cuts]
    held_X, held_y = X[::3], y[::3]
    held = [(held_X[a:b], held_y[a:b]) for a, b in ((0, 5), (5, 5), (5, 30), (30, 54))]
    settings = {"mode": "convergent", "dtype": "float64", "max_iter": 4}
    (result, _), *_ = silos_of(parts, held=held, **settings)
    pooled = train(mlp(WIDTHS), X, y, sample_weight=weight, validation=(held_X, held_y), **settings)
    assert furthest(result, pooled) < 1e-10
    for name in ("val_loss", "val_accuracy", "loss", "lagrangian", "stationarity"):
        assert result.history.last(name) == pytest.approx(pooled.history.last(name), rel=1e-8), name


def test_half_of_a_gram_matrix_and_fewer_bits_travel():
    X, y = digits(120)
    parts = [(X[k::2], y[k::2]) for k in range(2)]
    sent, networks = {}, {}
    for precision in ("exact", "float32", "bfloat16"):
        settings, hub = {"precision": precision}, Hub(2)
        (networks[precision], silo), (_, other) = silos_of(
            parts, settings, hub=hub, mode="convergent", max_iter=3
        )
        sent[precision] = silo.traffic.bytes
        assert hub.traffic.bytes == sum(each.traffic.bytes + each.received for each in (silo, other))
    assert sent["exact"] > 1.05 * sent["float32"] > 1.3 * sent["bfloat16"]
    assert furthest(networks["float32"], networks["exact"]) < 1e-4
    assert 1e-5 < furthest(networks["bfloat16"], networks["exact"]) < 1


def test_a_small_silo_is_refused_unless_the_rule_is_lowered():
    X, y = digits(200)
    assert smallest_silo(mlp(WIDTHS)) == 66
    assert smallest_silo(torch.nn.Sequential(torch.nn.Linear(7, 30), torch.nn.Linear(30, 2))) == 32

    def task(rows):
        return lambda silo: train_silo(silo, mlp(WIDTHS), X[rows], y[rows], max_iter=1, **settings)

    settings = {}

    with pytest.raises(SiloError, match=r"silo 1 failed.*this silo has 65 rows.*at least 66"):
        run_silos([task(slice(0, 66)), task(slice(66, 131))], patience=20)
    with pytest.raises(SiloError, match="needs rows on every rank"):
        run_silos([task(slice(0, 66)), task(slice(0, 0))], patience=20)
    settings["mode"] = "accelerated"
    found = run_silos([task(slice(0, 66)), task(slice(66, 132)), task(slice(0, 0))])
    assert not any(isinstance(one, BaseException) for one in found)


def test_noise_is_added_to_matrices_and_its_price_is_seen():
    X, y = digits(200)
    parts = [(X[k::2], y[k::2]) for k in range(2)]
    exact, some, more = (
        silos_of(parts, {"noise": noise}, mode="convergent", max_iter=3, dtype="float64")[0][0]
        for noise in (0.0, 1e-4, 1e-1)
    )
    assert 1e-7 < furthest(some, exact) < furthest(more, exact)


def test_noise_is_of_the_size_of_matrices_and_keeps_them_symmetric():
    silo = Silo.__new__(Silo)
    silo.noise, silo._random = 0.1, torch.Generator().manual_seed(0)
    gram, vector, whole = torch.full((60, 60), 4.0), torch.ones(5), torch.ones(2, 2, dtype=torch.int64)
    found = silo._blurred(gram, True)
    assert torch.equal(found, found.T)
    assert float((found - gram).std()) == pytest.approx(0.4, rel=0.1)
    assert silo._blurred(vector, False) is vector
    assert silo._blurred(whole, False) is whole


def test_settings_that_differ_are_named():
    X, y = digits(200)

    def task(rho):
        return lambda silo: train_silo(silo, mlp(WIDTHS), X, y, max_iter=1, rho=rho)

    with pytest.raises(SiloError, match="rho must be the same on all 2 ranks"):
        run_silos([task(1.0), task(2.0)])
    with pytest.raises(DistributedError, match=r"silo 1 failed: .*model must be"):
        run_silos([task(1.0), lambda silo: train_silo(silo, "no network", X, y)])
