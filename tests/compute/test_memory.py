"""The estimate of a run's memory against what its tensors took, ``max_memory`` and memmaps."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from command_line import in_this_process as dladmm
from convergent import train, train_graph
from dladmm import MLPClassifier, mlp
from dladmm import train as dladmm_train
from dladmm.api.arguments import fresh_parameters
from dladmm.api.cross_fit import cross_fitted_peak
from dladmm.base.errors import InputError
from dladmm.baselines import train as train_baseline
from dladmm.blocks import Term, Work, convolution
from dladmm.blocks.affine_rows import ChunkProducts
from dladmm.compute import execution
from dladmm.compute.chunks import concatenated, few, in_chunks, memmap_of
from dladmm.engine import memory, memory_limit
from dladmm.engine.batches import default_batch_size
from dladmm.engine.memory import FEWEST_ROWS, MARGIN, needs_of, streamed_peak
from dladmm.engine.memory_limit import bytes_of, chunk, rows_within
from dladmm.engine.options import make_options
from dladmm.losses import Risk, get_loss
from dladmm.network.chain import from_module
from dladmm.solvers.subproblems import SubproblemOptions
from dladmm.training.result import ConvergenceNotGuaranteed
from dladmm.training.trainer import Trainer

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from recording import Recorder

# Steps of a few iterations are the subject, not what the networks have learnt
pytestmark = pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")

MODES = {
    "quadratic": {"w_solver": "quadratic", "a_solver": "quadratic"},
    "exact": {},
    "accelerated": {"mode": "accelerated"},
}
SHAPES = [
    ([20, 30, 7], 500),
    ([64, 100, 100, 10], 1000),
    ([200, 50, 5], 1500),
    ([16, 200, 2], 2000),
    ([300, 60, 9], 600),
]


def data(widths, n_rows, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n_rows, widths[0], generator=generator, dtype=torch.float64) + 1.5
    y = torch.randint(0, widths[-1], (n_rows,), generator=generator)
    return x.to(dtype), y


def needs(chain, x, *, regularizer="auto", sample_weight=None, validation=None, dtype="float32", **options):
    """What ``train`` with these arguments will need."""
    known = {name: value for name, value in options.items() if name not in ("loss", "prox", "target_mask")}
    chosen = make_options(**known)
    return needs_of(
        chain,
        x,
        chosen,
        chosen.penalty(regularizer),
        dtype=getattr(torch, dtype),
        n_validation=0 if validation is None else len(validation[0]),
        counts=sample_weight is not None,
    )


def accounted(widths, x, y, **options):
    """The result, and the most bytes that the run's tensors held at once."""
    recorder = Recorder()
    with recorder, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceNotGuaranteed)
        result = train(mlp(widths), x, y, device="cpu", max_iter=2, **options)
    return result, recorder.peak


def tensors(result):
    state = result.state
    return [*state.W, *state.b, *state.outputs, *state.predictions, state.u]


def assert_same(one, other, tolerance=1e-10):
    for mine, theirs in zip(tensors(one), tensors(other), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)
    # In chunks the moves of z are not measured
    for name in set(one.history.to_dict()) - {
        "seconds",
        "z_steps",
    }:
        for a, b in zip(one.history[name], other.history[name], strict=True):
            assert a == b or a == pytest.approx(b, rel=100 * tolerance, abs=tolerance), name
    assert one.certificate.agrees == other.certificate.agrees


def test_an_accelerated_iteration_of_a_cnn_holds_at_most_three_times_what_adam_does(monkeypatch):
    """On many images, where matrices of the size of the parameters hardly count and parts are small."""
    network = nn.Sequential(
        nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 5, padding=2), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(144, 16), nn.ReLU(), nn.Linear(16, 3),
    )  # fmt: skip
    x, y = torch.randn(1500, 1, 12, 12), torch.arange(1500) % 3
    monkeypatch.setattr(execution, "CACHED", 1 << 14)
    monkeypatch.setitem(convolution.PART, "cpu", 1 << 14)
    peaks = []
    for adam in (True, False):
        optimizer = torch.optim.Adam(network.parameters())
        recorder = Recorder()
        with recorder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if adam:
                for _ in range(2):
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(network(x), y).backward()
                    optimizer.step()
            else:
                options = make_options(mode="accelerated", max_iter=100, diagnostics_every=100)
                chain, loss = from_module(network, sample=x[:2]), get_loss("cross_entropy")
                params = fresh_parameters(chain, 0, 1.0, None, x.dtype, x.device)
                risk = Risk(loss, loss.encode(y, 3, x.dtype))
                trainer = Trainer(chain, x, risk, options, penalty=options.penalty("auto"), params=params)
                for k in range(3):
                    assert trainer._iterate(k + 1) is None
        peaks.append(recorder.peak)
    assert peaks[1] < 3 * peaks[0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("widths", "n_rows"), SHAPES)
def test_the_estimate_is_within_15_percent_of_what_the_tensors_took(widths, n_rows, dtype, mode):
    x, y = data(widths, n_rows, getattr(torch, dtype))
    _, peak = accounted(widths, x, y, dtype=dtype, **MODES[mode])
    assert needs(mlp(widths), x, dtype=dtype, **MODES[mode]).peak == pytest.approx(peak, rel=0.15)


@pytest.mark.parametrize(("mode", "most"), [("quadratic", 12.2), ("exact", 12.7), ("accelerated", 15.4)])
def test_an_iteration_holds_no_more_matrices_of_rows_than_it_did(mode, most):
    """The peak over the size of all z of the network: a temporary more of the widest layer would be .46 more."""
    widths, n_rows = [40, 60, 60, 10], 4000
    x, y = data(widths, n_rows)
    _, peak = accounted(widths, x, y, dtype="float32", **MODES[mode])
    assert peak / (4 * n_rows * sum(widths[1:])) < most


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "setting",
    [
        {"validation": True},
        {"cast": True},
        {"sample_weight": True},
        {"scale_inputs": True},
        {"regularizer": {"name": "l1", "strength": 0.01}},
        {"loss": "squared"},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_the_estimate_knows_the_settings_that_cost_memory(mode, setting):
    widths, n_rows = [120, 80, 60, 8], 1200
    x, y = data(widths, n_rows)
    options = dict(setting)
    if options.pop("validation", False):
        options["validation"] = (x[:600].clone(), y[:600])
    if options.pop("cast", False):
        x = x.double()
    if options.pop("sample_weight", False):
        options["sample_weight"] = torch.arange(n_rows) % 3 + 1
    if options.get("loss") == "squared":
        y = torch.nn.functional.one_hot(y, 8).float()
    _, peak = accounted(widths, x, y, **MODES[mode], **options)
    assert needs(mlp(widths), x, **MODES[mode], **options).peak == pytest.approx(peak, rel=0.15)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("widths", "n_rows"), SHAPES)
def test_max_memory_keeps_its_word_with_the_same_results(widths, n_rows, mode):
    x, y = data(widths, n_rows, torch.float64)
    whole, peak = accounted(widths, x, y, dtype="float64", **MODES[mode])
    needed = needs(mlp(widths), x, dtype="float64", **MODES[mode])
    limit = int(1.1 * needed.least / MARGIN)
    assert limit < peak
    chunked, less = accounted(widths, x, y, dtype="float64", max_memory=limit, **MODES[mode])
    assert FEWEST_ROWS <= rows_within(needed, limit) < n_rows
    assert less <= limit
    assert_same(chunked, whole)


@pytest.mark.parametrize(
    "options",
    [
        {"w_solver": "quadratic", "a_solver": "quadratic", "tau_per_sample": True},
        {"preset": "paper"},
        {"w_solver": "quadratic", "regularizer": {"name": "l1", "strength": 0.1}},
        {"regularizer": {"name": "l1", "strength": 0.1}},
        {"regularizer": {"name": "l2", "strength": 0.1}, "sample_weight": np.arange(400) % 3 + 1.0},
        {"mode": "accelerated", "sample_weight": np.arange(400) % 3 + 1.0},
        {"prox": "fista", "scale_inputs": True},
        {"target_mask": np.arange(400) % 5 > 0},
        {"loss": "binary_logistic"},
        {"activation": "tanh"},
        {"mode": "accelerated", "activation": "tanh"},
    ],
    ids=str,
)
def test_chunks_change_nothing_in_other_settings(options):
    options = dict(options)
    chain = mlp([12, 9, 8, 4], options.pop("activation", "relu"))
    # Decides by comparing, which rounding may turn
    searching = options.get("regularizer", {}).get("name") == "l1"
    x, y = data([12, 9, 8, 4], 400, torch.float64)
    options |= {"dtype": "float64", "device": "cpu", "max_iter": 3, "validation": (x[:50] * 0.9, y[:50])}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceNotGuaranteed)
        whole = train(chain, x, y, **options)
        needed = needs(chain, x, **{name: v for name, v in options.items() if name != "device"})
        memory = int(1.02 * needed.least / MARGIN)
        chunked = train(chain, x, y, max_memory=memory, **options)
    assert rows_within(needed, memory) < 200
    assert_same(chunked, whole, 1e-5 if searching else 1e-10)


def test_enough_memory_leaves_everything_as_it_is():
    x, y = data([20, 30, 7], 500)
    plain, peak = accounted([20, 30, 7], x, y)
    allowed, same = accounted([20, 30, 7], x, y, max_memory="1GB")
    assert same == peak
    assert all(torch.equal(a, b) for a, b in zip(tensors(plain), tensors(allowed), strict=True))


# Inputs in a file ----------------------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path):
    def store(x):
        array = np.memmap(tmp_path / "x.bin", dtype=x.dtype, mode="w+", shape=x.shape)
        array[:] = x
        array.flush()
        return np.memmap(tmp_path / "x.bin", dtype=x.dtype, mode="r", shape=x.shape)

    return store


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [np.float64, np.float32, np.uint8])
def test_a_memmap_gives_what_its_rows_in_memory_give(stored, kind, mode):
    x, y = data([12, 9, 4], 300, torch.float64)
    x = (20 * (x + 4)).clamp(0, 255).numpy().astype(kind)
    found = [
        train(
            mlp([12, 9, 4]),
            rows,
            y,
            dtype="float64",
            device="cpu",
            max_iter=3,
            max_memory="100MB",
            **MODES[mode],
        )
        for rows in (x, stored(x), np.asarray(stored(x)))
    ]
    assert_same(found[1], found[0], 1e-8)
    assert_same(found[2], found[0], 1e-8)


def test_memmaps_are_recognised_behind_views(stored):
    mapped = stored(np.zeros((6, 4)))
    assert memmap_of(np.asarray(mapped)[1:3].T) is not None
    assert memmap_of(np.array(mapped)) is None
    assert memmap_of(torch.zeros(3)) is None


CHILD = """
import resource, sys, numpy as np
from dladmm import mlp, train
x = np.memmap(sys.argv[1], dtype=np.float32, mode="r", shape=(100_000, 250))
y = np.arange(len(x)) % 3
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
options = dict(mode="convergent", device="cpu", max_iter=1, scale_inputs=True, max_memory="40MB")
train(mlp([250, 2, 3]), np.array(x[:1000]), y[:1000], **options)
before = peak()
train(mlp([250, 2, 3]), x, y, **options)
print(peak() - before)
"""


def test_a_file_larger_than_what_is_allowed_is_never_in_memory_whole(tmp_path):
    """100 MB of inputs; the process grows by what 40 MB of tensors and the products' own buffers take."""
    rows = np.random.default_rng(0).standard_normal((2000, 250)).astype(np.float32)
    with (tmp_path / "x.bin").open("wb") as file:
        for _ in range(50):
            rows.tofile(file)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD, tmp_path / "x.bin"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 80e6


# Errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (5, 5),
        ("5", 5),
        ("2GB", 2 * 10**9),
        ("2 gib", 2 * 2**30),
        ("1.5 MB", 1_500_000),
        ("10kb", 10_000),
        ("1T", 10**12),
    ],
)
def test_sizes_in_words(text, number):
    assert bytes_of(text) == number


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "", "GB", "-2GB", "0GB", "two", "2XB", [1]])
def test_bad_sizes_are_named(bad):
    x, y = data([4, 3, 2], 20)
    with pytest.raises(InputError, match="max_memory must be a number of bytes above 0 or text as '2GB'"):
        train(mlp([4, 3, 2]), x, y, max_memory=bad)


def test_too_little_is_said_before_work_begins():
    x, y = data([20, 30, 7], 500)
    said = r"max_memory is ([\d.]+) MB, but this run needs about ([\d.]+) MB at least"
    with pytest.raises(InputError, match=said) as refused:
        train(mlp([20, 30, 7]), x, y, max_memory=100_000)
    given, least = re.search(said, str(refused.value)).groups()
    assert float(given) == 0.1
    with pytest.raises(InputError, match=said):
        train(mlp([20, 30, 7]), x, y, max_memory=f"{0.99 * float(least)} MB")
    train(mlp([20, 30, 7]), x, y, max_memory=f"{1.01 * float(least)} MB", max_iter=1)


def test_what_cannot_be_cut_into_chunks_is_refused():
    x, y = data([16, 3, 2], 20)
    convolution = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    with pytest.raises(InputError, match="max_memory needs a network of linear layers"):
        train(convolution, x.reshape(20, 1, 4, 4), y, max_memory="1GB")
    with pytest.raises(InputError, match="has no option max_memory"):
        train_baseline("adam", mlp([16, 3, 2]), x, y, max_memory="1GB")
    with pytest.raises(InputError, match="max_memory is not supported for graphs"):
        train_graph(x, np.array([[0, 1], [1, 0]]), y, train_mask=np.ones(20, bool), max_memory="1GB")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.zeros((0, 4)), "X is empty"),
        (np.zeros(5), "must have rows"),
        (np.zeros((20, 4), complex), "is complex"),
    ],
)
def test_inputs_of_the_wrong_kind_are_named_as_ever(wrong, message):
    with pytest.raises((InputError, TypeError), match=message):
        train(mlp([4, 3, 2]), wrong, np.arange(20) % 2, max_memory=30_000)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_file_is_checked_chunk_by_chunk(stored, bad):
    x, y = data([4, 3, 2], 200)
    x[170, 2] = bad
    with pytest.raises(InputError, match="X contains NaN or infinite values"):
        train(mlp([4, 3, 2]), stored(x.numpy()), y, max_memory="10MB")
    with pytest.raises(InputError, match="X has 4 features, but the network's first layer takes 5"):
        train(mlp([5, 3, 2]), stored(x.numpy()), y, max_memory="10MB")
    with pytest.raises(InputError, match=r"X has values too large for torch\.float32"):
        train(mlp([4, 3, 2]), stored(np.full((200, 4), 1e60)), y, max_memory="10MB")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_estimators_pass_it_on():
    x, y = data([20, 30, 4], 300)
    settings = {"max_iter": 3, "random_state": 0, "tol": 0}
    plain = MLPClassifier((30,), mode="accelerated", **settings).fit(x.numpy(), y.numpy())
    limit = int(1.05 * needs(mlp([20, 30, 4]), x, mode="accelerated", dtype="float64").least / MARGIN)
    chunked = MLPClassifier((30,), mode="accelerated", max_memory=limit, **settings).fit(x.numpy(), y.numpy())
    for mine, theirs in zip(chunked.coefs_, plain.coefs_, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-10)


def test_the_command_line_says_what_it_needs_and_keeps_to_it(tmp_path):
    words = ("train", "mlp", "--dataset", "digits", "--hidden", "20", "--max-iter", "2")
    done = dladmm(*words, "--max-memory", "4MB", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stderr.splitlines() if line.startswith("memory"))
    assert 1 <= int(line.split()[2]) <= 4
    done = dladmm(*words, "--max-memory", "1KB", cwd=tmp_path)
    assert done.returncode == 2
    assert "MB at least" in done.stderr


# The helpers -----------------------------------------------------------------------------------------------------


def test_chunks_are_cut_alike_and_joined_in_order():
    x, rows = torch.arange(14.0).reshape(7, 2), torch.arange(7.0)[:, None]
    assert [len(part) for part, _, none in in_chunks(3, x, rows, None) if none is None] == [3, 3, 1]
    assert next(in_chunks(None, x))[0] is x
    torch.testing.assert_close(concatenated(3, torch.mul, x, rows), x * rows)


@pytest.mark.parametrize(("chunk_rows", "times"), [(None, 1), (3, 6)])
def test_products_of_one_chunk_are_made_once_of_several_each_time(chunk_rows, times, monkeypatch):
    A, prediction = torch.randn(7, 4), torch.zeros(7, 2)
    made, product = [], torch.mm
    monkeypatch.setattr(torch, "mm", lambda *args, **out: made.append(1) or product(*args, **out))
    work = Work(SubproblemOptions(), chunk_rows=chunk_rows)
    heading = torch.randn(2, 4)
    products = ChunkProducts(A, heading, Term(1.0, prediction, prediction), work)
    for _ in range(2):
        found = torch.cat([moved.clone() for _, _, moved in products])
        torch.testing.assert_close(found, A @ heading.T)
    assert len(made) == times


def test_rows_within_a_limit_are_the_most_that_fit():
    x, _ = data([20, 30, 7], 500)
    wanted = needs(mlp([20, 30, 7]), x)
    for limit in (int(wanted.least * 1.2), int(wanted.least * 1.6)):
        rows = rows_within(wanted, limit)
        assert FEWEST_ROWS < rows < 500
        assert replace(wanted, at_once=rows).peak <= MARGIN * limit < replace(wanted, at_once=rows + 1).peak
    assert rows_within(wanted, 10 * wanted.peak) == 500


def test_every_part_of_the_estimate_by_hand():
    """A network 5-8-3 on 100 rows in float32: links of width 8, 8 and 3, and 8 * 5 + 8 + 3 * 8 + 3 = 75 parameters."""
    x = torch.zeros(100, 5)
    quadratic, exact, accelerated = (needs(mlp([5, 8, 3]), x, **MODES[mode]) for mode in MODES)
    # variables and predictions, u and targets; parameters twice; residuals 8 and 3, products 3 (the first layer's steps
    # are on its Gram matrix), a gradient of 8 entries per row
    rows = 2 * (8 + 8 + 3) + 2 * 3 + (8 + 3) + 3 + 8
    accepted = rows + 8
    rows += 8  # convergent mode copies the hidden z, to measure its move
    assert quadratic._held == 4 * (100 * rows + 2 * 75)
    # one buffer more, for the move of a
    assert exact._held == 4 * (100 * (rows + 8) + 2 * 75)
    # u of the accepted point and of the trial, the scaled inputs and those with dropped entries, hashes of 8 bytes
    more = 3 + 2 * 5
    assert accelerated._held == 4 * (100 * (accepted + more) + 4 * 75) + 8 * 100
    assert quadratic._grams == 8 * 5**2
    assert exact._grams == 2 * 8 * (5**2 + 8**2) + 4 * 3**2
    assert accelerated._grams == 2 * 8 * (5**2 + 5**2 + 8**2) + 4 * 3**2
    assert quadratic._evaluation == 100 * (8 + 8) * 4 + 2 * 100 * 3 * (4 + 8)
    assert quadratic._certificate == quadratic._stationarity + 100 * (8 + 8 + 3) * 4
    assert accelerated._gradients == 100 * (8 + 3) * 4
    assert needs(mlp([5, 8, 3], "sign"), x, **MODES["accelerated"])._gradients == 100 * (8 + 3 + 8) * 4
    assert (
        needs(mlp([5, 8, 3]), x.double())._held - quadratic._held
        == exact._held - quadratic._held + 4 * 100 * 5
    )
    assert needs(mlp([5, 8, 3]), x, sample_weight=x[:, 0])._held - exact._held == 4 * 100
    double = needs(mlp([5, 8, 3]), x.double(), dtype="float64", **MODES["quadratic"])
    assert double._held == 2 * quadratic._held


def test_rows_of_a_file_are_read_in_eight_chunks_at_least(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_limit, "rows_within", lambda needs, limit: needs.n_rows)
    mapped = np.memmap(tmp_path / "x", dtype=np.float32, mode="w+", shape=(1000, 2))
    chain = SimpleNamespace(blocks=[SimpleNamespace(kind="dense")])
    for n_rows, rows in ((1000, 125), (1001, 126), (40, 16)):
        needs = SimpleNamespace(known=True, chain=chain, n_rows=n_rows, peak=1, most_rows=10**6)
        assert chunk(needs, 10**9, mapped) == rows
        assert chunk(needs, 10**9, np.array(mapped)) is None


@pytest.mark.parametrize(
    ("n", "most", "kept"), [(10, 4, [0, 3, 6, 9]), (10, 10, list(range(10))), (9, 4, [0, 3, 6])]
)
def test_a_few_rows_are_never_more_than_asked_for(n, most, kept):
    assert few(torch.arange(n), most).tolist() == kept


def test_parts_of_long_products_are_planned_with(monkeypatch):
    """On the GPUs that make them: both factors of a sum over rows, as they really are."""
    from dladmm.compute import product_kernels, products

    monkeypatch.setattr(products, "LONG", 256 * 128 * 256)
    monkeypatch.setattr(product_kernels, "_split_columns", lambda *given: None)
    x, y = torch.empty(256, 128), torch.empty(256, 256)
    made = [tensor for factor in (x, y) for tensor in product_kernels._parts(factor.T)]
    needs = needs_of(mlp([128, 256, 10]), x, make_options(mode="accelerated"))
    assert not needs.in_parts
    assert replace(needs, in_parts=True)._parts == sum(t.numel() * t.element_size() for t in made)
    assert replace(needs, in_parts=True).peak > needs.peak
    assert replace(needs, in_parts=True, at_once=255)._parts == 0, "too short for the kernel"


def test_parts_are_planned_with_in_float32_on_such_a_gpu(monkeypatch):
    x, cuda = np.zeros((5, 3), dtype=np.float32), torch.device("cuda")
    for has in (True, False):
        monkeypatch.setattr(memory, "has_products", lambda device, has=has: has)
        asked = partial(needs_of, mlp([3, 4, 2]), x, make_options())
        assert asked(device=cuda).in_parts == has
        assert not asked(device=cuda, dtype=torch.float64).in_parts
        assert not asked(device=torch.device("cpu")).in_parts
        assert not asked().in_parts


STREAMED = [([20, 30, 7], 900), ([64, 100, 100, 10], 3000), ([300, 60, 9], 600), ([600, 300, 9], 3000)]


@pytest.mark.parametrize(("widths", "n_rows"), STREAMED)
def test_streaming_mode_keeps_a_limit_or_refuses_it(widths, n_rows):
    """The estimate is that of the tensors within a quarter, and does not grow with rows that are not read at first."""
    x, y = data(widths, n_rows)
    _, peak = accounted(widths, x, y, mode="streaming", max_memory="1GB")
    estimate = streamed_peak(widths, n_rows, default_batch_size(n_rows, convolutions=False), 4)
    assert estimate == pytest.approx(peak, rel=0.25)
    with pytest.raises(InputError, match=r"max_memory is .* needs about .* MB at least"):
        dladmm_train(mlp(widths), x, y, max_iter=1, max_memory=int(0.9 * estimate))
    kept = dladmm_train(mlp(widths), x, y, max_iter=1, max_memory=int(1.1 * estimate))
    assert kept.certificate.streaming


def test_a_limit_costs_streaming_mode_no_accuracy():
    x, y = data([10, 30, 3], 4000)
    y = (x[:, 0] + x[:, 1] > 3).long() + (x[:, 2] > 2).long()
    free, limited = (dladmm_train(mlp([10, 30, 3]), x, y, max_memory=limit) for limit in (None, "20MB"))
    assert free.history.n_iter == limited.history.n_iter
    assert limited.standing.network > free.standing.network - 0.02


def test_a_limit_needs_a_network_whose_needs_are_known():
    x, y = data([10, 30, 3], 100)
    network = nn.Sequential(nn.Linear(10, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    with pytest.raises(InputError, match="max_memory needs a network of linear layers"):
        dladmm_train(network, x, y, max_memory="1GB")


@pytest.mark.parametrize(
    ("widths", "n_rows"), [([20, 100, 3], 900), ([10, 50, 2], 9000), ([400, 100, 2], 700)]
)
def test_cross_fitted_copies_keep_a_limit_or_make_way_for_one_network(widths, n_rows):
    x, y = (each.numpy() for each in data(widths, n_rows))
    recorder = Recorder()
    with recorder:
        MLPClassifier(widths[1:-1], max_iter=3, random_state=0).fit(x, y)
    estimate = cross_fitted_peak(n_rows, widths)
    assert 0.9 * recorder.peak < estimate < 2.2 * recorder.peak
    fits, other = (
        MLPClassifier(widths[1:-1], max_iter=1, random_state=0, max_memory=int(share * estimate)).fit(x, y)
        for share in (1.1, 0.9)
    )
    assert fits.n_networks_ > other.n_networks_ == 1
    assert other.certificate_.streaming
