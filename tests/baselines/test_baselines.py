"""Baselines: torch's own optimisers and Taylor's ADMM in dlADMM's loop, each against a loop written out by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from convergent import train, train_graph
from dladmm import Callback, InputError, Status, baselines, datasets, load_model, mlp
from dladmm.api.train import fresh_parameters
from dladmm.baselines.taylor import taylor_method
from dladmm.callbacks import Checkpoint
from dladmm.engine.sweep import Engine
from dladmm.losses import Risk, get_loss
from graph_problems import random_graph
from reference_gcn import dense_adjacency
from reference_taylor import ReferenceTaylor

# Steps of a few iterations are the subject, not what the networks have learnt
pytestmark = pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")

CPU = torch.device("cpu")
GRADIENT = ["gd", "adagrad", "adadelta", "adam", "lbfgs"]
LITERAL = {
    "gd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "adam": torch.optim.Adam,
}
RATES = {  # Sections 5.1 and 5.2 of the paper, and 1 for L-BFGS
    "mlp": {"gd": 1e-6, "adagrad": 1e-3, "adadelta": 0.1, "adam": 1e-3, "lbfgs": 1.0},
    "gcn": {"gd": 0.1, "adagrad": 1e-3, "adadelta": 1e-3, "adam": 1e-2, "lbfgs": 1.0},
}


def rows(seed=0, n=40, features=5, classes=3):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, features)), rng.integers(0, classes, n)


def literal(name, params, loss, lr, epochs):
    """What anybody would write: zero_grad, loss, backward, step."""
    if name == "lbfgs":
        optimizer = torch.optim.LBFGS(
            params, lr=lr, max_iter=1, max_eval=26, history_size=10, tolerance_grad=0, tolerance_change=0,
            line_search_fn="strong_wolfe",
        )  # fmt: skip
    else:
        optimizer = LITERAL[name](params, lr=lr)
    values = []
    for _ in range(epochs):

        def closure():
            optimizer.zero_grad()
            value = loss()
            value.backward()
            return value.detach()

        optimizer.step(closure)
        values.append(float(loss().detach()))
    return values


def near(found, expected):
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs.detach(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", GRADIENT)
@pytest.mark.parametrize("lam", [0.0, 0.3])
def test_an_mlp_is_trained_as_by_a_loop_written_out(name, lam):
    X, y = rows()
    chain = mlp([5, 7, 6, 3])
    lr = RATES["mlp"][name] * (1e3 if name == "gd" else 1)  # its own rate moves so small a problem too little
    result = baselines.train(
        name, chain, X, y, dtype="float64", max_iter=12, random_state=3, lr=lr,
        regularizer={"name": "l2", "strength": lam},
    )  # fmt: skip
    start = fresh_parameters(chain, 3, 1.0, None, torch.float64, CPU)
    leaves = [p.clone().requires_grad_() for block in start for p in block.values()]
    scale = 1.0 if name == "gd" else 1 / len(X)

    def loss():
        v = torch.from_numpy(X)
        for l in range(0, 6, 2):
            v = v @ leaves[l].T + leaves[l + 1]
            v = torch.relu(v) if l < 4 else v
        total = F.cross_entropy(v, torch.from_numpy(y), reduction="sum")
        return scale * (total + lam / 2 * sum(leaves[l].square().sum() for l in range(0, 6, 2)))

    values = literal(name, leaves, loss, lr, 12)
    near([p for block in result.state.params for p in block.values()], leaves)
    assert result.history["lagrangian"] == pytest.approx([v / scale for v in values], rel=1e-9)
    assert result.history["objective"] == result.history["lagrangian"]


@pytest.mark.parametrize("name", GRADIENT)
@pytest.mark.parametrize("widths", [(4,), (9, 4)])
def test_a_gcn_is_trained_as_by_a_loop_written_out(name, widths):
    pairs, x, y, labelled = random_graph(np.random.default_rng(5), 30, 6, 3)
    result = baselines.train_graph(
        name,
        x,
        pairs.T,
        y,
        labelled,
        hidden=widths,
        n_classes=3,
        dtype="float64",
        max_iter=10,
        random_state=1,
    )
    A, X = torch.from_numpy(dense_adjacency(pairs, 30)), torch.from_numpy(x)
    generator = torch.Generator().manual_seed(1)
    leaves = []
    for n_in, n_out in zip((6, *widths), (*widths, 3), strict=True):
        W = torch.randn(n_out, n_in, generator=generator, dtype=torch.float64) * (2 / n_in) ** 0.5
        leaves.append(W.requires_grad_())

    def loss():
        Z = X
        for W in leaves[:-1]:
            Z = torch.relu(A @ Z @ W.T)
        return F.cross_entropy((A @ Z @ leaves[-1].T)[labelled], torch.from_numpy(y)[labelled])

    values = literal(name, leaves, loss, RATES["gcn"][name], 10)
    near(result.state.W, leaves)
    assert result.history["lagrangian"] == pytest.approx([v * labelled.sum() for v in values], rel=1e-9)


def test_the_learning_rates_are_the_papers():
    assert set(baselines.LEARNING_RATES) - {"muon"} == set(GRADIENT)
    for name in GRADIENT:
        rates = baselines.LEARNING_RATES[name]
        assert {network: rate.lr for network, rate in rates.items()} == {
            network: RATES[network][name] for network in ("mlp", "gcn")
        }


@pytest.mark.parametrize("activation", ["tanh", "softplus", "sigmoid", "elu", "hard_tanh", "leaky_relu"])
def test_other_activations_and_row_weights_have_the_right_gradient(activation):
    X, y = rows(1)
    weight = np.arange(len(y)) % 3 + 1
    some = baselines.train(
        "adam", mlp([5, 4, 3], activation), X, y, sample_weight=weight, dtype="float64", max_iter=5
    )
    each = np.repeat(np.arange(len(y)), weight)
    repeated = baselines.train(
        "adam", mlp([5, 4, 3], activation), X[each], y[each], dtype="float64", max_iter=5
    )
    near(some.state.W, repeated.state.W)


def test_a_network_with_jumps_learns_its_last_layer_only():
    X, y = rows(2)
    result = baselines.train("adam", mlp([5, 4, 3], "sign"), X, y, dtype="float64", max_iter=5)
    start = fresh_parameters(mlp([5, 4, 3], "sign"), 0, 1.0, None, torch.float64, CPU)
    assert torch.equal(result.state.W[0], start[0]["W"])
    assert not torch.equal(result.state.W[1], start[2]["W"])


def test_a_module_of_ones_own_is_trained_in_place():
    X, y = rows(3)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.Linear(6, 3)).double()
    before = [p.detach().clone() for p in module.parameters()]
    result = baselines.train("lbfgs", module, X, y, dtype="float64", init="keep", max_iter=30)
    assert result.history["train_accuracy"][-1] > 0.8
    assert all(not torch.equal(p, q) for p, q in zip(before, module.parameters(), strict=True))


# The same loop as dlADMM -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", baselines.METHODS)
def test_history_result_and_start_are_those_of_dladmm(name):
    X, y = rows()
    own = train(mlp([5, 4, 3]), X, y, max_iter=3, dtype="float64", validation=(X, y), init_scale=1.0)
    other = baselines.train(name, mlp([5, 4, 3]), X, y, max_iter=3, dtype="float64", validation=(X, y))
    assert list(other.history) == list(own.history)
    # Of regressions, and of dlADMM alone
    for column in set(other.history) - {
        "train_r2",
        "val_r2",
        "z_steps",
    }:
        assert all(value is not None for value in other.history[column]), column
    assert set(other.certificate.to_dict()) == set(own.certificate.to_dict())
    assert other.status in (Status.MAX_ITER, Status.NO_BETTER_THAN_CONSTANT)
    assert repr(other).endswith(f"baseline {name})")


@pytest.mark.parametrize("name", baselines.METHODS)
def test_certificates_promise_nothing_and_agree_with_raw_data(name, tmp_path):
    X, y = rows()
    result = baselines.train(name, mlp([5, 4, 3]), X, y, max_iter=8)
    certificate = result.certificate
    assert certificate.baseline == name
    assert not certificate.covered
    assert not certificate.certified
    assert certificate.agrees, str(certificate)
    assert "the theory of dlADMM does not speak of it" in str(certificate)
    for promise in ("Certified", "guaranteed", "Theorem", "Property", "certified"):
        assert promise not in str(certificate)
    result.save(tmp_path / "model.dladmm")
    assert load_model(tmp_path / "model.dladmm").certificate["baseline"] == name


def test_the_true_objective_is_measured_at_the_feasible_point():
    X, y = rows()
    result = baselines.train("gd", mlp([5, 4, 3]), X, y, lr=0.01, max_iter=4, dtype="float64")
    state, h = result.state, result.history
    for v, m in zip(state.outputs, state.predictions, strict=True):
        assert torch.equal(v, m)
    assert h["primal_residual"] == [0.0] * 4
    assert h["dual_optimality"] == [0.0] * 4
    assert h["lagrangian"][-1] == pytest.approx(h["loss"][-1] * len(X), rel=1e-12)
    assert h["squared_steps"][0] > 0


def test_lbfgs_stalls_where_nothing_is_left_to_gain():
    X, y = rows(n=12)
    result = baselines.train(
        "lbfgs", mlp([5, 3]), X, y, dtype="float64", max_iter=3000, eps_abs=0, eps_rel=0,
        regularizer={"name": "l2", "strength": 1.0},
    )  # fmt: skip
    assert result.status is Status.STALLED
    assert result.certificate.stationarity.recomputed < 1e-5


class Keep(Callback):
    """Takes a snapshot through JSON after some iteration, or takes one up at the beginning."""

    def __init__(self, at=None, taken=None):
        self.at, self.taken = at, taken

    def on_train_begin(self, trainer):
        if self.taken is not None:
            trainer.resume(*self.taken)

    def on_epoch_end(self, trainer):
        if trainer.history.n_iter == self.at:
            tensors, meta = trainer.snapshot()
            self.taken = {n: t.clone() for n, t in tensors.items()}, json.loads(json.dumps(meta))


@pytest.mark.parametrize("name", baselines.METHODS)
def test_a_resumed_run_is_bit_equal(name):
    X, y = rows(4)
    options = {"warmup": 3} if name == "admm" else {}
    keep = Keep(at=5)

    def run(*callbacks):
        return baselines.train(name, mlp([5, 6, 3]), X, y, max_iter=11, callbacks=callbacks, **options)

    whole = run(keep)
    resumed = run(Keep(taken=keep.taken))
    assert whole.history["lagrangian"] == resumed.history["lagrangian"]
    for mine, theirs in zip(whole.state.W, resumed.state.W, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("name", GRADIENT)
def test_a_graph_run_goes_on_from_a_checkpoint(name, tmp_path):
    data = datasets.load("karate")

    def run(n, folder, resume):
        checkpoint = Checkpoint(tmp_path / folder, every=2, resume=resume)
        return baselines.train_graph(name, data, hidden=(8,), max_iter=n, callbacks=[checkpoint])

    whole = run(9, "whole", False)
    run(4, "parts", False)
    parts = run(9, "parts", True)
    assert whole.history["lagrangian"] == parts.history["lagrangian"]


def test_a_snapshot_of_another_method_is_refused():
    X, y = rows()
    keep = Keep(at=2)
    baselines.train("adam", mlp([5, 3]), X, y, max_iter=2, callbacks=[keep])
    with pytest.raises(InputError, match="a run with adam, this run has gd"):
        baselines.train("gd", mlp([5, 3]), X, y, max_iter=4, callbacks=[Keep(taken=keep.taken)])
    with pytest.raises(InputError, match="a run with adam, this run has dladmm convergent"):
        train(mlp([5, 3]), X, y, max_iter=4, callbacks=[Keep(taken=keep.taken)])


def test_a_run_that_blows_up_keeps_its_last_finite_weights():
    X, y = rows()
    result = baselines.train("gd", mlp([5, 8, 8, 3]), X * 1e6, y, lr=1e6, max_iter=40)
    assert result.status in (Status.NON_FINITE, Status.DIVERGED)
    assert all(bool(torch.isfinite(W).all()) for W in result.state.W)


# What cannot be done is refused before any work --------------------------------------------------------------------


class Untouched:
    """Data nobody may look at."""

    def __getattr__(self, name):
        raise AssertionError(f"looked at {name}")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sgd", {}, "unknown baseline 'sgd'; known: gd, adagrad, adadelta, adam, lbfgs"),
        ("adam", {"lr": 0}, "lr must be a finite number > 0"),
        ("adam", {"lr": float("nan")}, "lr must be a finite number"),
        ("adam", {"lr": "fast"}, "lr must be a number"),
        ("adam", {"lr": 1e300}, "lr must be at most 1e"),
        ("adam", {"rho": 1.0}, "adam has no option rho"),
        ("adam", {"mode": "accelerated"}, "adam has no option mode"),
        ("adam", {"preset": "paper"}, "adam has no option preset"),
        ("adam", {"warmup": 3}, "adam has no option warmup"),
        ("admm", {"lr": 0.1}, "admm has no learning rate"),
        ("admm", {"w_solver": "exact"}, "admm has no option w_solver"),
        ("admm", {"gamma": -1.0}, "gamma must be a finite number > 0"),
        ("admm", {"warmup": -1}, "warmup must be a whole number >= 0"),
        ("admm", {"variables": "zero"}, "variables must be one of"),
    ],
)
def test_bad_settings_are_refused_before_the_data_are_looked_at(name, options, message):
    with pytest.raises((InputError, TypeError), match=message):
        baselines.train(name, Untouched(), Untouched(), Untouched(), **options)


def test_what_a_method_cannot_train_is_refused():
    X, y = rows()
    with pytest.raises(InputError, match="cannot keep the constraint"):
        baselines.train("adam", mlp([5, 3]), X, y, regularizer="non_negative")
    with pytest.raises(InputError, match="linear layers with one known activation between two"):
        baselines.train("admm", nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 3)), X, y)
    data = datasets.load("karate")
    with pytest.raises(InputError, match="leave rows='train' out"):
        baselines.train_graph("adam", data, rows="train")
    with pytest.raises(InputError, match="it trains MLPs only"):
        baselines.train_graph("admm", data)
    with pytest.raises(InputError, match="max_iter must be a whole number"):
        baselines.train("adam", mlp([5, 3]), X, y, max_iter=0)
    with pytest.raises(InputError, match="leave them out beside method"):
        train_graph(data, method=taylor_method(0), mode="accelerated")


# Taylor's ADMM ------------------------------------------------------------------------------------------------------


def steps_of(state, steps):
    return steps


def taylor_pair(depth, variables, seed=0, **settings):
    """The library's method with its state, and the reference at the same point."""
    widths = [7, 6, 5, 4, 3][-depth - 1 :]  # narrowing, so that no layer's inputs are collinear
    X, y = rows(seed, 50, widths[0])
    chain, loss = mlp(widths), get_loss("cross_entropy")
    risk = Risk(loss, loss.encode(torch.from_numpy(y), 3, torch.float64))
    engine = Engine(chain, torch.from_numpy(X), risk)
    params = fresh_parameters(chain, seed, 1.0, None, torch.float64, CPU)
    state = engine.feasible_state(params, settings.pop("rho", 1.0), settings.pop("beta", 1.0))
    settings = {"gamma": 10.0, "warmup": 4} | settings
    method = taylor_method(seed, variables=variables, **settings)(engine, state)
    W, b = [w.numpy() for w in state.W], [v.numpy() for v in state.b]
    reference = ReferenceTaylor(X, y, W, b, state.rho, state.nu, **settings)
    reference.a = [X, *[a.numpy().copy() for a in state.a]]
    reference.z = [None, *[z.numpy().copy() for z in state.z]]
    return method, state, reference


@pytest.mark.parametrize("variables", ["random", "forward"])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_taylors_admm_equals_a_slow_literal_one(depth, variables):
    method, state, reference = taylor_pair(depth, variables, rho=0.7, beta=0.5, gamma=3.0)
    for _ in range(9):
        method.iterate(state, steps_of)
        reference.iterate()
        assert float(method.engine.energy(state).lagrangian) == pytest.approx(
            reference.lagrangian(), rel=1e-7
        )
    for mine, theirs in (
        *zip(state.z, reference.z[1:], strict=True),
        *zip(state.a, reference.a[1:], strict=True),
        *zip(state.W, reference.W[1:], strict=True),
        (state.u, reference.u),
    ):
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_every_subproblem_of_taylors_admm_is_solved(depth):
    """Each update leaves no slope in its own block: what the others' moves did not touch is stationary."""
    method, state, _ = taylor_pair(depth, "random", seed=3)
    for _ in range(3):
        method.iterate(state, steps_of)
    engine = method.engine
    last = len(engine.chain) - 1
    for l in range(0, last + 1, 2):
        v, term = engine.input(state, l), engine._tie(state, l)
        engine._least_squares(state, l)
        block, p = engine.chain.blocks[l], state.params[l]
        assert float(block.parameter_stationarity(p, v, term, engine.penalty, engine.work(l))) < 1e-12
        torch.testing.assert_close(block.forward(p, v), state.predictions[l])
    for l in range(last):
        engine._update_variable(state, l)
        block, p = engine.chain.blocks[l + 1], state.params[l + 1]
        slope = block.input_stationarity(
            p, state.outputs[l], engine._anchor(state, l), engine._tie(state, l + 1), engine.work(l + 1)
        )
        assert float(slope) < 1e-12
    engine._update_last(state)
    left = engine.risk.gradient(state.outputs[-1]) + state.u + state.rho * state.residual
    assert float(left.abs().max()) < 1e-8


def test_the_multiplier_rests_while_the_run_warms_up():
    method, state, _ = taylor_pair(2, "random", warmup=3)
    for k in range(1, 6):
        method.iterate(state, steps_of)
        assert bool(state.u.any()) == (k > 3)
        if k > 3:  # then Lemma 2 holds: z_L was solved just before the multiplier moved
            assert float(method.engine.dual_optimality(state)) < 1e-12


@pytest.mark.parametrize("activation", ["tanh", "leaky_relu", "sign"])
def test_taylors_admm_takes_any_activation_penalty_and_row_weights(activation):
    X, y = rows(7)
    result = baselines.train(
        "admm", mlp([5, 6, 3], activation), X, y, loss="squared_hinge", regularizer="l2", max_iter=15,
        sample_weight=np.arange(len(y)) % 2 + 1, dtype="float64", warmup=15,
    )  # fmt: skip
    assert result.certificate.monotone  # while u rests every update lowers the one function
    assert result.certificate.agrees


def test_taylors_admm_learns_digits():
    data = datasets.load("digits")
    result = baselines.train(
        "admm",
        mlp([64, 30, 10]),
        data.x_train,
        data.y_train,
        validation=(data.x_test, data.y_test),
        max_iter=40,
    )
    assert result.history["val_accuracy"][-1] > 0.85


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", baselines.METHODS)
def test_gpu_and_cpu_agree_and_a_run_goes_on_there(name):
    X, y = rows(8)
    keep = Keep(at=3)

    def run(device, *callbacks):
        return baselines.train(
            name, mlp([5, 6, 3]), X, y, dtype="float64", device=device, max_iter=6, callbacks=callbacks
        )

    cpu, gpu = run("cpu"), run("cuda", keep)
    resumed = run("cuda", Keep(taken=keep.taken))
    assert gpu.history["lagrangian"] == pytest.approx(cpu.history["lagrangian"], rel=1e-6)
    assert resumed.history["lagrangian"] == gpu.history["lagrangian"]
    if name != "admm":
        graph = datasets.load("karate")
        one, two = (
            baselines.train_graph(name, graph, hidden=(8,), dtype="float64", device=device, max_iter=5)
            for device in ("cpu", "cuda")
        )
        assert two.history["lagrangian"] == pytest.approx(one.history["lagrangian"], rel=1e-6)


@pytest.mark.parametrize("name", ["gd", "lbfgs"])
def test_the_objective_has_its_penalty_in_every_step(name):
    """Inputs of zero: the penalty alone moves W, in gradient descent by ``lr * lambda * W``."""
    X, y = np.zeros((10, 3)), np.arange(10) % 2
    strength = {"name": "l2", "strength": 5.0}
    seen = []

    class See(Callback):
        def on_epoch_end(self, trainer):
            seen.append(trainer.state.W[0].clone())

    rate = {"lr": 0.01} if name == "gd" else {}
    baselines.train(
        name, mlp([3, 2]), X, y, regularizer=strength, max_iter=2, dtype="float64", callbacks=[See()], **rate
    )
    if name == "gd":
        torch.testing.assert_close(seen[1], seen[0] * (1 - 0.01 * 5.0))
    else:
        assert float(seen[-1].norm()) < 1e-3
