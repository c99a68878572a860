"""The same engine on a GPU: same results as on the CPU, and the same twice."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from convergent import train, train_graph
from dladmm import datasets, from_module, mlp
from dladmm.compute.recording import Recorder
from dladmm.compute.workspace import Workspace

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

OPTIONS = [
    {"w_solver": "exact", "a_solver": "exact"},
    {"w_solver": "quadratic", "a_solver": "quadratic"},
    {"w_solver": "quadratic", "a_solver": "quadratic", "alpha0": 1.0, "t0": 1.0},
]


def digits(device, dtype="float64", activation="relu", **options):
    data = datasets.load("digits")
    chain = mlp([64, 30, 20, 10], activation)
    return train(chain, data.x_train, data.y_train, device=device, dtype=dtype, max_iter=15, **options)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("activation", ["relu", "tanh", "sign"])
def test_gpu_and_cpu_agree(options, activation):
    gpu, cpu = (digits(device, activation=activation, **options) for device in ("cuda", "cpu"))
    for first, second in zip(gpu.state.W, cpu.state.W, strict=True):
        assert torch.allclose(first.cpu(), second, atol=1e-6)
    assert gpu.certificate.certified, str(gpu.certificate)


@pytest.mark.parametrize("options", OPTIONS[:2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_same_seed_gives_the_same_bits(options, dtype):
    first, second = (digits("cuda", dtype, **options) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.state.W, second.state.W, strict=True))


def said(caplog):
    """What this library logged: torch tells of its compiling too."""
    return [record for record in caplog.records if record.name.startswith("dladmm")]


@pytest.mark.parametrize("compile", ["auto", True])
@pytest.mark.parametrize("options", [*OPTIONS, {"mode": "accelerated"}])
def test_compiled_and_recorded_runs_agree_with_plain_ones(options, compile, caplog):
    compiled, plain = (digits("cuda", compile=how, **options) for how in (compile, False))
    assert not said(caplog), "the launches could not be recorded"
    for first, second in zip(compiled.state.W, plain.state.W, strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=1e-6)
    assert compiled.certificate.certified == ("mode" not in options), str(compiled.certificate)


@pytest.mark.parametrize("compile", ["auto", True])
@pytest.mark.parametrize("rows", ["all", "train"])
@pytest.mark.parametrize("options", [*OPTIONS, {"mode": "accelerated"}])
def test_compiled_and_recorded_graph_runs_agree_with_plain_ones(options, rows, compile, caplog):
    data = datasets.load("sbm", n_nodes=300, n_classes=3, seed=0)
    kwargs = {"hidden": (16,), "device": "cuda", "dtype": "float64", "max_iter": 12}
    kwargs |= options if "mode" in options else options | {"rows": rows}
    compiled, plain = (train_graph(data, compile=how, **kwargs) for how in (compile, False))
    assert not said(caplog), "the launches could not be recorded"
    for first, second in zip(compiled.state.W, plain.state.W, strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=1e-6)


def test_a_recording_that_was_broken_off_is_made_at_the_next_call():
    """Torch holds the memory of the first one for one under way, so that the second must not ask for it."""
    x, tries = torch.zeros(3, device="cuda"), []

    def function():
        tries.append(torch.cuda.is_current_stream_capturing())
        x.add_(1.0)
        if tries == [True]:
            x.sum().item()  # which no recording may do
        return x

    recorder = Recorder(Workspace())
    for _ in range(4):
        recorder("add", function)
    assert tries == [True, False, True]
    assert x.tolist() == [4.0] * 3


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_accelerated_runs_are_replayed_through_refusals(dtype, caplog):
    """Forty iterations, several levels: every level is recorded once."""
    data = datasets.load("sbm", n_nodes=300, n_classes=3, seed=0)
    kwargs = {"hidden": (16,), "device": "cuda", "dtype": dtype, "max_iter": 40, "mode": "accelerated"}
    recorded, plain = (train_graph(data, compile=how, **kwargs) for how in ("auto", False))
    assert not said(caplog), "the launches could not be recorded"
    assert len(set(recorded.history["rho"])) > 1
    close = {"rtol": 1e-6 if dtype == "float64" else 0.05, "atol": 0}
    ends = (torch.tensor(run.history["lagrangian"][-1], dtype=torch.float64) for run in (recorded, plain))
    torch.testing.assert_close(*ends, **close)


@pytest.mark.parametrize("mode", ["accelerated", "convergent"])
def test_convolutions_are_replayed(mode, caplog):
    """As many steps of conjugate gradients as were foreseen; the answers are those of a run that asks."""
    generator = torch.Generator().manual_seed(0)
    X, y = torch.rand(300, 1, 12, 12, generator=generator), torch.randint(0, 3, (300,), generator=generator)
    X[torch.arange(300), 0, y, :] += 1
    network = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.ReLU(),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(24, 3),
    )  # fmt: skip
    given = {"device": "cuda", "dtype": "float64", "max_iter": 25, "mode": mode}
    chain = from_module(network, sample=X[:2])
    recorded, plain = (train(chain, X, y, compile=how, **given) for how in ("auto", False))
    assert not said(caplog), "the launches could not be recorded"
    ends = (run.history["objective"][-1] for run in (recorded, plain))
    assert next(ends) == pytest.approx(next(ends), rel=0.02)


@pytest.mark.parametrize("rows", ["all", "train"])
def test_graphs(rows):
    data = datasets.load("sbm", n_nodes=300, n_classes=3, seed=0)
    gpu, again, cpu = (
        train_graph(data, hidden=(16,), rows=rows, device=device, dtype="float64", max_iter=10)
        for device in ("cuda", "cuda", "cpu")
    )
    assert all(torch.equal(a, b) for a, b in zip(gpu.state.W, again.state.W, strict=True))
    assert all(torch.allclose(a.cpu(), b, atol=1e-6) for a, b in zip(gpu.state.W, cpu.state.W, strict=True))


def test_kernels_are_made_before_a_run_needs_them(monkeypatch):
    """Those of an accelerated run on images of MNIST's size: nothing is left for the first iteration to make."""
    from dladmm.compute import kernels, rehearsal
    from dladmm.compute.gpu import code

    units = rehearsal.units(20_000 * 512, 10, 10, product=True)
    assert kernels.PASSES in units
    for unit in units:
        unit.load(torch.device("cuda"))
    made = []
    monkeypatch.setattr(code, "_compiled", lambda *given: made.append(given))
    generator = torch.Generator(device="cuda").manual_seed(0)
    X = torch.rand(20_000, 784, device="cuda", generator=generator)
    y = (X[:, :10] + 0.1 * torch.rand(20_000, 10, device="cuda", generator=generator)).argmax(1)
    train(mlp([784, 512, 512, 10]), X, y, mode="accelerated", max_iter=3, device="cuda", dtype="float32")
    assert made == []
