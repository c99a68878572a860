"""What one step costs: streaming mode over a fused Adam step, launches recorded or not, batch 512.

Streaming mode makes its products in TF32 by default on a GPU. Adam is timed as torch runs it by default, in float32,
and in TF32 as well: the ratios are to the latter.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from plain_torch import Images, PlainTorch, Setting, network, synchronise
from streamed import Streamed
from torch import Tensor, nn

from dladmm.compute.execution import product_precision

BATCH, BLOCK, ROUNDS, WARM = 512, 64, 7, 130
"""Rows, steps timed together (every 8th of streaming mode is heavier), rounds, steps before the first is timed."""


def step_costs(
    images: Images, widths: list[int], batch: int = BATCH, warm: int = WARM
) -> dict[str, float | None]:
    """Milliseconds per step, medians of interleaved rounds, and the ratios to Adam."""
    x, y = images.x[:batch], images.y[:batch]
    steps: dict[str, Callable[[], None]] = {
        "adam": _adam(images, widths, x, y),
        "streaming": _streaming(images, widths, batch, recorded=False),
    }
    if x.is_cuda:
        steps |= {
            "adam, TF32": _in_tf32(_adam(images, widths, x, y)),
            "adam, recorded": _recorded_adam(images, widths, x, y),
            "adam, recorded, TF32": _in_tf32(_recorded_adam, images, widths, x, y),
            "streaming, recorded": _streaming(images, widths, batch, recorded=True),
        }
    for step in steps.values():
        for _ in range(warm):
            step()
    took: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS if x.is_cuda else 3):
        for name, step in steps.items():
            synchronise(x.device)
            began = time.perf_counter()
            for _ in range(BLOCK if x.is_cuda else 16):
                step()
            synchronise(x.device)
            took[name].append(1e3 * (time.perf_counter() - began) / (BLOCK if x.is_cuda else 16))
    found: dict[str, float | None] = {name: statistics.median(times) for name, times in took.items()}
    pairs = [
        ("ratio", "streaming", "adam, TF32" if x.is_cuda else "adam"),
        ("ratio, recorded", "streaming, recorded", "adam, recorded, TF32"),
    ]
    for name, mine, theirs in pairs:
        found[name] = found[mine] / found[theirs] if mine in found else None  # type: ignore[operator]
    return found


def _in_tf32(function: Callable[..., Any], *arguments: Any) -> Callable[[], None]:
    """The function, or the step that it makes of these arguments, with products in TF32."""
    if arguments:
        with product_precision("tf32"):
            return function(*arguments)  # type: ignore[no-any-return]  # a recorded step keeps its kernels

    def step() -> None:
        with product_precision("tf32"):
            function()

    return step


def _adam(images: Images, widths: list[int], x: Tensor, y: Tensor) -> Callable[[], None]:
    learner = PlainTorch(images, "mlp", widths, Setting("adam", 10**6, len(x), 1e-4), 0)
    return lambda: learner.step(x, y)


def _streaming(images: Images, widths: list[int], batch: int, *, recorded: bool) -> Callable[[], None]:
    learner = Streamed(images, "mlp", widths, Setting("streaming", 10**6), 0, batch_size=batch)
    method: Any = learner.method
    if not recorded:
        method._recordable = lambda batch: False
    held = next(iter(method.batches.one_pass(0)))
    precision = learner.trainer.options.precision

    def step() -> None:
        with product_precision(precision):
            method.step(held)

    return step


def _recorded_adam(images: Images, widths: list[int], x: Tensor, y: Tensor) -> Callable[[], None]:
    """A whole step of Adam as one CUDA graph, as torch's documentation records it."""
    module = network("mlp", x.shape[1], widths, int(images.y.max()) + 1).to(x.device)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-4, fused=True, capturable=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()

    def replay(kept: Any = (module, optimizer)) -> None:  # the graph writes to their memory
        graph.replay()

    return replay
