"""What Section 4 promises, on chains of graph blocks; rows that follow; symmetries; determinism."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from test_theory import ACTIVATIONS, REGULARIZERS, SOLVERS, descents
from torch import nn

from convergent import train_graph
from dladmm import datasets
from dladmm.blocks import Elementwise, GraphConv
from dladmm.compute.sparse import SparseMatrix
from dladmm.engine.sweep import Engine
from dladmm.network.chain import Chain
from dladmm.network.graph import normalised_adjacency
from dladmm.network.graph_chain import gcn
from dladmm.solvers.subproblems import SubproblemOptions
from graph_problems import CPU, graph_engine, random_graph
from reference_gcn import dense_adjacency

KINDS = ["factors", "dense factors", "product", "dense product"]


def random_problem(seed, *, activation="relu", rho_factor=3.0, mu=1.0, depth=None, **kwargs):
    rng = np.random.default_rng(seed)
    depth = int(rng.integers(1, 4)) if depth is None else depth
    widths = [*rng.integers(1, 9, depth).tolist(), 3]
    pairs, x, y, labelled = random_graph(rng, int(rng.integers(6, 40)), widths[0], 3)
    kwargs.setdefault("kind", KINDS[seed % 4])
    engine = graph_engine(pairs, x, y, labelled, widths, activation=activation, **kwargs)
    generator = torch.Generator().manual_seed(seed)
    params = engine.chain.initial_parameters(generator, 1.0, dtype=torch.float64, device=CPU)
    for p in params:
        p["W"] = engine.penalty.prox(p["W"], 0.0)
    return engine, engine.feasible_state(params, rho_factor * engine.risk.H, mu)


@pytest.mark.parametrize("batch", range(5))
def test_property_2_holds_on_100_random_graphs(batch):
    """rho > 2H, float64: the Lagrangian falls by at least C2 times the squared steps, at every iteration."""
    for seed in range(20 * batch, 20 * (batch + 1)):
        engine, state = random_problem(
            seed,
            activation=ACTIVATIONS[seed % len(ACTIVATIONS)],
            loss=["cross_entropy", "binary_logistic", "squared_hinge"][seed % 3],
            regularizer=REGULARIZERS[(seed // 3) % len(REGULARIZERS)],
            rho_factor=[2.01, 3.0, 10.0][seed % 3],
            mu=[0.01, 1.0, 5.0][(seed // 5) % 3],
            **SOLVERS[(seed // 7) % len(SOLVERS)],
        )
        for k, (fall, promised, scale) in enumerate(descents(engine, state, 6)):
            assert fall >= promised - 1e-10 * scale, f"seed {seed}, iteration {k + 1}: {fall} < {promised}"


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("train_rows", [False, True])
def test_caches_stay_true_to_the_raw_data(seed, train_rows):
    engine, state = random_problem(
        seed, depth=3, train_rows=train_rows, w_solver=["exact", "quadratic"][seed % 2]
    )
    for _ in range(15):
        engine.sweep(state)
    for cached, raw in zip(state.predictions, engine.raw_predictions(state), strict=True):
        assert torch.allclose(cached, raw, atol=1e-9)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_rows_that_are_no_variables_follow_the_forward_pass(seed, activation):
    engine, state = random_problem(seed, depth=3, train_rows=True, activation=activation)
    assert engine.chain.follows_forward
    labelled = engine.risk.weight[:, 0] > 0
    for _ in range(5):
        before = [v[labelled].clone() for v in state.outputs]
        engine.sweep(state)
    predictions = engine.raw_predictions(state)
    for v, g in zip(state.outputs, predictions, strict=True):
        assert torch.allclose(v[~labelled], g[~labelled], atol=1e-9)
    assert any(not torch.equal(v[labelled], old) for v, old in zip(state.outputs[:-1], before, strict=False))
    assert float(state.u[~labelled].abs().max()) == 0.0


def test_all_labelled_makes_both_choices_of_rows_the_same():
    rng = np.random.default_rng(3)
    pairs, x, y, labelled = random_graph(rng, 20, 5, 3)
    labelled[:] = True
    states = []
    for train_rows in (False, True):
        engine = graph_engine(pairs, x, y, labelled, [5, 6, 3], train_rows=train_rows)
        params = engine.chain.initial_parameters(
            torch.Generator().manual_seed(0), 1.0, dtype=torch.float64, device=CPU
        )
        state = engine.feasible_state(params, 1.5, 1.0)
        for _ in range(5):
            engine.sweep(state)
        states.append(state)
    for one, other in zip(states[0].outputs, states[1].outputs, strict=True):
        assert torch.allclose(one, other, atol=1e-9)


@pytest.mark.parametrize("activation", ["relu", "tanh", "softplus"])
@pytest.mark.parametrize("kind", KINDS)
def test_stationarity_is_the_gradient_autograd_finds(activation, kind):
    engine, state = random_problem(
        3, activation=activation, kind=kind, depth=3, regularizer={"name": "l2", "strength": 0.3}
    )
    state.nu = 0.4 * state.nu  # a distance that forgot it would be right at 1
    engine.sweep(state)
    generator = torch.Generator().manual_seed(0)
    for v in state.outputs:
        v.add_(0.1 * torch.randn(v.shape, generator=generator, dtype=v.dtype))
    state.predictions = engine.raw_predictions(state)
    A = engine.chain.blocks[1].graph.adjacency.csr.to_dense()
    x = engine.x.to_dense() if engine.x.layout != torch.strided else engine.x
    first = torch.eye(len(A), dtype=A.dtype) if "product" in kind else A
    leaves = [*state.W, *state.outputs, state.u]
    for leaf in leaves:
        leaf.requires_grad_()
    value = engine.penalty.strength / 2 * sum((W**2).sum() for W in state.W)
    for l, block in enumerate(engine.chain):
        M = first @ x if l == 0 else A @ state.outputs[l - 1]
        r = state.outputs[l] - block.activation(M @ state.W[l].T)
        last = l == len(engine.chain) - 1
        value = value + (state.rho if last else state.nu) / 2 * (r**2).sum()
        value = value + (state.u * r).sum() if last else value
    gradients = list(torch.autograd.grad(value, leaves))
    for leaf in leaves:
        leaf.requires_grad_(False)
    gradients[-2] = gradients[-2] + engine.risk.gradient(state.outputs[-1])
    expected = sum(float((g**2).sum()) for g in gradients)
    assert float(engine.stationarity(state)) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("solver", ["quadratic", "exact"])
def test_stationarity_and_lemma_2_residual_go_to_zero(solver):
    engine, state = random_problem(
        5, depth=2, activation="tanh", regularizer={"name": "l2", "strength": 0.1}, w_solver=solver
    )
    engine.sweep(state)
    first = float(engine.stationarity(state))
    for _ in range(400):
        engine.sweep(state)
    assert math.sqrt(float(engine.dual_optimality(state))) < 1e-7
    assert float(engine.stationarity(state)) < 1e-3 * first


def test_exact_last_layer_is_the_minimiser():
    engine, state = random_problem(2, depth=2, w_solver="exact", damping=0.0)
    engine.sweep(state)
    block, W = engine.chain.blocks[-1], state.W[-1]
    work = engine.work(1, order=(True,))
    block.update_parameters(state.params[1], state.outputs[0], engine.term(state, 1), engine.penalty, work)
    A = block.graph.adjacency.csr.to_dense() @ state.outputs[0]
    gradient = (A @ W.T - state.outputs[1] - state.u / state.rho).T @ A
    assert float(gradient.abs().max()) < 1e-8


@pytest.mark.parametrize("seed", range(5))
def test_numbering_the_nodes_differently_changes_nothing(seed):
    rng = np.random.default_rng(seed)
    pairs, x, y, labelled = random_graph(rng, 25, 5, 3)
    order = rng.permutation(25)
    place = np.argsort(order)
    given = [(pairs, x, y, labelled), (place[pairs], x[order], y[order], labelled[order])]
    states = []
    for graph in given:
        engine = graph_engine(*graph, [5, 8, 3])
        generator = torch.Generator().manual_seed(0)
        params = engine.chain.initial_parameters(generator, 1.0, dtype=torch.float64, device=CPU)
        state = engine.feasible_state(params, 1.5, 1.0)
        for _ in range(5):
            engine.sweep(state)
        states.append(state)
    for one, other in zip(states[0].outputs, states[1].outputs, strict=True):
        assert torch.allclose(one[torch.from_numpy(order)], other, atol=1e-9)
    for one, other in zip(states[0].W, states[1].W, strict=True):
        assert torch.allclose(one, other, atol=1e-9)


def test_forward_is_the_formula():
    rng = np.random.default_rng(0)
    pairs, x, y, labelled = random_graph(rng, 20, 5, 3)
    A = dense_adjacency(pairs, 20)
    for kind in KINDS:
        engine = graph_engine(pairs, x, y, labelled, [5, 7, 4, 3], kind=kind)
        params = engine.chain.initial_parameters(rng_of(1), 1.0, dtype=torch.float64, device=CPU)
        W1, W2, W3 = (p["W"].numpy() for p in params)
        hidden = np.maximum(A @ np.maximum(A @ x @ W1.T, 0) @ W2.T, 0)
        expected = A @ hidden @ W3.T
        assert np.allclose(engine.chain.predict(params, engine.x).numpy(), expected, atol=1e-12)
        module = engine.chain.to_module(params)
        out = module(torch.from_numpy(x), torch.from_numpy(pairs.T.copy()))
        assert np.allclose(out.detach().numpy(), expected, atol=1e-12)


def rng_of(seed):
    return torch.Generator().manual_seed(seed)


def test_forward_equals_pygs_gcnconv_stack():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # importing PyG is not free of deprecations
        pyg = pytest.importorskip("torch_geometric.nn")
    rng = np.random.default_rng(0)
    pairs, x, y, labelled = random_graph(rng, 30, 5, 3)
    edges = torch.from_numpy(np.unique(np.concatenate([pairs, pairs[:, ::-1]]), axis=0).T.copy())
    engine = graph_engine(pairs, x, y, labelled, [5, 7, 3], dtype=torch.float32)
    params = engine.chain.initial_parameters(rng_of(1), 1.0, dtype=torch.float32, device=CPU)
    v = torch.from_numpy(x).float()
    for l, (p, (i, o)) in enumerate(zip(params, [(5, 7), (7, 3)], strict=True)):
        layer = pyg.GCNConv(i, o, bias=False)
        with torch.no_grad():
            layer.lin.weight.copy_(p["W"])
            v = layer(v, edges)
        v = torch.relu(v) if l == 0 else v
    assert torch.allclose(engine.chain.predict(params, engine.x), v, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("train_rows", [False, True])
def test_two_runs_are_bit_equal(dtype, train_rows):
    rng = np.random.default_rng(0)
    graph = random_graph(rng, 200, 20, 3)
    runs = []
    for _ in range(2):
        engine = graph_engine(*graph, [20, 16, 3], dtype=dtype, train_rows=train_rows)
        params = engine.chain.initial_parameters(rng_of(1), 1.0, dtype=dtype, device=CPU)
        state = engine.feasible_state(params, 1.5, 0.1)
        for _ in range(10):
            engine.sweep(state)
        runs.append(state)
    for one, other in zip([*runs[0].W, *runs[0].outputs], [*runs[1].W, *runs[1].outputs], strict=True):
        assert torch.equal(one, other)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("rows", ["all", "train"])
def test_two_runs_on_a_gpu_are_bit_equal(rows):
    data = datasets.load("karate")
    runs = [train_graph(data, rows=rows, device="cuda", max_iter=10) for _ in range(2)]
    for one, other in zip(runs[0].state.outputs, runs[1].state.outputs, strict=True):
        assert torch.equal(one, other)


def test_the_module_can_be_trained_further():
    data = datasets.load("karate")
    module = train_graph(data, hidden=(8,), max_iter=5).module
    for x in (data.x_dense(), data.x_dense().to_sparse()):
        module.zero_grad()
        loss = nn.functional.cross_entropy(
            module(x, data.edge_index)[data.train_mask], data.y[data.train_mask]
        )
        loss.backward()
        assert all(float(p.grad.abs().sum()) > 0 for p in module.parameters())


def test_a_split_activation_is_just_another_chain():
    """Z_l = f(Y_l), Y_l ~ A~ Z_{l-1} W_l, as in the MLP: what an activation with jumps needs to learn."""
    rng = np.random.default_rng(0)
    pairs, x, y, labelled = random_graph(rng, 30, 5, 3)
    A = SparseMatrix.of(normalised_adjacency(pairs.T, 30), torch.float64, CPU, symmetric=True)
    joined = graph_engine(pairs, x, y, labelled, [5, 8, 3])
    chain = Chain([GraphConv(5, 8, "identity", A), Elementwise("sign"), GraphConv(8, 3, "identity", A)])
    engine = Engine(chain, joined.x, joined.risk, None, SubproblemOptions())
    params = chain.initial_parameters(rng_of(1), 1.0, dtype=torch.float64, device=CPU)
    state = engine.feasible_state(params, 1.5, 1.0)
    for fall, promised, scale in descents(engine, state, 10):
        assert fall >= promised - 1e-10 * scale
    assert isinstance(
        chain.to_module(params)(torch.from_numpy(x), torch.from_numpy(pairs.T.copy())), torch.Tensor
    )


def test_the_builder_names_its_widths():
    A = SparseMatrix.of(normalised_adjacency([[0], [1]], 3), torch.float32, CPU, symmetric=True)
    chain = gcn([4, 8, 2], A)
    assert repr(chain) == "Chain(GraphConv(4, 8, relu) -> GraphConv(8, 2, identity))"
    assert chain.n_in == 4
    assert not chain.follows_forward
    assert isinstance(
        chain.to_module(chain.initial_parameters(None, 1.0, dtype=torch.float32, device=CPU)), nn.Module
    )
