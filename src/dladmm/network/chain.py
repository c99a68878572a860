"""A network as a chain of blocks, and the functions that build one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from dladmm.activations import Activation
from dladmm.base.errors import InputError, InputTypeError
from dladmm.base.spec import is_several
from dladmm.blocks import (
    Affine,
    BatchNorm,
    Block,
    Convolution,
    Elementwise,
    Embedding,
    Params,
    Whole,
)
from dladmm.blocks.base import Draw
from dladmm.network.from_layer import blocks_of
from dladmm.network.graph_module import GraphLayer, GraphNetwork


class Chain:
    """``V_0 = x``, ``V_l = g_l(B_l, V_{l-1})``: the network of Problem 1, whose last block is linear.

    Parameters
    ----------
    blocks : sequence of Block
        The blocks in the order of the forward pass. A chain holds no parameters; methods take them as ``params``, one
        dictionary of tensors per block.
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        if not blocks:
            raise InputError("a chain needs at least one block.")
        if not blocks[-1].linear:
            raise InputError(
                f"the last block must be linear, got {blocks[-1]!r}: the hard constraint is V_L = B_L V_{{L-1}}. "
                "End the network with a linear layer and leave the last activation to the loss."
            )
        self.blocks = tuple(blocks)

    def __len__(self) -> int:
        return len(self.blocks)

    def __iter__(self) -> Iterator[Block]:
        return iter(self.blocks)

    def __repr__(self) -> str:
        return f"Chain({' -> '.join(map(repr, self.blocks))})"

    @property
    def n_in(self) -> int | None:
        """Number of input features; None if the first block accepts any."""
        return self.blocks[0].n_in

    @property
    def has_jumps(self) -> bool:
        """Whether an activation has levels (sign, step, quantised)."""
        return any(block.n_levels > 0 for block in self.blocks)

    @property
    def has_images(self) -> bool:
        """Whether a block works on images: its cost grows with the number of positions."""
        return any(block.positions_share_weights for block in self.blocks)

    @property
    def continuous(self) -> bool:
        """Whether every block is continuous, as Assumption 1 needs."""
        return all(block.continuous for block in self.blocks)

    def initial_parameters(
        self, generator: torch.Generator | None, scale: float, *, dtype: torch.dtype, device: torch.device
    ) -> list[Params]:
        """New parameters for every block, all drawn from one generator so that layers are independent."""
        fresh = [block.initial_parameters(generator, scale) for block in self.blocks]
        for block, drawn in zip(self.blocks, fresh, strict=True):
            if block.constraint is not None:
                drawn |= {name: block.constraint.turned(drawn[name]) for name in block.penalised}
        return [
            {name: p.to(device=device, dtype=dtype) for name, p in block_params.items()}
            for block_params in fresh
        ]

    def forward(self, params: Sequence[Params], x: Tensor) -> list[Tensor]:
        """The outputs ``V_l``, ``l = 1..n``, of a forward pass over x (N, ...); each has N rows."""
        outputs: list[Tensor] = []
        for block, block_params in zip(self.blocks, params, strict=True):
            x = block.forward(block_params, x)
            outputs.append(x)
        return outputs

    def predict(self, params: Sequence[Params], x: Tensor) -> Tensor:
        """The network's output for x (N, ...), shape (N, ..., n_outputs); only one layer is kept in memory."""
        for block, block_params in zip(self.blocks, params, strict=True):
            x = block.evaluate(block_params, x)
        return x

    @property
    def draws(self) -> bool:
        """Whether a block is random in sweeps (dropout)."""
        return any(block.draws for block in self.blocks)

    @contextmanager
    def drawing(self, number: int, share: float = 1.0) -> Iterator[None]:
        """Inside, blocks that draw are those of sweep ``number``, with ``share`` of their probabilities."""
        random = [(l, block) for l, block in enumerate(self.blocks) if block.draws]
        for l, block in random:
            block.draw(Draw((number * 1_000_003 + l * 7919) % 2**62, share))
        try:
            yield
        finally:
            for _, block in random:
                block.draw(None)

    def module_inputs(self, x: Tensor) -> Tensor:
        """Inputs x (N, ...) of the chain as its torch module takes them."""
        return self.blocks[0].module_input(x)

    @torch.no_grad()
    def observe(
        self, params: Sequence[Params], rows: Callable[[], Tensor], outputs: Sequence[Tensor] | None = None
    ) -> list[Params]:
        """Update the statistics of blocks that have them (batch norm) by a forward pass over ``rows()``.

        ``outputs`` are those of that pass, where it was made. Returns the parameters as the trained network has them.
        """
        if any(block.has_statistics for block in self.blocks):
            x = rows()
            for l, (block, block_params) in enumerate(zip(self.blocks, params, strict=True)):
                block.observe(block_params, x)
                x = block.forward(block_params, x) if outputs is None else outputs[l]
        return [block.shown(p) for block, p in zip(self.blocks, params, strict=True)]

    @property
    def follows_forward(self) -> bool:
        """Whether some rows of V_l are set by the forward pass instead of being variables, outside the theory."""
        return any(block.follows_forward for block in self.blocks)

    def to_module(self, params: Sequence[Params]) -> nn.Module:
        """The network as an ``nn.Sequential``, or for graphs as a module with ``forward(x, edge_index)``.

        A module that is trained as it is stays of its class.
        """
        if isinstance(self.blocks[0], Whole):
            return self.blocks[0].to_module(params[0])
        made = [block.to_module(p) for block, p in zip(self.blocks, params, strict=True)]
        layers = [layer for module in made for layer in layers_of(module)]
        is_graph = any(isinstance(layer, GraphLayer) for layer in layers)
        network = GraphNetwork(layers) if is_graph else nn.Sequential(*layers)
        finite = any(block.weight_set is not None for block in self.blocks)
        if finite and isinstance(network, nn.Sequential):
            from dladmm.network.finite import with_levels  # which needs this module

            network = with_levels(network, self.blocks)
        some = next((p for block_params in params for p in block_params.values()), None)
        return network if some is None else network.to(some)  # layers with buffers only do not know the type


def layers_of(module: nn.Module) -> list[nn.Module]:
    """The layers of a network in order, with nested ``nn.Sequential`` flattened; other modules are one layer."""
    if type(module) is nn.TransformerEncoder:
        return [*module.layers, *([] if module.norm is None else [module.norm])]
    if not isinstance(module, nn.Sequential):
        return [module]
    return [layer for child in module for layer in layers_of(child)]


RECURRENT_LINK_FACTOR = 10.0
"""Weight of a link of a recurrent network relative to a link of an MLP: that of the last link."""


def link_factors(chain: Chain, outputs: Sequence[Tensor]) -> tuple[float, ...]:
    """The weight of every link in accelerated mode, relative to a link of an MLP (docs/network_notes.md).

    The links of an image (N, channels, height, width) are weighted by one over the number of positions: the next block
    combines all positions, and with full weight the change passed to a single position would be too small.
    """
    if any(block.own_variables for block in chain):
        return (RECURRENT_LINK_FACTOR,) * len(outputs)
    return tuple(1.0 / math.prod(v.shape[2:]) for v in outputs)


TWO_LEVEL_SETTINGS: dict[str, Any] = {"damping": 30.0, "dropout": 0.5, "init_scale": 0.04}
MANY_LEVEL_SETTINGS: dict[str, Any] = {"scale_inputs": False, "init_scale": 1.0}
"""Accelerated mode's defaults for steps with two levels (sign, step) and with more (docs/network_notes.md)."""


def own_settings(chain: Chain) -> dict[str, Any]:
    """The defaults of accelerated mode that change with the chain; explicit options override them."""
    # Few weights see every pixel, so holes in it are not averaged out: a CNN fits worse and generalises no better
    images = {"dropout": 0.0} if _begins_with(chain, Convolution) else {}
    tokens = {"dropout": 0.0} if takes_tokens(chain) else {}  # a dropped token would be another token
    steps = {"sweep": "backward"} if any(block.updated_once for block in chain) else {}
    return images | jump_settings(chain) | tokens | steps


def takes_tokens(chain: Chain) -> bool:
    """Whether the inputs are whole numbers, rows of an embedding's table."""
    return _begins_with(chain, Embedding)


def _begins_with(chain: Chain, kind: type[Block]) -> bool:
    first = chain.blocks[0]
    return any(isinstance(block, kind) for block in (first, getattr(first, "block", None)))


def jump_settings(chain: Chain) -> dict[str, Any]:
    """The defaults of accelerated mode that change for a chain with step functions; explicit options override them.

    Networks of signs overfit sooner than others, and sign(z) does not depend on the scale of z, so the initial scale
    matters for the last layer only. With more than two levels the scale of z does matter: z must reach the levels, so
    inputs are not scaled and weights have He's initial size.
    """
    levels = [block.n_levels for block in chain]
    if any(n > 2 for n in levels):
        return MANY_LEVEL_SETTINGS
    return TWO_LEVEL_SETTINGS if any(levels) else {}


def mlp(widths: Sequence[int], activation: str | Activation = "relu", *, normalised: bool = False) -> Chain:
    """The chain of the paper's MLP (Problem 3): ``Affine, f, Affine, f, ..., Affine``.

    Parameters
    ----------
    widths : sequence of int
        Number of input features, widths of the hidden layers, number of outputs.
    activation : str or Activation, default "relu"
    normalised : bool, default False
        Normalise what the activations get by the statistics of the batch (``nn.BatchNorm1d``), which networks of signs
        learn better with.

    Returns
    -------
    Chain

    >>> mlp([64, 100, 100, 10])
    Chain(Affine(64, 100) -> Elementwise(relu) -> Affine(100, 100) -> Elementwise(relu) -> Affine(100, 10))
    """
    blocks: list[Block] = []
    for n_in, n_out in pairs_of_widths(widths):
        norm = [BatchNorm(nn.BatchNorm1d(n_out))] if normalised else []
        blocks += [Affine(n_in, n_out), *norm, Elementwise(activation)]
    return Chain(blocks[: -1 - bool(normalised)])


def pairs_of_widths(widths: Sequence[int]) -> list[tuple[int, int]]:
    """Input and output width of every layer, checked."""
    if not is_several(widths):
        raise InputTypeError(f"widths must be a list of whole numbers, got {widths!r}.")
    sizes = list(widths)
    if len(sizes) < 2:
        raise InputError(f"widths must name at least the input and the output width, got {sizes}.")
    for width in sizes:
        if isinstance(width, bool) or not isinstance(width, Integral) or int(width) < 1:
            raise InputError(f"widths must be whole numbers >= 1, got {sizes!r}.")
    return list(pairwise(map(int, sizes)))


def from_module(module: nn.Module, *, sequences: bool = False, sample: Tensor | None = None) -> Chain:
    """The chain of a torch module: blocks with closed-form updates where they exist, else ``Generic`` blocks.

    Parameters
    ----------
    module : nn.Module
        An ``nn.Sequential`` that ends in ``nn.Linear``, nested or not. Another module is traced by torch.fx and split
        wherever a single tensor is passed on (docs/network_notes.md).
    sequences : bool, default False
        Whether inputs have shape (N, time, features), so that ``nn.Linear`` acts at every time step.
    sample : Tensor of shape (N, ...), optional
        A few inputs, whose way through the layers says at which of them ``nn.Linear`` acts at every position.

    Returns
    -------
    Chain

    >>> from_module(nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)))
    Chain(Convolution(1, 8, 3x3) -> Elementwise(relu) -> Composed(Flatten(start_dim=1, end_dim=-1), Affine(288, 10)))
    """
    if not isinstance(module, nn.Module) or isinstance(module, (nn.ModuleList, nn.ModuleDict, GraphNetwork)):
        raise InputTypeError(
            "the model must be an nn.Sequential whose last layer is nn.Linear, or a module whose forward pass is such "
            f"a chain, got {f'the class {module.__name__}' if isinstance(module, type) else type(module).__name__}."
        )
    from dladmm.network.tracing import chain_layers  # torch.fx, which chains made otherwise do not need

    return Chain(blocks_of(chain_layers(module), sequences, sample))
