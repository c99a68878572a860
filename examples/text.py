"""
A text classifier with attention
================================

An embedding, a transformer layer with dropout and a linear layer learn the topic of short generated sentences, in
streaming mode. Adam trains the same network beside it, with the same number of passes over the data.
"""

import time

import numpy as np
import torch
from torch import nn

import dladmm

TOPICS, WORDS, NEUTRAL, LENGTH = 4, 15, 40, 12
PASSES, BATCH = 6, 64


def sentences(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sentences (n, LENGTH) of word numbers: three words of their topic, two of another one, the others neutral."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, TOPICS, n)
    other = (y + rng.integers(1, TOPICS, n)) % TOPICS
    words = rng.integers(TOPICS * WORDS, TOPICS * WORDS + NEUTRAL, (n, LENGTH))
    words[:, :3] = y[:, None] * WORDS + rng.integers(0, WORDS, (n, 3))
    words[:, 3:5] = other[:, None] * WORDS + rng.integers(0, WORDS, (n, 2))
    return torch.from_numpy(rng.permuted(words, axis=1)), torch.from_numpy(y)


class MeanOverWords(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(1)


def network(width: int = 16) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(TOPICS * WORDS + NEUTRAL, width),
        nn.TransformerEncoderLayer(width, nhead=2, dim_feedforward=32, dropout=0.1, batch_first=True),
        MeanOverWords(),
        nn.Linear(width, TOPICS),
    )


def accuracy(module: nn.Module, X: torch.Tensor, y: torch.Tensor) -> float:
    with torch.no_grad():
        return float((module.eval()(X).argmax(1) == y).float().mean())


def train_with_adam(module: nn.Module, X: torch.Tensor, y: torch.Tensor, passes: int, lr: float) -> nn.Module:
    adam = torch.optim.Adam(module.parameters(), lr)
    generator = torch.Generator().manual_seed(0)
    for _ in range(passes):
        for rows in torch.randperm(len(X), generator=generator).split(BATCH):
            adam.zero_grad()
            nn.functional.cross_entropy(module.train()(X[rows]), y[rows]).backward()
            adam.step()
    return module


X, y = sentences(1500, seed=1)
X_test, y_test = sentences(1000, seed=2)

began = time.perf_counter()
own = network()
dladmm.train(own, X, y, mode="streaming", max_iter=PASSES, batch_size=BATCH)
print(f"dlADMM: test accuracy {accuracy(own, X_test, y_test):.3f} in {time.perf_counter() - began:.1f} s")
for lr in (1e-3, 1e-2):
    began = time.perf_counter()
    module = train_with_adam(network(), X, y, PASSES, lr)
    print(
        f"Adam, lr {lr:g}: test accuracy {accuracy(module, X_test, y_test):.3f} in {time.perf_counter() - began:.1f} s"
    )
