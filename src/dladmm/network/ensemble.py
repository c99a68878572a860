"""Copies of an MLP side by side as one chain, and the copies merged into one ordinary MLP.

All copies read the same inputs, so their first layers are one affine block; further layers are block-diagonal. The mean
of the copies' outputs is linear in them, so it is a last layer too: the merged network is an MLP of ``copies`` times
the width, with zeros between the copies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from dladmm.activations import Activation
from dladmm.blocks import Affine, Block, Elementwise, GroupedAffine, Params
from dladmm.network.chain import Chain

EDGE_SCALE = 0.3
"""First and last layers start at this share of the usual size: the first learns features instead of keeping random
ones, the last starts with nearly equal outputs. Layers between keep He's size, which a signal survives at any depth."""


def ensemble(widths: Sequence[int], copies: int, activation: Activation | str = "relu") -> Chain:
    """So many copies of ``mlp(widths, activation)`` as one chain; its output is (N, copies * widths[-1])."""
    blocks: list[Block] = []
    for l, (n_in, n_out) in enumerate(pairwise(widths)):
        own = Affine(n_in, copies * n_out) if l == 0 else GroupedAffine(copies, n_in, n_out)
        blocks += [own, Elementwise(activation)]
    return Chain(blocks[:-1])


def ensemble_parameters(
    chain: Chain,
    generator: torch.Generator,
    dtype: torch.dtype,
    device: torch.device,
    edge_scale: float = EDGE_SCALE,
) -> list[Params]:
    """Fresh parameters of all copies, each drawn by itself; ``edge_scale`` is that of first and last layers."""
    params = chain.initial_parameters(generator, 1.0, dtype=dtype, device=device)
    if len(params) > 1:
        params[0]["W"] *= edge_scale
    params[-1]["W"] *= edge_scale * math.sqrt(0.5)
    return params


def copy_of(params: Sequence[Params], copies: int, k: int) -> list[Params]:
    """The parameters of copy k alone, those of an ordinary MLP."""
    return [{name: p.chunk(copies)[k].clone() for name, p in block.items()} for block in params]


def merged(params: Sequence[Params], copies: int, sharpness: float = 1.0) -> list[Params]:
    """The parameters of the MLP of ``copies`` times the width whose output is ``sharpness`` times the copies' mean."""
    last = len(params) - 1
    found: list[Params] = []
    for l, block in enumerate(params):
        if not block:
            found.append({})
            continue
        W, b = block["W"], block["b"]
        if l == last:
            share = sharpness / copies
            by_copy = W.chunk(copies)
            W = sum_of(by_copy) if l == 0 else torch.cat(by_copy, dim=1)
            found.append({"W": W * share, "b": sum_of(b.chunk(copies)) * share})
        else:
            found.append({"W": W if l == 0 else block_diagonal(W.chunk(copies)), "b": b})
    return found


def block_diagonal(blocks: Sequence[Tensor]) -> Tensor:
    """The matrix with these along its diagonal and zeros elsewhere."""
    found: Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
    return found


def sum_of(parts: Sequence[Tensor]) -> Tensor:
    """The sum of tensors of one shape."""
    return torch.stack(list(parts)).sum(0)
