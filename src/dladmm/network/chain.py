"""A network as a chain of blocks, and the builders that make one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from dladmm.activations import Activation
from dladmm.activations.jumps import JumpFunction
from dladmm.base.errors import InputError, InputTypeError
from dladmm.blocks import Affine, Block, Elementwise, GraphConv, Params
from dladmm.compute.sparse import SparseMatrix
from dladmm.network.from_layer import blocks_of
from dladmm.network.graph_module import GraphLayer, GraphNetwork
from dladmm.network.tracing import chain_layers, layers_of


class Chain:
    """``V_0 = x``, ``V_l = g_l(B_l, V_{l-1})``: the network of Problem 1, whose last block is linear."""

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
        """Number of input features, where the first block says it."""
        return self.blocks[0].n_in

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
        """Fresh parameters of every block, drawn from one generator: no two layers share random numbers."""
        fresh = [block.initial_parameters(generator, scale) for block in self.blocks]
        return [
            {name: p.to(device=device, dtype=dtype) for name, p in block_params.items()}
            for block_params in fresh
        ]

    def forward(self, params: Sequence[Params], x: Tensor) -> list[Tensor]:
        """Every ``V_l`` of the network itself, ``l = 1..n``."""
        outputs: list[Tensor] = []
        for block, block_params in zip(self.blocks, params, strict=True):
            x = block.forward(block_params, x)
            outputs.append(x)
        return outputs

    def predict(self, params: Sequence[Params], x: Tensor) -> Tensor:
        """The network's output, keeping one layer in memory at a time."""
        for block, block_params in zip(self.blocks, params, strict=True):
            x = block.evaluate(block_params, x)
        return x

    @torch.no_grad()
    def observe(self, params: Sequence[Params], x: Tensor) -> None:
        """Let every block that needs them take its statistics from the network's own pass over the training data."""
        if any(block.has_statistics for block in self.blocks):
            for block, block_params in zip(self.blocks, params, strict=True):
                block.observe(block_params, x)
                x = block.forward(block_params, x)

    @property
    def follows_forward(self) -> bool:
        """Whether some rows of V_l are no variables but follow the forward pass: the theory does not cover that."""
        return any(block.follows_forward for block in self.blocks)

    def to_module(self, params: Sequence[Params]) -> nn.Module:
        """The trained network as an ordinary ``nn.Sequential``, or for graphs one with ``forward(x, edge_index)``."""
        made = [block.to_module(p) for block, p in zip(self.blocks, params, strict=True)]
        layers = [layer for module in made for layer in layers_of(module)]
        return (
            GraphNetwork(layers) if any(isinstance(m, GraphLayer) for m in layers) else nn.Sequential(*layers)
        )


RECURRENT_LINKS = 10.0
"""What a link of a recurrent network weighs beside that of others: as much as the last one."""


def link_factors(chain: Chain, outputs: Sequence[Tensor]) -> tuple[float, ...]:
    """What every link weighs in accelerated mode beside a link of an MLP (docs/any_network.md).

    The block after an image (channels, height, width) sees all its positions together, so a link counts by the mean
    over them; otherwise what is handed down to one position would be too little to move it.
    """
    if any(block.own_variables for block in chain):
        return (RECURRENT_LINKS,) * len(outputs)
    return tuple(1.0 / math.prod(v.shape[2:]) for v in outputs)


JUMPS: dict[str, Any] = {"damping": 30.0, "dropout": 0.5, "init_scale": 0.04}
STAIRS: dict[str, Any] = {"scale_inputs": False, "init_scale": 1.0}
"""Accelerated mode where activations jump once, and where they have levels at given places (docs/any_network.md)."""


def jump_settings(chain: Chain) -> dict[str, Any]:
    """What accelerated mode takes for such a chain in the place of its usual settings, where none are given.

    Signs fit noise sooner than other networks. They have no unit of length, so the initial scale is that of the last
    layer alone. Levels do have one: z must reach them, so there inputs stay as they are and weights have He's size.
    """
    jumps = [
        b.activation for b in chain if isinstance(b, Elementwise) and isinstance(b.activation, JumpFunction)
    ]
    if any(len(jump.pieces()) > 2 for jump in jumps):
        return STAIRS
    return JUMPS if jumps else {}


def mlp(widths: Sequence[int], activation: str | Activation = "relu") -> Chain:
    """The chain of the paper's MLP (Problem 3): ``Affine, f, Affine, f, ..., Affine`` with these widths.

    >>> mlp([64, 100, 100, 10])
    Chain(Affine(64, 100) -> Elementwise(relu) -> Affine(100, 100) -> Elementwise(relu) -> Affine(100, 10))
    """
    blocks: list[Block] = []
    for n_in, n_out in _pairs(widths):
        blocks += [Affine(n_in, n_out), Elementwise(activation)]
    return Chain(blocks[:-1])


def gcn(
    widths: Sequence[int],
    adjacency: SparseMatrix,
    activation: str | dict[str, Any] | Activation = "relu",
    *,
    rows: Tensor | None = None,
    propagated: bool = False,
) -> Chain:
    """The chain of the paper's GCN (Problem 5): ``Z_l = f(A~ Z_{l-1} W_l)`` with these widths, the last one linear.

    It is bound to one graph. ``propagated`` says that the input will be ``A~ X`` instead of X; ``rows`` leaves only
    those rows of Z_l as variables (see :class:`~dladmm.blocks.GraphConv`).
    """
    pairs = _pairs(widths)
    last = len(pairs) - 1
    return Chain(
        [
            GraphConv(
                n_in,
                n_out,
                "identity" if l == last else activation,
                None if propagated and l == 0 else adjacency,
                rows,
            )
            for l, (n_in, n_out) in enumerate(pairs)
        ]
    )


def _pairs(widths: Sequence[int]) -> list[tuple[int, int]]:
    """Input and output width of every layer."""
    if not isinstance(widths, Iterable):
        raise InputTypeError(f"widths must be a list of whole numbers, got {widths!r}.")
    sizes = list(widths)
    if len(sizes) < 2:
        raise InputError(f"widths must name at least the input and the output width, got {sizes}.")
    for width in sizes:
        if isinstance(width, bool) or not isinstance(width, Integral) or int(width) < 1:
            raise InputError(f"widths must be whole numbers >= 1, got {sizes!r}.")
    return list(pairwise(map(int, sizes)))


def from_module(module: nn.Module, *, sequences: bool = False) -> Chain:
    """The chain of an ``nn.Sequential``, nested ones taken apart: closed forms where there are, else Generic.

    A module of another class is followed by torch.fx and cut where one value alone goes on (docs/any_network.md).
    ``sequences`` says that a sample is (time, features): then ``nn.Linear`` acts at every time step.

    >>> from_module(nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)))
    Chain(Convolution(1, 8, 3x3) -> Elementwise(relu) -> Composed(Flatten(start_dim=1, end_dim=-1), Affine(288, 10)))
    """
    if not isinstance(module, nn.Module) or isinstance(module, (nn.ModuleList, nn.ModuleDict, GraphNetwork)):
        raise InputTypeError(
            "module must be an nn.Sequential whose last layer is nn.Linear, or a module whose forward pass is such a "
            f"chain, got {type(module).__name__}."
        )
    return Chain(blocks_of(chain_layers(module), sequences))
