"""Where a forward pass uses weights in linear maps ``z = A W^T + b``, read from the graph that autograd records.

To give ``dR/dW = F^T A`` autograd keeps the inputs A of every linear map, whatever module or function made it. So the
links of the paper's problem need no hooks inside the network: they are the nodes of the graph that hold a trainable
weight, and ``F = dR/dz`` is what reaches such a node on the way back. A weight with several nodes (tied, shared, unrolled
in time) has several uses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

VIEWS = frozenset(
    f"{name}Backward0"
    for name in [
        "T",
        "Transpose",
        "Permute",
        "View",
        "ReshapeAlias",
        "UnsafeView",
        "Slice",
        "Split",
        "SplitWithSizes",
        "UnsafeSplit",
        "Select",
        "Unbind",
        "Unsqueeze",
        "Squeeze",
        "Expand",
        "ToCopy",
        "Clone",
        "AsStrided",
        "Alias",
        "Chunk",
        "Contiguous",
    ]
) | {"SqueezeBackward1", "TransposeBackward1"}
"""Nodes between a weight and the product that uses it: the same numbers in another shape or precision."""

TURNS = ("TBackward0", "TransposeBackward0", "TransposeBackward1")

OPAQUE = ("CompiledFunctionBackward", "CheckpointFunctionBackward")
"""Nodes whose inside cannot be seen."""


@dataclass(frozen=True)
class Layout:
    """How a parameter is a stack of matrices W (groups, outputs, inputs): seen in ``shape``, its axes in ``order``."""

    shape: tuple[int, ...]
    order: tuple[int, ...]
    sizes: tuple[int, int, int]

    def matrices(self, p: Tensor) -> Tensor:
        """The parameter, or its gradient, as matrices (groups, outputs, inputs)."""
        return p.reshape(self.shape).permute(self.order).reshape(self.sizes)

    def parameter(self, matrices: Tensor, like: Tensor) -> Tensor:
        """Matrices in the shape of the parameter."""
        permuted = matrices.reshape([self.shape[i] for i in self.order])
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        return permuted.permute(back).reshape(like.shape)


@dataclass(frozen=True)
class Use:
    """One use of a weight in a linear map.

    ``inputs(most_rows)`` are the rows A (groups, rows, inputs), evenly spaced ones where there are more;
    ``last`` says whether no other use stands between this one and the outputs.
    """

    weight: Tensor
    layout: Layout
    inputs: Callable[[int], Tensor]
    last: bool
    node: Any


def uses_of(outputs: Iterable[Tensor], weights: Mapping[int, Tensor]) -> tuple[list[Use], set[str]]:
    """Every use of these weights (by ``id``) on the way to the outputs, and the names of opaque nodes met."""
    roots = [out.grad_fn for out in outputs if out.grad_fn is not None]
    found: list[Use] = []
    seen: set[Any] = set()
    beyond: list[Any] = []
    names: set[str] = set()
    for last, frontier in ((True, roots), (False, beyond)):
        stack = list(frontier)
        while stack:
            node = stack.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            name = node.name()
            if name in OPAQUE:
                names.add(name)
            read = READERS.get(name)
            uses = list(read(node, weights, last)) if read is not None else []
            found += uses
            following = [parent for parent, _ in node.next_functions]
            if uses and last:
                seen.discard(node)
                beyond += [p for p in following if p is not None]
                seen.add(node)
            else:
                stack += following
    return found, names


# What each kind of node says ------------------------------------------------------------------------------------


def _weight(parent: Any, weights: Mapping[int, Tensor]) -> tuple[Tensor, int] | None:
    """The weight that an operand is a view of, and the number of transpositions between."""
    turns = 0
    while parent is not None:
        name = parent.name()
        if name.endswith("AccumulateGrad"):
            found = weights.get(id(parent.variable))
            return None if found is None else (found, turns)
        if name not in VIEWS:
            return None
        turns += name in TURNS
        parent = parent.next_functions[0][0]
    return None


def _operand(node: Any, i: int, weights: Mapping[int, Tensor]) -> tuple[Tensor, int] | None:
    parents = node.next_functions
    return _weight(parents[i][0], weights) if i < len(parents) else None


def _saved(node: Any, name: str) -> Any:
    return getattr(node, f"_saved_{name}", None)


def _product(first: int, names: tuple[str, str]) -> Callable[..., Iterator[Use]]:
    """A reader of products ``X Y`` whose operands are the parents ``first`` and ``first + 1``."""

    def read(node: Any, weights: Mapping[int, Tensor], last: bool) -> Iterator[Use]:
        left, right = (_operand(node, first + i, weights) for i in (0, 1))
        if (left is None) == (right is None):
            return
        if right is not None:
            weight, turns = right
            data = _saved(node, names[0])
            n = None if data is None else data.shape[-1]
            stride = _input_stride(node, names[1], -2)
        else:
            assert left is not None
            weight, turns = left
            data = _saved(node, names[1])
            data = None if data is None else data.mT
            n = None if data is None else data.shape[-1]
            stride = _input_stride(node, names[0], -1)
            turns += 1
        if data is None or n is None:
            return
        layout = _layout(weight, n, stride, turns, data.shape[0] if data.ndim == 3 else 1)
        if layout is not None:
            yield Use(weight, layout, _rows(data, layout.sizes[0]), last, node)

    return read


def _input_stride(node: Any, name: str, axis: int) -> int | None:
    """The stride of the operand's axis that runs over the inputs of the map, where the node knows it."""
    strides = _saved(node, f"{name}_sym_strides")
    if strides is not None:
        return int(strides[axis])
    operand = _saved(node, name)
    return None if operand is None else int(operand.stride(axis))


def _layout(weight: Tensor, n: int, stride: int | None, turns: int, batch: int) -> Layout | None:
    """The matrices of a weight in a product over n inputs, which lie ``stride`` apart in it."""
    shape, axes = tuple(weight.shape), range(weight.ndim)
    if weight.ndim == 2:
        i = 1 if turns % 2 else 0
        if stride is not None and weight.stride(0) != weight.stride(1) and min(shape) > 1:
            i = next((axis for axis in axes if weight.stride(axis) == stride), i)
        if shape[i] != n:
            return None
        return Layout(shape, (1 - i, i), (1, shape[1 - i], n))
    if weight.ndim < 2 or not weight.is_contiguous():
        return None
    if batch > 1 and shape[0] == batch and weight.ndim == 3:
        i = next(
            (a for a in (1, 2) if stride is not None and weight.stride(a) == stride), 2 if turns % 2 else 1
        )
        other = 3 - i
        return Layout(shape, (0, other, i), (batch, shape[other], n)) if shape[i] == n else None
    for end in reversed(axes):  # consecutive axes of which the last has the stride, n entries together
        for begin in range(end, -1, -1):
            if math.prod(shape[begin : end + 1]) == n and (stride is None or weight.stride(end) == stride):
                inputs = tuple(range(begin, end + 1))
                outputs = tuple(a for a in axes if a not in inputs)
                return Layout(shape, outputs + inputs, (1, weight.numel() // n, n)) if outputs else None
    return None


def _rows(data: Tensor, groups: int) -> Callable[[int], Tensor]:
    def rows(most: int) -> Tensor:
        if groups > 1:
            return data[:, :: -(-data.shape[1] // most)]
        flat = data.reshape(1, -1, data.shape[-1])
        return flat[:, :: -(-flat.shape[1] // most)]

    return rows


def _convolution(node: Any, weights: Mapping[int, Tensor], last: bool) -> Iterator[Use]:
    operand, x = _operand(node, 1, weights), _saved(node, "input")
    if operand is None or x is None:
        return
    weight, groups = operand[0], int(node._saved_groups)
    spatial, kernel = weight.ndim - 2, tuple(weight.shape[2:])
    x = x if x.ndim == weight.ndim else x[None]
    axes = tuple(range(3, weight.ndim + 1))
    if node._saved_transposed:  # every input position is a row, which gives a patch of outputs
        shape = (groups, weight.shape[0] // groups, *weight.shape[1:])
        n_out = math.prod(weight.shape[1:])
        layout = Layout(shape, (0, 2, *axes, 1), (groups, n_out, shape[1]))
        positions = _some(x.movedim(1, -1).flatten(0, -2), x.shape[1])

        def columns(most: int) -> Tensor:
            a = positions(most)
            return a.view(len(a), groups, -1).movedim(1, 0)

        yield Use(weight, layout, columns, last, node)
        return
    shape = (groups, weight.shape[0] // groups, *weight.shape[1:])
    layout = Layout(shape, (0, 1, 2, *axes), (groups, shape[1], math.prod(weight.shape[1:])))
    stride, padding, dilation = (
        [int(s) for s in (getattr(node, f"_saved_{name}") or ())]
        for name in ("stride", "padding", "dilation")
    )
    stride, padding, dilation = (
        (s * spatial)[:spatial] if len(s) == 1 else s for s in (stride, padding, dilation)
    )

    def patches(most: int) -> Tensor:
        reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
        places = math.prod(
            (size + 2 * p - r) // s + 1
            for size, p, r, s in zip(x.shape[2:], padding, reach, stride, strict=True)
        )
        some = x[:: max(1, min(len(x), len(x) * places // most))]
        pad = [p for each in reversed(padding) for p in (each, each)]
        v = torch.nn.functional.pad(some, pad) if any(pad) else some
        for i in range(spatial):
            v = v.unfold(2 + i, reach[i], stride[i])[..., :: dilation[i]]
        # (N, C, places..., kernel...) -> (groups, rows, C/groups * kernel)
        v = v.movedim(1, 1 + spatial).reshape(-1, groups, math.prod(weight.shape[1:]))
        return v[:: max(1, len(v) // most)].movedim(1, 0)

    yield Use(weight, layout, patches, last, node)


def _some(rows: Tensor, width: int) -> Callable[[int], Tensor]:
    flat = rows.reshape(-1, width)
    return lambda most: flat[:: -(-len(flat) // most)]


def _recurrent(node: Any, weights: Mapping[int, Tensor], last: bool) -> Iterator[Use]:
    """A layer of torch's LSTM on a CPU: its inputs meet the first weight, its states one step earlier the second."""
    x, states, h = node._saved_input, node._saved_result0, node._saved_hx_
    before = torch.cat([h.reshape(1, *states.shape[1:]).to(states), states[:-1]])
    if node._saved_reverse:
        before = torch.cat([states[1:], h.reshape(1, *states.shape[1:]).to(states)])
    for i, data in ((1, x), (2, before)):
        yield from _recurrent_use(node, i, data, weights, last)


def _recurrent_use(
    node: Any, i: int, data: Tensor, weights: Mapping[int, Tensor], last: bool
) -> Iterator[Use]:
    operand = _operand(node, i, weights)
    if operand is not None and operand[0].shape[1] == data.shape[-1]:
        weight = operand[0]
        layout = Layout(tuple(weight.shape), (0, 1), (1, *weight.shape))
        yield Use(weight, layout, _rows(data, 1), last, node)


@torch.no_grad()
def _cudnn(node: Any, weights: Mapping[int, Tensor], last: bool) -> Iterator[Use]:
    """Recurrent layers as cuDNN runs them, all in one node: they are run again one by one."""
    run = {0: torch.rnn_relu, 1: torch.rnn_tanh, 2: torch.lstm, 3: torch.gru}[int(node._saved_mode)]
    x, h, c = node._saved_input, node._saved_hx, getattr(node, "_saved_cx", None)
    x = x.transpose(0, 1) if node._saved_batch_first else x
    both, n = 2 if node._saved_bidirectional else 1, int(node._saved_num_layers)
    own = list(node._saved_weight)
    each = len(own) // (n * both)
    sizes = list(getattr(node, "_saved_batch_sizes", ()) or ())
    for layer in range(n):
        start = layer * both
        part = own[start * each : (start + both) * each]
        h0 = h[start : start + both]
        if sizes:  # rows of a packed sequence
            lengths = torch.tensor([int(s) for s in sizes])
            states = (h0, c[start : start + both]) if c is not None and run is torch.lstm else h0
            out = run(x, lengths, states, part, each > 2, 1, 0.0, False, both == 2)[0]
        else:
            states = (h0, c[start : start + both]) if c is not None and run is torch.lstm else h0
            out = run(x, states, part, each > 2, 1, 0.0, False, both == 2, False)[0]
        for direction in range(both):
            at = 1 + (start + direction) * each
            yield from _recurrent_use(node, at, x, weights, last and layer == n - 1)
            mine = out[..., direction * h.shape[-1] : (direction + 1) * h.shape[-1]]
            yield from _recurrent_use(node, at + 1, mine, weights, last and layer == n - 1)
        x = out


READERS: dict[str, Callable[..., Iterator[Use]]] = {
    "MmBackward0": _product(0, ("self", "mat2")),
    "AddmmBackward0": _product(1, ("mat1", "mat2")),
    "BmmBackward0": _product(0, ("self", "mat2")),
    "BaddbmmBackward0": _product(1, ("batch1", "batch2")),
    "ConvolutionBackward0": _convolution,
    "MkldnnRnnLayerBackward0": _recurrent,
    "CudnnRnnBackward0": _cudnn,
}
