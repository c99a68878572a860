"""Seconds to a test accuracy on MNIST: accelerated mode, Adam and the convergent mode in one run.

    python benchmarks/time_to_accuracy.py --device cuda --seeds 3 --json > time.json      # 784-1000-1000-10
    python benchmarks/time_to_accuracy.py --rows 5000 --widths 200,200 --iterations 100   # small, for a CPU
    python benchmarks/time_to_accuracy.py --device cuda --plot accuracy.png               # needs matplotlib

- *accelerated*: `mode="accelerated"` with its own settings; on a GPU also *accelerated, compiled*
  (`compile=True`);
- *adam*: full-batch Adam with the paper's learning rate and He's initial weights, a plain torch loop;
- *convergent*: exact solves, the settings `exact` of `benchmarks/experiments/convergent-mnist.toml` (rho > 2H).

The learners take one iteration each in turn (Adam two epochs, which cost less), so that other work on the
machine meets all alike. The seconds of a learner are those of its own set-up (data already on the device) and
iterations, synchronised; the accuracy on the test images after every iteration is not counted. What the first
use costs in a process, compilation above all, is spent before on a learner that is thrown away, and reported
as warm-up. A level is reached at the first iteration whose test accuracy is not below it. Beside the seconds
until then stand the steady ones, set-up and as many iterations at the median pace of the run: a machine that
stalls moves only the former. The table goes to standard output; with --json it goes to standard error and one
JSON object to standard output.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # this checkout, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parent))

from compact_json import dumps, rounded
from experiments.catalogue import experiment
from mlp import NEVER, synchronize, whole_numbers

from dladmm import datasets
from dladmm.api.train import fresh_parameters
from dladmm.base import machine
from dladmm.baselines.optimizers import LEARNING_RATES
from dladmm.compute.recording import WARM_CALLS
from dladmm.engine.options import make_options
from dladmm.losses import Risk, get_loss
from dladmm.network.chain import mlp
from dladmm.network.scaling import Scaling
from dladmm.training.trainer import Trainer

_EXACT = experiment("convergent-mnist").methods["exact"]
CONVERGENT = {name: _EXACT[name] for name in ("rho", "nu", "damping", "init_scale")}
SETTINGS: dict[str, dict[str, Any]] = {
    "accelerated": {"mode": "accelerated"},
    "accelerated, compiled": {"mode": "accelerated", "compile": True},
    "adam": {"lr": LEARNING_RATES["adam"]["mlp"].lr},
    "convergent": CONVERGENT,
}
COLOURS = {
    "accelerated": "#0b6e99",
    "accelerated, compiled": "#64b5d9",
    "adam": "#c0392b",
    "convergent": "#6b7a3f",
}


class Problem(NamedTuple):
    """Training and test rows on the device, and the sizes of the network."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    sizes: list[int]


class Learner(NamedTuple):
    """``step`` does an iteration, or says why there is none; ``outputs`` are those of the test rows."""

    step: Callable[[], str | None]
    outputs: Callable[[], Tensor]


def problem_of(settings: argparse.Namespace) -> Problem:
    data = datasets.load(settings.dataset)
    rows = len(data.x_train) if settings.rows is None else settings.rows
    if not 0 < rows <= len(data.x_train):
        raise SystemExit(f"--rows must be 1 to {len(data.x_train)} for {settings.dataset}, got {rows}.")
    parts = (data.x_train[:rows], data.y_train[:rows], data.x_test, data.y_test)
    sizes = [data.n_features, *settings.widths, data.n_classes]
    return Problem(*(part.to(settings.device) for part in parts), sizes)


def dladmm_learner(problem: Problem, seed: int, **changes: Any) -> Learner:
    x, sizes = problem.x, problem.sizes
    options = make_options(max_iter=NEVER, diagnostics_every=NEVER, **changes)
    chain, loss = mlp(sizes), get_loss("cross_entropy")
    scaling = Scaling.fit(chain.blocks[0], x) if options.scale_inputs else None
    trainer = Trainer(
        chain,
        x if scaling is None else scaling.apply(x),
        Risk(loss, loss.encode(problem.y, sizes[-1], x.dtype)),
        options,
        penalty=options.penalty("auto"),
        params=fresh_parameters(chain, seed, options.init_scale, options.init_std, x.dtype, x.device),
        scaling=scaling,
        seed=seed,
    )

    def step() -> str | None:
        ended = trainer._iterate(trainer.history.n_iter + 1)
        return None if ended is None else ended.name

    def outputs() -> Tensor:
        test = problem.x_test if scaling is None else scaling.apply(problem.x_test)
        return chain.predict(trainer.state.params, test)

    return Learner(step, outputs)


def adam_learner(problem: Problem, seed: int, lr: float) -> Learner:
    chain = mlp(problem.sizes)
    module = chain.to_module(fresh_parameters(chain, seed, 1.0, None, problem.x.dtype, problem.x.device))
    optimizer = torch.optim.Adam(module.parameters(), lr=lr)

    def step() -> str | None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(problem.x), problem.y).backward()
        optimizer.step()
        return None

    return Learner(step, lambda: module(problem.x_test))


def learner(name: str, problem: Problem, seed: int) -> Learner:
    make = adam_learner if name == "adam" else dladmm_learner
    return make(problem, seed, **SETTINGS[name])


class Run:
    """One learner with one seed: its clock, and the test accuracy after every iteration."""

    def __init__(self, name: str, problem: Problem, seed: int) -> None:
        self.name, self.problem, self.seed = name, problem, seed
        self.seconds: list[float] = []
        self.accuracy: list[float] = []
        self.ended: str | None = None
        began = self._now()
        self._learner = learner(name, problem, seed)
        self.set_up = self._now() - began

    def _now(self) -> float:
        synchronize(self.problem.x.device)
        return time.perf_counter()

    def turn(self, settings: argparse.Namespace) -> None:
        """One iteration, or the epochs Adam has in the place of one."""
        for _ in range(settings.adam_epochs if self.name == "adam" else 1):
            if self.ended is None and not self.done(settings):
                self.iterate()

    def done(self, settings: argparse.Namespace) -> bool:
        return bool(settings.stop and self.accuracy and max(self.accuracy) >= max(settings.levels))

    def iterate(self) -> None:
        began = self._now()
        self.ended = self._learner.step()
        seconds = self._now() - began
        if self.ended is None:
            self.seconds.append((self.seconds[-1] if self.seconds else self.set_up) + seconds)
            with torch.no_grad():
                hits = self._learner.outputs().argmax(1) == self.problem.y_test
            self.accuracy.append(float(hits.double().mean()))

    @property
    def pace(self) -> float:
        """The median seconds of an iteration."""
        steps = [later - earlier for earlier, later in pairwise([self.set_up, *self.seconds])]
        return statistics.median(steps) if steps else 0.0

    def reached(self, level: float) -> dict[str, Any] | None:
        """The first iteration at this level and the seconds until then; None where there was none."""
        for k, value in enumerate(self.accuracy, start=1):
            if value >= level:
                steady = self.set_up + k * self.pace
                return {"iteration": k, "seconds": self.seconds[k - 1], "steady_seconds": steady}
        return None

    def report(self, levels: list[float]) -> dict[str, Any]:
        return {
            "learner": self.name,
            "seed": self.seed,
            "set_up_seconds": self.set_up,
            "median_iteration_seconds": self.pace,
            "iterations": len(self.accuracy),
            "ended": self.ended,
            "best_accuracy": max(self.accuracy, default=None),
            "reached": {str(level): self.reached(level) for level in levels},
            "seconds": self.seconds,
            "accuracy": self.accuracy,
        }


def summarised(runs: list[dict[str, Any]], levels: list[float]) -> list[dict[str, Any]]:
    """For every learner and level: how many seeds reached it, and the median of theirs against Adam's."""
    rows: list[dict[str, Any]] = []
    for name in dict.fromkeys(run["learner"] for run in runs):
        of_it = [run for run in runs if run["learner"] == name]
        for level in levels:
            found = [run["reached"][str(level)] for run in of_it if run["reached"][str(level)] is not None]
            rows.append(
                {
                    "learner": name,
                    "level": level,
                    "seeds": len(of_it),
                    "seeds_that_reached_it": len(found),
                }
                | {
                    f"median_{key}": statistics.median(f[key] for f in found) if found else None
                    for key in ("iteration", "seconds", "steady_seconds")
                }
            )
    adam = {row["level"]: row for row in rows if row["learner"] == "adam"}
    for row in rows:
        for key in ("seconds", "steady_seconds"):
            own, theirs = row[f"median_{key}"], adam.get(row["level"], {}).get(f"median_{key}")
            row[f"{key}_to_adams"] = None if own is None or theirs is None else own / theirs
    return rows


def warmed(name: str, problem: Problem) -> float:
    """The seconds of the first iterations in this process, by a learner that is thrown away."""
    synchronize(problem.x.device)
    began = time.perf_counter()
    first = learner(name, problem, 0)
    for _ in range(WARM_CALLS + 2 if SETTINGS[name].get("compile") else 1):
        first.step()
    synchronize(problem.x.device)
    return time.perf_counter() - began


def measure(settings: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(settings.threads)
    torch.backends.cuda.matmul.allow_tf32 = settings.tf32
    problem = problem_of(settings)
    compiles = problem.x.is_cuda and not settings.no_compile
    names = [name for name, of in SETTINGS.items() if compiles or not of.get("compile")]
    warm_up = {name: warmed(name, problem) for name in names}
    reports = []
    for seed in range(settings.seeds):
        runs = [Run(name, problem, seed) for name in names]
        going = list(runs)
        for _ in range(settings.iterations):
            for run in going:
                run.turn(settings)
            going = [run for run in going if run.ended is None and not run.done(settings)]
        reports += [run.report(settings.levels) for run in runs]
        shown = ", ".join(f"{run.name} {max(run.accuracy, default=0.0):.4f}" for run in runs)
        print(f"seed {seed}, best test accuracies: {shown}", file=sys.stderr, flush=True)
    reports = rounded(reports)  # what is summarised is what is printed
    return {
        "command": settings.command,
        "machine": machine.describe(settings.device),
        "settings": {key: value for key, value in vars(settings).items() if key not in ("command", "plot")}
        | {"sizes": problem.sizes, "training_rows": len(problem.x), "test_rows": len(problem.x_test)},
        "learners": {name: SETTINGS[name] for name in names},
        "warm_up_seconds": rounded(warm_up),
        "summary": rounded(summarised(reports, settings.levels)),
        "runs": reports,
    }


def table(report: dict[str, Any]) -> str:
    """The report for people."""
    settings, where = report["settings"], report["machine"]
    sizes = "-".join(map(str, settings["sizes"]))
    lines = [
        f"{settings['dataset']}, {sizes}, {settings['training_rows']} training rows, "
        f"{settings['seeds']} seeds, {where['device']}, {where['threads']} threads, {where['cpu']}, "
        f"torch {where['torch']}",
        "",
        f"{'':22} {'level':>6} {'iteration':>9} {'seconds':>9} {'to Adam':>8} "
        f"{'steady':>9} {'to Adam':>8} {'seeds':>6}",
    ]
    for row in report["summary"]:
        level, counted = f"{100 * row['level']:g} %", f"{row['seeds_that_reached_it']}/{row['seeds']}"
        cells = [
            ("median_iteration", 9, "g"),
            ("median_seconds", 9, ".3f"),
            ("seconds_to_adams", 8, ".2f"),
            ("median_steady_seconds", 9, ".3f"),
            ("steady_seconds_to_adams", 8, ".2f"),
        ]
        shown = [f"{'-' if row[key] is None else format(row[key], how):>{w}}" for key, w, how in cells]
        lines.append(f"{row['learner']:22} {level:>6} {' '.join(shown)} {counted:>6}")
    lines.append("")
    for name, seconds in report["warm_up_seconds"].items():
        best = [run["best_accuracy"] for run in report["runs"] if run["learner"] == name]
        most = max((value for value in best if value is not None), default=float("nan"))
        lines.append(f"{name:22} best test accuracy {most:.4f}, warm-up {seconds:.2f} s")
    return "\n".join(lines)


def plot(report: dict[str, Any], path: str) -> str:
    """Accuracy against seconds, a line a seed; says what was done."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "no plot: matplotlib is not installed"
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for run in report["runs"]:
        name = run["learner"]
        label = name if run["seed"] == 0 else None
        axes.plot(run["seconds"], run["accuracy"], color=COLOURS[name], linewidth=1.3, label=label)
    for level in report["settings"]["levels"]:
        axes.axhline(level, color="#999999", linewidth=0.6, linestyle=":")
    of = report["settings"]
    sizes = "-".join(map(str, of["sizes"]))
    axes.set(
        xscale="log",
        xlabel="seconds of training",
        ylabel="test accuracy",
        ylim=(min(report["settings"]["levels"]) - 0.1, 1.0),
        title=f"{of['dataset']}, {sizes}, {of['training_rows']:,} training rows",
    )
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=150)
    return f"plot: {path}"


def levels(text: str) -> list[float]:
    found = sorted(float(part) for part in text.split(",") if part)
    if not found or not all(0 < level <= 1 for level in found):
        raise argparse.ArgumentTypeError(f"levels are shares between 0 and 1, such as 0.9,0.95; got {text!r}")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", choices=["mnist", "fashion_mnist", "digits"], default="mnist")
    parser.add_argument("--rows", type=int, help="training rows, the first ones; all by default")
    parser.add_argument("--widths", type=whole_numbers, default=[1000, 1000], help="hidden units: 1000,1000")
    parser.add_argument("--levels", type=levels, default=[0.90, 0.95, 0.97], help="0.9,0.95,0.97")
    parser.add_argument("--seeds", type=int, default=1, help="how many initialisations")
    parser.add_argument("--iterations", type=int, default=200, help="of every learner, at most")
    parser.add_argument("--adam-epochs", type=int, default=2, help="of Adam for each iteration of the others")
    parser.add_argument("--stop", action="store_true", help="end a learner once it has reached every level")
    parser.add_argument("--no-compile", action="store_true", help="leave the compiled learner out on a GPU")
    parser.add_argument("--tf32", action="store_true", help="let float32 products on a GPU round to TF32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--plot", metavar="FILE", help="accuracy against seconds, where matplotlib is installed"
    )
    parser.add_argument("--json", action="store_true")
    settings = parser.parse_args(arguments)
    if min(settings.iterations, settings.seeds, settings.adam_epochs) < 1:
        parser.error("--iterations, --seeds and --adam-epochs must be at least 1")
    given = " ".join(sys.argv[1:] if arguments is None else arguments)
    if settings.plot:  # where a picture was put says nothing of the figures
        given = given.replace(f"--plot {settings.plot}", "").replace(f"--plot={settings.plot}", "")
    settings.command = " ".join(f"python benchmarks/time_to_accuracy.py {given}".split())
    report = measure(settings)
    people = sys.stderr if settings.json else sys.stdout
    print(table(report), file=people)
    if settings.plot:
        print(plot(report, settings.plot), file=people)
    if settings.json:
        print(dumps(report))


if __name__ == "__main__":
    main()
