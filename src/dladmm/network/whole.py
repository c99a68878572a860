"""The network of a streaming run: a chain where the measured rule of chains applies, else the module as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dladmm.base.errors import InputError
from dladmm.base.parts import Parts
from dladmm.blocks import (
    Affine,
    BatchNorm,
    Block,
    Composed,
    Convolution,
    Dropout,
    Elementwise,
    Embedding,
    Frozen,
    LinearMap,
    MaxPool,
    Positionwise,
    RecurrentStates,
    Whole,
)
from dladmm.blocks.generic import dropout_rates
from dladmm.blocks.recurrent_parts import StateSelection
from dladmm.network.chain import Chain, from_module
from dladmm.network.given_module import evaluating, refuse_unseen_parts
from dladmm.network.graph_module import GraphNetwork

OF_CHAINS = (
    Affine, BatchNorm, Composed, Convolution, Dropout, Elementwise, Embedding, Frozen, LinearMap, MaxPool, Positionwise,
    RecurrentStates, StateSelection,
)  # fmt: skip
"""Blocks of chains whose curvature the loss's quadratic model sees whole (docs/streaming_notes.md)."""


def streamed_network(
    module: nn.Module,
    sample: Tensor | None = None,
    *,
    positions: Sequence[int] = (),
    tokens: bool = False,
    sequences: bool = False,
    inputs: Parts | None = None,
    own_loss: bool = False,
) -> Chain:
    """The chain that streaming mode trains in the place of a module.

    ``sample`` are a few inputs, ``positions`` the shape of a sample's targets where it has several, ``tokens`` whether
    inputs are whole numbers. ``inputs`` says how flat rows are the arguments of the module, ``own_loss`` that the loss
    takes its outputs as they are.
    """
    if isinstance(module, nn.Module) and not isinstance(module, (nn.ModuleList, nn.ModuleDict, GraphNetwork)):
        found = None if inputs is not None or own_loss else _chain(module, sample, sequences)
        if found is None and sample is not None:
            return Chain([_whole(module, sample, tuple(positions), tokens, inputs, own_loss)])
        if found is not None:
            return found
    return from_module(module, sequences=sequences, sample=sample)


def inner_module(model: Any) -> Any:
    """The network inside a compiled or data-parallel module, whose parameters it has; anything else as it is."""
    while isinstance(model, nn.Module):
        parallel = isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel))
        inner = model.module if parallel else getattr(model, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            break
        model = inner
    return model


def is_whole(chain: Chain) -> bool:
    """Whether the chain is one module that is trained as it is."""
    return isinstance(chain.blocks[0], Whole)


def _chain(module: nn.Module, sample: Tensor | None, sequences: bool) -> Chain | None:
    try:
        refuse_unseen_parts(module)
        found = from_module(module, sequences=sequences, sample=sample)
    except InputError:
        return None
    return found if all(_plain(block) for block in found) else None


def _plain(block: Block) -> bool:
    inner = getattr(block, "block", block)
    return isinstance(block, OF_CHAINS) and isinstance(inner, OF_CHAINS)


@torch.no_grad()
def _whole(
    module: nn.Module,
    sample: Tensor,
    positions: tuple[int, ...],
    tokens: bool,
    inputs: Parts | None,
    own_loss: bool,
) -> Whole:
    """The module as one block, tried on the sample: what it takes, and where the outputs of a sample stand."""
    for layer, _, rate in dropout_rates(module):
        if rate >= 1:
            raise InputError(f"{layer!r} drops everything; p must be below 1.")
    some = next(module.parameters(), None)
    v = sample if some is None else sample.to(some.device, some.dtype)
    errors: list[str] = []
    for as_tokens in (True, False) if tokens else (False,):
        block = Whole(module, tokens=as_tokens, inputs=inputs)
        try:
            with evaluating(block.module):
                args, kwargs = block.arguments(v)
                output = block.module(*args, **kwargs)
        except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError) as error:
            errors.append(str(error))
            continue
        _refuse_rows_that_attend(block, v, output)
        if own_loss:
            block.outputs = Parts.of(output if isinstance(output, (tuple, Mapping)) else (output,))
        elif isinstance(output, Tensor) and output.ndim > 2 and positions:
            first, last = tuple(output.shape[2:]) == positions, tuple(output.shape[1:-1]) == positions
            block.channels_first = first and not last
        block.of_inputs = block.of_outputs = None
        if not (as_tokens or inputs is not None or own_loss):
            _find_ends(block, sample.double())
        return block
    raise InputError(
        f"X does not go through {type(module).__name__}: samples of shape {tuple(sample.shape[1:])} raised: {errors[0]}"
    )


def _refuse_rows_that_attend(block: Whole, v: Tensor, output: Any) -> None:
    """Raise where attention whose first axis is time is given samples there."""
    attending = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
    layers = [part for part in block.module.modules() if isinstance(part, attending)]
    first = [part for part in layers if not getattr(part, "self_attn", part).batch_first]
    if not first or len(v) < 2 or not isinstance(output, Tensor):
        return
    with evaluating(block.module):
        args, kwargs = block.arguments(v[:1])
        alone = block.module(*args, **kwargs)
    if not torch.allclose(alone, output[:1], rtol=1e-3, atol=1e-4 * float(output.abs().max())):
        raise InputError(
            f"{type(first[0]).__name__} must have batch_first=True: otherwise its first dimension is time, and samples "
            "would attend to each other."
        )


def _find_ends(block: Whole, v: Tensor) -> None:
    """Find the linear layers that alone meet the inputs, and that alone give the outputs, by trying.

    Inputs and targets can then be brought to a common scale, which these layers undo.
    """
    params = block.initial_parameters(None, 1.0)
    expected = block.forward(params, v)
    if v.ndim != 2 or expected.ndim != 2 or not bool(expected.isfinite().all()):
        return
    shift, scale = torch.linspace(-0.5, 0.7, v.shape[1]).to(v), torch.linspace(0.6, 1.7, v.shape[1]).to(v)
    for name, layer in block.module.named_modules():
        if not isinstance(layer, nn.Linear) or layer.bias is None:
            continue
        names = W, b = f"{name}.weight".lstrip("."), f"{name}.bias".lstrip(".")
        if not {W, b} <= set(block.trained):
            continue
        if layer.in_features == v.shape[1] and block.of_inputs is None:
            scaled = params | {W: params[W] * scale, b: params[b] + params[W] @ shift}
            if _same(block.forward(scaled, (v - shift) / scale), expected):
                block.of_inputs = names
        if layer.out_features == expected.shape[1]:
            doubled = block.forward(params | {W: 2 * params[W], b: 2 * params[b]}, v)
            shifted = block.forward(params | {b: params[b] + 1}, v)
            if _same(doubled, 2 * expected) and _same(shifted, expected + 1):
                block.of_outputs = names


def _same(found: Tensor, expected: Tensor) -> bool:
    return bool(torch.allclose(found, expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max())))
