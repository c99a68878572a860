"""The loop: stopping, statuses, determinism, faults, and what a result carries."""

from __future__ import annotations

import json
import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import dladmm
from convergent import train
from dladmm import Callback, ConvergenceNotGuaranteed, History, Status, mlp


@pytest.fixture(scope="module")
def blobs():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 90)
    X = rng.normal(size=(90, 5)) + 2.5 * np.eye(3, 5)[y]
    return X, y


def test_result_carries_everything(blobs):
    X, y = blobs
    result = train(mlp([5, 8, 3]), X, y, max_iter=30, validation=(X[:20], y[:20]))
    assert result.status is Status.MAX_ITER
    assert result.history.n_iter == 30
    assert {len(column) for column in result.history.values()} == {30}
    assert result.history["val_accuracy"][-1] > 0.8
    assert result.certificate.certified, str(result.certificate)
    assert isinstance(result.module, nn.Sequential)
    assert [tuple(W.shape) for W in result.state.W] == [(8, 5), (3, 8)]
    assert len(result.state.z) == 2
    assert len(result.state.a) == 1
    assert "certified" in repr(result)
    x = torch.from_numpy(X).float()
    hidden = torch.relu(x @ result.state.W[0].T + result.state.b[0])
    assert torch.allclose(result.module(x), hidden @ result.state.W[1].T + result.state.b[1], atol=1e-6)


def test_history_and_certificate_serialise(blobs):
    X, y = blobs
    result = train(mlp([5, 8, 3]), X, y, max_iter=5, diagnostics_every=2)
    history = json.loads(result.history.to_json())
    assert history["stationarity"][0] is None
    assert history["stationarity"][-1] is not None
    assert History.from_json(result.history.to_json()).to_dict() == result.history.to_dict()
    certificate = json.loads(result.certificate.to_json())
    assert certificate["H"] == 0.5
    assert certificate["covered"] is True


def test_converges_and_says_so(blobs):
    X, y = blobs
    result = train(
        mlp([5, 3]), X, y, regularizer={"name": "l2", "strength": 20.0}, max_iter=5000, dtype="float64"
    )
    assert result.status is Status.CONVERGED
    assert result.history.n_iter < 5000
    assert "Converged" in str(result.status)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("solver", ["exact", "quadratic"])
def test_same_seed_gives_bit_equal_results_and_leaves_the_callers_rng_alone(blobs, dtype, solver):
    X, y = blobs
    torch.manual_seed(123)
    before = torch.get_rng_state()
    runs = [
        train(
            mlp([5, 8, 3]), X, y, max_iter=10, random_state=7, dtype=dtype, w_solver=solver, a_solver=solver
        )
        for _ in range(2)
    ]
    assert torch.equal(torch.get_rng_state(), before)
    for first, second in zip(runs[0].state.W, runs[1].state.W, strict=True):
        assert torch.equal(first, second)
    assert runs[0].history["lagrangian"] == runs[1].history["lagrangian"]
    other = train(mlp([5, 8, 3]), X, y, max_iter=10, random_state=8, dtype=dtype)
    assert not torch.equal(runs[0].state.W[0], other.state.W[0])


def test_no_two_layers_share_random_numbers():
    chain = mlp([6, 6, 6])
    params = chain.initial_parameters(
        torch.Generator().manual_seed(0), 1.0, dtype=torch.float64, device=torch.device("cpu")
    )
    assert not torch.allclose(params[0]["W"], params[2]["W"])


def test_callers_data_stay_untouched(blobs):
    X, y = blobs
    x = torch.from_numpy(X).double()
    copy = x.clone()
    train(mlp([5, 8, 3]), x, y, max_iter=3, dtype="float64")
    assert torch.equal(x, copy)


def test_rho_below_2H_warns_and_names_the_smallest_safe_rho(blobs):
    X, y = blobs
    with pytest.warns(ConvergenceNotGuaranteed, match="smallest safe rho is anything above 1"):
        result = train(mlp([5, 8, 3]), X, y, rho=0.5, max_iter=3)
    assert not result.certificate.covered
    assert not result.certificate.certified
    assert "not guaranteed" in str(result.certificate)


def test_divergence_is_detected_and_reported(blobs):
    X, y = blobs
    with pytest.warns(ConvergenceNotGuaranteed):
        result = train(mlp([5, 8, 3]), X, y, rho=1e-4, nu=1e-4, max_iter=60, dtype="float64")
    assert not result.certificate.monotone
    assert result.certificate.descent_violations
    assert "the Lagrangian rose" in str(result.certificate)


def test_a_run_that_ends_above_its_start_is_called_diverged(blobs):
    """Beyond all bounds in its first iteration; and in a few steps of a gradient method that are far too long."""
    X, y = blobs
    with pytest.warns(ConvergenceNotGuaranteed):
        result = train(mlp([5, 8, 3]), X, y, rho=1e-8, nu=1e-3, max_iter=9, dtype="float64")
    assert result.status is Status.DIVERGED
    assert result.history.n_iter == 1
    assert not result.status.ok
    rising = dladmm.baselines.train("gd", mlp([5, 8, 3]), X, y, lr=0.1, max_iter=4, dtype="float64")
    assert rising.history.n_iter == 4  # not beyond all bounds: all of them were made
    assert rising.history["lagrangian"][-1] > 10 * rising.history["lagrangian"][0]
    assert rising.status is Status.DIVERGED


class Poison(Callback):
    """Writes NaN into one tensor of the state at one iteration."""

    def __init__(self, at, pick):
        self.at, self.pick = at, pick

    def on_epoch_end(self, trainer):
        if trainer.history.n_iter == self.at:
            self.pick(trainer.state).view(-1)[0] = math.nan


@pytest.mark.parametrize(
    "pick",
    [
        lambda s: s.W[0],
        lambda s: s.b[1],
        lambda s: s.a[0],
        lambda s: s.u,
        lambda s: s.predictions[0],
        lambda s: s.predictions[-1],
    ],
)
@pytest.mark.parametrize("solver", ["exact", "quadratic"])
def test_non_finite_values_stop_the_run_with_the_last_finite_state(blobs, pick, solver):
    X, y = blobs
    result = train(
        mlp([5, 8, 3]), X, y, max_iter=20, callbacks=[Poison(4, pick)], w_solver=solver, a_solver=solver
    )
    assert result.status is Status.NON_FINITE
    assert not result.status.ok
    assert result.certificate.failed
    assert not result.certificate.certified
    assert result.history.n_iter == 4
    for tensor in [*result.state.W, *result.state.b, *result.state.z, *result.state.a, result.state.u]:
        assert torch.isfinite(tensor).all()


@pytest.mark.parametrize("solver", ["exact", "quadratic"])
def test_a_hidden_z_is_replaced_before_it_is_read(blobs, solver):
    X, y = blobs
    poisoned, clean = (
        train(mlp([5, 8, 3]), X, y, max_iter=8, callbacks=callbacks, w_solver=solver, a_solver=solver)
        for callbacks in ([Poison(4, lambda s: s.z[0])], [])
    )
    assert torch.equal(poisoned.state.W[0], clean.state.W[0])


class Interrupt(Callback):
    def on_epoch_end(self, trainer):
        if trainer.history.n_iter == 3:
            raise KeyboardInterrupt


def test_interruption_keeps_the_last_iteration(blobs):
    X, y = blobs
    interrupted = train(mlp([5, 8, 3]), X, y, max_iter=50, callbacks=[Interrupt()])
    whole = train(mlp([5, 8, 3]), X, y, max_iter=3)
    assert interrupted.status is Status.INTERRUPTED
    for first, second in zip(interrupted.state.W, whole.state.W, strict=True):
        assert torch.equal(first, second)


def test_callbacks_are_told_in_order(blobs):
    X, y = blobs
    seen = []

    class Spy(Callback):
        def on_train_begin(self, trainer):
            seen.append("begin")
            assert "guaranteed" in trainer.guarantee

        def on_epoch_end(self, trainer):
            seen.append(trainer.history.n_iter)

        def on_train_end(self, trainer, result):
            seen.append(result.status)

    train(mlp([5, 3]), X, y, max_iter=2, callbacks=[Spy()])
    assert seen == ["begin", 1, 2, Status.MAX_ITER]


def test_a_module_is_trained_in_place(blobs):
    X, y = blobs
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    result = train(module, X, y, max_iter=30)
    x = torch.from_numpy(X).float()
    assert torch.equal(module(x), result.module(x))
    assert (module(x).argmax(1).numpy() == y).mean() > 0.8


def test_keep_starts_from_the_modules_own_weights(blobs):
    X, y = blobs
    module = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    start = {name: p.clone() for name, p in module.state_dict().items()}
    train(module, X, y, max_iter=1, init="keep", damping=1e9)
    for name, p in module.state_dict().items():
        if name.endswith("weight"):
            assert torch.allclose(p, start[name], atol=1e-3)


def test_paper_preset_follows_the_authors_rule(blobs):
    X, y = blobs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceNotGuaranteed)
        result = train(mlp([5, 8, 3]), X, y, preset="paper", max_iter=80)
    assert result.history["rho"][0] == 1e-6
    assert max(result.history["rho"]) <= 0.1
    assert 1 in result.certificate.exempt
    rho, loss = result.history["rho"], result.history["loss"]
    for k in range(1, 80):
        if rho[k] != rho[k - 1]:
            assert loss[k - 4] < loss[k - 3] < loss[k - 2] < loss[k - 1]
            assert rho[k] == min(10 * rho[k - 1], 0.1)
            assert k + 1 in result.certificate.exempt


def test_own_loss_by_callable(blobs):
    X, _ = blobs
    target = X[:, :3] * 0.5

    def rows(z, t):
        return torch.cosh(z - t).log().sum(1)

    from dladmm.losses import CallableLoss

    result = train(
        mlp([5, 3]), X, target, loss=CallableLoss(rows, H=1.0), max_iter=80, dtype="float64", damping=0.0
    )
    assert result.history["loss"][-1] < 1e-3
    assert result.certificate.monotone


def test_fista_on_request_agrees_with_the_exact_prox(blobs):
    X, y = blobs
    exact = train(mlp([5, 8, 3]), X, y, max_iter=5, dtype="float64")
    fista = train(mlp([5, 8, 3]), X, y, max_iter=5, dtype="float64", prox="fista")
    for first, second in zip(exact.state.W, fista.state.W, strict=True):
        assert torch.allclose(first, second, atol=1e-6)


def test_public_names_resolve():
    for name in dladmm.__all__:
        assert getattr(dladmm, name) is not None


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
@pytest.mark.parametrize("at", [1, 7])
@pytest.mark.parametrize("solver", ["exact", "quadratic"])
def test_a_resumed_run_is_bit_equal_to_an_unbroken_one(blobs, at, solver):
    """Also through the authors' rule, which changes rho and the starts on the way."""
    X, y = blobs
    saved = []

    class Save(Callback):
        def on_epoch_end(self, trainer):
            if trainer.history.n_iter == at and not saved:
                tensors, meta = trainer.snapshot()
                saved.append(({n: t.clone() for n, t in tensors.items()}, json.loads(json.dumps(meta))))

    class Resume(Callback):
        def on_train_begin(self, trainer):
            trainer.resume(*saved[0])

    for settings in ({}, {"preset": "paper"}):
        saved.clear()
        options = settings | {"max_iter": 30, "w_solver": solver, "a_solver": solver}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceNotGuaranteed)
            whole = train(mlp([5, 8, 3]), X, y, callbacks=[Save()], **options)
            resumed = train(mlp([5, 8, 3]), X, y, callbacks=[Resume()], **options)
        for first, second in zip(
            whole.state.W + whole.state.z, resumed.state.W + resumed.state.z, strict=True
        ):
            assert torch.equal(first, second)
        assert whole.history["lagrangian"] == resumed.history["lagrangian"]
        assert whole.certificate == resumed.certificate


def test_a_snapshot_of_another_network_is_refused(blobs):
    X, y = blobs
    saved = []

    class Save(Callback):
        def on_epoch_end(self, trainer):
            saved.append(trainer.snapshot())

    class Resume(Callback):
        def on_train_begin(self, trainer):
            trainer.resume(*saved[0])

    train(mlp([5, 8, 3]), X, y, max_iter=1, callbacks=[Save()])
    with pytest.raises(dladmm.InputError, match=r"snapshot is of another run: network .*Affine\(5, 8\)"):
        train(mlp([5, 9, 3]), X, y, max_iter=1, callbacks=[Resume()])


@pytest.mark.parametrize(
    "options",
    [
        {"w_solver": "exact", "a_solver": "exact"},
        {"w_solver": "quadratic", "a_solver": "quadratic"},
        {"w_solver": "quadratic", "a_solver": "quadratic", "alpha0": 1.0, "t0": 1.0},
        {"w_solver": "quadratic", "regularizer": {"name": "l1", "strength": 0.1}},
        {"w_solver": "exact", "regularizer": {"name": "l1", "strength": 0.1}},
    ],
)
def test_whole_sample_weights_equal_repeated_samples(blobs, options):
    X, y = blobs
    counts = np.random.default_rng(3).integers(1, 4, len(X))
    weighted = train(mlp([5, 8, 3]), X, y, sample_weight=counts, max_iter=25, dtype="float64", **options)
    repeated = train(
        mlp([5, 8, 3]), X.repeat(counts, 0), y.repeat(counts), max_iter=25, dtype="float64", **options
    )
    for first, second in zip(
        weighted.state.W + weighted.state.b, repeated.state.W + repeated.state.b, strict=True
    ):
        assert torch.allclose(first, second, atol=1e-9)
    for column in (
        "lagrangian",
        "loss",
        "train_accuracy",
        "stationarity",
        "squared_steps",
        "primal_residual",
    ):
        assert np.allclose(weighted.history[column], repeated.history[column], rtol=1e-7), column
    assert weighted.certificate.certified, str(weighted.certificate)


def test_the_last_iterate_is_measured_however_the_run_ends(blobs):
    X, y = blobs

    class Stop(Callback):
        def on_epoch_end(self, trainer):
            if trainer.history.n_iter == 7:
                trainer.request_stop(Status.EARLY_STOPPED)

    result = train(mlp([5, 8, 3]), X, y, max_iter=50, diagnostics_every=5, callbacks=[Stop()])
    assert result.status is Status.EARLY_STOPPED
    assert result.history["stationarity"][-1] is not None
    assert result.history["train_accuracy"][-1] is not None
    assert result.certificate.agrees
    assert result.certificate.certified
