"""Networks that are no MLP, for experiments that name them: ``cnn``, ``elman``, ``gru``, ``sign``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dladmm.cli.run_data import TableData
from dladmm.network.chain import Chain, mlp
from dladmm.network.recurrent_module import Recurrent


def cnn(rows: TableData, trainer: str, hidden: Sequence[int], activation: str) -> nn.Sequential:
    """Two convolutions and a hidden linear layer, for digits (64 pixels) or MNIST (784)."""
    if rows.x_train.shape[1] == 64:
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10),
        )  # fmt: skip
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


class StraightThrough(nn.Module):
    """sign(z), whose gradient is taken to be that of hardtanh: how back-propagation trains signs."""

    def forward(self, z: Tensor) -> Tensor:
        soft = z.clamp(-1, 1)
        return soft + (torch.where(z >= 0, 1.0, -1.0) - soft).detach()


def elman(rows: TableData, trainer: str, hidden: Sequence[int], activation: str) -> nn.Sequential:
    """Reads an image row by row."""
    return _recurrent(nn.RNN, rows)


def gru(rows: TableData, trainer: str, hidden: Sequence[int], activation: str) -> nn.Sequential:
    """Reads an image row by row."""
    return _recurrent(nn.GRU, rows)


def _recurrent(kind: type[nn.RNN] | type[nn.GRU], rows: TableData) -> nn.Sequential:
    side = round(rows.x_train.shape[1] ** 0.5)
    layer = Recurrent(kind(side, 64, batch_first=True))
    return nn.Sequential(nn.Unflatten(1, (side, side)), layer, nn.Linear(64, 10))


def sign(rows: TableData, trainer: str, hidden: Sequence[int], activation: str) -> nn.Module | Chain:
    """One hidden layer of 400 signs; a gradient method gets the straight-through estimator."""
    pixels = rows.x_train.shape[1]
    if trainer == "accelerated":
        return mlp([pixels, 400, 10], "sign")
    return nn.Sequential(nn.Linear(pixels, 400), StraightThrough(), nn.Linear(400, 10))


NETWORKS = {"cnn": cnn, "elman": elman, "gru": gru, "sign": sign}
