"""Time and memory of one dlADMM iteration on an MLP, beside what it cannot be faster than and what it competes with.

    python benchmarks/mlp.py                                          # 784-1000-1000-10, 55,000 samples
    python benchmarks/mlp.py --samples 2000 --widths 300,300 --threads 1
    python benchmarks/mlp.py --device cuda --tf32 --json > mlp.json

In one run and in turn, so that other work on the machine meets all alike:

- one iteration of each mode as the trainer makes it, the measurements of every iteration included (evaluating the
  network and its stationarity, which large problems do every tenth iteration, is not);
- the *bare* products: those one iteration was recorded doing, again, with nothing around them, and apart from them its
  factorisations; a refused attempt of accelerated mode repeats its products, so the ratio to bare is of the
  iterations with as many attempts as the recorded one, which is one if possible;
- the *minimal* products of NUMERICS 2, two for each update of W and of a;
- one full-batch *Adam* epoch of the same network, a plain torch loop;
- the *authors' structure* (authors_structure.py): the paper's settings, no product kept, backtracking in a loop.

Times are medians, warm and synchronised. Memory is the peak above the data: torch's peak allocation on a GPU, the
recorded tensors on a CPU. The data are random with a fixed seed, or
images (--data). The table goes to standard output; with --json it goes
to standard error and one JSON object to standard output.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # this checkout, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parent))

from authors_structure import AuthorsStructure
from recording import Bare, Operands, Operation, Recorder, minimal_products

from dladmm import datasets
from dladmm.api.train import fresh_parameters
from dladmm.compute.recording import WARM_CALLS
from dladmm.engine.accelerated import Accelerated
from dladmm.engine.options import PAPER, make_options
from dladmm.losses import Risk, get_loss
from dladmm.network.chain import mlp
from dladmm.network.scaling import Scaling
from dladmm.training.diagnostics import diagnostics_interval
from dladmm.training.run_folder import describe
from dladmm.training.trainer import Trainer

MODES: dict[str, dict[str, Any]] = {
    "quadratic": {"w_solver": "quadratic", "a_solver": "quadratic"},
    "exact": {},
    "accelerated": {"mode": "accelerated"},
    "paper": {"preset": "paper", "rho_rule": None},  # the rule evaluates the network after every iteration
}
NEVER = 10**9


class Contender:
    """Something that is timed: ``step`` does it once and says how many attempts it took, where that varies.

    ``attempted`` is how many there were so far.
    """

    def __init__(self, step: Callable[[], None], attempted: Callable[[], int] | None = None) -> None:
        self._step, self._attempted = step, attempted
        self.operations: Counter[Operation] = Counter()
        self.origins: dict[Operation, Counter[str]] = {}
        self.seconds: list[float] = []
        self.attempts: list[int] = []
        self.memory, self.recorded_attempts, self.starting = 0, 1, 0.0
        self.diagnostics: Contender | None = None
        self.diagnosed_every = 1

    def step(self) -> int:
        before = 0 if self._attempted is None else self._attempted()
        self._step()
        return 1 if self._attempted is None else self._attempted() - before

    def time(self, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> None:
        synchronize(device)
        began = clock()
        attempts = self.step()
        synchronize(device)
        self.seconds.append(clock() - began)
        self.attempts.append(attempts)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def median_like_recorded(self) -> float | None:
        """Over the steps with as many attempts as the recorded one; None where there was none."""
        pairs = zip(self.seconds, self.attempts, strict=True)
        alike = [seconds for seconds, attempts in pairs if attempts == self.recorded_attempts]
        return statistics.median(alike) if alike else None


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def random_data(
    settings: argparse.Namespace, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Inputs in [0, 1], labels from a random linear teacher, so that there is something to learn."""
    generator = torch.Generator().manual_seed(settings.seed)
    x = torch.rand(settings.samples, settings.inputs, generator=generator)
    teacher = torch.randn(settings.inputs, settings.classes, generator=generator)
    return x.to(device, dtype), ((x - 0.5) @ teacher).argmax(1).to(device)


def images(settings: argparse.Namespace, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The first images of a data set: how often a loop must search depends on the data."""
    data = datasets.load(settings.data)
    x, y = data.x_train[: settings.samples], data.y_train[: settings.samples]
    settings.samples, settings.inputs, settings.classes = len(x), x.shape[1], 10
    return torch.as_tensor(x).to(device, dtype), torch.as_tensor(y).to(device)


def library(mode: str, sizes: list[int], x: Tensor, y: Tensor, seed: int, **changes: Any) -> Contender:
    """One iteration of ``dladmm.train`` in this mode."""
    changes = MODES[mode] | changes
    preset = changes.pop("preset", "default")
    options = make_options(preset, max_iter=NEVER, diagnostics_every=NEVER, **changes)
    chain, loss = mlp(sizes), get_loss("cross_entropy")
    risk = Risk(loss, loss.encode(y, sizes[-1], x.dtype))
    params = fresh_parameters(chain, seed, options.init_scale, options.init_std, x.dtype, x.device)
    scaling = Scaling.fit(chain.blocks[0], x) if options.scale_inputs else None
    trainer = Trainer(
        chain,
        x if scaling is None else scaling.apply(x),
        risk,
        options,
        penalty=options.penalty("auto"),
        params=params,
        scaling=scaling,
        seed=seed,
    )

    def step() -> None:
        ended = trainer._iterate(trainer.history.n_iter + 1)
        if ended is not None:
            raise RuntimeError(f"{mode} ended with {ended.name} after {trainer.history.n_iter} iterations.")

    method = trainer.method
    attempted = (lambda: method.iteration + method.refused) if isinstance(method, Accelerated) else None
    contender = Contender(step, attempted)
    contender.diagnostics = Contender(lambda: trainer._measured_with_products() and None)
    contender.diagnosed_every = diagnostics_interval(trainer.state, len(x))
    return contender


def adam(sizes: list[int], x: Tensor, y: Tensor, seed: int) -> Contender:
    """One full-batch epoch of the same network."""
    params = fresh_parameters(mlp(sizes), seed, 1.0, None, x.dtype, x.device)
    module = mlp(sizes).to_module(params)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)

    def adam_epoch() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()

    return Contender(adam_epoch)


def authors(sizes: list[int], x: Tensor, y: Tensor, seed: int) -> tuple[Contender, AuthorsStructure]:
    """One iteration of the straightforward implementation, with the paper's settings."""
    chain, loss = mlp(sizes), get_loss("cross_entropy")
    risk = Risk(loss, loss.encode(y, sizes[-1], x.dtype))
    params = fresh_parameters(chain, seed, PAPER.init_scale, PAPER.init_std, x.dtype, x.device)
    weights = [(p["W"], p["b"]) for p in params if p]
    rho, nu = PAPER.starting_rho(risk.H), PAPER.starting_nu(1.0)
    with torch.no_grad():
        run = AuthorsStructure(x, risk, *zip(*weights, strict=True), rho=rho, nu=nu)
    return Contender(run.iterate), run


def recorded(build: Callable[[], Contender], device: torch.device) -> Contender:
    """Build it and record its memory and the operations of a warm step, one with a single attempt if one comes."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    with Recorder() as recorder:
        contender = build()
        contender.step()
        for _ in range(5):
            recorder.clear()
            contender.recorded_attempts = contender.step()
            if contender.recorded_attempts == 1:
                break
    synchronize(device)
    contender.memory = torch.cuda.max_memory_allocated(device) - before if on_gpu else recorder.peak
    contender.operations, contender.origins = recorder.operations, recorder.origins
    return contender


def compiled(plain: Contender, build: Callable[[], Contender], device: torch.device) -> Contender:
    """The same compiled, warm; what it does was recorded before, for a recorder cannot look into compiled code."""
    contender = build()
    began = time.perf_counter()
    for _ in range(WARM_CALLS + 2):
        contender.step()
    synchronize(device)
    contender.starting = time.perf_counter() - began
    for name in ("memory", "recorded_attempts", "operations", "origins"):
        setattr(contender, name, getattr(plain, name))
    return contender


def by_kind(operations: Counter[Operation], *, products: bool) -> Counter[Operation]:
    return Counter({op: n for op, n in operations.items() if (op.kind == "product") == products})


def shapes_of(contender: Contender, minimal: Counter[Operation] | None = None) -> list[dict[str, Any]]:
    """The operations by kind, (sorted) sizes and precision, the largest first, beside the minimal count."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    needed: Counter[tuple[Any, ...]] = Counter()
    for op, count in (minimal or Counter()).items():
        needed[op.kind, tuple(sorted(op.sizes)), op.precision] += count
    for op, count in contender.operations.items():
        sizes = tuple(sorted(op.sizes)) if op.kind == "product" else op.sizes
        key = (op.kind, sizes, op.precision)
        row = rows.setdefault(
            key,
            {"kind": op.kind, "sizes": list(sizes), "precision": op.precision, "count": 0}
            | ({"minimal": needed[key]} if minimal is not None else {})
            | {"flops": 0, "from": Counter()},
        )
        row["count"] += count
        row["flops"] += count * op.flops
        row["from"].update(contender.origins[op])
    return sorted(rows.values(), key=lambda row: -row["flops"])


def flops(operations: Counter[Operation]) -> int:
    return sum(n * op.flops for op, n in operations.items())


def measure(settings: argparse.Namespace) -> dict[str, Any]:
    device, dtype = torch.device(settings.device), getattr(torch, settings.dtype)
    torch.set_num_threads(settings.threads)
    torch.backends.cuda.matmul.allow_tf32 = settings.tf32
    x, y = (random_data if settings.data == "random" else images)(settings, dtype, device)
    sizes = [settings.inputs, *settings.widths, settings.classes]
    (x[:8] @ x[:8].T).sum().item()  # whatever the first product of a process allocates is nobody's
    synchronize(device)

    modes = {m: recorded(lambda m=m: library(m, sizes, x, y, settings.seed), device) for m in settings.modes}
    if settings.compile:
        modes = {
            m: compiled(c, lambda m=m: library(m, sizes, x, y, settings.seed, compile=True), device)
            for m, c in modes.items()
        }
    epoch = recorded(lambda: adam(sizes, x, y, settings.seed), device)
    held: list[AuthorsStructure] = []

    def build_authors() -> Contender:
        contender, run = authors(sizes, x, y, settings.seed)
        held.append(run)
        return contender

    plain = recorded(build_authors, device) if settings.authors_iterations else None

    tf32 = settings.tf32 and device.type == "cuda" and dtype == torch.float32
    least = minimal_products(sizes, settings.samples, dtype, tf32)
    operands = Operands({op for c in modes.values() for op in c.operations} | set(least), device)
    minimal = Contender(Bare(least, operands))
    bare, factoring = (
        {m: Contender(Bare(by_kind(c.operations, products=p), operands)) for m, c in modes.items()}
        for p in (True, False)
    )
    watched = [c.diagnostics for c in modes.values() if settings.diagnostics and c.diagnostics is not None]
    timed = [*modes.values(), epoch, minimal, *bare.values(), *factoring.values(), *watched]
    for _ in range(settings.warmup):
        for contender in timed:
            contender.step()
    backtracks: list[int] = []
    for turn in range(settings.iterations):
        for contender in timed:
            contender.time(device)
        if plain is not None and turn < settings.authors_iterations:
            before = held[0].backtracks
            plain.time(device)
            backtracks.append(held[0].backtracks - before)

    def of_mode(m: str) -> dict[str, Any]:
        c, products = modes[m], by_kind(modes[m].operations, products=True)
        alike = c.median_like_recorded
        factored = bare[m].median + factoring[m].median
        return {
            "iteration_seconds": c.median,
            "compiling_seconds": c.starting,
            "attempts": c.attempts,
            "recorded_attempts": c.recorded_attempts,
            "seconds_with_recorded_attempts": alike,
            "diagnostics_seconds": c.diagnostics.median if c.diagnostics in watched else None,
            "diagnostics_every": c.diagnosed_every,
            "bare_seconds": bare[m].median,
            "factorisation_seconds": factoring[m].median,
            "ratios": {
                "iteration/bare": None if alike is None else alike / bare[m].median,
                "iteration/(bare+factorisations)": None if alike is None else alike / factored,
                "iteration/minimal": c.median / minimal.median,
                "iteration/adam": c.median / epoch.median,
                "authors/iteration": plain.median / c.median if plain is not None else None,
            },
            "product_count": sum(products.values()),
            "product_flops": flops(products),
            "operations": shapes_of(c, least),
            "peak_memory_bytes": c.memory,
        }

    on_gpu = device.type == "cuda"
    return {
        "machine": describe(device),
        "settings": vars(settings) | {"sizes": sizes},
        "memory_is": "torch.cuda.max_memory_allocated above the data"
        if on_gpu
        else "bytes of all tensors made and not yet freed, above the data (tensor accounting, not RSS)",
        "minimal": {
            "seconds": minimal.median,
            "product_count": sum(least.values()),
            "product_flops": flops(least),
        },
        "adam": {
            "epoch_seconds": epoch.median,
            "product_count": sum(by_kind(epoch.operations, products=True).values()),
            "product_flops": flops(epoch.operations),
            "operations": shapes_of(epoch),
            "peak_memory_bytes": epoch.memory,
        },
        "authors": None
        if plain is None
        else {
            "iteration_seconds": plain.median,
            "backtracks": backtracks,
            "product_count": sum(by_kind(plain.operations, products=True).values()),
            "product_flops": flops(plain.operations),
            "operations": shapes_of(plain),
            "peak_memory_bytes": plain.memory,
        },
        "modes": {m: of_mode(m) for m in modes},
    }


def table(report: dict[str, Any]) -> str:
    """The report for people."""
    settings, where = report["settings"], report["machine"]
    shape = "-".join(map(str, settings["sizes"]))
    precision = "tf32" if settings["tf32"] and where["device"].startswith("cuda") else settings["dtype"]
    of = settings["data"]
    lines = [
        f"{shape}, {settings['samples']} {of} samples, {precision}, {where['device']}, {where['threads']} threads, "
        f"{where['cpu']}, torch {where['torch']}; medians of {settings['iterations']}",
        "",
        f"{'':18} {'time':>11} {'products':>8} {'GFLOP':>8} {'/bare':>6} {'/minimal':>8} {'/Adam':>6} "
        f"{'authors/':>8} {'memory':>9}",
    ]

    def row(name: str, seconds: float, of: dict[str, Any] | None, ratios: Sequence[float | None] = ()) -> str:
        shown = [*ratios, *[None] * (4 - len(ratios))]
        cells = [f"{'' if r is None else f'{r:.2f}':>{w}}" for r, w in zip(shown, (6, 8, 6, 8), strict=True)]
        work = f"{of['product_count']:8d} {of['product_flops'] / 1e9:8.2f}" if of else " " * 17
        memory = of.get("peak_memory_bytes") if of else None
        held = "" if memory is None else f"{memory / 1e6:6.0f} MB"
        return f"{name:18} {1e3 * seconds:8.2f} ms {work} {' '.join(cells)} {held:>9}".rstrip()

    for name, of in report["modes"].items():
        r = of["ratios"]
        shown = [r[k] for k in ("iteration/bare", "iteration/minimal", "iteration/adam", "authors/iteration")]
        lines.append(row(name, of["iteration_seconds"], of, shown))
        alike, attempts = of["seconds_with_recorded_attempts"], of["recorded_attempts"]
        if alike is not None and max(of["attempts"]) > 1:
            lines.append(row(f"  attempts: {attempts}", alike, None))
        if of["compiling_seconds"]:
            lines.append(row("  compiling, once", of["compiling_seconds"], None))
        if of["diagnostics_seconds"] is not None:
            share = of["diagnostics_seconds"] / of["diagnostics_every"] / of["iteration_seconds"]
            lines.append(row("  diagnostics", of["diagnostics_seconds"], None))
            lines.append(f"    every {of['diagnostics_every']} iterations: {share:.1%} of their time")
        lines.append(row("  bare products", of["bare_seconds"], None))
        if any(op["kind"] != "product" for op in of["operations"]):
            lines.append(row("  factorisations", of["factorisation_seconds"], None))
    lines.append(row("minimal products", report["minimal"]["seconds"], report["minimal"]))
    lines.append(row("Adam epoch", report["adam"]["epoch_seconds"], report["adam"]))
    if report["authors"] is not None:
        lines.append(row("authors' structure", report["authors"]["iteration_seconds"], report["authors"]))
        lines.append(f"  its backtracking steps: {report['authors']['backtracks']}")
    for name, of in report["modes"].items():
        attempts = f"; attempts of the timed ones: {of['attempts']}" if max(of["attempts"]) > 1 else ""
        lines += ["", f"{name}: what one iteration does{attempts}"]
        for op in of["operations"]:
            sizes = " x ".join(map(str, op["sizes"]))
            origins = ", ".join(f"{origin} {n}" for origin, n in op["from"].most_common())
            least = f"minimal {op['minimal']}" if op["kind"] == "product" else ""
            lines.append(
                f"  {op['count']:3d} {op['kind']:16} {sizes:20} {op['precision']:8} {least:10} {origins}"
            )
    lines += ["", f"memory: {report['memory_is']}"]
    return "\n".join(lines)


def whole_numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", choices=["random", "mnist", "fashion_mnist"], default="random")
    parser.add_argument("--inputs", type=int, default=784)
    parser.add_argument("--widths", type=whole_numbers, default=[1000, 1000], help="hidden units: 1000,1000")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--samples", type=int, default=55_000)
    parser.add_argument("--iterations", type=int, default=9, help="timed ones")
    parser.add_argument("--warmup", type=int, default=2, help="untimed ones after the recorded ones")
    parser.add_argument("--authors-iterations", type=int, default=3, help="timed ones of it; 0 leaves it out")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["quadratic", "exact", "accelerated"])
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--tf32", action="store_true", help="let float32 products on a GPU round to TF32")
    parser.add_argument("--compile", action="store_true", help="elementwise work compiled by torch")
    parser.add_argument("--diagnostics", action="store_true", help="time the checks that cost products too")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    settings = parser.parse_args(arguments)
    if settings.iterations < 1:
        parser.error("--iterations must be at least 1")
    report = measure(settings)
    print(table(report), file=sys.stderr if settings.json else sys.stdout)
    if settings.json:
        json.dump(report, sys.stdout, indent=2)
        print()


if __name__ == "__main__":
    main()
