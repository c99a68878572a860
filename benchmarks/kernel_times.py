"""What an iteration's time goes to: the kernels of a GPU, or the operators of a CPU, with the most time first.

    python benchmarks/kernel_times.py mlp --device cuda
    python benchmarks/kernel_times.py cnn --device cuda --samples 55000 --top 40
    python benchmarks/kernel_times.py cora --device cuda --shapes
    python benchmarks/kernel_times.py cnn --samples 500

``mlp`` is 784-1000-1000-10, ``cnn`` that of benchmarks/experiments/networks.py, both on images of MNIST or, where those
are not found, on random ones; the name of a graph is a GCN of --hidden units. First come the seconds of an iteration
and of an Adam epoch of the same network, each the median of some, and the most memory that torch held in each (on a
CPU, what all tensors of a run take, counted); then the table of one iteration.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # this checkout, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parent))

from recording import Recorder

from dladmm import datasets
from dladmm.api.train import fresh_parameters
from dladmm.engine.ahead import make_kernels_ahead
from dladmm.engine.options import make_options
from dladmm.losses import Risk, get_loss
from dladmm.network.chain import from_module
from dladmm.network.scaling import Scaling
from dladmm.training.run_folder import describe
from dladmm.training.trainer import Trainer

Step = Callable[[], object]
NEVER = 10**9
"""More iterations than a benchmark makes."""


def networks() -> dict[str, nn.Sequential]:
    return {
        "mlp": nn.Sequential(
            nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 10)
        ),
        "cnn": nn.Sequential(
            nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10),
        ),
    }  # fmt: skip


def images(samples: int, device: torch.device, path: str | None) -> tuple[Tensor, Tensor]:
    """Images of MNIST and their labels: of an .npz file, of the data set, or random ones."""
    if path is not None:
        with np.load(path) as file:
            x, y = torch.as_tensor(file["X"]).reshape(-1, 784).float() / 255, torch.as_tensor(file["y"])
    else:
        try:
            data = datasets.load("mnist")
            x, y = torch.as_tensor(data.x_train).float(), torch.as_tensor(data.y_train)
        except Exception as error:
            print(f"random images: {error}", file=sys.stderr)
            generator = torch.Generator().manual_seed(0)
            x = torch.rand(samples, 784, generator=generator)
            y = ((x - 0.5) @ torch.randn(784, 10, generator=generator)).argmax(1)
    return x[:samples].to(device), y[:samples].long().to(device)


def training(
    name: str, x: Tensor, y: Tensor, options: dict[str, Any], *, only_adam: bool = False
) -> tuple[Step, Step, Callable[[], dict[str, Any]]]:
    """One iteration, one Adam epoch, and what the accelerated iteration's numbers are."""
    module = networks()[name].to(x.device)

    @cache
    def made() -> torch.optim.Optimizer:
        return torch.optim.Adam(module.parameters(), lr=1e-3)  # torch imports its compiler with it

    def epoch() -> None:
        optimizer = made()
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()

    if only_adam:
        return epoch, epoch, dict
    chain, loss = from_module(networks()[name], sample=x[:2].cpu()), get_loss("cross_entropy")
    chosen = make_options(max_iter=NEVER, diagnostics_every=NEVER, **options)
    params = fresh_parameters(chain, 0, chosen.init_scale, chosen.init_std, x.dtype, x.device)
    if x.is_cuda:
        make_kernels_ahead(chain, loss, len(x), params, chosen, x.device)
    risk = Risk(loss, loss.encode(y, 10, x.dtype))
    scaling = Scaling.fit(chain.blocks[0], x) if chosen.scale_inputs else None
    trainer = Trainer(
        chain, x if scaling is None else scaling.apply(x), risk, chosen, penalty=chosen.penalty("auto"),
        params=params, scaling=scaling,
    )  # fmt: skip

    def iterate() -> None:
        ended = trainer._iterate(trainer.history.n_iter + 1)
        if ended is not None:
            raise RuntimeError(f"the run ended with {ended.name}.")

    def numbers() -> dict[str, Any]:
        names = ("iteration", "momentum", "level", "calm", "refused", "patience", "fade")
        found = {name: getattr(trainer.method, name, None) for name in names}
        return found | {"lagrangian": trainer.history.last("lagrangian"), "rho": trainer.state.rho}

    return iterate, epoch, numbers


def on_graph(
    name: str, hidden: int, device: torch.device, mode: str, **options: Any
) -> tuple[Step, Step, Callable[[], dict[str, Any]]]:
    from gcn import adam_epoch, graph_iteration  # with the baselines: seconds that whole_run.py would count

    contender, problem, weights = graph_iteration(mode, datasets.load(name), hidden, device, **options)
    return contender.step, adam_epoch(problem, weights), dict


def seconds(step: Step, device: torch.device, repeats: int) -> float:
    found = []
    for _ in range(repeats):
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def peak(step: Step, device: torch.device) -> float:
    """GB that torch held at most in a step, data included."""
    if device.type != "cuda":
        return float("nan")
    torch.cuda.reset_peak_memory_stats()
    step()
    return torch.cuda.max_memory_allocated() / 1e9


def counted(name: str, x: Tensor, y: Tensor, options: dict[str, Any], *, only_adam: bool) -> float:
    """Bytes that all tensors of a run take at most, above the data, as a CPU shows them; three iterations."""
    recorder = Recorder()
    with recorder:
        iterate, _, _ = training(name, x, y, options, only_adam=only_adam)
        for _ in range(3):
            iterate()
    return recorder.peak


def table(step: Step, device: torch.device, top: int, shapes: bool) -> str:
    on_gpu = device.type == "cuda"
    activities = [torch.profiler.ProfilerActivity.CPU]
    if on_gpu:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities, record_shapes=shapes) as profiler:
        step()
        if on_gpu:
            torch.cuda.synchronize()
    rows = profiler.key_averages(group_by_input_shape=shapes)
    if on_gpu and not shapes:
        kernels = [row for row in rows if row.device_type != torch.autograd.DeviceType.CPU]
        kernels.sort(key=lambda row: -row.self_device_time_total)
        lines = [
            f"{row.self_device_time_total / 1e3:9.3f}ms {row.count:5d} x  {row.key[:110]}"
            for row in kernels[:top]
        ]
        total = sum(row.self_device_time_total for row in kernels)
        launches = sum(row.count for row in kernels)
        return "\n".join([*lines, f"{total / 1e3:9.3f}ms {launches:5d} x  all kernels"])
    order = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    return str(rows.table(sort_by=order, row_limit=top, max_name_column_width=60, max_shapes_column_width=90))


def main(arguments: Sequence[str] | None = None) -> None:
    from gcn import EMBEDDED, NAMES

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("problem", choices=["mlp", "cnn", *NAMES, *EMBEDDED])
    parser.add_argument(
        "--mode", default="accelerated", help="accelerated, convergent or, of a graph, certified"
    )
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--samples", type=int, default=55000)
    parser.add_argument("--images", help=".npz file with X and y, instead of the data set")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--options", nargs="*", default=[], metavar="NAME=VALUE", help="such as precision=tf32"
    )
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--top", type=int, default=40)
    parser.add_argument("--shapes", action="store_true", help="operators by the shapes of their inputs")
    parser.add_argument("--no-table", action="store_true")
    settings = parser.parse_args(arguments)
    device = torch.device(settings.device)
    options: dict[str, Any] = {}
    for given in settings.options:
        name, value = given.split("=", 1)
        options[name] = {"True": True, "False": False}.get(value, value)
    if settings.problem in networks():
        x, y = images(settings.samples, device, settings.images)
        made = training(settings.problem, x, y, {"mode": settings.mode} | options)
    else:
        made = on_graph(settings.problem, settings.hidden, device, settings.mode, **options)
    iterate, epoch, numbers = made
    began = time.perf_counter()
    for _ in range(settings.warmup):
        iterate()
        epoch()
    warm = time.perf_counter() - began
    own, adam = (seconds(step, device, settings.repeats) for step in (iterate, epoch))
    most, adams = peak(iterate, device), peak(epoch, device)
    print(describe(device))
    print(
        f"{settings.problem} {settings.mode} {options}: {1e3 * own:.2f} ms, Adam epoch {1e3 * adam:.2f} ms, "
        f"{own / adam:.2f} epochs; memory {most:.2f} GB, Adam {adams:.2f} GB; warm-up {warm:.2f} s; {numbers()}"
    )
    if settings.problem in networks() and device.type == "cpu":
        del iterate, epoch, numbers, made
        given = settings.problem, x, y, {"mode": settings.mode} | options
        tensors, adams = (counted(*given, only_adam=only) / len(x) / 1e3 for only in (False, True))
        print(f"tensors: {tensors:.1f} kB a sample, Adam {adams:.1f} kB, {tensors / adams:.2f} times")
        made = training(*given)
        iterate = made[0]
    if not settings.no_table:
        print(table(iterate, device, settings.top, settings.shapes), flush=True)


if __name__ == "__main__":
    main()
