"""Recurrent layers: the states as variables, shared parameters, one answer a sequence or one a time step."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import dladmm
from convergent import train
from dladmm import InputError, InputTypeError, Recurrent, baselines
from dladmm.blocks import Affine, Anchor, Block, Positionwise, RecurrentStates, Term, Work, recurrent_steps
from dladmm.blocks.recurrent_cells import (
    advanced,
    bent,
    pulled,
    pulled_before,
    slopes_of,
    squared_slopes,
    through_time,
)
from dladmm.blocks.recurrent_steps import SHARE, _factor, share_of_pull
from dladmm.callbacks import Callback, Checkpoint
from dladmm.engine.sweep import Engine
from dladmm.losses import Risk, get_loss
from dladmm.network.chain import from_module, own_settings
from dladmm.regularizers import get_regularizer
from dladmm.solvers.subproblems import SubproblemOptions

LAYERS = [
    nn.RNN(3, 5, batch_first=True),
    nn.RNN(3, 5, nonlinearity="relu", batch_first=True, bias=False),
    nn.GRU(3, 5, batch_first=True),
    nn.LSTM(3, 5, batch_first=True),
]


@pytest.fixture(scope="module")
def sequences():
    """Which of three features was largest first, and at every step which was largest so far."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 4, 3))
    return X, X[:, 0].argmax(1), np.maximum.accumulate(X, 1).argmax(2)


def network(layer: nn.Module, last: bool = True) -> nn.Sequential:
    return nn.Sequential(Recurrent(copy.deepcopy(layer), last=last), nn.Linear(5, 3))


@pytest.mark.parametrize("layer", LAYERS)
def test_the_unrolled_states_are_those_of_torch(layer):
    block = RecurrentStates(Recurrent(layer))
    params = {name: p.float() for name, p in block.initial_parameters(None, 1.0).items()}
    x = torch.randn(7, 4, 3, generator=torch.Generator().manual_seed(0))
    states = block.forward(params, x)
    torch.testing.assert_close(states[..., :5], layer(x)[0])
    torch.testing.assert_close(block.predicted(params, x, states), states)
    torch.testing.assert_close(block.to_module(params)(x), layer(x)[0][:, -1])


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("solver", ["exact", "quadratic"])
@pytest.mark.parametrize("forward", [False, True])
def test_every_update_falls_by_what_it_promises(layer, solver, forward):
    generator = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)  # noqa: E731
    block, penalty = RecurrentStates(Recurrent(layer)), get_regularizer({"name": "l2", "strength": 0.2})
    params = block.initial_parameters(generator, 1.0)
    v = draw(6, 4, 3)
    s = block.forward(params, v) + 0.2 * draw(6, 4, block.n_states)
    term = Term(0.8, s + draw(*s.shape), s)
    anchor = Anchor(0.5, v + draw(*v.shape))

    work = Work(SubproblemOptions(w_solver=solver, a_solver=solver), order=(forward,))

    def value():
        link = term.weight / 2 * ((term.target - term.prediction) ** 2).sum()
        tied = anchor.weight / 2 * ((v - anchor.value) ** 2).sum()
        return float(
            link + tied + block.own_energy(params, v, term.prediction, term.weight, work)
            + sum(penalty.value(params[name]) for name in block.penalised)
        )  # fmt: skip

    for _ in range(3):
        for update in (
            lambda: block.update_parameters(params, v, term, penalty, work),
            lambda: block.update_input(params, v, anchor, term, work),
        ):
            before = value()
            with torch.no_grad():
                promised = sum(float(step.rate * step.squared) for step in update())
            assert promised > 0
            assert before - value() >= promised - 1e-9 * (1 + abs(before))


def test_updates_of_B_end_where_the_penalised_energy_is_stationary():
    """B with its l2 penalty, the states held: in coordinates B L the penalty is that of B."""
    generator = torch.Generator().manual_seed(1)
    block, penalty = RecurrentStates(Recurrent(LAYERS[0])), get_regularizer({"name": "l2", "strength": 3.0})
    params = block.initial_parameters(generator, 1.0)
    v, s = (torch.randn(6, 4, n, generator=generator, dtype=torch.float64) / 2 for n in (3, 5))
    term, work = Term(0.8, s, s), Work(SubproblemOptions(), order=(False,))
    with torch.no_grad():
        at = block.unrolled(params, v, s)
        met = []
        for _ in range(120):
            _, at = block._step_of_B(v, term, penalty, replace(work, sweep_values={}), at)
            met.append(work.curvatures["B"])
    leaves = {name: p.clone().requires_grad_() for name, p in at.params.items()}
    energy = block.own_energy(leaves, v, s, term.weight, work)
    (energy + sum(penalty.value(leaves[name]) for name in block.penalised)).backward()
    assert max(float(p.grad.abs().max()) for p in leaves.values()) < 1e-6
    # where nothing moves but by rounding, the curvature that is remembered is not what rounding made
    assert met[-1] < 10 * met[20]


def test_a_step_of_B_sees_a_penalty_that_outweighs_the_energy():
    """The search for its length adds up both: they fall together by what is promised."""
    generator = torch.Generator().manual_seed(1)
    block, penalty = RecurrentStates(Recurrent(LAYERS[0])), get_regularizer({"name": "l2", "strength": 300.0})
    params = block.initial_parameters(generator, 1.0)
    v, s = (torch.randn(6, 4, n, generator=generator, dtype=torch.float64) / 2 for n in (3, 5))
    work = Work(SubproblemOptions(), order=(False,))

    def value(at):
        own = block.own_energy(at.params, v, s, 0.8, work)
        return float(own + sum(penalty.value(at.params[name]) for name in block.penalised))

    with torch.no_grad():
        at = block.unrolled(params, v, s)
        step, ended = block._step_of_B(v, Term(0.8, s, s), penalty, work, at)
    assert value(at) - value(ended) >= float(step.rate * step.squared) > 1.0


@pytest.mark.parametrize("layer", LAYERS[2:])
def test_the_stationarity_is_the_gradient_of_the_lagrangian(layer, sequences):
    """Against autograd on the energy itself, at a point that is not feasible."""
    X, y, _ = sequences
    chain = from_module(nn.Sequential(Recurrent(layer, last=False), nn.Flatten(), nn.Linear(20, 3)))
    loss = get_loss("cross_entropy")
    x = torch.from_numpy(X)
    engine = Engine(chain, x, Risk(loss, loss.encode(torch.from_numpy(y), 3, torch.float64)))
    generator = torch.Generator().manual_seed(0)
    params = chain.initial_parameters(generator, 1.0, dtype=torch.float64, device=x.device)
    state = engine.feasible_state(params, 1.5, 0.7)
    for tensor in (*state.outputs, state.predictions[0], state.u):
        tensor += 0.1 * torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    state.predictions[1] = chain.blocks[1].forward(params[1], state.outputs[0])
    leaves = [*(p for block in params for p in block.values()), *state.outputs, state.predictions[0], state.u]
    for leaf in leaves:
        leaf.requires_grad_()
    block, last = chain.blocks
    m = last.forward(params[1], state.outputs[0])
    r = state.outputs[1] - m
    value = (
        engine.risk.value(state.outputs[1]) + (state.u * r).sum() + state.rho / 2 * (r**2).sum()
        + state.nu / 2 * ((state.outputs[0] - state.predictions[0]) ** 2).sum()
        + block.own_energy(params[0], x, state.predictions[0], state.nu, engine.work(0))
    )  # fmt: skip
    expected = sum((g**2).sum() for g in torch.autograd.grad(value, leaves))
    for leaf in leaves:
        leaf.requires_grad_(False)
    torch.testing.assert_close(engine.stationarity(state), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_recurrent_network_in_the_certified_region_is_certified(sequences, layer, last, dtype):
    X, first, largest = sequences
    result = train(network(layer, last), X, first if last else largest, max_iter=25, dtype=dtype)
    assert result.certificate.certified, str(result.certificate)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("last", [True, False])
def test_an_accelerated_recurrent_network_never_rises_and_learns(sequences, layer, last):
    X, first, largest = sequences
    y = first if last else largest
    module = network(layer, last)
    result = train(module, X, y, mode="accelerated", max_iter=60, dropout=0.0, regularizer=None)
    assert result.certificate.monotone, str(result.certificate)
    assert result.history["loss"][-1] < 0.9 * result.history["loss"][0]
    output = module(torch.from_numpy(X).float())
    assert output.shape == (*y.shape, 3)
    accuracy = (output.argmax(-1).numpy() == y).mean()
    assert accuracy == pytest.approx(result.history["train_accuracy"][-1])


def test_layers_can_be_stacked_and_come_after_others(sequences):
    X, first, _ = sequences
    module = nn.Sequential(
        nn.Linear(3, 4), nn.ReLU(), Recurrent(nn.RNN(4, 6, batch_first=True), last=False),
        Recurrent(nn.GRU(6, 5, batch_first=True)), nn.Linear(5, 3),
    )  # fmt: skip
    chain = from_module(module, sequences=True)
    assert isinstance(chain.blocks[0], Positionwise)
    result = train(module, X, first, max_iter=15)
    assert result.certificate.certified, str(result.certificate)


def test_maps_before_a_recurrent_layer_are_no_variables(sequences):
    X, first, _ = sequences
    module = nn.Sequential(nn.Unflatten(1, (4, 3)), *network(nn.RNN(3, 5, batch_first=True)))
    assert len(from_module(module)) == 2
    result = train(module, X.reshape(80, 12), first, max_iter=10)
    same = train(network(nn.RNN(3, 5, batch_first=True)), X, first, max_iter=10)
    assert result.certificate.certified, str(result.certificate)
    assert result.history["lagrangian"] == same.history["lagrangian"]


def test_masked_targets_do_not_count(sequences):
    X, _, largest = sequences
    mask = np.arange(4)[None] < (1 + np.arange(len(X)) % 4)[:, None]
    wrong = np.where(mask, largest, 0)
    kept = train(network(LAYERS[0], last=False), X, largest, target_mask=mask, max_iter=5)
    other = train(network(LAYERS[0], last=False), X, wrong, target_mask=mask, max_iter=5)
    assert kept.history["lagrangian"] == other.history["lagrangian"]
    assert kept.history["train_accuracy"] == other.history["train_accuracy"]
    assert kept.certificate.certified
    with pytest.raises(InputError, match="target_mask must hold True and False in the shape"):
        train(network(LAYERS[0], last=False), X, largest, target_mask=mask[:, 0])
    with pytest.raises(InputError, match="excludes every target"):
        train(network(LAYERS[0], last=False), X, largest, target_mask=np.zeros_like(mask))


@pytest.mark.parametrize("mode", ["convergent", "accelerated"])
def test_a_resumed_recurrent_run_is_bit_equal(sequences, tmp_path, mode):
    X, first, _ = sequences
    given = (network(LAYERS[2]), X, first)
    fresh = {"mode": mode, "init": "fresh"}  # the module itself is trained each time
    whole = train(*given, **fresh, max_iter=6)
    train(*given, **fresh, max_iter=3, callbacks=[Checkpoint(tmp_path)])
    resumed = train(*given, **fresh, max_iter=6, callbacks=[Checkpoint(tmp_path, resume=True)])
    assert whole.history["lagrangian"] == resumed.history["lagrangian"]


def test_gradient_baselines_train_a_recurrent_network(sequences):
    X, first, _ = sequences
    result = baselines.train(
        "adam", network(nn.LSTM(3, 5, batch_first=True)), X, first, max_iter=150, lr=1e-2
    )
    assert result.history["train_accuracy"][-1] > 0.8


@pytest.mark.parametrize("counts", [None, torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64)])
def test_a_linear_layer_at_every_position_is_one_on_all_rows(counts):
    generator = torch.Generator().manual_seed(0)
    affine = Affine(4, 2)
    block, params = Positionwise(affine), affine.initial_parameters(generator, 1.0)
    v = torch.randn(3, 5, 4, generator=generator, dtype=torch.float64)
    target = torch.randn(3, 5, 2, generator=generator, dtype=torch.float64)
    own = {name: p.clone() for name, p in params.items()}
    flat, repeated = v.clone().reshape(15, 4), None if counts is None else counts.repeat_interleave(5, 0)
    term, flat_term = (
        Term(1.0, target, block.forward(params, v)),
        Term(1.0, target.reshape(15, 2), affine.forward(own, flat)),
    )
    none, anchor = get_regularizer(None), Anchor(1.0, v + 1)
    work, flat_work = (Work(SubproblemOptions(), counts=each) for each in (counts, repeated))
    block.update_parameters(params, v, term, none, work)
    affine.update_parameters(own, flat, flat_term, none, flat_work)
    block.update_input(params, v, anchor, term, work)
    affine.update_input(own, flat, Anchor(1.0, anchor.value.reshape(15, 4)), flat_term, flat_work)
    torch.testing.assert_close(v.reshape(15, 4), flat)
    torch.testing.assert_close(term.prediction.reshape(15, 2), flat_term.prediction)
    torch.testing.assert_close(params["W"], own["W"])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Recurrent(nn.GRU(3, 5)), InputError, "batch_first"),
        (lambda: Recurrent(nn.GRU(3, 5, num_layers=2, batch_first=True)), InputError, "one layer"),
        (lambda: Recurrent(nn.GRU(3, 5, bidirectional=True, batch_first=True)), InputError, "one direction"),
        (lambda: Recurrent(nn.Linear(3, 5)), InputTypeError, "nn.RNN, nn.GRU or nn.LSTM"),
        (lambda: from_module(nn.Sequential(nn.GRU(3, 5), nn.Linear(5, 2))), InputError, "returns a pair"),
    ],
)
def test_what_cannot_be_a_recurrent_layer_is_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_the_targets_of_every_step_must_have_the_steps(sequences):
    X, first, largest = sequences
    with pytest.raises(InputError, match="has outputs at"):
        train(network(LAYERS[0], last=False), X, largest[:, :2])
    with pytest.raises(InputError):
        train(network(LAYERS[0], last=False), X, first)


@pytest.mark.parametrize(
    ("kind", "steps", "slowest"), [("GRU", 8, 0.746), ("LSTM", 100, 0.974), ("GRU", 1, 0.27)]
)
def test_gated_units_begin_with_memories_up_to_a_third_of_the_sequence(kind, steps, slowest):
    """From sigmoid(-2) of the state kept from step to step up to sigmoid(log(steps) - 1), evenly spread."""
    layer = {"GRU": nn.GRU, "LSTM": nn.LSTM}[kind](3, 5, batch_first=True)
    block = RecurrentStates(Recurrent(layer))
    drawn = block.initial_parameters(torch.Generator().manual_seed(0), 1.0)
    params = block.started(drawn, torch.zeros(2, steps, 3, dtype=torch.float64))
    still = {name: torch.zeros_like(p) if p.ndim > 1 else p for name, p in params.items()}
    x, before = torch.randn(6, 3, dtype=torch.float64), torch.zeros(6, block.n_states, dtype=torch.float64)
    before[:, -5:] = 1.0  # the states of a GRU, c of an LSTM
    kept = block.cell(still, x, before)[:, -5:]
    expected = torch.sigmoid(torch.linspace(-2.0, np.log(steps) - 1, 5, dtype=torch.float64))
    torch.testing.assert_close(kept, expected.expand(6, 5))
    assert float(kept[0, -1]) == pytest.approx(slowest, abs=0.01)
    assert all(torch.equal(p, drawn[name]) for name, p in params.items() if name != "bias_ih_l0")


def test_a_layer_without_biases_and_an_elman_network_begin_as_they_were_drawn():
    for layer in (nn.GRU(3, 5, batch_first=True, bias=False), nn.RNN(3, 5, batch_first=True)):
        block = RecurrentStates(Recurrent(layer))
        drawn = block.initial_parameters(torch.Generator().manual_seed(0), 1.0)
        assert block.started(drawn, torch.zeros(2, 8, 3)) == drawn


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
@pytest.mark.parametrize("mode", ["streaming", "accelerated", "convergent"])
def test_a_run_begins_with_memories_of_its_sequences(mode):
    """Behind an Unflatten the steps are those that the layer sees; weights of one's own stay."""
    seen, x, y = [], torch.randn(40, 24), torch.arange(40) % 2

    class Watch(Callback):
        def on_train_begin(self, trainer):
            seen.append(trainer.state.params[0]["bias_ih_l0"][5:10].clone())

    for init in ("fresh", "keep"):
        module = nn.Sequential(
            nn.Unflatten(1, (8, 3)), Recurrent(nn.GRU(3, 5, batch_first=True)), nn.Linear(5, 2)
        )
        own = module[1].rnn.bias_ih_l0.detach()[5:10].clone()
        dladmm.train(
            module,
            x,
            y,
            mode=mode,
            max_iter=1,
            init=init,
            dtype="float64",
            scale_inputs=False,
            callbacks=[Watch()],
        )
    torch.testing.assert_close(seen[0], torch.linspace(-2.0, np.log(8) - 1, 5, dtype=torch.float64))
    torch.testing.assert_close(seen[1], own.double())


def test_an_elman_network_begins_by_keeping_what_came_first():
    """An orthogonal U, and weights of the inputs with torch's deviation, 1/sqrt(3 units)."""
    block = RecurrentStates(Recurrent(nn.RNN(50, 40, batch_first=True)))
    params = block.initial_parameters(torch.Generator().manual_seed(0), 1.0)
    U = params["weight_hh_l0"]
    torch.testing.assert_close(U @ U.T, torch.eye(40, dtype=torch.float64))
    assert float(params["weight_ih_l0"].std()) == pytest.approx(120**-0.5, rel=0.1)


def test_an_lstm_does_not_write_over_what_it_keeps():
    """Biases of the input gates are minus those of the forget gates, the output gate is open."""
    block = RecurrentStates(Recurrent(nn.LSTM(3, 5, batch_first=True)))
    gates = block.initial_parameters(torch.Generator().manual_seed(0), 1.0)["bias_ih_l0"].view(4, 5)
    torch.testing.assert_close(gates[0], -gates[1])
    assert gates[2].tolist() == [0.0] * 5
    assert gates[3].tolist() == [2.0] * 5


@pytest.mark.parametrize("layer", [nn.GRU(50, 40, batch_first=True), nn.LSTM(50, 40, batch_first=True)])
def test_every_gate_begins_with_an_orthogonal_matrix_and_small_weights_of_the_inputs(layer):
    """Half of He's deviation, sqrt(2 / inputs), for W; the gates' matrices differ."""
    params = RecurrentStates(Recurrent(layer)).initial_parameters(torch.Generator().manual_seed(0), 1.0)
    matrices = params["weight_hh_l0"].split(40)
    for U in matrices:
        torch.testing.assert_close(U @ U.T, torch.eye(40, dtype=torch.float64))
    assert not torch.allclose(matrices[0], matrices[1])
    assert float(params["weight_ih_l0"].std()) == pytest.approx(0.5 * (2 / 50) ** 0.5, rel=0.05)


@pytest.mark.parametrize("counts", [None, torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)[:, None]])
def test_the_share_of_the_pull_is_what_of_it_the_parameters_see(counts):
    """-<pull, c e> / ||pull||^2, every sample as often as it counts."""
    generator = torch.Generator().manual_seed(0)
    pull, other = (torch.randn(3, 4, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    weight, e = 0.7, -0.4 * pull + 0.1 * other
    work = Work(SubproblemOptions(), counts=counts)
    rows = torch.ones(3, dtype=torch.float64) if counts is None else counts[:, 0]
    inner = sum(float(rows[i] * (pull[i] * e[i]).sum()) for i in range(3))
    squared = sum(float(rows[i] * (pull[i] ** 2).sum()) for i in range(3))
    assert 0 < -weight * inner / squared < 1
    assert float(share_of_pull(pull, e, weight, work)) == pytest.approx(-weight * inner / squared, rel=1e-12)
    for e, expected in ((pull, 0.0), (-3 * pull, 1.0), (0 * pull, 0.0), (-pull / weight, 1.0)):
        assert float(share_of_pull(pull, e, weight, work)) == pytest.approx(expected)
    assert float(share_of_pull(0 * pull, other, weight, work)) == 1.0


@pytest.mark.parametrize("layer", LAYERS)
def test_a_penalty_counts_by_the_share_of_the_pull_where_the_sweep_shares_it(layer):
    """The same step of B as with the penalty times the share that the states' first step leaves."""
    block, strength = RecurrentStates(Recurrent(layer)), 3.0
    given = block.initial_parameters(torch.Generator().manual_seed(1), 1.0)
    generator = torch.Generator().manual_seed(2)
    v = torch.randn(6, 4, 3, generator=generator, dtype=torch.float64)
    states = block.forward(given, v)
    target = states + torch.randn(states.shape, generator=generator, dtype=torch.float64)

    def updated(penalty: float, shared: bool):
        params = {name: p.clone() for name, p in given.items()}
        work = Work(SubproblemOptions(), order=(False,), shared=shared)
        regularizer = get_regularizer({"name": "l2", "strength": penalty})
        with torch.no_grad():
            block.update_parameters(params, v, Term(0.8, target, states.clone()), regularizer, work)
        return params

    e = torch.zeros_like(states).requires_grad_()
    state, rolled = torch.zeros(6, block.n_states, dtype=torch.float64), []
    for t in range(4):
        state = block.cell(given, v[:, t], state) + e[:, t]
        rolled.append(state)
    (pull,) = torch.autograd.grad(torch.stack(rolled, 1), e, 0.8 * (states - target))
    work = Work(SubproblemOptions(), order=(False,))
    with torch.no_grad():
        at = block.unrolled(given, v, states)
        _, ended = block._states_step(Term(0.8, target, states.clone()), work, at)
    share = float(-0.8 * (pull * (ended.states - ended.predicted)).sum() / (pull**2).sum())
    assert 0.05 < share < 0.95
    found, expected, whole = (
        updated(strength, True),
        updated(share * strength, False),
        updated(strength, False),
    )
    for name, p in found.items():
        torch.testing.assert_close(p, expected[name], rtol=1e-9, atol=1e-10)
    assert any(not torch.allclose(p, whole[name]) for name, p in found.items())


@pytest.mark.parametrize("layer", [nn.RNN, nn.LSTM, nn.GRU])
def test_accelerated_mode_updates_a_recurrent_layer_once_an_iteration(layer):
    inner = network(layer(3, 5, batch_first=True))
    for module in (inner, nn.Sequential(nn.Unflatten(1, (4, 3)), *inner)):
        assert own_settings(from_module(module))["sweep"] == "backward"
    assert "sweep" not in own_settings(
        from_module(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 3)))
    )


@pytest.mark.parametrize("layer", LAYERS)
def test_gradients_in_the_inputs_are_those_of_torch(layer):
    generator = torch.Generator().manual_seed(3)
    block = RecurrentStates(Recurrent(layer))
    params = block.initial_parameters(torch.Generator().manual_seed(1), 1.0)
    n, work = block.n_states, Work(SubproblemOptions())
    x, s, target = (torch.randn(6, 4, k, generator=generator, dtype=torch.float64) for k in (3, n, n))
    double = copy.deepcopy(layer).double()
    with torch.no_grad():
        for name, p in double.named_parameters():
            p.copy_(params[name])
    leaf = x.clone().requires_grad_()
    through = block.forward(params, leaf)
    torch.testing.assert_close(through[..., :5], double(leaf)[0])
    (0.6 * (through - target).square().sum() / 2).backward()
    found = block.input_gradient(params, x, Term(0.6, target, through.detach()), work)
    torch.testing.assert_close(found, leaf.grad)
    leaf.grad, anchor = None, Anchor(0.3, torch.randn(x.shape, generator=generator, dtype=torch.float64))
    energy = block.own_energy(params, leaf, s, 0.6, work) + 0.15 * (leaf - anchor.value).square().sum()
    energy.backward()
    found = block.input_stationarity(params, x, anchor, Term(0.6, target, s), work)
    torch.testing.assert_close(found, leaf.grad.square().sum())


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("counted", [False, True])
def test_derivatives_of_the_whole_layer_by_hand_are_those_of_autograd(layer, counted):
    block = RecurrentStates(Recurrent(copy.deepcopy(layer).double()))
    generator = torch.Generator().manual_seed(3)
    params = block.initial_parameters(generator, 1.0)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x = some(6, 4, 3)
    states = block.forward(params, x)
    counts = torch.tensor([1.0, 2, 0, 1, 3, 1], dtype=torch.float64)[:, None] if counted else None
    upstream, move, work = some(*states.shape), some(*x.shape), Work(SubproblemOptions(), counts=counts)
    moves = {name: some(*p.shape) for name, p in params.items()}
    expected = Block.parameter_gradient(block, params, x, states, upstream, work)
    assert list(expected) == list(params)
    for name, found in block.parameter_gradient(params, x, states, upstream, work).items():
        torch.testing.assert_close(found, expected[name], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        block.push_parameters(params, moves, x, states),
        Block.push_parameters(block, params, moves, x, states),
    )
    torch.testing.assert_close(
        block.push_input(params, x, move, states), Block.push_input(block, params, x, move, states)
    )
    leaf = x.clone().requires_grad_()
    (pulled_back,) = torch.autograd.grad(block.differentiable_forward(params, leaf), leaf, upstream)
    torch.testing.assert_close(block.pull_back(params, x, states, upstream, work), pulled_back)


def test_a_tanh_made_of_a_sigmoid_is_one():
    x = torch.linspace(-30, 30, 4001, dtype=torch.float64)
    torch.testing.assert_close(bent(x.clone()), x.tanh(), rtol=0, atol=4e-16)
    torch.testing.assert_close(bent(x.float()), x.float().tanh(), rtol=0, atol=2.5e-7)


@pytest.mark.parametrize("kind", ["tanh", "relu", "GRU", "LSTM"])
def test_squared_slopes_are_those_of_the_cell(kind):
    """Of the state's derivatives in the sums of its matrices' rows, which torch's cells take as biases."""
    generator = torch.Generator().manual_seed(0)
    gates, states = {"GRU": (3, 1), "LSTM": (4, 2)}.get(kind, (1, 1))
    inputs, own = (torch.randn(5, 3 * gates, generator=generator, dtype=torch.float64) for _ in range(2))
    before = torch.randn(5, 3 * states, generator=generator, dtype=torch.float64)
    layer = {"GRU": nn.GRU, "LSTM": nn.LSTM}.get(kind, nn.RNN)
    extra = {"nonlinearity": kind} if layer is nn.RNN else {}
    block = RecurrentStates(Recurrent(layer(1, 3, batch_first=True, **extra)))
    none = {
        f"weight_{n}_l0": torch.zeros(3 * gates, size, dtype=torch.float64)
        for n, size in (("ih", 1), ("hh", 3))
    }

    def cell(a: torch.Tensor, b: torch.Tensor, row: int) -> torch.Tensor:
        params = none | {"bias_ih_l0": a, "bias_hh_l0": b}
        return block.cell(params, torch.zeros(1, 1, dtype=torch.float64), before[row : row + 1])[0]

    _, held = advanced(kind, inputs, own.clone(), before)
    for place, found in enumerate(squared_slopes(slopes_of(kind, held, before))):
        slopes = [
            torch.autograd.functional.jacobian(
                lambda *sums, row=row: cell(*sums, row), (inputs[row], own[row])
            )[place]
            for row in range(5)
        ]
        torch.testing.assert_close(found, torch.stack(slopes).square().sum(1).mean(0))


@pytest.mark.parametrize("layer", LAYERS)
def test_gradients_by_hand_are_those_of_torch(layer):
    """In the two sums, in the states a step before and, through all of time, in e: against backward through torch's."""
    generator = torch.Generator().manual_seed(3)
    block = RecurrentStates(Recurrent(layer))
    params = block.initial_parameters(torch.Generator().manual_seed(1), 1.0)
    n = block.n_states
    x, s, e, pull = (torch.randn(6, 4, k, generator=generator, dtype=torch.float64) for k in (3, n, n, n))
    at = block.unrolled(params, x, s)
    torch.testing.assert_close(at.predicted, block.predicted(params, x, s))
    leaves = {name: p.clone().requires_grad_() for name, p in params.items()}
    states = s.clone().requires_grad_()
    backward = torch.autograd.grad(block.predicted(leaves, x, states), [*leaves.values(), states], pull)
    expected = dict(zip(leaves, backward, strict=False))
    hidden = at.before[..., : block.n_hidden]
    for of, name, rows in (("inputs", "ih", x), ("states", "hh", hidden)):
        sums = pulled(at.slopes, pull, of=of).flatten(0, 1)
        torch.testing.assert_close(sums.T @ rows.flatten(0, 1), expected[f"weight_{name}_l0"])
        if f"bias_{name}_l0" in params:
            torch.testing.assert_close(sums.sum(0), expected[f"bias_{name}_l0"])
    one_before = pulled_before(at.slopes, pull, params["weight_hh_l0"])[:, 1:]
    torch.testing.assert_close(one_before, backward[-1][:, :-1])
    own = e.clone().requires_grad_()
    state, rolled = torch.zeros(6, n, dtype=torch.float64), []
    for t in range(4):
        state = block.cell(params, x[:, t], state) + own[:, t]
        rolled.append(state)
    unrolled = torch.stack(rolled, 1)
    (slope,) = torch.autograd.grad(unrolled, own, pull)
    there = block.unrolled(params, x, unrolled.detach())
    torch.testing.assert_close(through_time(there.slopes, pull, params["weight_hh_l0"]), slope)
    found, held = block.rolled_out(params, block._sums(params, x, "ih"), e)
    torch.testing.assert_close(found, unrolled.detach())
    for of_time, of_all in zip(zip(*held, strict=True), there.held, strict=True):
        torch.testing.assert_close(torch.stack(of_time, 1), of_all)


@pytest.mark.parametrize("layer", LAYERS)
def test_the_distance_of_an_input_has_its_own_two_weights(layer):
    """The gradient of ``(nu/2)||x - value||^2 + (c/2)||s - cell(x, s before)||^2`` in x."""
    block = RecurrentStates(Recurrent(layer))
    params, draw = block.initial_parameters(None, 1.0), torch.Generator().manual_seed(0)
    x, value = (torch.randn(6, 4, 3, generator=draw, dtype=torch.float64) for _ in range(2))
    s = block.forward(params, value)
    leaf = x.clone().requires_grad_()
    apart = s - block.predicted(params, leaf, s)
    energy = 0.3 / 2 * (leaf - value).square().sum() + 1.7 / 2 * apart.square().sum()
    (slope,) = torch.autograd.grad(energy, leaf)
    found = block.input_stationarity(
        params, x, Anchor(0.3, value), Term(1.7, s, s), Work(SubproblemOptions())
    )
    torch.testing.assert_close(found, slope.square().sum())


@pytest.mark.parametrize("order", [(False,), (True,)])
def test_the_penalty_counts_by_the_share_of_the_pull_that_reaches_the_parameters(order):
    block = RecurrentStates(Recurrent(LAYERS[0]))
    params, draw = block.initial_parameters(None, 1.0), torch.Generator().manual_seed(0)
    x = torch.randn(6, 4, 3, generator=draw, dtype=torch.float64)
    s = block.forward(params, x)
    target = s + 0.3 * torch.randn(s.shape, generator=draw, dtype=torch.float64)
    work = Work(SubproblemOptions(), order=order, shared=True)
    block.update_parameters(params, x, Term(1.7, target, s), get_regularizer("l2"), work)
    share = work.sweep_values[0, SHARE]
    if order == (False,):  # the states go first, and say what they handed on
        assert 0 < float(share) < 1
    else:
        assert float(share) == 1


def test_the_metric_of_the_parameters_is_damped_by_its_trace():
    """``L L^T = G + damping/2 trace(G) I``, G the mean of (x, 1)(x, 1)^T: few inputs are not held back more."""
    block = RecurrentStates(Recurrent(nn.GRU(3, 4, batch_first=True)))
    x = torch.randn(7, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = torch.cat([x.reshape(-1, 3), torch.ones(35, 1, dtype=torch.float64)], 1)
    gram = rows.T @ rows / 35
    L = _factor(block, x, Work(SubproblemOptions(damping=0.3)))
    expected = gram + 0.3 / 2 * gram.trace() * torch.eye(4, dtype=torch.float64)
    torch.testing.assert_close(L @ L.T, expected)


def states_asked_for(layer: nn.Module, apart: float, counts: torch.Tensor | None = None, gain: float = 1.0):
    """A layer at its own states, and where it ends after one step towards others ``apart`` from them."""
    block = RecurrentStates(Recurrent(layer))
    params, draw = block.initial_parameters(None, 1.0), torch.Generator().manual_seed(0)
    params["weight_hh_l0"] *= gain
    x = torch.randn(6, 4, 3, generator=draw, dtype=torch.float64)
    s = block.forward(params, x)
    target = s + apart * torch.randn(s.shape, generator=draw, dtype=torch.float64)
    work = Work(SubproblemOptions(), order=(False,), counts=counts)
    with torch.no_grad():
        at = block.unrolled(params, x, s)
        step, ended = block._states_step(Term(0.7, target, s), work, at)
    return block, at, target, step, ended


def values_of(at, target):
    """What every sample's states have of the Lagrangian, over c/2."""
    own = (at.states - at.predicted).square() + (target - at.states).square()
    return own.flatten(1).sum(1)


@pytest.mark.parametrize("layer", LAYERS)
def test_conjugate_steps_come_close_to_the_states_asked_for(layer, monkeypatch):
    """As many as there are unknowns solve ``(I + J^T J) e = J^T (y - s)``, with J by autograd; three are near it."""

    def found(steps: int) -> torch.Tensor:
        monkeypatch.setattr(recurrent_steps, "CONJUGATE_STEPS", steps)
        _, _, _, _, ended = states_asked_for(layer, 1e-4)
        return (ended.states - ended.predicted) / recurrent_steps.LENGTH

    block, at, target, _, _ = states_asked_for(layer, 1e-4)
    many, some, one = (found(steps) for steps in (at.states[0].numel(), 3, 1))
    zero = torch.zeros_like(at.states)
    for row in range(len(zero)):

        def rolled(e: torch.Tensor, row: int = row) -> torch.Tensor:
            inputs = at.inputs[row : row + 1]
            return block.rolled_out(at.params, inputs, e.view(1, *zero.shape[1:]))[0].flatten()

        J = torch.autograd.functional.jacobian(rolled, zero[row].flatten())
        pull = J.T @ (target - at.states)[row].flatten()
        exact = torch.linalg.solve(torch.eye(len(J), dtype=J.dtype) + J.T @ J, pull)
        distances = [float((e[row].flatten() - exact).norm() / exact.norm()) for e in (many, some, one)]
        assert distances[0] < 1e-3
        assert distances[1] < min(0.1, distances[2])


@pytest.mark.parametrize("layer", [LAYERS[0], *LAYERS[2:]])
@pytest.mark.parametrize("counted", [False, True])
def test_every_sample_goes_as_far_as_its_own_states_allow(layer, counted):
    """Large weights and far targets are not as the model says: no sample rises, whatever the others do."""
    counts = torch.tensor([1.0, 2, 1, 3, 1, 1], dtype=torch.float64)[:, None] if counted else None
    block, at, target, step, ended = states_asked_for(layer, 3.0, counts, gain=8.0)
    fallen = values_of(at, target) - values_of(ended, target)
    assert bool((fallen > 0).all())
    rows = torch.ones(6, dtype=torch.float64) if counts is None else counts[:, 0]
    promised = float(step.rate * step.squared)
    assert 0 < promised <= float(0.7 / 2 * (rows * fallen).sum()) * (1 + 1e-9)
    e = ended.states - ended.predicted
    found, held = block.rolled_out(at.params, at.inputs, e)
    torch.testing.assert_close(found, ended.states)
    for of_time, of_all in zip(zip(*held, strict=True), ended.held, strict=True):
        torch.testing.assert_close(torch.stack(of_time, 1), of_all)
    # some went less than what is tried first, the others did not
    towards = recurrent_steps._towards(
        at.slopes, through_time(at.slopes, at.states - target, at.params["weight_hh_l0"]),
        at.params["weight_hh_l0"],
    )  # fmt: skip
    shares = e.flatten(1).norm(dim=1) / towards.flatten(1).norm(dim=1)
    assert float(shares.min()) < 0.9 * recurrent_steps.LENGTH < 0.99 * float(shares.max())
    # counts weigh samples, they do not move them
    torch.testing.assert_close(ended.states, states_asked_for(layer, 3.0, gain=8.0)[4].states)


def test_a_sample_without_a_finite_trial_stays_where_it_is(monkeypatch):
    """The others end where they end without it."""
    rolled_out = RecurrentStates.rolled_out

    def broken(self, params, inputs, e=None):
        states, held = rolled_out(self, params, inputs, e)
        states[inputs[:, 0, 0] == torch.inf] = torch.nan
        return states, held

    block, at, target, _, whole = states_asked_for(LAYERS[2], 1.0)
    at.inputs[2, 0, 0] = torch.inf
    monkeypatch.setattr(RecurrentStates, "rolled_out", broken)
    with torch.no_grad():
        _, ended = block._states_step(Term(0.7, target, at.states), Work(SubproblemOptions()), at)
    torch.testing.assert_close(ended.states[2], at.states[2], rtol=0, atol=0)
    others = [0, 1, 3, 4, 5]
    torch.testing.assert_close(ended.states[others], whole.states[others])
