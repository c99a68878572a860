"""One step of streaming mode on a module that is trained as it is: the optimizer around the loss of a batch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dladmm.blocks import Params, Whole
from dladmm.compute.communicator import ALONE, Communicator, Shards
from dladmm.engine.batches import Batch, GraphBatch, default_smoothing
from dladmm.engine.running import Run, Shares, called
from dladmm.engine.streaming_options import StreamingOptions
from dladmm.engine.sweep import Engine
from dladmm.streaming.optimizer import StreamingADMM, is_observed

logger = logging.getLogger(__name__)


class OnRanks(StreamingADMM):
    """The optimizer, whose moments are averaged over the ranks of a communicator."""

    comm: Communicator = ALONE

    def _averaged(self) -> dict[tuple[Tensor, int], Tensor]:
        own = {part: total / number for part, (number, total) in self._sums.items()}
        self._sums = {}
        if self.comm.alone or not own:
            return own
        totals = self.comm.total(*own.values())
        return {part: total / self.comm.size for part, total in zip(own, totals, strict=True)}


class ModuleSweep:
    """The module of a streaming run, its optimizer, and the average of its iterates."""

    def __init__(
        self, engine: Engine, params: list[Params], options: StreamingOptions, n_samples: float | None
    ) -> None:
        self.engine, self.options, self.n_samples = engine, options, n_samples
        own = options.smoothing
        self.smoothing = default_smoothing(n_samples) if own is None else own
        (block,) = engine.chain.blocks
        assert isinstance(block, Whole)
        self.block = block
        module = block.load(params[0])
        held = dict(module.named_parameters()) | dict(module.named_buffers())
        self._leaves = {name: held[name] for name in block.trained}
        self.params = [{name: held[name].detach() for name in params[0]}]
        self.average = [{name: p.clone() for name, p in self.params[0].items()}]
        self.shares = Shares(next(iter(params[0].values())))
        self.shards: Shards | None = None
        self.total_steps: int | None = None
        """Of the run, where it is known."""
        self.optimizer = OnRanks(module, lr=block.length)
        self.optimizer.comm = engine.comm
        self.steps = 0
        self._has_kinks = engine.penalty.quadratic is None
        self._recorded: tuple[Any, Batch, torch.cuda.CUDAGraph] | None = None
        self._unrecordable = False

    def prepare(self, batch: Batch) -> None:
        """Nothing is made before the first step."""

    def sweep(
        self,
        batch: Callable[[], Batch],
        *,
        heavy: bool,
        renewed: bool = False,
        first: bool = False,
        run: Run = called,
    ) -> None:
        """One step on a batch; the average counts the iterate of a ``heavy`` one."""
        rows = batch()
        self.optimizer.param_groups[0]["total_steps"] = self.total_steps
        self.steps += 1
        if self._recordable(rows) and not is_observed(self.steps):
            self._replay(rows)
        else:
            self._step(rows)
        if heavy:
            self.agree()
            for name, p in self.params[0].items():
                self.average[0][name].lerp_(p, self.shares.average)

    def _step(self, rows: Batch) -> None:
        engine = self.engine
        risk = replace(engine.risk, target=self._smoothed(rows.target), weight=rows.weight)
        shards = Shards.of(engine.comm, len(rows.x), rows.counts)
        samples = shards.samples if shards is not None else self._samples(rows)
        self.optimizer.zero_grad()
        with torch.enable_grad():
            outputs = self._block_of(rows).train_forward(rows.x)
        gradient = risk.gradient(outputs.detach()) / samples
        if rows.counts is not None:
            gradient = gradient * rows.counts.view(-1, *[1] * (gradient.ndim - 1))
        torch.autograd.backward(outputs, gradient)
        self._total()
        self._decay()
        kinks = self._has_kinks
        before = {name: self.params[0][name].clone() for name in self.block.penalised if kinks}
        self.optimizer.step()
        self._prox(before)

    def agree(self) -> None:
        """Average the module's buffers, such as the statistics of a normalisation, over ranks."""
        own = [self.params[0][name] for name in self.block.carries]
        if own and not self.engine.comm.alone:
            for buffer, total in zip(own, self.engine.comm.total(*own), strict=True):
                buffer.copy_(total / self.engine.comm.size)

    # Recorded launches -----------------------------------------------------------------------------------------

    def _recordable(self, rows: Batch) -> bool:
        """Whether nothing in a step asks the device for a number."""
        plain = rows.weight is None and rows.counts is None and self.engine.comm.alone
        plain = plain and not isinstance(rows, GraphBatch) and rows.x.layout == torch.strided
        return rows.x.is_cuda and plain and not self._has_kinks and not self._unrecordable

    def _replay(self, rows: Batch) -> None:
        """A step as recorded launches, which are recorded for every new shape and plan."""
        key = rows.x.shape, rows.target.shape, self.total_steps
        if self._recorded is None or self._recorded[0] != key:
            held = Batch(rows.x.clone(), rows.target.clone())
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph):
                    self._step(held)
            except RuntimeError as error:
                self._unrecordable = True
                logger.warning(
                    "the launches of a step cannot be recorded (%s); they are made one by one", error
                )
                self._step(rows)
                return
            self._recorded = key, held, graph
        _, held, graph = self._recorded
        held.x.copy_(rows.x)
        held.target.copy_(rows.target)
        graph.replay()

    def _block_of(self, rows: Batch) -> Whole:
        """The module, on the edges of the batch where it is a part of a graph."""
        block = rows.chain.blocks[0] if isinstance(rows, GraphBatch) else self.block
        assert isinstance(block, Whole)
        return block

    def _samples(self, rows: Batch) -> float:
        return len(rows.x) if rows.counts is None else float(rows.counts.double().sum())

    def _smoothed(self, target: Tensor) -> Tensor:
        share = self.smoothing
        if share == 0.0 or not self.engine.risk.loss.takes_soft_labels:
            return target
        return (target * (1 - share)).add_(share / target.shape[1])

    def _total(self) -> None:
        """Sum the gradients over ranks."""
        if self.engine.comm.alone:
            return
        own = [p for p in self.optimizer.param_groups[0]["params"] if p.grad is not None]
        for p, total in zip(own, self.engine.comm.total(*(p.grad for p in own)), strict=True):
            p.grad.copy_(total)

    def _decay(self) -> None:
        """Add the gradient of a quadratic penalty."""
        strength = float(self.engine.penalty.quadratic or 0.0) / (self.n_samples or 1)
        if strength:
            for name in self.block.penalised:
                p = self._leaves[name]
                if p.grad is not None:
                    p.grad.add_(p.detach(), alpha=strength)

    @torch.no_grad()
    def _prox(self, before: Params) -> None:
        """Penalties with kinks, by their prox; a step is as long as the weight moved for its gradient."""
        penalty = self.engine.penalty.times(1 / (self.n_samples or 1))
        for name, old in before.items():
            p, slope = self.params[0][name], self._leaves[name].grad
            if slope is not None:
                length = (p - old).norm() / slope.norm().clamp_min(torch.finfo(p.dtype).tiny)
                p.copy_(penalty.prox(p, length))

    def tensors(self) -> dict[str, Tensor]:
        """Everything a resumed run needs, by name, beside :meth:`numbers`."""
        found = {f"params.{name}": p for name, p in self.params[0].items()}
        found |= {f"average.{name}": p for name, p in self.average[0].items()}
        for i, state in self.optimizer.state_dict()["state"].items():
            found |= {f"optimizer.{i}.{k}": t for k, t in state.items() if isinstance(t, Tensor)}
        return found

    def numbers(self) -> dict[str, Any]:
        """What JSON can hold of the optimizer."""
        saved = self.optimizer.state_dict()
        saved["param_groups"][0]["steps"] = self.steps
        states = {
            str(i): {k: v for k, v in state.items() if not isinstance(v, Tensor)}
            for i, state in saved["state"].items()
        }
        return {"state": states, "param_groups": saved["param_groups"]}

    def resume(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Put both back."""
        states: dict[int, dict[str, Any]] = {int(i): dict(state) for i, state in numbers["state"].items()}
        for name, tensor in tensors.items():
            kind, _, rest = name.partition(".")
            if kind == "optimizer":
                i, _, key = rest.partition(".")
                states.setdefault(int(i), {})[key] = tensor
            else:
                getattr(self, kind)[0][rest].copy_(tensor)
        self.steps = int(numbers["param_groups"][0]["steps"])
        self.optimizer.load_state_dict({"state": states, "param_groups": numbers["param_groups"]})
