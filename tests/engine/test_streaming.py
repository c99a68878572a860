"""Streaming mode: against a literal reference, resumed in mid-pass, at any time good, on every kind of block."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from convergent import train
from dladmm import Recurrent, Status, datasets, from_module, mlp
from dladmm.base.history import largest_rise
from dladmm.engine.batches import ArrayBatches, Batch, default_batch_size
from dladmm.engine.problem import State
from dladmm.engine.streaming import Streaming
from dladmm.engine.streaming_options import StreamingOptions
from dladmm.engine.sweep import Engine
from dladmm.losses import Risk, get_loss
from dladmm.regularizers import L2, NonNegative, NoPenalty
from dladmm.solvers import metric
from reference_streaming import ReferenceStreaming

N, WIDTHS, BATCHES = 60, [7, 9, 8, 4], 24


def problem(seed=0, penalty=None, passes=8, options=None, widths=WIDTHS):
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.normal(size=(N, widths[0])))
    y = rng.integers(0, widths[-1], N)
    chain, loss = mlp(widths), get_loss("cross_entropy")
    target = loss.encode(torch.from_numpy(y), widths[-1], torch.float64)
    engine = Engine(chain, x, Risk(loss, target), penalty or NoPenalty())
    generator = torch.Generator().manual_seed(seed)
    params = chain.initial_parameters(generator, 1.0, dtype=torch.float64, device=torch.device("cpu"))
    batches = ArrayBatches(x, target, None, None, 3, seed)
    state = engine.feasible_state(params, 1.0, 1.0)
    return (
        Streaming(engine, state, batches, passes, options or StreamingOptions(smoothing=0.1), seed=seed),
        state,
        x,
        y,
    )


@pytest.mark.parametrize("lam", [0.0, 3.0])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("thin", "slowing"), [(False, None), (True, None), (False, 5.0)])
def test_twenty_batches_agree_with_the_literal_reference(seed, lam, thin, slowing, monkeypatch):
    sketches = None
    if thin:
        monkeypatch.setattr(metric, "THIN_FROM", 2)
        monkeypatch.setattr(metric, "ALIGNED", 4)
        sketches = [metric.random_signs(n, 2).double().numpy() for n in WIDTHS[:-1]]
    options = StreamingOptions(smoothing=0.1, planned=slowing is None, slowing=slowing)
    method, state, _, _ = problem(seed, L2(lam) if lam else None, options=options)
    W, b = [p.numpy() for p in state.W], [p.numpy() for p in state.b]
    reference = ReferenceStreaming(W, b, 3 * 8, lam=lam / N, sketches=sketches, slowing=slowing)
    for number in range(7):
        for batch in method.batches.one_pass(number):
            method.step(batch)
            reference.step(batch.x.numpy(), batch.target.argmax(1).numpy())
    assert method.step_number == 21
    assert float(method.sweeps.step_length) == pytest.approx(reference.eta, rel=1e-9)
    for kind, expected in (
        ("params", list(zip(reference.W, reference.b, strict=True))),
        ("average", reference.average),
    ):
        ours = [p for p in getattr(method.sweeps, kind) if p]
        for p, (W_expected, b_expected) in zip(ours, expected, strict=True):
            np.testing.assert_allclose(p["W"].numpy(), W_expected, rtol=0, atol=1e-8)
            np.testing.assert_allclose(p["b"].numpy(), b_expected, rtol=0, atol=1e-8)


def test_counted_rows_are_repeated_rows():
    twice, _, x, _ = problem()
    counted, _, _, _ = problem()
    target = twice.engine.risk.target
    rows = torch.arange(20)
    doubled = torch.cat([rows, rows[:5]])
    counts = torch.ones(20, 1, dtype=torch.float64)
    counts[:5] = 2
    for _ in range(3):
        twice.step(Batch(x[doubled], target[doubled]))
        counted.step(Batch(x[rows], target[rows], None, counts))
    for p, q in zip(twice.sweeps.params, counted.sweeps.params, strict=True):
        for name in p:
            torch.testing.assert_close(p[name], q[name], rtol=1e-10, atol=1e-12)


def test_a_run_resumed_in_mid_pass_has_the_same_bits():
    whole, state, _, _ = problem(passes=3)
    cut, cut_state, _, _ = problem(passes=3)
    looked = lambda state, steps: True  # noqa: E731
    for _ in range(3):
        whole.iterate(state, looked)
    cut.iterate(cut_state, looked)
    left = iter([True, False])
    cut.after_batch = lambda: next(left)
    cut.iterate(cut_state, looked)
    assert (cut.finished_passes, cut.done_in_pass) == (1, 2)
    tensors, meta = cut.snapshot()
    kept = {name: tensor.clone() for name, tensor in tensors.items()}
    resumed, resumed_state, _, _ = problem(passes=3)
    resumed.resume(kept, meta)
    while resumed.finished_passes < 3:
        resumed.iterate(resumed_state, looked)
    for p, q in zip(state.params, resumed_state.params, strict=True):
        assert all(torch.equal(p[name], q[name]) for name in p)


def test_constraints_hold_and_their_average_too():
    method, _, _, _ = problem(penalty=NonNegative())
    for p in method.sweeps.params:
        if "W" in p:
            p["W"].abs_()
    for batch in method.batches.one_pass(0):
        method.step(batch)
    assert all(bool((p["W"] >= 0).all()) for p in method.sweeps.params if "W" in p)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("depth", [1, 6, 20])
def test_steps_are_safe_whatever_the_depth_and_the_initial_scale(scale, depth):
    method, _, _, _ = problem(widths=[7, *[12] * depth, 4], passes=20)
    for p in method.sweeps.params:
        if "W" in p:
            p["W"].mul_(scale if depth == 1 else min(scale, 1.0))
    for number in range(5):
        for batch in method.batches.one_pass(number):
            method.step(batch)
    assert all(bool(torch.isfinite(t).all()) for t in method.sweeps.tensors().values())


BLOCKS = {
    "affine": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)),
    "convolution": lambda: nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, groups=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 10),
    ),
    "own module": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 30), Residual(30), nn.Linear(30, 10)),
}


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x):
        return x + torch.relu(self.inner(x))


@pytest.mark.parametrize("kind", ["affine", "convolution", "own module"])
def test_every_kind_of_block_streams(kind):
    data = datasets.load("digits")
    x, x_test = (t.reshape(-1, 1, 8, 8) for t in (data.x_train, data.x_test))
    result = train(BLOCKS[kind](), x, data.y_train, mode="streaming", max_iter=6)
    with torch.no_grad():
        accuracy = (result.module(x_test).argmax(1) == data.y_test).double().mean()
    assert float(accuracy) > 0.93
    assert result.status is Status.PASSES_MADE
    assert result.certificate.streaming
    assert not result.certificate.certified


def test_recurrent_layers_stream():
    data = datasets.load("digits")
    x, x_test = (t.reshape(-1, 8, 8) for t in (data.x_train, data.x_test))
    module = nn.Sequential(Recurrent(nn.RNN(8, 40, batch_first=True)), nn.Linear(40, 10))
    result = train(module, x, data.y_train, mode="streaming", max_iter=8)
    with torch.no_grad():
        accuracy = (result.module(x_test).argmax(1) == data.y_test).double().mean()
    assert float(accuracy) > 0.85


def test_an_input_that_is_zero_at_first_does_not_stop_the_rest():
    """A quarter of the digits left out: a border pixel is first seen in the fourth batch. Its weights alone moved then,
    and what was measured along them kept every later step a thousand times too short."""
    data = datasets.load("digits")
    x, y = data.x_train.reshape(-1, 8, 8), data.y_train
    kept = torch.arange(len(x)) // 360 != 1
    torch.manual_seed(0)
    module = nn.Sequential(Recurrent(nn.GRU(8, 64, batch_first=True)), nn.Linear(64, 10))
    result = train(module, x[kept], y[kept], mode="streaming", max_iter=4, random_state=0, dtype="float32")
    assert result.history["train_accuracy"][-1] > 0.95


@pytest.mark.parametrize("activation", ["sign", "step", {"name": "quantised", "levels": 4}])
def test_jumps_stream_by_their_surrogate(activation):
    data = datasets.load("digits")
    result = train(mlp([64, 60, 10], activation), data.x_train, data.y_train, mode="streaming", max_iter=8)
    with torch.no_grad():
        accuracy = (result.module(data.x_test).argmax(1) == data.y_test).double().mean()
    assert float(accuracy) > 0.85


def test_pushes_are_the_derivatives_of_the_forward_pass():
    """``push_parameters`` and ``push_input`` against finite differences, and ``parameter_gradient`` against both."""
    torch.manual_seed(0)
    chain = from_module(BLOCKS["convolution"]().double())
    params = chain.initial_parameters(
        torch.Generator().manual_seed(0), 1.0, dtype=torch.float64, device=torch.device("cpu")
    )
    v = torch.rand(3, 1, 8, 8, dtype=torch.float64)
    for block, p in zip(chain, params, strict=True):
        out = block.forward(p, v)
        move, eps = torch.randn_like(v), 1e-6
        expected = (block.forward(p, v + eps * move) - block.forward(p, v - eps * move)) / (2 * eps)
        torch.testing.assert_close(block.push_input(p, v, move, out), expected, rtol=1e-5, atol=1e-7)
        if p:
            moves = {name: torch.randn_like(t) for name, t in p.items()}
            forth, back = ({n: t + s * eps * moves[n] for n, t in p.items()} for s in (1, -1))
            expected = (block.forward(forth, v) - block.forward(back, v)) / (2 * eps)
            torch.testing.assert_close(
                block.push_parameters(p, moves, v, out), expected, rtol=1e-5, atol=1e-7
            )
        v = torch.rand_like(out)  # without the ties that relu leaves for max pooling


@pytest.mark.parametrize(
    ("rows", "images", "expected"),
    [(60_000, False, 512), (60_000, True, 256), (4000, False, 256), (500, False, 64), (20, False, 20)],
)
def test_the_default_batch_size(rows, images, expected):
    assert default_batch_size(rows, convolutions=images) == expected


def test_every_row_comes_once_per_pass_up_to_the_few_left_over():
    x = torch.arange(103.0)[:, None]
    batches = ArrayBatches(x, x, None, None, 5, seed=3)
    seen = torch.cat([batch.x[:, 0] for batch in batches.one_pass(0)])
    assert len(seen) == len(set(seen.tolist())) == 100
    again = torch.cat([batch.x[:, 0] for batch in batches.one_pass(0, skip=2)])
    assert torch.equal(seen[40:], again)
    other = torch.cat([batch.x[:, 0] for batch in batches.one_pass(1)])
    assert not torch.equal(seen, other)


def test_an_average_is_handed_out_until_a_plan_ends():
    method, state, _, _ = problem(passes=2)
    looked = lambda state, steps: True  # noqa: E731
    method.iterate(state, looked)
    assert isinstance(state, State)
    assert torch.equal(state.W[0], method.sweeps.average[0]["W"])
    method.iterate(state, looked)
    assert torch.equal(state.W[0], method.sweeps.params[0]["W"])


def test_a_batch_far_above_the_mean_loss_shortens_the_leash_and_calm_ones_lengthen_it():
    method, _, _, _ = problem()
    sweeps = method.sweeps
    p, q, none = (torch.tensor(value, dtype=torch.float64) for value in (1e9, 1.0, 0.0))
    sweeps.shares.lengths.fill_(0.1)
    sweeps.means.copy_(torch.tensor([1e9, 1.0, 1.0]))
    kappa = sweeps.largest_change
    calm = sweeps._length(p, q, none, torch.tensor(1.0, dtype=torch.float64))
    assert float(calm) == pytest.approx(kappa**0.5)
    shaken = sweeps._length(p, q, none, torch.tensor(30.0, dtype=torch.float64))
    assert float(shaken) == pytest.approx((kappa / 4) ** 0.5)
    again = sweeps._length(p, q, none, torch.tensor(1.0, dtype=torch.float64))
    assert float(again) == pytest.approx((1.1 * kappa / 4) ** 0.5)


def test_the_certificate_says_how_often_and_by_how_much_the_objective_rose():
    data = datasets.load("digits")
    result = train(mlp([64, 30, 10]), data.x_train, data.y_train, mode="streaming", max_iter=3)
    start = result.history["lagrangian"][0] + result.history["descent"][0]
    values = [start, *result.history["lagrangian"]]
    rises = [max(0.0, (after - before) / before) for before, after in pairwise(values)]
    assert result.certificate.largest_rise == pytest.approx(max(rises), abs=1e-12)
    assert largest_rise([4.0, 2.0, 3.0, 3.3, 1.0]) == pytest.approx(0.5)
    assert largest_rise([3.0, 2.0]) == 0.0
    worse = replace(result.certificate, descent_violations=(2,), largest_rise=0.5)
    assert "rose in 1, by 0.5 of its value at most" in str(worse)
    assert not worse.certified
