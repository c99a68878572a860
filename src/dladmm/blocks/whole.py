"""A whole network as one link: streaming mode finds the uses of its weights in the autograd graph by itself."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.random import fork_rng

from dladmm.base.errors import InputError
from dladmm.base.parts import Parts
from dladmm.blocks.base import Block, Support
from dladmm.compute.work import Work
from dladmm.solvers.subproblems import Anchor, Params, Step, Term


class Whole(Block):
    """``g(B, v) = module(v)`` of any network, trained as it is by :class:`dladmm.StreamingADMM`.

    B holds the trained parameters and the module's buffers of real numbers, such as running means. :meth:`forward` is
    the trained network, in evaluation mode; :meth:`train_forward` is what a step sees, in training mode.

    Parameters
    ----------
    module : nn.Module
        Maps v (N, ...) to outputs (N, n_out), (N, ..., n_out) or, with ``channels_first``, (N, n_out, ...).
    tokens : bool
        Whether v holds whole numbers.
    channels_first : bool
        Whether the outputs of a sample with positions are (n_out, ...), as those of convolutions are.
    inputs, outputs : Parts, optional
        How flat rows v are the arguments of the module, and its outputs flat rows.
    """

    length = 0.01
    """Of a step (docs/streaming.md)."""
    linear = True  # the chain has this one block: there is no link between blocks to be solved
    support = Support.COUNTS | Support.RANKS

    def __init__(
        self,
        module: nn.Module,
        *,
        tokens: bool = False,
        channels_first: bool = False,
        inputs: Parts | None = None,
        outputs: Parts | None = None,
    ) -> None:
        self.module, self.inputs, self.outputs = copy.deepcopy(module), inputs, outputs
        self.tokens, self.channels_first = tokens, channels_first
        self.trained = tuple(name for name, p in self.module.named_parameters() if p.requires_grad)
        self.carries = tuple(name for name, b in self.module.named_buffers() if b.is_floating_point())
        self.penalised = tuple(n for n in self.trained if self.module.get_parameter(n).ndim > 1)

    def __repr__(self) -> str:
        return f"Whole({type(self.module).__name__})"

    def initial_parameters(self, generator: torch.Generator | None, scale: float) -> Params:
        """The module's own values; with a generator, as the parts that can initialise themselves do."""
        module = copy.deepcopy(self.module).cpu()
        if generator is not None:
            with fork_rng(devices=[]):
                torch.manual_seed(int(torch.randint(2**31 - 1, (), generator=generator)))
                for part in module.modules():
                    reset = getattr(part, "reset_parameters", None) or getattr(
                        part, "_reset_parameters", None
                    )
                    if reset is not None:
                        reset()
        held = dict(module.named_parameters()) | dict(module.named_buffers())
        return {name: held[name].detach().double().clone() for name in (*self.trained, *self.carries)}

    @torch.no_grad()
    def load(self, params: Params) -> nn.Module:
        """The module itself with these values, where they live."""
        some = next(iter(params.values()))
        self.module.to(device=some.device, dtype=some.dtype)
        held = dict(self.module.named_parameters()) | dict(self.module.named_buffers())
        for name, value in params.items():
            held[name].copy_(value)
        return self.module

    def forward(self, params: Params, v: Tensor) -> Tensor:
        training = [part.training for part in self.module.modules()]
        self.module.eval()
        try:
            with torch.no_grad():
                some = next(iter(params.values()))
                self.module.to(device=some.device, dtype=some.dtype)
                args, kwargs = self.arguments(v)
                return self._of_rows(functional_call(self.module, dict(params), args, kwargs))
        finally:
            for part, was in zip(self.module.modules(), training, strict=True):
                part.training = was

    def train_forward(self, v: Tensor) -> Tensor:
        """The outputs of the module as it is, in training mode, for autograd to follow."""
        args, kwargs = self.arguments(v)
        return self._of_rows(self.module.train()(*args, **kwargs))

    def arguments(self, v: Tensor) -> tuple[tuple[Any, ...], dict[str, Tensor]]:
        """What the module is called with for the rows v."""
        if self.inputs is None:
            return (v.long() if self.tokens else v,), {}
        found = self.inputs.unpack(v)
        return ((), found) if isinstance(found, dict) else (found, {})

    def _of_rows(self, output: Any) -> Tensor:
        if self.outputs is not None:
            whole = output if isinstance(output, (tuple, Mapping)) else (output,)
            return self.outputs.pack(whole, "the outputs")
        if not isinstance(output, Tensor):
            raise InputError(
                f"{type(self.module).__name__} returns a {type(output).__name__}, and the loss takes one tensor: give "
                "a loss of your own, fn(outputs, targets), or train it in your own loop with dladmm.StreamingADMM."
            )
        if output.ndim == 1:
            return output[:, None]
        return output.movedim(1, -1) if self.channels_first and output.ndim > 2 else output

    def to_module(self, params: Params) -> nn.Module:
        some = next(iter(params.values()))
        module = copy.deepcopy(self.module).to(device=some.device, dtype=some.dtype).eval()
        held = dict(module.named_parameters()) | dict(module.named_buffers())
        with torch.no_grad():
            for name, value in params.items():
                held[name].copy_(value)
        return module

    def update_input(self, params: Params, v: Tensor, anchor: Anchor, term: Term, work: Work) -> list[Step]:
        raise InputError(f"{self!r} is trained in mode='streaming' alone: it is not a chain of blocks.")

    def input_gradient(self, params: Params, v: Tensor, term: Term, work: Work) -> Tensor:
        raise InputError(f"{self!r} is trained in mode='streaming' alone: it is not a chain of blocks.")


class WholeGraph(Whole):
    """``g(B, v) = module(v, edge_index[, edge_weight])`` of any network on graphs, for the edges of one graph.

    Parameters
    ----------
    module : nn.Module
        Maps features v (n_nodes, n_in) and edges to outputs (n_nodes, n_out).
    edges : tuple
        What the module is called with besides v: ``edge_index`` (2, E) and, where it takes them, weights (E,).
    """

    length = 0.1
    """A run on a graph has few steps, whose gradients are without the noise of small batches."""

    def __init__(self, module: nn.Module, edges: tuple[Any, ...]) -> None:
        super().__init__(module)
        self.edges = edges

    def on(self, *edges: Any) -> WholeGraph:
        """The same module, with the same parameters, on other edges."""
        other = copy.copy(self)
        other.edges = edges
        return other

    def arguments(self, v: Tensor) -> tuple[tuple[Any, ...], dict[str, Tensor]]:
        if any(isinstance(edge, Tensor) and edge.device != v.device for edge in self.edges):
            self.edges = tuple(edge.to(v.device) if hasattr(edge, "to") else edge for edge in self.edges)
        return (v, *self.edges), {}
