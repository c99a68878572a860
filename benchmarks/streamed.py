"""The library's modes as ``dladmm.train`` runs them, pass by pass, for benchmarks that look inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from plain_torch import Images, Setting, network
from torch import Tensor

import dladmm
from dladmm.callbacks import Callback
from dladmm.compute.execution import product_precision
from dladmm.training.trainer import Trainer


class Begun(Exception):  # no error: it hands the trainer out
    """Raised where training would begin."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer


class _HandOut(Callback):
    def on_train_begin(self, trainer: Trainer) -> None:
        raise Begun(trainer)


def begun(model: Any, x: Tensor, y: Tensor, **options: Any) -> Trainer:
    """The trainer of ``dladmm.train(model, x, y, **options)`` before its first iteration."""
    try:
        dladmm.train(model, x, y, callbacks=[_HandOut()], **options)
    except Begun as found:
        return found.trainer
    raise RuntimeError("training ended before it began")


class Streamed:
    """Streaming mode with its defaults; its network at any time is the one it hands out."""

    def __init__(
        self, images: Images, kind: str, widths: list[int], setting: Setting, seed: int, **options: Any
    ) -> None:
        x, n_out = images.x, int(images.y.max()) + 1
        model: Any = dladmm.mlp([x.shape[1], *widths, n_out])
        if kind == "cnn":
            model = network(kind, x.shape[1], widths, n_out)
        self.trainer = begun(
            model, x, images.y, mode="streaming", max_iter=setting.passes, random_state=seed, device=x.device, **options
        )  # fmt: skip
        self.method: Any = self.trainer.method
        self.batches_per_pass = int(self.method.batches.batches_per_pass())
        scaling = self.trainer.scaling
        self.x_test = images.x_test if scaling is None else scaling.apply(images.x_test)

    def one_pass(self, tick: Callable[[], None]) -> None:
        def after_batch() -> bool:
            tick()
            return True

        self.method.after_batch = after_batch
        with product_precision(self.trainer.options.precision):
            self.method.iterate(self.trainer.state, lambda state, steps: None)

    @torch.no_grad()
    def outputs(self) -> Tensor:
        state = self.trainer.state
        self.method.hand_out(state)
        chain = self.trainer.engine.chain
        return torch.cat([chain.predict(state.params, part) for part in self.x_test.split(10_000)])


class Iterated:
    """Accelerated or convergent mode with its defaults (``quadratic`` by the paper's majorised steps), as above."""

    batches_per_pass = 1

    def __init__(self, images: Images, kind: str, widths: list[int], setting: Setting, seed: int) -> None:
        x, n_out = images.x, int(images.y.max()) + 1
        model: Any = dladmm.mlp([x.shape[1], *widths, n_out])
        if kind == "cnn":
            model = network(kind, x.shape[1], widths, n_out)
        options: dict[str, Any] = {"mode": setting.method}
        if setting.method == "quadratic":
            options = {"mode": "convergent", "w_solver": "quadratic", "a_solver": "quadratic"}
        self.trainer = begun(
            model, x, images.y, max_iter=setting.passes, random_state=seed, device=x.device, **options
        )
        scaling = self.trainer.scaling
        self.x_test = images.x_test if scaling is None else scaling.apply(images.x_test)

    def one_pass(self, tick: Callable[[], None]) -> None:
        self.trainer._iterate(self.trainer.history.n_iter + 1)
        tick()

    @torch.no_grad()
    def outputs(self) -> Tensor:
        chain, params = self.trainer.engine.chain, self.trainer.state.params
        return torch.cat([chain.predict(params, part) for part in self.x_test.split(10_000)])
