"""Compare training methods on small networks of many kinds, each method tuned per network on validation rows.

    python benchmarks/networks.py --make-data networks.npz --text input.txt  # once; $DLADMM_DATA has Fashion-MNIST
    python benchmarks/networks.py --data networks.npz --out cells.jsonl --workers 12 --device mixed
    python benchmarks/networks.py --table cells.jsonl

All methods see the same batches in the same number of passes, with the same schedule (5 % linear warm-up, then a linear
fall to 0; Schedule-Free has none by design) and the same regularisation: none, or ``--smoothing 0.1`` for all. ``ours``
is ``dladmm.StreamingADMM`` in the same loop as the others, ``train`` the library's door ``dladmm.train``. For each
network and method the learning rates of its grid are compared with seed 0 on validation rows held out of the training
rows; the best is then run on all training rows with several seeds and scored on the test rows. Cells that ``--out`` has
already are not run again. ``--device mixed`` puts convolutions, attention and recurrence over long sequences on the GPU
and the others on the CPU. The text is karpathy/char-rnn's tinyshakespeare (``data/tinyshakespeare/input.txt``).
"""

from __future__ import annotations

import argparse
import functools
import gzip
import json
import math
import multiprocessing
import os
import statistics
import sys
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

Arrays = dict[str, np.ndarray[Any, Any]]
"""What the data file has: Fashion-MNIST, digits and text as bytes."""

TRAIN, TEST, TEXT = 20_000, 10_000, 600_000
"""Images to learn from and to test on, characters of text."""

# ---------------------------------------------------------------------------------------------------- data


def make_data(path: Path, fashion: Path, text: Path) -> None:
    """Write the one file that everything here is made from, 20 MB or less."""
    from sklearn.datasets import load_digits

    def idx(name: str, header: int, n: int) -> np.ndarray[Any, Any]:
        raw = np.frombuffer(gzip.decompress((fashion / f"{name}.gz").read_bytes()), np.uint8, offset=header)
        return raw.reshape(-1, 784)[:n] if header == 16 else raw[:n]

    digits = load_digits()
    np.savez_compressed(
        path,
        x=idx("train-images-idx3-ubyte", 16, TRAIN), y=idx("train-labels-idx1-ubyte", 8, TRAIN),
        x_test=idx("t10k-images-idx3-ubyte", 16, TEST), y_test=idx("t10k-labels-idx1-ubyte", 8, TEST),
        digits=digits.data.astype(np.uint8), digits_y=digits.target.astype(np.uint8),
        text=np.frombuffer(text.read_bytes()[:TEXT], np.uint8),
    )  # fmt: skip


@functools.cache
def read_data(path: str) -> Arrays:
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


@dataclass(frozen=True)
class Rows:
    """Inputs and targets, row by row; a network takes ``module(*inputs)``."""

    inputs: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.targets[0])

    def __getitem__(self, rows: Tensor | slice) -> Rows:
        return Rows(tuple(x[rows] for x in self.inputs), tuple(y[rows] for y in self.targets))

    def to(self, device: str) -> Rows:
        return Rows(tuple(x.to(device) for x in self.inputs), tuple(y.to(device) for y in self.targets))


@dataclass(frozen=True)
class Data:
    """Training rows in random order and test rows."""

    train: Rows
    test: Rows

    def split(self, name: str) -> tuple[Rows, Rows]:
        """Rows to learn from and rows to score: "test", or "validation", the last fifth of the training rows."""
        if name == "test":
            return self.train, self.test
        n = len(self.train) * 4 // 5
        return self.train[:n], self.train[n:]


def _fashion(arrays: Arrays, n: int = TRAIN, *, scaled: bool = True) -> Data:
    """Flat images with mean 0 and variance 1 (or from 0 to 1) and their classes."""

    def rows(x: str, y: str, n: int | None) -> Rows:
        images = torch.from_numpy(arrays[x][:n]).float() / 255
        if scaled:
            images = (images - 0.286) / 0.353
        return Rows((images,), (torch.from_numpy(arrays[y][:n].astype(np.int64)),))

    return Data(rows("x", "y", n), rows("x_test", "y_test", None))


def _images(arrays: Arrays, n: int) -> Data:
    """The same as N x 1 x 28 x 28."""
    return _with_inputs(_fashion(arrays, n), lambda x: (x.unflatten(1, (1, 28, 28)),))


def _digits(arrays: Arrays, shape: tuple[int, ...]) -> Data:
    order = np.random.default_rng(0).permutation(len(arrays["digits"]))
    x = torch.from_numpy(arrays["digits"][order]).float().unflatten(1, shape) / 8 - 1
    rows = Rows((x,), (torch.from_numpy(arrays["digits_y"][order].astype(np.int64)),))
    n = len(rows) * 2 // 3
    return Data(rows[:n], rows[n:])


def _text(arrays: Arrays, length: int) -> Data:
    """Windows of characters and the characters one place on; the last sixth is for the test."""
    _, ids = np.unique(arrays["text"], return_inverse=True)
    text = torch.from_numpy(ids.astype(np.int64))
    n = (len(text) - 1) // length
    rows = Rows((text[: n * length].view(n, length),), (text[1 : n * length + 1].view(n, length),))
    order = torch.from_numpy(np.random.default_rng(0).permutation(n * 5 // 6))
    return Data(rows[order], rows[n * 5 // 6 :])


def _mixture(classes: int, features: int, n: int, n_test: int, spread: float) -> Data:
    """Normal clouds around as many random centres as there are classes."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(classes, features, generator=generator)

    def rows(n: int) -> Rows:
        y = torch.randint(classes, (n,), generator=generator)
        return Rows((centres[y] + spread * torch.randn(n, features, generator=generator),), (y,))

    return Data(rows(n), rows(n_test))


def _with_inputs(data: Data, change: Callable[[Tensor], tuple[Tensor, ...]]) -> Data:
    return Data(*(Rows(change(*rows.inputs), rows.targets) for rows in (data.train, data.test)))


def _with_targets(data: Data, change: Callable[[Tensor, Tensor], tuple[Tensor, ...]]) -> Data:
    return Data(*(Rows(rows.inputs, change(*rows.inputs, *rows.targets)) for rows in (data.train, data.test)))


# -------------------------------------------------------------------------------------------------- losses


@dataclass(frozen=True)
class Loss:
    """What is minimised, what is reported for it, and the report of a network that has learnt nothing.

    ``value(outputs, targets, smoothing)`` and ``score(outputs, targets)`` are means over rows.
    """

    value: Callable[[Any, tuple[Tensor, ...], float], Tensor]
    score: Callable[[Any, tuple[Tensor, ...]], Tensor]
    chance: Callable[[Rows], float]


def _cross_entropy(outputs: Tensor, target: Tensor, smoothing: float = 0.0) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, -2), target.flatten(), label_smoothing=smoothing)


def _accuracy(outputs: Tensor, target: Tensor) -> Tensor:
    return (outputs.argmax(-1) == target).float().mean()


def _largest_share(rows: Rows) -> float:
    return float(rows.targets[0].flatten().bincount().max()) / len(rows)


CLASS = Loss(lambda z, y, s: _cross_entropy(z, y[0], s), lambda z, y: _accuracy(z, y[0]), _largest_share)
CLASS_AND_NUMBERS = Loss(
    lambda z, y, s: _cross_entropy(z[0], y[0], s) + F.mse_loss(z[1], y[1]),
    lambda z, y: _accuracy(z[0], y[0]),
    _largest_share,
)
TOKEN = Loss(
    lambda z, y, s: _cross_entropy(z, y[0], s),
    lambda z, y: _cross_entropy(z, y[0]),
    lambda rows: math.log(int(rows.targets[0].max()) + 1),
)
IMAGE = Loss(
    lambda z, y, s: F.mse_loss(z, y[0]),
    lambda z, y: (z - y[0]).square().sum(1).mean(),
    lambda rows: float((rows.targets[0] - rows.targets[0].mean(0)).square().sum(1).mean()),
)

# ------------------------------------------------------------------------------------------------ networks


@dataclass(frozen=True)
class Task:
    """A network at its initial values, its rows, its loss, passes over the rows and rows of a batch."""

    module: nn.Module
    data: Data
    loss: Loss = CLASS
    passes: int = 5
    batch: int = 100


class ResidualMLP(nn.Module):
    """Blocks ``x + B relu(A norm(x))``."""

    def __init__(self, n_in: int, width: int, blocks: int, n_out: int) -> None:
        super().__init__()
        self.stem = nn.Linear(n_in, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            for _ in range(blocks)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, n_out)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.norm(x))


class BasicBlock(nn.Module):
    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or n_in != n_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        inner = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(inner + self.shortcut(x))


class ResNet8(nn.Module):
    def __init__(self, n_out: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3, 1, 1, bias=False)
        self.bn = nn.BatchNorm2d(16)
        self.layers = nn.Sequential(BasicBlock(16, 16, 1), BasicBlock(16, 32, 2), BasicBlock(32, 64, 2))
        self.head = nn.Linear(64, n_out)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(F.relu(self.bn(self.conv(x)))).mean((2, 3)))


class Block(nn.Module):
    """A transformer layer whose attention is written by hand."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.project(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ViT(nn.Module):
    """Patches, positions, layers, the mean over patches; torch's own layers with ``library=True``."""

    def __init__(self, width: int, depth: int, heads: int, patch: int, n_out: int, library: bool) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, patch, patch)
        self.position = nn.Parameter(0.02 * torch.randn((28 // patch) ** 2, width))
        if library:
            layer = nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            self.layers: nn.Module = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        else:
            self.layers = nn.Sequential(*(Block(width, heads, causal=False) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, n_out)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.position
        return self.head(self.norm(self.layers(tokens)).mean(1))


class GPT(nn.Module):
    """A language model whose embedding is its output map; initial values as in GPT-2."""

    def __init__(self, vocabulary: int, width: int, depth: int, heads: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        self.layers = nn.Sequential(*(Block(width, heads, causal=True) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for block in self.layers:
            for linear in (block.project, block.down):
                nn.init.normal_(linear.weight, std=0.02 / math.sqrt(2 * depth))
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.layers(x)))


class Shared(nn.Module):
    """One hidden layer, applied several times."""

    def __init__(self, n_in: int, width: int, times: int, n_out: int, residual: bool) -> None:
        super().__init__()
        self.times, self.residual = times, residual
        self.stem, self.hidden = nn.Linear(n_in, width), nn.Linear(width, width)
        self.head = nn.Linear(width, n_out)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        for _ in range(self.times):
            inner = F.relu(self.hidden(x))
            x = x + inner if self.residual else inner
        return self.head(x)


class Recurrent(nn.Module):
    """A recurrent layer over the rows of an image, its last state to a linear map."""

    def __init__(self, layer: nn.Module, width: int, n_out: int) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(width, n_out)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


class TwoInputs(nn.Module):
    """An image through convolutions, a table through a linear map, both to one output."""

    def __init__(self, columns: int, n_out: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 7 * 14, 64),
        )  # fmt: skip
        self.table = nn.Sequential(nn.Linear(columns, 64), nn.ReLU(), nn.Linear(64, 64))
        self.head = nn.Linear(128, n_out)

    def forward(self, image: Tensor, table: Tensor) -> Tensor:
        return self.head(F.relu(torch.cat([self.convolutions(image), self.table(table)], 1)))


class TwoHeads(nn.Module):
    """A class and numbers from one body."""

    def __init__(self, n_in: int, width: int, classes: int, numbers: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_in, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head_class, self.head_numbers = nn.Linear(width, classes), nn.Linear(width, numbers)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(x)
        return self.head_class(x), self.head_numbers(x)


def _chain(widths: list[int], activation: type[nn.Module]) -> nn.Sequential:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, (n_in, n_out) in enumerate(pairwise(widths)):
        last = i == len(widths) - 2
        layers["head" if last else f"linear{i}"] = nn.Linear(n_in, n_out)
        if not last:
            layers[f"activation{i}"] = activation()
    return nn.Sequential(layers)


def _upper_image_and_lower_sums(x: Tensor) -> tuple[Tensor, Tensor]:
    image = x.unflatten(1, (1, 28, 28))
    lower = image[:, 0, 14:]
    return image[:, :, :14], torch.cat([lower.mean(1), lower.mean(2)], 1)


def _class_and_centre(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The class; brightness and centre of mass of the image, about 0."""
    image = x.unflatten(1, (28, 28)) * 0.353 + 0.286
    places = torch.linspace(-1, 1, 28)
    mass = image.mean((1, 2))
    centre = [(image.mean(axis) * places).mean(1) / mass.clamp(min=1e-3) for axis in (1, 2)]
    return y, torch.stack([4 * mass - 1, *(8 * part for part in centre)], 1)


NETWORKS: dict[str, Callable[[Arrays], Task]] = {
    "residual-mlp": lambda a: Task(ResidualMLP(784, 128, 7, 10), _fashion(a)),
    "resnet-8": lambda a: Task(ResNet8(10), _images(a, 8_000)),
    "vit": lambda a: Task(ViT(64, 3, 4, 7, 10, library=False), _images(a, 10_000)),
    "transformer-encoder": lambda a: Task(ViT(64, 3, 4, 7, 10, library=True), _images(a, 10_000)),
    "tied-lm": lambda a: Task(
        GPT(len(np.unique(a["text"])), 96, 2, 4, 64), _text(a, 64), TOKEN, passes=1, batch=16
    ),
    "shared": lambda a: Task(Shared(784, 128, 4, 10, residual=False), _fashion(a)),
    "shared-residual": lambda a: Task(Shared(784, 128, 4, 10, residual=True), _fashion(a)),
    "plain-8": lambda a: Task(_chain([784, *[128] * 8, 10], nn.ReLU), _fashion(a)),
    "plain-16": lambda a: Task(_chain([784, *[128] * 16, 10], nn.ReLU), _fashion(a)),
    "autoencoder": lambda a: Task(
        _chain([784, 128, 32, 8, 32, 128, 784], nn.ReLU),
        _with_targets(_fashion(a, scaled=False), lambda x, y: (x,)),
        IMAGE,
    ),
    "1000-classes": lambda a: Task(
        _chain([64, 256, 256, 1000], nn.ReLU), _mixture(1000, 64, 30_000, 10_000, 0.9)
    ),
    "gru": lambda a: Task(
        Recurrent(nn.GRU(8, 64, batch_first=True), 64, 10), _digits(a, (8, 8)), CLASS, 20, 32
    ),
    "lstm": lambda a: Task(
        Recurrent(nn.LSTM(8, 64, batch_first=True), 64, 10), _digits(a, (8, 8)), CLASS, 20, 32
    ),
    "two-inputs": lambda a: Task(
        TwoInputs(42, 10), _with_inputs(_fashion(a, 10_000), _upper_image_and_lower_sums)
    ),
    "two-heads": lambda a: Task(
        TwoHeads(784, 128, 10, 3), _with_targets(_fashion(a), _class_and_centre), CLASS_AND_NUMBERS
    ),
    "gelu-8x32": lambda a: Task(_chain([64, *[32] * 8, 10], nn.GELU), _digits(a, (64,)), CLASS, 20, 32),
}
"""Made from the data, at initial values drawn from torch's global generator."""

ON_GPU = ("resnet-8", "vit", "transformer-encoder", "tied-lm", "two-inputs")
"""Networks that ``--device mixed`` puts on the GPU."""

SMALL = ("gru", "lstm", "gelu-8x32")
"""Networks that are tested with five seeds in the place of three."""

LOWER_IS_BETTER = ("tied-lm", "autoencoder")
"""Networks whose score is a loss; that of the others is accuracy."""

# ------------------------------------------------------------------------------------------------- methods


def _groups(module: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Maps between hidden layers, and the rest: heads, embeddings, positions, gains and biases."""
    hidden, rest = [], []
    for name, parameter in module.named_parameters():
        outer = any(part.startswith(("head", "embedding", "position")) for part in name.split("."))
        (rest if outer or parameter.ndim < 2 else hidden).append(parameter)
    return hidden, rest


def newton_schulz(g: Tensor) -> Tensor:
    """The orthogonal factor of each matrix of a stack, about: Muon's five steps."""
    wide = g.shape[-2] <= g.shape[-1]
    x = g if wide else g.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x if wide else x.mT


class Muon(optim.Optimizer):
    """Muon for hidden maps (convolutions as matrices), each step scaled to AdamW's size; AdamW for the rest."""

    def __init__(self, module: nn.Module, lr: float, rest_lr: float = 3e-3, decay: float = 0.01) -> None:
        hidden, rest = _groups(module)
        super().__init__([{"params": hidden, "lr": lr}], {"decay": decay})
        self.adamw = optim.AdamW(rest, lr=rest_lr, weight_decay=decay, fused=rest[0].is_cuda)
        self.param_groups += self.adamw.param_groups

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        group = self.param_groups[0]
        by_shape = defaultdict(list)
        for p in group["params"]:
            m = self.state[p].setdefault("momentum", torch.zeros_like(p))
            m.lerp_(p.grad, 0.05)
            by_shape[p.flatten(1).shape].append((p, p.grad.lerp(m, 0.95).flatten(1)))
        for shape, pairs in by_shape.items():
            steps = newton_schulz(torch.stack([g for _, g in pairs])) * (0.2 * math.sqrt(max(shape)))
            for (p, _), step in zip(pairs, steps, strict=True):
                p.mul_(1 - group["lr"] * group["decay"]).sub_(group["lr"] * step.view_as(p))
        self.adamw.step()


class SOAP(optim.Optimizer):
    """Adam in the eigenbasis of Shampoo's two matrices, which moves every tenth step by one QR factorisation."""

    def __init__(
        self, module: nn.Module, lr: float, betas: tuple[float, float] = (0.95, 0.95), decay: float = 0.01
    ) -> None:
        super().__init__(module.parameters(), {"lr": lr, "betas": betas, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._move(p, group)

    def _move(self, p: Tensor, group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        state = self.state[p]
        g = p.grad.flatten(1) if p.ndim > 1 else p.grad
        if not state:
            state |= {"t": 0, "m": torch.zeros_like(g), "v": torch.zeros_like(g), "grams": [], "bases": []}
            if g.ndim > 1:
                state["grams"] = [(1 - beta2) * g @ g.mT, (1 - beta2) * g.mT @ g]
                state["bases"] = [self._eigenvectors(gram) for gram in state["grams"]]
            return  # as its authors do: the first gradient makes the basis only
        state["t"] += 1
        t, bases = state["t"], state["bases"]

        def rotated(x: Tensor) -> Tensor:
            return bases[0].mT @ x @ bases[1] if bases else x

        state["m"].lerp_(g, 1 - beta1)
        inner = rotated(g)
        state["v"].lerp_(inner.square(), 1 - beta2)
        scale = math.sqrt(1 - beta2**t) / (1 - beta1**t)
        step = scale * rotated(state["m"]) / (state["v"].sqrt() + 1e-8)
        step = bases[0] @ step @ bases[1].mT if bases else step
        p.mul_(1 - group["lr"] * group["decay"]).sub_(group["lr"] * step.view_as(p))
        if bases:
            for gram, outer in zip(state["grams"], (g @ g.mT, g.mT @ g), strict=True):
                gram.lerp_(outer, 1 - beta2)
            if t % 10 == 0:
                self._turn(state)

    @staticmethod
    def _eigenvectors(gram: Tensor) -> Tensor:
        """Largest first; in float64, since in float32 those of tiny matrices may not be finite."""
        return torch.linalg.eigh(gram.double())[1].flip(1).to(gram.dtype)

    def _turn(self, state: dict[str, Any]) -> None:
        """One power iteration for each basis, its columns in order of their eigenvalues."""
        for side, (gram, basis) in enumerate(zip(state["grams"], state["bases"], strict=True)):
            order = (basis * (gram @ basis)).sum(0).argsort(descending=True)
            state["v"] = state["v"].index_select(side, order)
            state["bases"][side] = torch.linalg.qr(gram @ basis[:, order])[0]


class ScheduleFreeAdamW(optim.Optimizer):
    """Gradients at ``y = (1 - beta) z + beta x``, steps of ``z``, and ``x`` their average; ``eval()`` shows ``x``."""

    def __init__(
        self, module: nn.Module, lr: float, warmup: int, betas: tuple[float, float] = (0.9, 0.999)
    ) -> None:
        super().__init__(module.parameters(), {"lr": lr, "betas": betas})
        self.warmup, self.t, self.weights = warmup, 0, 0.0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.t += 1
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            lr = group["lr"] * min(1.0, self.t / max(1, self.warmup))
            self.weights += lr**2
            c = lr**2 / self.weights
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state |= {"z": p.clone(), "v": torch.zeros_like(p)}
                state["v"].lerp_(p.grad.square(), 1 - beta2)
                step = p.grad / ((state["v"] / (1 - beta2**self.t)).sqrt() + 1e-8)
                p.lerp_(state["z"], c).sub_(step, alpha=lr * (1 - beta1 * (1 - c)))
                state["z"].sub_(step, alpha=lr)

    @torch.no_grad()
    def eval(self) -> None:
        """Put the averages in the place of the parameters, for good."""
        for group in self.param_groups:
            for p in group["params"]:
                p.lerp_(self.state[p]["z"], 1 - 1 / group["betas"][0])


Scheduler = optim.lr_scheduler.LRScheduler


def _scheduled(optimizer: optim.Optimizer, total: int) -> tuple[optim.Optimizer, Scheduler]:
    warmup = max(1, round(0.05 * total))

    def share(step: int) -> float:
        return min((step + 1) / warmup, max(0.0, (total - step) / max(1, total - warmup)))

    return optimizer, optim.lr_scheduler.LambdaLR(optimizer, share)


def _adamw(module: nn.Module, total: int, lr: float) -> tuple[optim.Optimizer, Scheduler]:
    parameters = list(module.parameters())
    fused = parameters[0].is_cuda
    return _scheduled(optim.AdamW(parameters, lr=lr, weight_decay=0.01, fused=fused), total)


def _admm(module: nn.Module, total: int, lr: float) -> tuple[optim.Optimizer, None]:
    """Its lead-in and fall are its own, the same."""
    from dladmm import StreamingADMM

    return StreamingADMM(module, lr=lr, total_steps=total), None


@dataclass(frozen=True)
class Method:
    """``make(module, total_steps, lr)`` gives an optimizer and, where it has none of its own, its schedule."""

    make: Callable[[nn.Module, int, float], tuple[optim.Optimizer, Scheduler | None]]
    rates: tuple[float, ...]


METHODS: dict[str, Method] = {
    "ours": Method(_admm, (0.01,)),
    "train": Method(_admm, (0.01,)),
    "adamw": Method(_adamw, (3e-4, 1e-3, 3e-3, 1e-2)),
    "muon": Method(lambda m, total, lr: _scheduled(Muon(m, lr), total), (0.005, 0.01, 0.02, 0.04)),
    "soap": Method(lambda m, total, lr: _scheduled(SOAP(m, lr), total), (1e-3, 3e-3, 1e-2)),
    "schedule-free": Method(
        lambda m, total, lr: (ScheduleFreeAdamW(m, lr, round(0.05 * total)), None), (2.5e-3,)
    ),
}

# --------------------------------------------------------------------------------------------------- cells


@dataclass(frozen=True)
class Cell:
    """One run."""

    network: str
    method: str
    lr: float
    seed: int
    split: str
    smoothing: float = 0.0


def run_cell(cell: Cell, arrays: Arrays, device: str, steps: int | None = None) -> dict[str, Any]:
    """Train and score; the cell's own fields, passes, score, loss, the training loss of the last pass, seconds.

    ``finite`` is false, and the score that of chance, where a loss was not. ``steps`` ends the run early.
    """
    torch.manual_seed(cell.seed)
    task = NETWORKS[cell.network](arrays)
    module = task.module.to(device)
    train, held_out = (rows.to(device) for rows in task.data.split(cell.split))
    batches = len(train) // task.batch
    total = task.passes * batches if steps is None else steps
    if cell.method == "train":
        return _at_the_door(cell, task, module, train, held_out, device)
    optimizer, scheduler = METHODS[cell.method].make(module, total, cell.lr)
    order = torch.Generator().manual_seed(cell.seed)

    began, done, mean, finite = _clock(device), 0, math.nan, True
    while finite and done < total:
        losses = torch.zeros((), device=device)
        rows = torch.randperm(len(train), generator=order).to(device)
        now = min(batches, total - done)
        for i in range(now):
            batch = train[rows[i * task.batch : (i + 1) * task.batch]]
            optimizer.zero_grad()
            loss = task.loss.value(module(*batch.inputs), batch.targets, cell.smoothing)
            loss.backward()
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            losses += loss.detach()
        done, mean = done + now, float(losses) / now
        finite = math.isfinite(mean)
    seconds = _clock(device) - began

    if isinstance(optimizer, ScheduleFreeAdamW):
        optimizer.eval()
        _renew_batch_statistics(module, train, task.batch)
    score, loss_held_out = _evaluate(module, held_out, task.loss)
    finite = finite and math.isfinite(score) and math.isfinite(loss_held_out)
    return asdict(cell) | {
        "passes": task.passes,
        "score": score if finite else task.loss.chance(held_out),
        "loss": loss_held_out if finite else None,
        "train_loss": mean if finite else None,
        "finite": finite,
        "seconds": round(seconds, 3),
        "device": device,
    }


def _at_the_door(
    cell: Cell, task: Task, module: nn.Module, train: Rows, held_out: Rows, device: str
) -> dict[str, Any]:
    """``dladmm.train`` with the same batches, passes and regularisation; it draws the weights of chains itself."""
    import dladmm
    from dladmm.engine.streaming_options import StreamingOptions

    one = len(train.inputs) == len(train.targets) == 1
    classes = task.loss in (CLASS, TOKEN)

    def own(outputs: Any, targets: Any) -> Tensor:
        return task.loss.value(outputs, targets if isinstance(targets, tuple) else (targets,), cell.smoothing)

    X = train.inputs[0] if len(train.inputs) == 1 else train.inputs
    y = train.targets[0] if len(train.targets) == 1 else train.targets
    if one and task.loss is IMAGE:
        y = y.flatten(1)
    began = _clock(device)
    result = dladmm.train(
        module, X, y,
        loss="cross_entropy" if classes else "squared" if one else own,
        mode="streaming", max_iter=task.passes, batch_size=task.batch, random_state=cell.seed,
        device=device, dropout=0.0, streaming=StreamingOptions(smoothing=cell.smoothing),
    )  # fmt: skip
    seconds = _clock(device) - began
    score, loss = _evaluate(module, held_out, task.loss)
    finite = math.isfinite(score) and math.isfinite(loss)
    return asdict(cell) | {
        "passes": task.passes,
        "score": score if finite else task.loss.chance(held_out),
        "loss": loss if finite else None,
        "train_loss": result.history.last("loss"),
        "finite": finite,
        "seconds": round(seconds, 3),
        "device": device,
    }


def _clock(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


@torch.no_grad()
def _evaluate(module: nn.Module, rows: Rows, loss: Loss) -> tuple[float, float]:
    module.eval()
    sums = [0.0, 0.0]
    for first in range(0, len(rows), 1000):
        part = rows[slice(first, first + 1000)]
        outputs = module(*part.inputs)
        for i, value in enumerate(
            (loss.score(outputs, part.targets), loss.value(outputs, part.targets, 0.0))
        ):
            sums[i] += len(part) * float(value)
    return sums[0] / len(rows), sums[1] / len(rows)


@torch.no_grad()
def _renew_batch_statistics(module: nn.Module, train: Rows, batch: int) -> None:
    """BatchNorm's running statistics at averaged parameters, as Schedule-Free's authors advise."""
    if any(isinstance(part, nn.BatchNorm2d) for part in module.modules()):
        module.train()
        for i in range(min(50, len(train) // batch)):
            module(*train[slice(i * batch, (i + 1) * batch)].inputs)


# --------------------------------------------------------------------------------------------------- sweep


def _worker(cell: Cell, data: str, device: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    if device == "mixed":
        device = "cuda" if cell.network in ON_GPU else "cpu"
    try:
        return run_cell(cell, read_data(data), device)
    except Exception as error:  # one cell's fault must not end the sweep
        return asdict(cell) | {"error": f"{type(error).__name__}: {error}", "score": None}


def better(network: str, rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The row with the best score; cells that ended in an error are worst."""
    sign = 1 if network not in LOWER_IS_BETTER else -1
    return max(rows, key=lambda row: -math.inf if row["score"] is None else sign * row["score"])


def _key(row: dict[str, Any]) -> Cell:
    return Cell(*(row[name] for name in ("network", "method", "lr", "seed", "split", "smoothing")))


class Sweep:
    """Validation cells first; as soon as those of a network and a method are there, its test cells."""

    def __init__(self, options: argparse.Namespace, known: dict[Cell, dict[str, Any]]) -> None:
        self.options, self.known = options, known

    def rates(self, method: str) -> tuple[float, ...]:
        return tuple(self.options.rates or METHODS[method].rates)

    def tuning(self, network: str, method: str) -> list[Cell]:
        """The cells to choose a rate by: none where there is no choice."""
        rates = self.rates(method)
        if self.options.split == "test" or (self.options.split == "both" and len(rates) == 1):
            return []
        return [Cell(network, method, lr, 0, "validation", self.options.smoothing) for lr in rates]

    def testing(self, network: str, method: str) -> list[Cell]:
        if self.options.split == "validation":
            return []
        tuned = self.tuning(network, method)
        lrs = [better(network, [self.known[cell] for cell in tuned])["lr"]] if tuned else self.rates(method)
        seeds = self.options.seeds or range(5 if network in SMALL else 3)
        return [
            Cell(network, method, lr, seed, "test", self.options.smoothing) for lr in lrs for seed in seeds
        ]

    def results(self) -> Iterator[dict[str, Any]]:
        """Rows as they are made."""
        pairs = [(n, m) for m in self.options.methods for n in self.options.networks]
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self.options.workers, mp_context=context) as pool:
            running: dict[Future[dict[str, Any]], Cell] = {}
            asked: set[Cell] = set()
            while pairs or running:
                for pair in list(pairs):
                    tuned = self.tuning(*pair)
                    ready = all(cell in self.known for cell in tuned)
                    for cell in self.testing(*pair) if ready else tuned:
                        if cell not in self.known and cell not in asked:
                            asked.add(cell)
                            future = pool.submit(_worker, cell, self.options.data, self.options.device)
                            running[future] = cell
                    if ready:
                        pairs.remove(pair)
                for future in wait(running, return_when=FIRST_COMPLETED).done if running else ():
                    row = self.known[running.pop(future)] = future.result()
                    yield row


def read_rows(paths: Iterable[Path]) -> dict[Cell, dict[str, Any]]:
    rows = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    return {_key(row): row for row in rows}


# --------------------------------------------------------------------------------------------------- table


def table(rows: Iterable[dict[str, Any]]) -> str:
    """Networks and methods: mean over seeds (worst; standard deviation) at the tuned rate, and seconds.

    The last column is by how much our mean is better than AdamW's.
    """
    cells: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["split"] == "test":
            cells[row["network"], row["method"]].append(row)
    networks = [n for n in NETWORKS if any(n == network for network, _ in cells)]
    methods = [m for m in METHODS if any(m == method for _, method in cells)]
    lines = [
        "| network | " + " | ".join(methods) + " | ours over adamw |",
        "| --- |" + " --- |" * (len(methods) + 1),
    ]
    for network in networks:
        entries = [_entry(network, cells.get((network, method), [])) for method in methods]
        better_if = "" if network not in LOWER_IS_BETTER else " (lower is better)"
        margin = _margin(network, *(cells.get((network, method), []) for method in ("ours", "adamw")))
        lines.append(f"| {network}{better_if} | " + " | ".join(entries) + f" | {margin} |")
    return "\n".join(lines)


def _margin(network: str, ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> str:
    scores = [[row["score"] for row in rows] for rows in (ours, theirs)]
    if not all(scores) or any(score is None for group in scores for score in group):
        return ""
    difference = statistics.mean(scores[0]) - statistics.mean(scores[1])
    return f"{-difference if network in LOWER_IS_BETTER else difference:+.4f}"


def _entry(network: str, rows: list[dict[str, Any]]) -> str:
    if not rows:
        return ""
    errors = [row["error"] for row in rows if "error" in row]
    if errors:
        return f"error: {errors[0].splitlines()[0][:60]}"
    by_rate = defaultdict(list)
    for row in rows:
        by_rate[row["lr"]].append(row)
    entries = []
    for lr, group in sorted(by_rate.items()):
        scores = [row["score"] for row in group]
        worst = min(scores) if network not in LOWER_IS_BETTER else max(scores)
        spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
        digits = 4 if network not in LOWER_IS_BETTER else 3
        diverged = sum(not row["finite"] for row in group)
        entries.append(
            f"{statistics.mean(scores):.{digits}f} ({worst:.{digits}f}; {spread:.{digits}f}) at {lr:g}, "
            f"{statistics.median(row['seconds'] for row in group):.1f} s"
            + (f", {diverged} of {len(group)} not finite" if diverged else "")
        )
    return "; ".join(entries)


def main() -> None:
    def names(known: dict[str, Any]) -> Callable[[str], list[str]]:
        def parse(text: str) -> list[str]:
            chosen = [name.strip() for name in text.split(",")]
            if unknown := [name for name in chosen if name not in known]:
                raise argparse.ArgumentTypeError(f"unknown {unknown}; there are {', '.join(known)}")
            return chosen

        return parse

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--make-data", type=Path, metavar="FILE", help="write the data file and end")
    parser.add_argument("--text", type=Path, help="tinyshakespeare, for --make-data")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="print the table and end")
    parser.add_argument("--data", help="the file of --make-data")
    parser.add_argument("--out", type=Path, help="JSON lines, appended to; cells in it are not run again")
    parser.add_argument("--networks", type=names(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--methods", type=names(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")])
    parser.add_argument("--rates", type=lambda text: [float(lr) for lr in text.split(",")])
    parser.add_argument("--split", choices=("both", "validation", "test"), default="both")
    parser.add_argument("--smoothing", type=float, default=0.0)
    parser.add_argument("--device", choices=("cpu", "cuda", "mixed"), default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    if options.make_data:
        if options.text is None:
            parser.error("--make-data needs --text")
        folder = Path(os.environ.get("DLADMM_DATA", "datasets")) / "fashion_mnist"
        return make_data(options.make_data, folder, options.text)
    if options.table:
        print(table(read_rows(options.table).values()))
        return None
    if options.data is None:
        parser.error("--data is missing")
    known = read_rows([options.out] if options.out and options.out.exists() else [])
    began = time.perf_counter()
    with open(options.out, "a") if options.out else sys.stdout as out:
        for row in Sweep(options, known).results():
            print(json.dumps(row), file=out, flush=True)
            print(
                f"{time.perf_counter() - began:6.0f} s  {row['network']}, {row['method']} {row['lr']:g}, "
                f"{row['split']} {row['seed']}: {row.get('error', row['score'])}, {row.get('seconds')} s",
                file=sys.stderr,
                flush=True,
            )
    return None


if __name__ == "__main__":
    main()
