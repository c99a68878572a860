"""The straight-through estimator as people use it: mini-batches, batch normalisation, Adam, a rate that falls linearly.

Forward passes have the jumps, backward ones the window of a hard tanh in their place; weights of a finite set are
latent weights clipped to [-1, 1], rounded in forward passes. With torch alone: nothing here imports dladmm.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from plain_torch import Images
from torch import Tensor, nn
from torch.nn import functional as F


class Setting(NamedTuple):
    """What the grid is over, and the share of labels that is spread over all classes."""

    rate: float
    batch: int
    smoothing: float = 0.0


class Network(NamedTuple):
    """Widths of the hidden layers, levels of their activations (from -1 to 1), levels of their weights (0: any)."""

    hidden: tuple[int, ...]
    activation_levels: int = 2
    weight_levels: int = 0


def nearest_level(x: Tensor, levels: int) -> Tensor:
    """The nearest of equally spaced numbers from -1 to 1."""
    steps = levels - 1
    return ((x + 1) * (steps / 2) + 0.5).floor().clamp(0, steps) * (2 / steps) - 1


class StraightThrough(torch.autograd.Function):
    """Rounded forward, the derivative of a hard tanh backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, levels: int) -> Tensor:
        ctx.save_for_backward(x)
        return nearest_level(x, levels)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= 1), None


class FiniteLinear(nn.Linear):
    """A linear layer whose latent weights are rounded in forward passes."""

    def __init__(self, n_in: int, n_out: int, levels: int) -> None:
        super().__init__(n_in, n_out, bias=False)
        self.levels = levels
        if levels > 2:  # small weights would all be of the inner levels
            nn.init.uniform_(self.weight, -1.0, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, StraightThrough.apply(self.weight, self.levels))


class Net(nn.Module):
    """Linear, batch normalisation, rounding, ..., linear."""

    def __init__(self, n_in: int, network: Network, n_out: int) -> None:
        super().__init__()
        widths, self.levels = [n_in, *network.hidden], network.activation_levels
        made = [
            FiniteLinear(a, b, network.weight_levels)
            if network.weight_levels
            else nn.Linear(a, b, bias=False)
            for a, b in pairwise(widths)
        ]
        self.hidden, self.norms = nn.ModuleList(made), nn.ModuleList(nn.BatchNorm1d(b) for b in widths[1:])
        self.last = nn.Linear(widths[-1], n_out)

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.hidden, self.norms, strict=True):
            x = StraightThrough.apply(norm(layer(x)), self.levels)
        return self.last(x)

    def clip(self) -> None:
        for layer in self.hidden:
            if isinstance(layer, FiniteLinear):
                layer.weight.data.clamp_(-1, 1)


def clock_of(x: Tensor) -> Callable[[], float]:
    """What a run is timed by: on a CPU the processor's own seconds, which other programs do not lengthen."""
    return time.perf_counter if x.is_cuda else time.process_time


def fit(images: Images, network: Network, setting: Setting, passes: int, seed: int) -> tuple[float, float]:
    """Test accuracy after so many passes, and seconds from the first step to the last."""
    torch.manual_seed(seed)
    x, y = images.x, images.y
    mean, deviation = x.mean(), x.std()
    net = Net(x.shape[1], network, int(y.max()) + 1).to(x.device).train()
    on_gpu = x.is_cuda
    rate = torch.tensor(setting.rate, device=x.device) if on_gpu else setting.rate
    adam = torch.optim.Adam(net.parameters(), lr=rate, fused=on_gpu, capturable=on_gpu)
    size = min(setting.batch, len(x))
    rows = torch.zeros(size, dtype=torch.long, device=x.device)

    def step() -> None:
        adam.zero_grad(set_to_none=not on_gpu)
        output = net((x[rows] - mean) / deviation)
        F.cross_entropy(output, y[rows], label_smoothing=setting.smoothing).backward()
        adam.step()
        net.clip()

    run = recorded(step, net, adam) if on_gpu else step
    per_pass = len(x) // size
    k, last = 0, passes * per_pass
    if on_gpu:
        torch.cuda.synchronize()
    clock = clock_of(x)
    began = clock()
    for _ in range(passes):
        order = torch.randperm(len(x), device=x.device)
        for j in range(per_pass):
            now = setting.rate * (1 - k / last)
            for group in adam.param_groups:
                group["lr"] = group["lr"].fill_(now) if on_gpu else now
            rows.copy_(order[j * size : (j + 1) * size])
            run()
            k += 1
    if on_gpu:
        torch.cuda.synchronize()
    seconds = clock() - began
    net.eval()
    with torch.no_grad():
        parts = [net((part - mean) / deviation).argmax(1) for part in images.x_test.split(8192)]
    return float((torch.cat(parts) == images.y_test).float().mean()), seconds


def recorded(step: Callable[[], None], net: nn.Module, adam: torch.optim.Optimizer) -> Callable[[], None]:
    """The step as a CUDA graph; network and optimiser are as before the steps that warm it up."""
    kept = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    with torch.no_grad():
        for name, tensor in net.state_dict().items():
            tensor.copy_(kept[name])
        for state in adam.state.values():
            for tensor in state.values():
                tensor.zero_()
    return graph.replay
