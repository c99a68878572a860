"""The parts of accelerated mode one by one: forces, shares, stiff links, dropped entries, scaling, the level."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import nn

from convergent import train, train_graph
from dladmm import Callback, InputError, Status, datasets, from_module, mlp
from dladmm.api.graph_problem import GraphSettings, graph_problem
from dladmm.blocks import Affine, Elementwise, GraphConv, Term, Work
from dladmm.compute import execution
from dladmm.compute.sparse import csr_tensor
from dladmm.engine.accelerated import (
    FADE_GROWTH,
    FIRST_FADE,
    HIGHEST_RAISE,
    LONGEST_PATIENCE,
    LOWEST_LEVEL,
    PATIENCE,
    Accelerated,
)
from dladmm.engine.options import ACCELERATED, make_options
from dladmm.engine.sweep import Engine, gradient_share
from dladmm.losses import Risk, get_loss
from dladmm.network.chain import Chain
from dladmm.network.input_dropout import InputDropout
from dladmm.network.scaling import RARITY, Scaling
from dladmm.regularizers import L1, L2, ElasticNet, NonNegative, NoPenalty, get_regularizer
from dladmm.solvers.subproblems import SubproblemOptions
from graph_problems import graph_engine, random_graph
from problems import random_problem

CPU, F64 = torch.device("cpu"), torch.float64


def generator(seed):
    return torch.Generator().manual_seed(seed)


def affine_net(widths, activation, bias):
    blocks = []
    for n_in, n_out in pairwise(widths):
        blocks += [Affine(n_in, n_out, bias), Elementwise(activation)]
    return Chain(blocks[:-1])


def mlp_engine(activation, *, bias, strength, seed=0, x=None, y=None, classes=3):
    """Two hidden layers, cross-entropy, accelerated mode's own damping."""
    draw = generator(seed)
    x = torch.randn(60, 5, generator=draw, dtype=F64) + 0.5 if x is None else x
    y = torch.randint(0, classes, (len(x),), generator=draw) if y is None else y
    chain = affine_net([x.shape[1], 8, 7, classes], activation, bias)
    loss = get_loss("cross_entropy")
    risk = Risk(loss, loss.encode(y, classes, F64), None)
    engine = Engine(chain, x, risk, L2(strength), SubproblemOptions(damping=1.0, last_damping=1.0))
    return engine, chain.initial_parameters(draw, 1.0, dtype=F64, device=CPU)


def graph_net(activation, *, strength, rows="all", hidden=(8, 6), labelled=3):
    graph = datasets.load("sbm", n_nodes=60, n_classes=3, seed=0)
    mask = torch.arange(60) % labelled == 0
    given = type(graph)(**{**vars(graph), "train_mask": mask})
    settings = GraphSettings(
        hidden=hidden, activation=activation, rows=rows, loss=get_loss("cross_entropy"),
        validation=None, prox="auto", dtype=F64, device=CPU,
    )  # fmt: skip
    problem = graph_problem(given, settings)
    options = SubproblemOptions(damping=1.0, last_damping=1.0)
    engine = Engine(problem.chain, problem.x, problem.risk, L2(strength), options)
    return engine, problem.chain.initial_parameters(generator(0), 1.0, dtype=F64, device=CPU)


def copied(params, grad=False):
    return [{name: p.clone().requires_grad_(grad) for name, p in block.items()} for block in params]


def truth(engine, params, centred=False):
    """The objective and its gradients in parameters and in every block's output, by autograd alone.

    ``centred`` takes the mean over the samples out of what every affine layer with a bias hands down: what is left of
    a force once the bias, solved exactly and first, has answered it.
    """
    leaves, x, outputs = copied(params, grad=True), engine.x.to_dense(), []
    f = {"tanh": torch.tanh, "relu": torch.relu, "identity": lambda v: v}
    f["leaky_relu"] = lambda v: nn.functional.leaky_relu(v, 0.01)
    for block, p in zip(engine.chain, leaves, strict=True):
        if isinstance(block, GraphConv):
            adjacency = block.graph.adjacency
            moved = x if adjacency is None else torch.from_numpy(adjacency.to_scipy().toarray()) @ x
            x = f[block.activation.name](moved @ p["W"].T)
        elif isinstance(block, Affine):
            x = x @ p["W"].T + p.get("b", 0.0)
            if centred and block.bias:
                x.register_hook(lambda g: g - g.mean(0))
        else:
            x = f[block.activation.name](x)
        x.retain_grad()
        outputs.append(x)
    weight = 1.0 if engine.risk.weight is None else engine.risk.weight
    value = -(weight * engine.risk.target * torch.log_softmax(x, 1)).sum()
    value = value + engine.penalty.quadratic / 2 * sum(p["W"].square().sum() for p in leaves if p)
    value.backward()
    return float(value.detach()), leaves, [v.grad for v in outputs]


# Forces ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["relu", "tanh", "leaky_relu"])
@pytest.mark.parametrize("kind", ["mlp", "graph"])
def test_forces_are_the_gradients_of_the_loss(activation, kind):
    if kind == "mlp":
        engine, params = mlp_engine(activation, bias=True, strength=0.3)
        params = [{name: p + 0.1 for name, p in block.items()} for block in params]
    else:
        engine, params = graph_net(activation, strength=0.3)
    forces = engine.output_gradients(engine.feasible_state(params, 1.0, 0.1))
    gradients = truth(engine, params)[2]
    assert len(forces) == len(engine.chain)
    for force, gradient in zip(forces, gradients, strict=True):
        assert float(gradient.abs().max()) > 1e-3
        torch.testing.assert_close(force, gradient, rtol=0, atol=1e-10)


@pytest.mark.parametrize("activation", ["relu", "tanh", "sign", "identity"])
@pytest.mark.parametrize("first", [0, 2, 4])
def test_forces_that_nobody_asked_for_are_not_kept(activation, first, monkeypatch):
    """Those that were asked for are the same, also where others' memory is used for them part by part."""
    engine, params = mlp_engine(activation, bias=True, strength=0.3)
    state = engine.feasible_state(params, 1.0, 0.1)
    every = engine.output_gradients(state)
    held = [v.clone() for v in (*state.outputs, *state.predictions)]
    monkeypatch.setattr(execution, "CACHED", 20)
    wanted = [bool(block.penalised) and l >= first for l, block in enumerate(engine.chain)]
    some = engine.output_gradients(state, wanted)
    assert len(some) == len(every)
    assert any(wanted)
    for force, other, kept in zip(every, some, wanted, strict=True):
        assert (other is not None) == kept
        if other is not None:
            torch.testing.assert_close(other, force, rtol=0, atol=1e-15)
    for was, now in zip(held, (*state.outputs, *state.predictions), strict=True):
        assert torch.equal(was, now)


@pytest.mark.parametrize("hidden", [(8,), (8, 6)])
def test_forces_where_only_labelled_rows_are_variables(hidden):
    engine, params = graph_net("relu", strength=0.3, rows="train", hidden=hidden)
    forces = engine.output_gradients(engine.feasible_state(params, 1.0, 0.1))
    assert all(bool(torch.isfinite(force).all()) for force in forces)


# The limit of stiff links ------------------------------------------------------------------------------------------


def swept(engine, params, t, stiffness, shares=True, damped=True):
    """One sweep from the feasible state with rho, nu (and damping) times t; the parameters it leads to."""
    rho = engine.risk.H / 5
    seen = engine.seen_as(options=engine.options.damped(t if damped else 1.0))
    state = seen.feasible_state(copied(params), t * rho, t * rho / 10)
    state.stiffness = stiffness
    seen.sweep(state, seen.output_gradients(state) if shares else None)
    return state.params


def cosines(params, moved, leaves, name="W"):
    """Between what each block's parameter moved by and minus its gradient."""
    found = []
    for old, new, leaf in zip(params, moved, leaves, strict=True):
        if name in old:
            move, down = new[name] - old[name], -leaf[name].grad
            found.append(float((move * down).sum() / (move.norm() * down.norm())))
    return found


# t = 100: with five links the stiffest weighs t^5 of the softest, and float64 still resolves six digits of its moves
LARGE = 100.0


@pytest.mark.parametrize("strength", [0.0, 0.3])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_stiff_links_lead_along_the_negative_gradient(activation, strength):
    engine, params = mlp_engine(activation, bias=False, strength=strength)
    before, leaves, _ = truth(engine, params)
    moved = swept(engine, params, LARGE, LARGE)
    found = cosines(params, moved, leaves)
    assert len(found) == 3
    assert min(found) > 0.99, found
    assert truth(engine, moved)[0] < before


@pytest.mark.parametrize("strength", [0.0, 0.3])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("hidden", [(8,), (8, 6)])
def test_stiff_links_of_a_graph(monkeypatch, hidden, activation, strength):
    """A hidden graph block takes a line search's full step, whatever the damping: nothing shortens it.

    So the last block, and the first visit of the block before it, follow the gradient. The second visit starts where
    the first has used that direction up, and blocks below see a force from which it is gone: no limit holds for them.
    """
    engine, params = graph_net(activation, strength=strength, hidden=hidden)
    before, leaves, _ = truth(engine, params)
    first = {}
    true_update = GraphConv.update_parameters

    def update(block, p, v, term, penalty, work):
        old = p["W"].clone()
        steps = true_update(block, p, v, term, penalty, work)
        first.setdefault(engine.chain.blocks.index(block), p["W"] - old)
        return steps

    monkeypatch.setattr(GraphConv, "update_parameters", update)
    moved = swept(engine, params, 10 * LARGE, 10 * LARGE)
    found = cosines(params, moved, leaves)
    last = len(hidden)
    assert found[last] > 0.99
    for l in (last, last - 1):
        down = -leaves[l]["W"].grad
        assert float((first[l] * down).sum() / (first[l].norm() * down.norm())) > 0.99
    assert found[last - 1] > 0  # both visits together still lead downhill
    assert truth(engine, moved)[0] < before


@pytest.mark.parametrize("strength", [0.0, 0.3])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_biases_answer_first_and_weights_see_what_they_leave(activation, strength):
    """A bias is solved exactly, undamped, before W: the force's mean over the samples is gone by then."""
    engine, params = mlp_engine(activation, bias=True, strength=strength)
    before, leaves, _ = truth(engine, params)
    moved = swept(engine, params, LARGE, LARGE)
    assert truth(engine, moved)[0] < before
    assert cosines(params, moved, leaves, "b")[-1] > 0.99
    found = cosines(params, moved, truth(engine, params, centred=True)[1])
    assert min(found) > 0.99, found


@pytest.mark.parametrize("strength", [0.0, 0.3])
def test_with_biases_at_rest_the_weights_follow_the_true_gradient(strength):
    """An odd network on odd data: no bias is pulled, so there is nothing it could take from the weights."""
    half = torch.randn(30, 5, generator=generator(1), dtype=F64)
    labels = torch.randint(0, 2, (30,), generator=generator(2))
    x, y = torch.cat([half, -half]), torch.cat([labels, 1 - labels])
    engine, params = mlp_engine("tanh", bias=True, strength=strength, x=x, y=y, classes=2)
    before, leaves, _ = truth(engine, params)
    assert max(float(leaf["b"].grad.abs().max()) for leaf in leaves if leaf) < 1e-12
    moved = swept(engine, params, LARGE, LARGE)
    assert min(cosines(params, moved, leaves)) > 0.99
    assert truth(engine, moved)[0] < before


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_large_rho_and_nu_alone_do_not(activation):
    """Why stiffness and shares exist: links of one weight weaken the force, and the penalty keeps its full weight."""
    engine, params = mlp_engine(activation, bias=False, strength=0.3)
    leaves = truth(engine, params)[1]
    plain = cosines(params, swept(engine, params, 1e3, 1.0, shares=False), leaves)
    shared = cosines(params, swept(engine, params, 1e3, 1.0), leaves)
    assert max(plain[:2]) < 0.8, plain
    assert plain[2] > 0.99  # nothing stands between the last block and the loss
    for without, with_shares in zip(plain[:2], shared[:2], strict=True):
        assert with_shares > without + 0.2


def test_large_rho_and_nu_alone_follow_the_penalty():
    engine, params = mlp_engine("tanh", bias=False, strength=3.0)
    moved = swept(engine, params, 1e3, 1.0, shares=False)
    move, W = moved[0]["W"] - params[0]["W"], params[0]["W"]
    assert float(-(move * W).sum() / (move.norm() * W.norm())) > 0.95
    gradient = truth(engine, params)[1][0]["W"].grad
    assert float((gradient * W).sum() / (gradient.norm() * W.norm())) < 0.8


# Shares ------------------------------------------------------------------------------------------------------------


def share_of(term, gradient, counts=None):
    return float(gradient_share(term, gradient, Work(SubproblemOptions(), counts=counts)))


@pytest.mark.parametrize("seed", range(6))
def test_shares_are_shares(monkeypatch, seed):
    engine, state = random_problem(
        seed, depth=3, activation="tanh", regularizer={"name": "l2", "strength": 0.3}, nu=0.1 * 4**seed
    )
    forces = engine.output_gradients(state)
    last = Term(state.rho, state.outputs[-1] + state.u / state.rho, state.predictions[-1])
    assert share_of(last, forces[-1]) == pytest.approx(1.0, abs=1e-12)
    counted = {}
    update = Affine.update_parameters

    def noted(block, params, v, term, penalty, work):
        counted.setdefault(work.owner, []).append(float(penalty.quadratic) / 0.3)
        return update(block, params, v, term, penalty, work)

    monkeypatch.setattr(Affine, "update_parameters", noted)
    engine.sweep(state, forces)
    # Forward updates have the backward one's share
    assert all(len(set(each)) == 1 for each in counted.values())
    shares = [counted[l][0] for l in sorted(counted)]
    assert len(shares) == sum(bool(block.penalised) for block in engine.chain)
    assert shares[-1] == pytest.approx(1.0, abs=1e-12)
    assert all(0.0 <= share <= 1.0 + 1e-12 for share in shares)
    assert min(shares[:-1]) < 0.999  # they were measured


def test_a_share_is_the_part_of_the_force_that_arrives():
    force = torch.randn(7, 3, generator=generator(0), dtype=F64)
    at = torch.randn(7, 3, generator=generator(1), dtype=F64)
    for part, expected in ((0.0, 0.0), (0.25, 0.25), (1.0, 1.0), (1.5, 1.0), (-0.5, 0.0)):
        share = share_of(Term(4.0, at - part * force / 4, at), force)
        assert share == pytest.approx(expected, abs=1e-12)
    assert share_of(Term(4.0, at, at), torch.zeros_like(force)) == 1.0
    assert share_of(Term(4.0, at + torch.nan, at), force) == 1.0  # the safeguard refuses it
    rows = torch.arange(1.0, 8.0, dtype=F64)[:, None]
    part = torch.linspace(0.1, 0.7, 7, dtype=F64)[:, None]
    several = share_of(Term(4.0, at - part * force / 4, at), force, rows)
    again = [v.repeat_interleave(rows[:, 0].long(), 0) for v in (at - part * force / 4, at, force)]
    assert several == pytest.approx(share_of(Term(4.0, again[0], again[1]), again[2]), rel=1e-12)


@pytest.mark.parametrize("penalty", [L1(0.3), L2(0.7), ElasticNet(0.2, 0.5)])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_share_of_a_penalty_scales_value_and_prox(penalty, share):
    W = torch.randn(6, 4, generator=generator(0), dtype=F64)
    part = penalty.times(share)
    assert float(part.value(W)) == pytest.approx(share * float(penalty.value(W)), rel=1e-12)
    # prox_{s (share Omega)} = prox_{(s share) Omega}
    torch.testing.assert_close(part.prox(W, 0.8), penalty.prox(W, 0.8 * share), rtol=1e-12, atol=1e-14)
    on_device = penalty.times(torch.tensor(share, dtype=F64))
    torch.testing.assert_close(on_device.prox(W, 0.8), part.prox(W, 0.8), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("constraint", [NonNegative(), NoPenalty()])
def test_a_constraint_has_no_share(constraint):
    assert constraint.times(0.3) == constraint


@pytest.mark.parametrize(("penalty", "asked"), [(NoPenalty(), 0), (L2(0.3), 1), (L1(0.3), 1)])
def test_without_a_penalty_no_gradients_are_made(monkeypatch, penalty, asked):
    engine, params = mlp_engine("tanh", bias=True, strength=0.3)
    engine.penalty = penalty
    rho = 10 * engine.risk.H
    state = engine.feasible_state(params, rho, rho)
    made, true_gradients = [], Engine.output_gradients
    monkeypatch.setattr(Engine, "output_gradients", lambda *args: made.append(1) or true_gradients(*args))
    assert Accelerated(engine, state).iterate(state, steps_of) is not None
    assert len(made) == asked


@pytest.mark.parametrize("regularizer", [None, {"name": "l2", "strength": 0.3}])
def test_a_sweep_without_forces_is_what_it_was(regularizer):
    def problem():
        return random_problem(3, depth=3, activation="tanh", regularizer=regularizer)

    def flat(state):
        return torch.cat(
            [v.flatten() for block in state.params for v in block.values()] + [state.u.flatten()]
        )

    engine, state = problem()
    engine.sweep(state)
    explicit_engine, explicit = problem()
    explicit.stiffness = 1.0
    assert [explicit.weight(l) for l in range(len(explicit.params))] == [1.0] * 4 + [explicit.rho]
    assert explicit_engine.sweep(explicit, None)
    assert torch.equal(flat(state), flat(explicit))
    used_engine, used = problem()  # and one with forces leaves no trace
    used_engine.sweep(used, used_engine.output_gradients(used))
    assert torch.equal(flat(state), flat(used)) == (regularizer is None)
    fresh = problem()[1]
    used_engine.sweep(fresh)
    assert torch.equal(flat(state), flat(fresh))


def test_stiffness_weighs_a_link_once_for_each_that_follows():
    state = random_problem(3, depth=3, nu=0.5)[1]
    state.stiffness = 3.0
    assert [state.weight(l) for l in range(5)] == [0.5 * 81, 0.5 * 27, 0.5 * 9, 0.5 * 3, state.rho]


# Dropped entries ---------------------------------------------------------------------------------------------------


def drawn(rows, columns, seed=0):
    return torch.randn(rows, columns, generator=generator(seed), dtype=F64) + 3.0


def test_equal_rows_lose_equal_entries_in_any_order():
    x = drawn(50, 30)
    order = torch.randperm(150, generator=generator(1))
    repeated = x.repeat(3, 1)[order]
    once = InputDropout(x, 5).apply(x, 0.3, 7)
    many = InputDropout(repeated, 5).apply(repeated, 0.3, 7)
    assert torch.equal(many, once.repeat(3, 1)[order])
    assert len(torch.unique(once == 0, dim=0)) == 50  # and different rows lose different ones


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.9])
def test_the_share_is_right_and_the_mean_stays(share):
    x = drawn(400, 100)
    kept = torch.stack([InputDropout(x, 0).apply(x, share, turn) for turn in range(5)])
    gone = (kept == 0).double()
    n = gone.numel()
    assert float(gone.mean()) == pytest.approx(share, abs=3 * (share * (1 - share) / n) ** 0.5)
    others = kept[kept != 0] * (1 - share)
    torch.testing.assert_close(others, x.expand_as(kept)[kept != 0], rtol=1e-12, atol=0)
    noise = 3 * float(x.square().mean() * share / (1 - share) / n) ** 0.5
    assert float(kept.mean()) == pytest.approx(float(x.mean()), abs=noise)


def test_without_a_share_nothing_changes():
    x = drawn(20, 6)
    assert torch.equal(InputDropout(x, 0).apply(x, 0.0, 1), x)


def test_turns_seeds_rows_and_columns_are_independent():
    x = drawn(300, 200)

    def gone(seed, turn):
        return (InputDropout(x, seed).apply(x, 0.5, turn) == 0).double()

    first = gone(0, 64)
    for other in (gone(0, 65), gone(0, 128), gone(1, 64)):
        assert abs(float((first * other).mean()) - 0.25) < 4 * (0.25 * 0.75 / x.numel()) ** 0.5
    # 44,850 pairs of rows and 19,900 of columns: 5.5 standard deviations allow for the largest of them
    for matrix, length in ((first, 200), (first.T, 300)):
        correlation = torch.corrcoef(matrix)
        assert float((correlation - torch.eye(len(matrix))).abs().max()) < 5.5 / length**0.5
    # nor do some rows or columns lose more than chance says
    for dim, length in ((0, 300), (1, 200)):
        spread = float(first.mean(dim).var()) / (0.25 / length)
        assert 0.6 < spread < 1.5


def test_neighbouring_rows_are_independent():
    """Rows on a lattice, whose projections differ by little and regularly."""
    x = torch.cartesian_prod(*[torch.arange(8, dtype=F64) / 8] * 3)
    gone = torch.cat([(InputDropout(x, 0).apply(x + 1, 0.5, turn) == 0).double() for turn in range(64)], 1)
    correlation = torch.corrcoef(gone) - torch.eye(512)
    assert float(correlation.abs().max()) < 6 / gone.shape[1] ** 0.5
    assert float(correlation.square().mean()) == pytest.approx(1 / gone.shape[1], rel=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1), (1, 500), (500, 1), (30, 4)])
def test_any_shape_and_dtype(shape, dtype):
    x = drawn(*shape).to(dtype)
    before = x.clone()
    dropped = InputDropout(x, 0).apply(x, 0.5, 3)
    assert dropped.dtype == dtype
    assert dropped.device == x.device
    assert dropped.shape == x.shape
    assert torch.equal(x, before)
    if x.numel() == 500:
        assert 180 < int((dropped == 0).sum()) < 320


# Scaling -----------------------------------------------------------------------------------------------------------


def measured(rows=80, seed=0):
    """Features of very different units and origins, one of them constant."""
    x = torch.randn(rows, 6, generator=generator(seed), dtype=F64)
    x = x * torch.tensor([1e-6, 1e6, 1.0, 50.0, 1.0, 0.0]) + torch.tensor([0.0, 1e5, -300.0, 1.0, 0.0, 0.1])
    return x.contiguous()


@pytest.mark.parametrize("bias", [True, False])
def test_folding_undoes_scaling(bias):
    x = measured()
    chain = affine_net([6, 7, 3], "tanh", bias)
    scaling = Scaling.fit(chain.blocks[0], x)
    params = chain.initial_parameters(generator(0), 1.0, dtype=F64, device=CPU)
    folded = scaling.fold(params)
    torch.testing.assert_close(
        chain.predict(folded, x), chain.predict(params, scaling.apply(x)), rtol=0, atol=1e-10
    )
    for one, two in zip(params, scaling.unfold(folded), strict=True):
        for name in one:
            torch.testing.assert_close(two[name], one[name], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        chain.predict(scaling.unfold(params), scaling.apply(x)),
        chain.predict(params, x),
        rtol=1e-9,
        atol=1e-7,
    )
    assert bool((scaling.shift == 0).all()) != bias


def test_scaling_does_not_depend_on_units_and_origins():
    x = torch.randn(50, 5, generator=generator(0), dtype=F64)
    units, origins = 10.0 ** torch.arange(-4.0, 6.0, 2.0, dtype=F64), torch.linspace(-5, 5, 5, dtype=F64)
    first = Affine(5, 3)
    scaled = Scaling.fit(first, x).apply(x)
    other = (x + origins) * units
    torch.testing.assert_close(Scaling.fit(first, other).apply(other), scaled, rtol=0, atol=1e-11)
    other = (x + origins) * -units
    torch.testing.assert_close(Scaling.fit(first, other).apply(other), -scaled, rtol=0, atol=1e-11)
    assert float(scaled.mean(0).abs().max()) < 1e-14
    assert float(torch.linalg.vector_norm(scaled, dim=1).mean()) == pytest.approx(1.0, rel=1e-12)
    reach = scaled.abs().amax(0)
    assert float(reach.max() / reach.min()) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.0, 0.1, -1e8])
def test_constant_features_are_left_alone(dtype, value):
    x = torch.randn(33, 3, generator=generator(0), dtype=F64).to(dtype)
    x[:, 1] = value
    constant = torch.full((33, 2), value, dtype=dtype)
    for features in (x, constant, x[:1]):
        scaling = Scaling.fit(Affine(features.shape[1], 2), features)
        scaled = scaling.apply(features)
        assert bool(torch.isfinite(scaled).all())
        assert bool(torch.isfinite(scaling.scale).all())
        assert bool((scaling.scale > 0).all())
        assert float(scaled.abs().max()) <= 2.0
    # Rows that are alike: what differs from their mean is rounding, and is not made large
    assert Scaling.fit(Affine(3, 2), x[:1].expand(33, 3)).scale.tolist() == [1.0] * 3
    scaled = Scaling.fit(Affine(3, 2), x).apply(x)
    assert float(scaled[:, 1].abs().max()) <= 8 * torch.finfo(dtype).eps * max(abs(value), 1.0)


@pytest.mark.parametrize("bias", [True, False])
def test_weights_scale_like_repetition(bias):
    x = measured(20)
    times = torch.arange(20) % 4 + 1
    weighted = Scaling.fit(Affine(6, 3, bias), x, times[:, None].double())
    repeated = Scaling.fit(Affine(6, 3, bias), x.repeat_interleave(times, 0))
    plain = Scaling.fit(Affine(6, 3, bias), x)
    torch.testing.assert_close(weighted.scale, repeated.scale, rtol=1e-12, atol=0)
    torch.testing.assert_close(weighted.shift, repeated.shift, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(weighted.scale, plain.scale, rtol=1e-6)


def test_only_an_affine_layer_of_dense_inputs_is_scaled():
    x = measured()
    assert Scaling.fit(Elementwise("relu"), x) is None
    assert Scaling.fit(Affine(6, 2), x.to_sparse()) is None


def test_nodes_are_scaled_alike_dense_and_sparse():
    dense = np.random.default_rng(0).random((40, 9)) * (np.random.default_rng(1).random((40, 9)) < 0.3)
    one, two = (Scaling.of_nodes(kind, F64, CPU) for kind in (dense, sparse.csr_array(dense)))
    torch.testing.assert_close(one.scale, two.scale, rtol=1e-14, atol=0)
    size = np.sqrt((dense**2).mean(0))
    torch.testing.assert_close(
        one.scale / one.scale[0], torch.from_numpy((size / size[0]) ** RARITY), rtol=1e-12, atol=0
    )
    x = torch.from_numpy(dense)
    assert float(torch.linalg.vector_norm(one.apply(x), dim=1).mean()) == pytest.approx(0.3, rel=1e-12)
    as_sparse = csr_tensor(sparse.csr_array(dense), F64, CPU)
    torch.testing.assert_close(two.apply(as_sparse).to_dense(), one.apply(x), rtol=1e-12, atol=0)
    nothing = Scaling.of_nodes(np.zeros((4, 3)), F64, CPU)
    assert bool((nothing.scale == 1.0).all())
    params = [{"W": torch.randn(2, 9, generator=generator(0), dtype=F64)}]
    torch.testing.assert_close(one.apply(x) @ params[0]["W"].T, x @ one.fold(params)[0]["W"].T)


# From one end to the other -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits():
    data = datasets.load("digits")
    to = [np.asarray(v) for v in (data.x_train, data.y_train, data.x_test, data.y_test)]
    return to[0][:300].astype(float), to[1][:300], to[2].astype(float), to[3]


def test_units_and_origins_do_not_matter(digits):
    X, y, X_test, y_test = digits
    mean, std = X.mean(0), X.std(0)
    std[std == 0] = 1.0
    maps = (lambda v: v, lambda v: 100 * v, lambda v: (v - mean) / std)
    answers = []
    for change in maps:
        result = train(
            mlp([64, 20, 10]), change(X), y, mode="accelerated", dtype="float64", max_iter=15, eps_rel=0.0
        )
        with torch.no_grad():
            answers.append(result.module(torch.from_numpy(change(X_test))).argmax(1).numpy())
    accuracy = [float((answer == y_test).mean()) for answer in answers]
    assert accuracy[0] > 0.75
    for answer, reached in zip(answers[1:], accuracy[1:], strict=True):
        assert (answer == answers[0]).mean() >= 0.99
        assert abs(reached - accuracy[0]) < 0.01


class AtStart(Callback):
    """The loss and the outputs before the first iteration."""

    def on_train_begin(self, trainer):
        self.loss = float(trainer.engine.energy(trainer.state).risk)
        self.lagrangian = float(trainer.engine.energy(trainer.state).lagrangian)
        self.outputs = trainer.state.outputs[-1].clone()


def test_a_kept_network_goes_on_from_where_it_is(digits):
    X, y = digits[0] * 7 + 30, digits[1]
    x = torch.from_numpy(X)
    net = nn.Sequential(nn.Linear(64, 20), nn.Tanh(), nn.Linear(20, 10)).double()
    for p in net.parameters():
        p.data = 0.05 * torch.randn(p.shape, generator=generator(0), dtype=F64)
    with torch.no_grad():
        before = net(x)
    begin = AtStart()
    settings = {"mode": "accelerated", "dtype": "float64", "max_iter": 8}
    result = train(net, X, y, init="keep", callbacks=[begin], **settings)
    torch.testing.assert_close(begin.outputs, before, rtol=0, atol=1e-10)
    expected = float(nn.functional.cross_entropy(before, torch.from_numpy(y), reduction="sum"))
    assert begin.loss == pytest.approx(expected, rel=1e-10)
    assert result.history["lagrangian"][0] <= begin.lagrangian
    with torch.no_grad():
        after = net(x)  # trained in place, and takes X as it came
        assert torch.equal(after, result.module(x))
    torch.testing.assert_close(after, result.state.outputs[-1], rtol=0, atol=1e-9)
    again = AtStart()
    train(net, X, y, init="keep", callbacks=[again], **settings)
    torch.testing.assert_close(again.outputs, after, rtol=0, atol=1e-9)


# The level's rules -------------------------------------------------------------------------------------------------


def steps_of(state, steps):
    return steps


class Refused(Accelerated):
    """Accelerated, whose next ``refuse`` attempts lead to a far worse network."""

    refuse = 0

    def _sweep_trial(self, state, attempt):
        self.tried.append(attempt)
        if len(self.tried) > self.refuse:
            return super()._sweep_trial(state, attempt)
        self._trial.params = [{name: 1e4 + p for name, p in block.items()} for block in state.params]
        return []

    def go(self, state, refuse=0):
        self.tried, self.refuse = [], refuse
        return self.iterate(state, steps_of)


def method_on(dropout=0.0):
    engine, params = mlp_engine("tanh", bias=True, strength=0.3)
    rho = 10 * engine.risk.H  # short steps: none is refused but by us
    state = engine.feasible_state(params, rho, rho)
    return Refused(engine, state, dropout), state


@pytest.mark.parametrize("refused", [1, 2, 5])
def test_a_refused_step_raises_the_level_by_one(refused):
    method, state = method_on()
    for _ in range(2):
        method.go(state)
    assert (method.level, method.patience, method.momentum) == (0, PATIENCE, 2)
    assert method.go(state, refuse=refused) is not None
    assert (method.level, method.patience, method.calm) == (1, 2 * PATIENCE, 0)
    levels = [attempt.level for attempt in method.tried]
    assert levels == [0, 1, *range(1, HIGHEST_RAISE + 1)][: refused + 1]
    assert [a.momentum for a in method.tried] == [2, 1, *[0] * HIGHEST_RAISE][: refused + 1]
    assert method.momentum == method.tried[-1].momentum + 1
    # what was accepted had rho and nu of its level
    assert state.rho == method.rho * 2.0 ** levels[-1]


def test_patience_has_an_end():
    method, state = method_on()
    for _ in range(9):
        method.go(state, refuse=1)
    assert method.level == 9
    assert method.patience == LONGEST_PATIENCE


def test_dropping_fades_in_up_to_the_share_that_was_asked_for():
    method, state = method_on()
    for _ in range(40):
        method.go(state)
    assert method.fade == 1.0


def test_calm_lowers_the_level_but_not_below_the_lowest():
    method, state = method_on()
    levels = []
    for _ in range(PATIENCE * (2 - LOWEST_LEVEL)):
        method.go(state)
        assert len(method.tried) == 1
        levels.append(method.level)
    expected = [max(LOWEST_LEVEL, -(k // PATIENCE)) for k in range(1, len(levels) + 1)]
    assert levels == expected
    method.go(state, refuse=1)
    assert method.level == LOWEST_LEVEL + 1
    for _ in range(2 * PATIENCE - 1):  # patience has doubled
        method.go(state)
        assert method.level == LOWEST_LEVEL + 1
    method.go(state)
    assert method.level == LOWEST_LEVEL


def test_refused_noise_is_not_refused_length():
    method, state = method_on(dropout=0.2)
    method.go(state)
    assert (method.fade, method.level) == (pytest.approx(FADE_GROWTH * FIRST_FADE), 0)
    method.fade, before = 1.0, method.momentum
    method.go(state, refuse=1)
    assert [attempt.drops for attempt in method.tried] == [True, False]
    assert (method.fade, method.level, method.patience, method.calm) == (0.5, 0, PATIENCE, 0)
    assert method.momentum == before + 1
    method.go(state)
    assert method.fade == pytest.approx(0.5 * FADE_GROWTH)
    method.go(state, refuse=2)  # the length it was: shorter, and entries dropped as before
    assert [attempt.drops for attempt in method.tried] == [True, False, True]
    assert (method.fade, method.level) == (pytest.approx(0.5 * FADE_GROWTH**2), 1)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_when_every_attempt_is_refused_nothing_moves(dropout):
    method, state = method_on(dropout)
    before = [copied(state.params), state.u.clone(), state.rho, state.nu]
    assert method.go(state, refuse=10**6) is None
    assert len(method.tried) == 2 + HIGHEST_RAISE + (dropout > 0)
    assert method.tried[-1] == (0, HIGHEST_RAISE, False)
    for old, p in zip(before[0], state.params, strict=True):
        assert all(torch.equal(old[name], p[name]) for name in p)
    assert torch.equal(state.u, before[1])
    assert (state.rho, state.nu) == (before[2], before[3])
    assert method.go(state) is not None  # and it can go on


def everything_of(state):
    """The tensors of a state, and copies of them."""
    tensors = [p for block in state.params for p in block.values()]
    tensors += [*state.outputs, *state.predictions, state.u]
    return tensors, [tensor.clone() for tensor in tensors]


def lasting_of(state):
    """The tensors that attempts must not touch, u last, and copies of them."""
    tensors = [*(p for block in state.params for p in block.values()), state.u]
    return tensors, [tensor.clone() for tensor in tensors]


@pytest.mark.parametrize(
    ("kind", "dropout"),
    # Sparse inputs: no dropout
    [
        ("mlp", 0.0),
        ("mlp", 0.2),
        ("graph, all rows", 0.0),
        ("graph, some rows", 0.0),
    ],
)
@pytest.mark.parametrize("refusals", [1, 3, 6, None])
def test_a_refused_attempt_never_touches_the_accepted_point(monkeypatch, kind, dropout, refusals):
    """The safeguard refuses the first attempts of every iteration, whole sweeps with their resynchronised points.

    While they are made, the state's parameters and u are bit for bit what they were, in the same memory. It has lent
    the memory of its variables, and has the forward pass there again when the last one is refused.
    """
    if kind == "mlp":
        engine, params = mlp_engine("tanh", bias=True, strength=0.3)
    else:
        engine, params = graph_net("relu", strength=0.3, rows="all" if "all" in kind else "train")
    rho = 10 * engine.risk.H
    state = engine.feasible_state(params, rho, rho)
    method = Accelerated(engine, state, dropout)
    truth_of, asked = engine.objective, 0
    tensors, before = lasting_of(state)
    numbers = state.rho, state.nu, state.stiffness, state.links, [dict(c) for c in state.curvatures]

    def objective(candidate):
        nonlocal asked
        if candidate is state:
            return truth_of(candidate)
        mine = {tensor.data_ptr() for tensor in everything_of(candidate)[0]}
        assert mine.isdisjoint(tensor.data_ptr() for tensor in tensors)
        for tensor, was, now in zip(tensors, before, lasting_of(state)[0], strict=True):
            assert tensor is now
            assert torch.equal(tensor, was)
        assert state.outputs == state.predictions == []
        asked += 1
        refuse = refusals is None or asked <= refusals
        return torch.tensor(torch.inf, dtype=F64) if refuse else truth_of(candidate)

    monkeypatch.setattr(engine, "objective", objective)
    for _ in range(3):
        asked = 0
        tensors, before = lasting_of(state)
        all_before = [tensor.clone() for tensor in everything_of(state)[0]]
        seen = method.iterate(state, steps_of)
        if refusals is None:
            assert seen is None
            assert asked == 2 + HIGHEST_RAISE + (dropout > 0)
            for tensor, now in zip(tensors, lasting_of(state)[0], strict=True):
                assert tensor is now
            for was, now in zip(all_before, everything_of(state)[0], strict=True):
                torch.testing.assert_close(now, was, rtol=1e-12, atol=1e-12)
            for was, now in zip(before, tensors[:-1], strict=False):  # the parameters
                assert torch.equal(now, was)
            assert numbers == (state.rho, state.nu, state.stiffness, state.links, state.curvatures)
        else:
            assert seen is not None
            assert asked > refusals
            # what was accepted is feasible, and shares no memory with the trial but that of the variables
            for output, again in zip(
                state.outputs, engine.feasible_state(state.params, 1, 1).outputs, strict=True
            ):
                torch.testing.assert_close(output, again, rtol=1e-12, atol=1e-12)
            trial = {v.data_ptr() for v in (*method._trial.predictions, method._trial.u)}
            assert trial.isdisjoint(tensor.data_ptr() for tensor in everything_of(state)[0])


def test_an_accepted_point_does_not_depend_on_what_was_refused(monkeypatch):
    """Garbage in the memory of the trial, as refused attempts leave it, reaches nothing."""
    points = []
    for poisoned in (False, True):
        method, state = method_on(dropout=0.2)
        for _ in range(3):
            if poisoned:
                hidden = method._trial.outputs[:-1]  # the last tells the objective of the first point
                for tensor in (*hidden, *method._trial.predictions, method._trial.u):
                    tensor.fill_(torch.nan)
            assert method.go(state) is not None
        points.append([p.clone() for p in everything_of(state)[0]])
    for clean, other in zip(*points, strict=True):
        assert torch.equal(clean, other)


def test_a_run_without_a_step_left_stalls(monkeypatch, digits):
    X, y = digits[0], digits[1]
    true_sweep, kept = Accelerated._sweep_trial, []

    def sweep(self, state, tried):
        steps = true_sweep(self, state, tried)
        if self.iteration > 3:
            if not kept:
                kept.extend(copied(state.params))
            self._trial.params = [{name: 1e4 + p for name, p in block.items()} for block in state.params]
        return steps

    monkeypatch.setattr(Accelerated, "_sweep_trial", sweep)
    result = train(mlp([64, 10, 10]), X, y, mode="accelerated", max_iter=50, dtype="float64")
    assert result.status is Status.STALLED
    assert result.history.n_iter == 3
    assert result.certificate.monotone
    for old, p in zip(kept, result.state.params, strict=True):
        assert all(torch.equal(old[name], p[name]) for name in p)


# Settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dropout", [-0.1, 1.0, 2, float("nan"), "0.2"])
def test_dropout_is_a_share(dropout):
    with pytest.raises(InputError, match="dropout must be a number from 0 to below 1"):
        make_options(mode="accelerated", dropout=dropout)


def test_dropout_belongs_to_accelerated_mode():
    with pytest.raises(InputError, match="dropout is a setting of mode='accelerated'"):
        make_options(dropout=0.1)
    assert make_options(dropout=0.0).dropout == 0.0
    assert make_options(mode="accelerated").dropout == ACCELERATED.dropout == 0.2


def test_dropout_needs_dense_inputs():
    pairs, x, y, labelled = random_graph(np.random.default_rng(0), 20, 5, 3)
    engine = graph_engine(pairs, x, y, labelled, [5, 4, 3], kind="factors")
    params = engine.chain.initial_parameters(generator(0), 1.0, dtype=F64, device=CPU)
    state = engine.feasible_state(params, 1.0, 0.1)
    with pytest.raises(InputError, match="dropout needs dense inputs"):
        Accelerated(engine, state, 0.2)
    assert Accelerated(engine, state, 0.0).iterate(state, steps_of) is not None


def test_the_penalty_of_the_mode():
    assert make_options().penalty("auto") == NoPenalty()
    assert make_options(mode="accelerated").penalty("auto") == L2(0.3)
    assert make_options(mode="accelerated").penalty("auto", 1000) == L2(0.3)
    assert make_options(mode="accelerated").penalty("auto", 4).quadratic == pytest.approx(0.02)
    assert make_options(mode="accelerated").penalty({"name": "l2", "strength": 0.3}, 4) == L2(0.3)
    assert make_options(mode="accelerated").penalty(None) == NoPenalty()
    assert make_options(mode="accelerated").penalty("l1") == get_regularizer("l1")


@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan")])
def test_last_damping_is_not_negative(value):
    with pytest.raises(InputError, match="last_damping must be None or a number >= 0"):
        make_options(mode="accelerated", last_damping=value)


def test_damping_of_the_last_block_and_of_shorter_steps():
    options = SubproblemOptions(damping=0.5, last_damping=2.0)
    assert options.damping_of(10, last=False) == 0.5
    assert options.damping_of(10, last=True) == 20.0
    assert SubproblemOptions(damping=0.5).damping_of(10, last=True) == 0.5
    assert options.damped(4.0) == SubproblemOptions(damping=2.0, last_damping=8.0)
    assert SubproblemOptions(damping=0.5).damped(4.0) == SubproblemOptions(damping=2.0)


def test_given_rho_and_nu_win():
    own = make_options(mode="accelerated")
    assert own.starting_rho(0.5) == pytest.approx(0.1)
    assert own.starting_nu(0.1) == pytest.approx(0.01)
    told = make_options(mode="accelerated", rho=7.0, nu=3.0)
    assert (told.starting_rho(0.5), told.starting_nu(7.0)) == (7.0, 3.0)
    assert make_options(mode="accelerated", rho=7.0).starting_nu(7.0) == pytest.approx(0.7)
    seen = {}

    class See(Callback):
        def on_train_begin(self, trainer):
            seen.update(rho=trainer.method.rho, nu=trainer.method.nu)

    X, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 3
    train(mlp([3, 4, 3]), X, y, mode="accelerated", rho=7.0, nu=3.0, max_iter=1, callbacks=[See()])
    assert seen == {"rho": 7.0, "nu": 3.0}


# Settled -----------------------------------------------------------------------------------------------------------


def test_it_ends_when_the_objective_has_settled():
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    X = rng.normal(size=(90, 4)) + 6 * np.eye(3, 4)[y]
    settings = {"mode": "accelerated", "dtype": "float64", "max_iter": 300}
    settled = train(mlp([4, 8, 3]), X, y, **settings)
    assert settled.status is Status.CONVERGED
    assert 11 <= settled.history.n_iter < 300
    objective = settled.history["lagrangian"]
    assert objective[-11] - objective[-1] < 1e-4 * objective[-1]
    assert objective[-12] - objective[-2] >= 1e-4 * objective[-2]
    longer = train(mlp([4, 8, 3]), X, y, eps_rel=0.0, eps_abs=0.0, **settings)
    assert longer.history.n_iter > settled.history.n_iter
    n = settled.history.n_iter
    assert longer.history["lagrangian"][:n] == objective
    assert longer.history["lagrangian"][-1] <= objective[-1]


def test_graphs_take_the_mode_with_labelled_rows_only():
    graph = datasets.load("sbm", n_nodes=60, n_classes=3, seed=0)
    mask = torch.arange(60) % 3 == 0
    result = train_graph(
        graph.x, graph.edge_index, graph.y, mask, hidden=(8, 8), rows="train", mode="accelerated", max_iter=5
    )
    assert result.certificate.monotone


def test_the_next_search_begins_near_what_the_last_accepted_one_found():
    chain = from_module(nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 3)))
    x = torch.randn(30, 5, generator=generator(0), dtype=F64)
    loss = get_loss("cross_entropy")
    engine = Engine(chain, x, Risk(loss, loss.encode(torch.arange(30) % 3, 3, F64)))
    params = chain.initial_parameters(generator(0), 1.0, dtype=F64, device=CPU)
    state = engine.feasible_state(params, 10 * engine.risk.H, 1.0)
    method = Accelerated(engine, state)
    assert not any(state.curvatures)
    method.iterate(state, steps_of)
    assert any(state.curvatures)
    assert state.curvatures == method._trial.curvatures


def test_a_rare_word_counts_by_a_small_power_of_its_root_mean_square():
    features = np.zeros((100, 2))
    features[:, 0], features[:4, 1] = 3.0, 1.0
    scale = Scaling.of_nodes(features, F64, CPU).scale
    assert float(scale[0] / scale[1]) == pytest.approx((3.0 / 0.2) ** RARITY)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_attempt_that_is_broken_off_leaves_the_accepted_point(monkeypatch, error):
    engine, params = mlp_engine("tanh", bias=True, strength=0.3)
    state = engine.feasible_state(params, 10 * engine.risk.H, 10 * engine.risk.H)
    method = Accelerated(engine, state)
    assert method.iterate(state, steps_of) is not None
    before = [tensor.clone() for tensor in everything_of(state)[0]]

    def broken(*_):
        raise error

    monkeypatch.setattr(engine, "objective", broken)
    with pytest.raises(error):
        method.iterate(state, steps_of)
    for was, now in zip(before, everything_of(state)[0], strict=True):
        torch.testing.assert_close(now, was, rtol=1e-12, atol=1e-12)
    monkeypatch.undo()
    assert method.iterate(state, steps_of) is not None
