"""Mini-batch Adam and Muon as people write them, with torch and numpy alone; and the clock all learners are timed by.

Nothing here imports dladmm: what a fresh process of Adam costs must not hold what the library costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

LOOKS = 20
"""Looks at the test accuracy in one pass."""


class Images(NamedTuple):
    """Training and test rows on the device."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor

    def holding_out(self, n: int) -> Images:
        """The same measured on its last ``n`` training rows, to choose settings by."""
        return Images(self.x[:-n], self.y[:-n], self.x[-n:], self.y[-n:])


def read_images(path: str | Path, device: str, rows: int | None = None) -> Images:
    """X, y, Xt, yt of an npz file; bytes become shares of 255."""
    with np.load(path) as file:
        x, y, x_test, y_test = (file[name] for name in ("X", "y", "Xt", "yt"))

    def pixels(part: np.ndarray[Any, Any]) -> Tensor:
        flat = torch.from_numpy(part.reshape(len(part), -1)).to(device)
        return flat.float() / 255 if flat.dtype == torch.uint8 else flat.float()

    def labels(part: np.ndarray[Any, Any]) -> Tensor:
        return torch.from_numpy(part.astype(np.int64)).to(device)

    return Images(pixels(x[:rows]), labels(y[:rows]), pixels(x_test), labels(y_test))


def network(kind: str, n_in: int, widths: list[int], n_out: int) -> nn.Sequential:
    """``mlp``: linear layers and ReLU; ``cnn``: two convolutions, images of 28 x 28."""
    if kind == "cnn":
        return nn.Sequential(
            nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, n_out),
        )  # fmt: skip
    sizes = [n_in, *widths]
    layers: list[nn.Module] = []
    for wide, next_wide in pairwise(sizes):
        layers += [nn.Linear(wide, next_wide), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], n_out))


WHOLE_DATA = ("accelerated", "convergent", "quadratic")
"""Modes of the library that see all rows in every iteration, which is then a pass."""


class Setting(NamedTuple):
    """A learner: ``adam`` and ``muon`` with batch size and rate, or by its name alone; ``passes`` are planned."""

    method: str
    passes: int
    batch: int | None = None
    lr: float | None = None

    @property
    def name(self) -> str:
        if self.lr is None:
            return f"{self.method}, {self.passes} {'iterations' if self.method in WHOLE_DATA else 'passes'}"
        return f"{self.method} {self.batch} {self.lr:g}, {self.passes} passes"


class Learner(Protocol):
    """What is timed: passes over the data, of so many batches each, and outputs for test rows."""

    batches_per_pass: int

    def one_pass(self, tick: Callable[[], None]) -> None:
        """One pass; ``tick`` is called after every batch."""

    def outputs(self) -> Tensor:
        """The network's outputs for the test rows."""


class PlainTorch:
    """Adam or Muon, fused on a GPU, the rate falling linearly to zero over the planned passes."""

    def __init__(self, images: Images, kind: str, widths: list[int], setting: Setting, seed: int) -> None:
        self.images, self.setting = images, setting
        torch.manual_seed(seed)
        x = images.x
        self.module = network(kind, x.shape[1], widths, int(images.y.max()) + 1).to(x.device)
        self.optimizers = optimizers(self.module, setting)
        self.generator = torch.Generator(device=x.device).manual_seed(seed)
        assert setting.batch is not None
        self.batch = min(setting.batch, len(x))
        self.batches_per_pass = len(x) // self.batch
        self.steps = 0

    def one_pass(self, tick: Callable[[], None]) -> None:
        x, y, _, _ = self.images
        order = torch.randperm(len(x), generator=self.generator, device=x.device)
        for rows in order[: self.batches_per_pass * self.batch].split(self.batch):
            self.step(x[rows], y[rows])
            tick()

    def step(self, x: Tensor, y: Tensor) -> None:
        left = 1 - self.steps / (self.setting.passes * self.batches_per_pass)
        self.steps += 1
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.setting.lr * max(0.0, left)
            optimizer.zero_grad()
        nn.functional.cross_entropy(self.module(x), y).backward()
        for optimizer in self.optimizers:
            optimizer.step()

    def outputs(self) -> Tensor:
        return torch.cat([self.module(part) for part in self.images.x_test.split(10_000)])


def optimizers(module: nn.Module, setting: Setting) -> list[torch.optim.Optimizer]:
    """Adam for all; or Muon for all matrices but the head's and AdamW for the rest."""
    params = list(module.parameters())
    fused = True if params[0].is_cuda else None
    if setting.method == "adam":
        return [torch.optim.Adam(params, lr=setting.lr, fused=fused)]
    matrices = [p for p in params if p.ndim == 2][:-1]
    others = [p for p in params if not any(p is matrix for matrix in matrices)]
    lr = setting.lr or 0.0
    return [
        torch.optim.Muon(matrices, lr=lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=lr, weight_decay=0.0, fused=fused),
    ]


# The clock ---------------------------------------------------------------------------------------------------------


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Timed:
    """A learner with its clock, which stands still while the test accuracy is looked at.

    ``check`` is called after every look; it may raise to end the run. ``clock`` is the wall's unless another is given.
    """

    def __init__(
        self,
        learner: Learner,
        images: Images,
        looks: int = LOOKS,
        check: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.learner, self.images, self._check, self._ticking = learner, images, check, clock
        self.seconds: list[float] = []
        self.accuracy: list[float] = []
        self.passes = 0
        self.looking = 0.0
        """Seconds that all looks together took."""
        self._clock = 0.0
        self._every = max(1, learner.batches_per_pass // looks)
        self._since = 0

    def one_pass(self) -> None:
        self._since = 0
        self._began = self._now()
        self.learner.one_pass(self._tick)
        self.passes += 1
        self._look()

    def _now(self) -> float:
        synchronise(self.images.x.device)
        return self._ticking()

    def _tick(self) -> None:
        self._since += 1
        if self._since % self._every == 0 and self._since < self.learner.batches_per_pass:
            self._look()

    def _look(self) -> None:
        stopped = self._now()
        self._clock += stopped - self._began
        with torch.no_grad():
            hits = self.learner.outputs().argmax(1) == self.images.y_test
        self.seconds.append(self._clock)
        self.accuracy.append(float(hits.double().mean()))
        self._began = self._now()
        self.looking += self._began - stopped
        self._check()

    def reached(self, level: float) -> float | None:
        """Seconds of the first look that was not below this level."""
        pairs = zip(self.seconds, self.accuracy, strict=True)
        return next((seconds for seconds, accuracy in pairs if accuracy >= level), None)
