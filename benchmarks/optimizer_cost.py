"""What a training step costs with StreamingADMM, beside AdamW (fused) and Muon.

    python benchmarks/optimizer_cost.py --device cuda

Milliseconds of a whole step (forward and backward pass in bfloat16 autocast, and the optimizer's step): of residual
networks on images of 32 x 32 and of a language model. "eager" is the mean of steps 65 to 128, observing ones included;
"recorded" is the replay of one step as a CUDA graph, which does not observe, and "with observing" counts an eager step
for each 32nd. The ratio is to AdamW in the same column of the same run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from networks import GPT, BasicBlock, Muon
from torch import Tensor, nn

from dladmm import StreamingADMM

Step = Callable[[], None]


def resnet(width: int, blocks: int) -> nn.Module:
    """Three stages of basic blocks after a 3 x 3 convolution."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    n_in = width
    for stage in range(3):
        for i in range(blocks):
            n_out = width << stage
            layers.append(BasicBlock(n_in, n_out, 2 if stage and not i else 1))
            n_in = n_out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n_in, 10))


def images(batch: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))


def text(batch: int, length: int) -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, 256, (batch, length + 1))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


LARGE: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, Tensor]]]] = {
    "ResNet 3 x 2 x 48": (lambda: resnet(48, 2), lambda: images(250)),
    "ResNet 3 x 3 x 128": (lambda: resnet(128, 3), lambda: images(250)),
    "GPT 6 x 384": (lambda: GPT(256, 384, 6, 6, 256), lambda: text(48, 256)),
}
SMALL: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, Tensor]]]] = {
    "ResNet 3 x 1 x 4": (lambda: resnet(4, 1), lambda: images(4)),
    "GPT 2 x 16": (lambda: GPT(256, 16, 2, 2, 16), lambda: text(2, 16)),
}


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    cuda = next(module.parameters()).is_cuda
    return torch.optim.AdamW(module.parameters(), lr=1e-3, fused=True, capturable=cuda)


def muon(module: nn.Module) -> torch.optim.Optimizer:
    optimizer = Muon(module, 0.02)
    for group in optimizer.adamw.param_groups:
        group["capturable"] = next(module.parameters()).is_cuda
    return optimizer


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "AdamW": adamw,
    "StreamingADMM": StreamingADMM,
    "Muon": muon,
}


def step_of(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Step:
    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(x.device.type, torch.bfloat16):
            loss = F.cross_entropy(module(x).flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()

    return step


def milliseconds(step: Step, times: int, device: str) -> list[float]:
    """Of each of so many steps; on a GPU of runs of sixteen, with events."""
    spent = []
    for _ in range(max(1, times // 16)):
        if device == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(16):
                step()
            end.record()
            torch.cuda.synchronize()
            spent.append(begin.elapsed_time(end) / 16)
        else:
            began = time.perf_counter()
            for _ in range(min(16, times)):
                step()
            spent.append((time.perf_counter() - began) * 1e3 / min(16, times))
    return spent


def recorded(step: Step) -> Step:
    """One step as a CUDA graph, after warm ones on a stream of their own."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def measure(network: str, name: str, device: str, small: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    make, data = (SMALL if small else LARGE)[network]
    module = make().to(device)
    x, y = (t.to(device) for t in data())
    optimizer = OPTIMIZERS[name](module)
    step = step_of(module, optimizer, x, y)
    warm, times = (9, 3) if small else (64, 64)
    for _ in range(warm):
        step()
    row: dict[str, Any] = {
        "network": network,
        "optimizer": name,
        "parameters": sum(p.numel() for p in module.parameters()),
        "eager": statistics.mean(milliseconds(step, times, device)),
    }
    size = sum(p.numel() * p.element_size() for p in module.parameters())
    tensors = [
        t.untyped_storage() for s in optimizer.state.values() for t in s.values() if isinstance(t, Tensor)
    ]
    if name != "Muon":  # whose other part keeps its own
        row["state"] = sum({t.data_ptr(): t.nbytes() for t in tensors}.values()) / size
    if device == "cuda":
        replay = recorded(step)
        row["recorded"] = statistics.median(milliseconds(replay, 128, device))
        observing = row["recorded"]
        if name == "StreamingADMM":  # steps outside of the recording observe
            observing = statistics.median(milliseconds(step, 32, device))
        row["with observing"] = (31 * row["recorded"] + observing) / 32
    return row


def table(rows: list[dict[str, Any]]) -> str:
    columns = [c for c in ("eager", "recorded", "with observing") if c in rows[0]]
    lines = [
        "| network (parameters) | optimizer | "
        + " | ".join(f"{c}, ms (ratio)" for c in columns)
        + " | state |"
    ]
    lines.append("|" + " --- |" * (len(columns) + 3))
    for row in rows:
        first = next(r for r in rows if r["network"] == row["network"])
        cells = [f"{row[c]:.2f} ({row[c] / first[c]:.2f})" for c in columns]
        state = f"{row['state']:.2f}" if "state" in row else ""
        name = f"{row['network']} ({row['parameters'] / 1e6:.2f} M)"
        lines.append(f"| {name} | {row['optimizer']} | " + " | ".join(cells) + f" | {state} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument(
        "--small", action="store_true", help="tiny networks and few steps, to try the program"
    )
    parser.add_argument("--json", help="write the rows to this file")
    options = parser.parse_args()
    switches = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [switch.allow_tf32 for switch in switches]
    rows = []
    try:
        for switch in switches:
            switch.allow_tf32 = True
        for network in SMALL if options.small else LARGE:
            for name in OPTIMIZERS:
                rows.append(measure(network, name, options.device, options.small))
                print(rows[-1], file=sys.stderr, flush=True)
    finally:
        for switch, allowed in zip(switches, before, strict=True):
            switch.allow_tf32 = allowed
    print(table(rows))
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file)


if __name__ == "__main__":
    main()
