"""Targets of any unit, in every mode and for every regression loss: prices gave an R^2 of -5 with Huber's loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from convergent import train
from dladmm import InputError, MLPRegressor, mlp

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

MODES = ("auto", "accelerated", "convergent", "streaming")


def prices() -> tuple[np.ndarray, np.ndarray]:
    """Flats: area, rooms and age, with their prices."""
    rng = np.random.default_rng(0)
    X = np.c_[rng.uniform(40, 250, 600), rng.integers(1, 7, 600), rng.uniform(0, 60, 600)]
    y = 2500 * X[:, 0] * (1 + 0.1 * X[:, 1]) * np.exp(-X[:, 2] / 80) + rng.normal(0, 15000, 600)
    return X, y


X, Y = prices()
LEARN, HELD = slice(400), slice(400, None)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loss", [None, "huber"])
def test_prices(mode, loss):
    model = MLPRegressor((50,), loss=loss, mode=mode, random_state=0).fit(X[LEARN], Y[LEARN])
    assert model.score(X[HELD], Y[HELD]) > 0.9


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
@pytest.mark.parametrize("mode", MODES)
def test_other_units_give_the_same_network(mode):
    kept = {"loss": "huber", "mode": mode, "random_state": 0, "max_iter": 20}
    first = MLPRegressor((20,), **kept).fit(X[LEARN], Y[LEARN]).predict(X[HELD])
    other = MLPRegressor((20,), **kept).fit(X[LEARN], Y[LEARN] / 4096 - 8).predict(X[HELD])
    np.testing.assert_allclose((other + 8) * 4096, first, rtol=0, atol=2e-3 * Y.std())


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
def test_a_few_wild_prices_do_not_sway_a_robust_loss():
    wild = Y[LEARN].copy()
    wild[:8] = 1e12
    robust = MLPRegressor((50,), loss="huber", random_state=0).fit(X[LEARN], wild)
    assert robust.score(X[HELD], Y[HELD]) > 0.9


def test_rows_that_come_call_by_call():
    model = MLPRegressor((50,), loss="huber", random_state=0)
    for i in range(20):
        rows = slice(20 * i, 20 * i + 20) if i else LEARN
        model.partial_fit(X[rows], Y[rows])
    assert model.score(X[HELD], Y[HELD]) > 0.5
    before = MLPRegressor((50,), loss="huber", random_state=0).fit(X[LEARN], Y[LEARN])
    score = before.score(X[HELD], Y[HELD])
    assert before.partial_fit(X[LEARN], Y[LEARN]).score(X[HELD], Y[HELD]) > score - 0.05


def test_a_warm_start_takes_up_the_weights_in_their_units():
    kept = {"loss": "huber", "mode": "accelerated", "random_state": 0, "warm_start": True}
    model = MLPRegressor((50,), max_iter=60, **kept).fit(X[LEARN], Y[LEARN])
    reached = model.loss_
    model.set_params(max_iter=1).fit(X[LEARN], Y[LEARN])
    assert model.loss_ < 1.2 * reached


def test_early_stopping_looks_at_targets_in_the_same_units():
    model = MLPRegressor((50,), loss="huber", early_stopping=True, random_state=0).fit(X[LEARN], Y[LEARN])
    assert max(model.history_["val_loss"]) < 5
    assert model.score(X[HELD], Y[HELD]) > 0.9


def test_timestamps_keep_their_seconds_in_float32():
    seconds = 1.7e9 + 1e-3 * Y
    inside = train(mlp([3, 20, 1]), X, seconds, loss="squared", mode="streaming", random_state=0)
    assert inside.history.last("loss") < 0.1  # y rounded to float32 first would leave steps of 128 s


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
def test_train_scales_unless_it_is_the_papers_algorithm():
    def loss_of(**options):
        return train(mlp([3, 5, 1]), X, Y, loss="squared", max_iter=2, **options).history.last("loss")

    assert loss_of(mode="accelerated") < 10
    assert loss_of(mode="convergent") > 1e6
    assert loss_of(mode="convergent", scale_targets=True) < 10
    assert loss_of(mode="accelerated", scale_targets=False) > 1e6
    with pytest.raises(ValueError, match="scale_targets must be True, False or None, got 'yes'"):
        loss_of(scale_targets="yes")


def test_a_stream_of_batches_is_scaled_by_its_first_rows():
    def batches():
        for i in range(0, 400, 50):
            yield X[i : i + 50], Y[i : i + 50]

    network = nn.Sequential(nn.Linear(3, 50), nn.ReLU(), nn.Linear(50, 1))
    train(network, batches, loss="huber", mode="streaming", max_iter=40)
    with torch.no_grad():
        predicted = network(torch.from_numpy(X[HELD]).float())[:, 0].numpy()
    assert 1 - ((predicted - Y[HELD]) ** 2).mean() / Y[HELD].var() > 0.9


def test_a_network_without_a_last_bias_is_trained_on_targets_as_they_are():
    network = nn.Sequential(nn.Linear(3, 20), nn.ReLU(), nn.Linear(20, 1, bias=False))
    result = train(network, X, Y / Y.std(), loss="squared", mode="accelerated", max_iter=30)
    assert result.history.last("loss") < 0.5 * float((Y / Y.std()) @ (Y / Y.std())) / len(Y)


def test_a_snapshot_of_a_run_on_other_units_is_refused():
    from dladmm.api.sample_problem import sample_trainer

    def trainer(scaled):
        return sample_trainer(
            mlp([3, 5, 1]), X, Y, loss="squared", mode="accelerated", scale_targets=scaled
        ).trainer

    tensors, meta = trainer(False).snapshot()
    del meta["scaled_targets"]  # as in files of earlier versions
    trainer(False).resume(tensors, meta)
    with pytest.raises(InputError, match="this one needs scale_targets=False too"):
        trainer(True).resume(tensors, meta)
    trainer(True).resume(*trainer(True).snapshot())
