"""What a small problem costs beside its bare operations: ``python benchmarks/small_problems.py``.

Digits, 1,437 rows, 64-100-100-10, as the estimator runs it on a CPU (float64, everything that an iteration measures
included), each in turn in one run:

- an iteration (in streaming mode a pass) of the modes, from the times between iterations of one ``fit``;
- its *bare operations*, plain torch written by hand below: the products and factorisations the iteration was recorded
  doing, and the entrywise passes that its mathematics needs, each with as few calls as torch has for it;
- the *overhead* of the estimator: seconds of ``fit`` beyond those between its first and its last iteration;
- ``import dladmm`` beside ``import torch`` (benchmarks/import_time.py).

Calls of torch are counted with its profiler. Results are written to docs/results/small-problems.json.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # this checkout, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parent))

import import_time
from recording import Bare, Operands, Operation, Recorder

from dladmm import MLPClassifier
from dladmm.callbacks import Callback
from dladmm.training.run_folder import describe

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results" / "small-problems.json"
clock = time.perf_counter
"""Seconds on the wall; ``--cpu-time`` counts those of this process instead, for a machine that has other work."""
ROWS, SIZES = 1437, (64, 100, 100, 10)
MODES: dict[str, dict[str, Any]] = {
    "quadratic": {"mode": "convergent", "w_solver": "quadratic", "a_solver": "quadratic"},
    "exact": {"mode": "convergent"},
    "accelerated": {"mode": "accelerated"},
    "streaming": {"mode": "streaming"},
}
NEWTON_STEPS = 5
"""Of the softmax prox in one unknown per row."""
TARGETS = {"iteration/bare": 3.0, "overhead_ms": 20.0, "import/torch": 1.2}
"""What was asked for."""


# The entrywise passes, by hand ---------------------------------------------------------------------------------


def solve_relu(z: Tensor, m: Tensor, a: Tensor, f: Tensor) -> Tensor:
    """``z = argmin (z - m)^2 + (a - relu(z))^2``: the best of both pieces, ``f = relu(z)``; ``||m - z||^2``."""
    left = m.clamp_max(0)
    right = torch.add(m, a).mul_(0.5).clamp_min_(0)
    cost = (left - m).square_().addcmul_(a, a)
    other = (right - m).square_().add_((a - right).square_())
    torch.where(other < cost, right, left, out=z)
    torch.clamp_min(z, 0, out=f)
    return (m - z).square_().sum()


def softmax_prox(v: Tensor, y: Tensor, r: float = 0.5) -> Tensor:
    """The prox of cross-entropy by Newton's method in the rows' logsumexp, warm from step to step."""
    s, t = torch.logsumexp(v, 1, keepdim=True), torch.zeros_like(v)
    d = v + y / r - math.log(r)
    for _ in range(NEWTON_STEPS):
        w = torch.exp(t)
        t -= (w + t - d + s).div_(1 + w)  # w + log w = v + y/r - s - log r, w = p/r
        s = s + ((w.sum(1, keepdim=True) - 1 / r) / (w / (1 + w)).sum(1, keepdim=True))
    return v + (y - r * w) / r


class Sweep:
    """The entrywise passes of one sweep of 64-100-100-10: per hidden layer, as often as the paper updates it."""

    def __init__(self, dtype: torch.dtype) -> None:
        def normal(columns: int) -> Tensor:
            return torch.randn(ROWS, columns, generator=generator, dtype=dtype)

        generator = torch.Generator().manual_seed(0)
        self.hidden = [[normal(width) for _ in range(7)] for width in SIZES[1:-1]]
        self.last = [normal(SIZES[-1]) for _ in range(4)]
        shapes = [shape for n_in, n_out in pairwise(SIZES) for shape in ((n_out, n_in), (n_out,))]
        self.parameters = [
            (torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)) for shape in shapes
        ]
        self.labels = torch.eye(SIZES[-1], dtype=dtype)[torch.arange(ROWS) % SIZES[-1]]

    def plain(self) -> None:
        """Both sweeps: z, a and the cached predictions of two hidden layers, twice; z_L twice; u; the Lagrangian."""
        z_last, prediction, u, residual = self.last
        for _ in range(2):
            z_last.copy_(softmax_prox(prediction - u, self.labels))
            for z, m, a, f, d, moved, target in self.hidden:
                solve_relu(z, m, a, f)
                torch.sub(m, target, out=moved)  # E = prediction - target, which W's step begins with
                moved.sum(0)
                m.add_(moved, alpha=1e-9)  # prediction of this layer moves with W and b
                torch.sub(a, f, out=d)  # the gradient of a begins with a - f
                d.square().sum(), moved.square().sum()  # how far a moves
                a.sub_(d, alpha=1e-9)  # a, and the next prediction along with it
                target.sub_(moved, alpha=1e-9)
            torch.sub(prediction, z_last, out=residual)
            residual.sum(0)
            prediction.add_(residual, alpha=1e-9)
        u.add_(residual, alpha=1e-9)
        self._measured()

    def _measured(self) -> None:
        """The risk, ``||grad R + u||``, <u, r>, ||r||^2, and the ties of hidden links."""
        z_last, _, u, residual = self.last
        (self.labels * torch.log_softmax(z_last, 1)).sum()
        (torch.softmax(z_last, 1) - self.labels + u).square_().sum()
        (u * residual).sum(), residual.square().sum()
        for z, m, a, f, *_ in self.hidden:
            (z - m).square_().sum(), (a - f).square_().sum()

    def accelerated(self) -> None:
        """A plain sweep; two forward passes, gradients of R at both ends, and a mask of dropped inputs."""
        self.plain()
        z_last, prediction, *_ = self.last
        for _ in range(2):
            for z, _, _, f, *_ in self.hidden:
                torch.clamp_min(z, 0, out=f)
            torch.softmax(prediction, 1).sub_(self.labels)
        for z, _, _, _, d, *_ in self.hidden:
            d.mul_(z > 0)
        (self.labels * torch.log_softmax(z_last, 1)).sum()

    def streaming(self, batches: int) -> None:
        """Every batch: forward, softmax, gradients handed down, parameters moved; every fourth is a heavy one."""
        rows = ROWS // batches
        parts = [[part[:rows] for part in layer] for layer in self.hidden]
        prediction, labels = self.last[1][:rows], self.labels[:rows]
        for batch in range(batches):
            for z, _, _, f, *_ in parts:
                torch.clamp_min(z, 0, out=f)
            gradient = torch.softmax(prediction, 1).sub_(labels)
            for z, _, _, _, d, *_ in parts:
                d.mul_(z > 0)
            for p, move in self.parameters:
                p.add_(move, alpha=1e-9)
            if batch % 4 == 0:
                self._heavy(parts, prediction, gradient)

    def _heavy(self, parts: list[list[Tensor]], prediction: Tensor, gradient: Tensor) -> None:
        """Moments of centred inputs, changes of the links along the moves and their lengths, the average."""
        for _, m, a, f, d, moved, target in (parts[0], *parts):  # of three layers' inputs
            centred = a - a[0]
            (centred / len(a)).sum(0).lerp_(a[0], 0.1)
            torch.linalg.vector_norm(d)
            torch.linalg.vector_norm(m), torch.linalg.vector_norm(moved)
            torch.dot(d.flatten(), moved.flatten())
            torch.add(moved, target, out=f)
        share = torch.softmax(prediction, 1)
        weighted = share * gradient
        ((weighted * gradient).sum(1) - weighted.sum(1).square()).sum()
        (self.labels[: len(prediction)] * torch.log_softmax(prediction, 1)).sum()
        for p, average in self.parameters:
            average.lerp_(p, 0.1)


# What is measured ------------------------------------------------------------------------------------------------


class Clock(Callback):
    """The time at the end of every iteration."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_epoch_end(self, trainer: Any) -> None:
        self.ends.append(clock())


def digits() -> tuple[Any, Any]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return x[:ROWS] / 16, y[:ROWS]


def fitted(mode: str, iterations: int, data: tuple[Any, Any]) -> tuple[list[float], float]:
    """Seconds of the iterations after the first, and of all the rest of ``fit``."""
    watch = Clock()
    model = MLPClassifier(
        SIZES[1:-1], max_iter=iterations, tol=0.0, random_state=0, device="cpu", callbacks=[watch],
        **MODES[mode],
    )  # fmt: skip
    began = clock()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(*data)
    whole = clock() - began
    each = [later - earlier for earlier, later in zip(watch.ends, watch.ends[1:], strict=False)]
    return each, whole - len(watch.ends) * statistics.median(each)


def recorded(mode: str, data: tuple[Any, Any]) -> Counter[Operation]:
    """The products and factorisations of a later iteration: those of a run less those of one an iteration shorter."""
    counts = []
    for iterations in (3, 4):
        with Recorder() as recorder:
            fitted(mode, iterations, data)
        counts.append(Counter(recorder.operations))
    return counts[1] - counts[0]


def launches(step: Callable[[], Any]) -> int:
    """How many operations of torch a step calls, as its profiler counts those that no other one calls."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
    events = (event for event in profile.events() if event.name.startswith("aten::"))
    return sum(event.cpu_parent is None or not event.cpu_parent.name.startswith("aten::") for event in events)


def bare_step(mode: str, data: tuple[Any, Any]) -> Callable[[], None]:
    """The bare operations of one iteration."""
    operations = recorded(mode, data)
    products = Bare(operations, Operands(operations, torch.device("cpu")))
    dtype = torch.float32 if mode == "streaming" else torch.float64
    sweep = Sweep(dtype)
    passes: Callable[[], None] = sweep.accelerated if mode == "accelerated" else sweep.plain
    if mode == "streaming":
        batches = ROWS // 128
        passes = lambda: sweep.streaming(batches)  # noqa: E731

    def step() -> None:
        products()
        passes()

    return step


def measure(iterations: int, rounds: int, show: Callable[[str], None]) -> dict[str, Any]:
    data = digits()
    found: dict[str, Any] = {}
    for mode in MODES:
        bare = bare_step(mode, data)
        fitted(mode, 3, data)
        each, rest, alone = [], [], []
        for _ in range(rounds):
            own, beyond = fitted(mode, iterations, data)
            each += own
            rest.append(beyond)
            for _ in range(iterations):
                began = clock()
                bare()
                alone.append(clock() - began)
        calls = launches(lambda: fitted(mode, 6, data)) - launches(lambda: fitted(mode, 5, data))  # noqa: B023
        found[mode] = {
            "iteration_ms": 1e3 * statistics.median(each),
            "bare_ms": 1e3 * statistics.median(alone),
            "iteration/bare": statistics.median(each) / statistics.median(alone),
            "overhead_ms": 1e3 * statistics.median(rest),
            "calls": calls,
            "bare_calls": launches(bare),
        }
        show(row(mode, found[mode]))
    return {
        "machine": describe(torch.device("cpu")),
        "settings": {
            "rows": ROWS,
            "sizes": list(SIZES),
            "iterations": iterations,
            "rounds": rounds,
            "clock": clock.__name__,
        },
        "modes": found,
        "targets": TARGETS,
    }


def imported(repeats: int, show: Callable[[str], None]) -> dict[str, Any]:
    """Seconds of the imports, and what matters of them."""
    imports = import_time.medians(repeats, clock.__name__)
    share = imports["dladmm, train"] / imports["torch"]
    show(f"from dladmm import train / import torch: {share:.2f}")
    return {"import_seconds": imports, "import/torch": share}


HEADER = (
    f"{'':12} {'iteration':>10} {'bare':>9} {'ratio':>6} {'overhead':>10} {'calls':>6} {'bare calls':>10}"
)


def row(mode: str, of: dict[str, Any]) -> str:
    return (
        f"{mode:12} {of['iteration_ms']:7.2f} ms {of['bare_ms']:6.2f} ms {of['iteration/bare']:6.2f} "
        f"{of['overhead_ms']:7.1f} ms {of['calls']:6d} {of['bare_calls']:10d}"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=15, help="of one fit")
    parser.add_argument(
        "--rounds", type=int, default=4, help="fits of each mode, in turn with bare operations"
    )
    parser.add_argument("--repeats", type=int, default=7, help="imports timed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true", help="of this process, in one thread")
    parser.add_argument(
        "--imports-only", action="store_true", help="renew these in the file of an earlier run"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    settings = parser.parse_args(arguments)
    global clock
    if settings.cpu_time:
        clock, settings.threads = time.process_time, 1
    torch.set_num_threads(settings.threads)
    print(f"digits, {ROWS} rows, {'-'.join(map(str, SIZES))}, {settings.threads} threads\n\n{HEADER}")

    def show(line: str) -> None:
        print(line, flush=True)

    if settings.imports_only:
        report = json.loads(settings.out.read_text(encoding="utf-8"))
    else:
        report = measure(settings.iterations, settings.rounds, show)
    report |= imported(settings.repeats, show)
    settings.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
