"""Where a forward pass uses weights in linear maps ``z = A W^T + b``, read from the graph that autograd records.

To give ``dR/dW = F^T A`` autograd keeps the inputs A of every linear map, whatever module or function made it. So the
links of the paper's problem need no hooks inside the network: they are the nodes of the graph that hold a trainable
weight, and ``F = dR/dz`` is what reaches such a node on the way back. A weight with several nodes (tied, shared,
unrolled in time) has several uses.

Top to bottom: what a use is; the walk over the graph; which entry of a weight stands where in the view of it that a
node has; one reader for each kind of node.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import checkpoint

Axes = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """How a parameter is a stack of matrices W (groups, outputs, inputs): seen in ``shape``, its axes in ``order``."""

    shape: Axes
    order: Axes
    sizes: tuple[int, int, int]

    def matrices(self, p: Tensor) -> Tensor:
        """A parameter, or several of one shape stacked on a first axis, as matrices (groups, outputs, inputs)."""
        seen = p.reshape(-1, *self.shape).permute(0, *(1 + i for i in self.order))
        return seen.reshape(-1, *self.sizes[1:])

    def parameter(self, matrices: Tensor, like: Tensor) -> Tensor:
        """Matrices in the shape of the parameter, or of several."""
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        seen = matrices.reshape(-1, *(self.shape[i] for i in self.order))
        return seen.permute(0, *(1 + i for i in back)).reshape(like.shape)


@dataclass(frozen=True)
class Use:
    """One use of a weight in a linear map.

    ``inputs(most_rows)`` are the rows A (groups, rows, inputs), evenly spaced ones where there are more: of the groups
    from ``first`` on, or, where that is -1, of all groups together.
    ``outputs`` are the positions of those outputs of the forward pass that no other map stands before. A ``table`` is
    read by index: its inputs are unit vectors, and ``inputs`` must not be called.
    """

    weight: Tensor
    layout: Layout
    inputs: Callable[[int], Tensor]
    node: Any
    first: int = 0
    table: bool = False
    outputs: frozenset[int] = frozenset()

    @property
    def last(self) -> bool:
        """Whether no other use stands between this one and some output."""
        return bool(self.outputs)


# The walk ---------------------------------------------------------------------------------------------------------

OPAQUE = ("CompiledFunctionBackward", "CheckpointFunctionBackward")
"""Nodes whose inside cannot be seen: compiled code, reentrant checkpoints."""


def uses_of(
    outputs: Iterable[Tensor], weights: Mapping[int, Tensor], inputs: Iterable[Tensor] = ()
) -> tuple[list[Use], set[str]]:
    """Every use of these weights (by ``id``) between inputs and outputs, and the names of opaque nodes met.

    Outputs inside the graph of another one (hidden states, cached keys) are not the last for anything.
    """
    before = {t.grad_fn for t in inputs}
    ends = [(i, out.grad_fn) for i, out in enumerate(outputs)]
    roots = {i: node for i, node in ends if node is not None and node not in before}
    inner = dict.fromkeys(_nodes_from([p for r in roots.values() for p, _ in r.next_functions], before))
    tops = {i: root for i, root in roots.items() if root not in inner}
    found: dict[Any, list[Use]] = {}
    names = set()
    for node in [*dict.fromkeys(tops.values()), *inner]:
        name = node.name()
        if name in READERS:
            uses = list(READERS[name](node, weights))
            if uses:
                found[node] = uses
        elif name in OPAQUE:
            names.add(name)
    frozen = {tuple(sorted(w.shape)) for w in weights.values() if not w.requires_grad and w.ndim > 1}
    behind: dict[Any, set[int]] = {}
    for i, root in tops.items():
        for node in _nodes_from([root], before, lambda node: node in found or _is_map(node, frozen)):
            if node in found:
                behind.setdefault(node, set()).add(i)
    return [
        replace(use, outputs=frozenset(behind[node])) if node in behind else use
        for node, uses in found.items()
        for use in uses
    ], names


def _nodes_from(
    start: Iterable[Any], before: set[Any], is_end: Callable[[Any], bool] | None = None
) -> Iterator[Any]:
    """All nodes that gradients come to from these on, without those ``before``; not beyond those that are ends."""
    seen = set(before)
    stack = list(start)[::-1]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        if is_end is None or not is_end(node):
            stack += [parent for parent, _ in node.next_functions]


def _is_map(node: Any, frozen: set[Axes]) -> bool:
    """Whether a product has a weight that is not trained, or one made of several, so that it has no use."""
    if node.name() not in MAPS:
        return False
    first, *names = MAPS[node.name()]
    if all(parent is not None for parent, _ in node.next_functions[first : first + 2]):
        return True
    shapes = (getattr(node, f"_saved_{name}_sym_sizes", None) for name in names)
    shapes = (node._saved_weight.shape if names[1] == "weight" else shape for shape in shapes)
    return any(shape is not None and tuple(sorted(shape)) in frozen for shape in shapes)


MAPS: dict[str, tuple[Any, ...]] = {
    "MmBackward0": (0, "self", "mat2"),
    "AddmmBackward0": (1, "mat1", "mat2"),
    "LinearBackward0": (0, "input", "weight"),
    "ConvolutionBackward0": (0, "input", "weight"),
}
"""Products that mostly have a weight: the first of two operands among the parents, and their names."""


# Which entry of a weight stands where -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Digits:
    """A part of an axis of a view: entries ``start`` to ``start + count`` of ``full`` that lie ``stride`` apart."""

    full: int
    stride: int
    start: int
    count: int

    def split(self, inner: int) -> tuple[Digits, Digits]:
        if self.full % inner or self.start % inner or self.count % inner:
            raise ValueError("not a rectangle of the weight")
        outer = (self.full // inner, self.stride * inner, self.start // inner, self.count // inner)
        return Digits(*outer), Digits(inner, self.stride, 0, inner)


class View:
    """A weight of this shape after views: of each axis the digits of the place in the weight, of which it runs over."""

    def __init__(self, shape: Axes) -> None:
        strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        self.numel = math.prod(shape)
        self.axes = [[Digits(n, s, 0, n)] for n, s in zip(shape, strides, strict=True)]
        self.chosen: list[Digits] = []
        """Digits that are one number all over the view."""

    def permute(self, order: Iterable[int]) -> None:
        self.axes = [self.axes[i] for i in order]

    def swap(self, i: int, j: int) -> None:
        self.axes[i], self.axes[j] = self.axes[j], self.axes[i]

    def narrow(self, axis: int, start: int, count: int) -> None:
        if not self.axes[axis]:
            return
        outer, *rest = self.axes[axis]
        inner = math.prod(d.count for d in rest)
        if start % inner or count % inner:
            raise ValueError("not a rectangle of the weight")
        self.axes[axis][0] = replace(outer, start=outer.start + start // inner, count=count // inner)

    def select(self, axis: int, index: int) -> None:
        for d in reversed(self.axes.pop(axis)):
            self.chosen.append(replace(d, start=d.start + index % d.count, count=1))
            index //= d.count

    def expand(self, shape: Axes) -> None:
        self.axes = [[] for _ in shape[len(self.axes) :]] + self.axes
        for axis, n in zip(self.axes, shape, strict=True):
            if math.prod(d.count for d in axis) != n:
                axis.append(Digits(n, 0, 0, n))

    def reshape(self, shape: Axes) -> None:
        pending: list[Digits] = []
        for d in (d for axis in reversed(self.axes) for d in reversed(axis)):
            (pending if d.count > 1 else self.chosen).append(d)
        self.axes = []
        for n in shape:
            axis: list[Digits] = []
            while n > 1:
                d = pending.pop()
                if n % d.count:
                    d, inner = d.split(d.count // math.gcd(n, d.count))
                    pending.append(inner)
                axis.append(d)
                n //= d.count
                if d.count == 1:
                    raise ValueError("not a rectangle of the weight")
            self.axes.append(axis)

    def layout(self, groups: Axes, outputs: Axes, inputs: Axes) -> tuple[Layout, int] | None:
        """The weight as matrices over these axes of the view, and the group it begins with."""
        chosen = sorted((d for d in self.chosen if d.full > 1), key=lambda d: -d.stride)
        parts = [
            chosen,
            *([d for i in role for d in self.axes[i] if d.full > 1] for role in (groups, outputs, inputs)),
        ]
        parts[1] = [d for d in parts[1] if d.stride]  # one weight for all of a batch
        parts = [parts[0] + parts[1], *(_joined(part) for part in parts[2:])]
        digits = sorted((d for part in parts for d in part), key=lambda d: -d.stride)
        expected = self.numel
        for d in digits:
            if d.full * d.stride != expected:
                return None
            expected = d.stride
        if any(d.count != d.full for d in parts[2]) or expected > 1:
            return None
        first, whole = 0, True
        for d in reversed(parts[0]):  # the groups of a use stand one after the other
            first += d.start * math.prod(e.full for e in parts[0][parts[0].index(d) + 1 :])
            if not whole and d.count > 1:
                return None
            whole = whole and d.count == d.full
        order = tuple(digits.index(d) for part in parts for d in part)
        sizes = [math.prod(d.full for d in part) for part in parts]
        return Layout(tuple(d.full for d in digits), order, (sizes[0], sizes[1], sizes[2])), first


def _joined(part: list[Digits]) -> list[Digits]:
    """Digits that are neighbours in the weight too as one, so that one weight has one layout in all its uses."""
    out: list[Digits] = []
    for d in part:
        if out and out[-1].stride == d.full * d.stride and d.count == d.full and d.stride:
            o = out[-1]
            out[-1] = Digits(o.full * d.full, d.stride, o.start * d.full, o.count * d.full)
        else:
            out.append(d)
    return out


@functools.lru_cache(4096)
def _layout(
    shape: Axes, views: tuple[tuple[Any, ...], ...], groups: Axes, outputs: Axes, inputs: Axes
) -> tuple[Layout, int] | None:
    view = View(shape)
    try:
        for name, *arguments in views:
            getattr(view, name)(*arguments)
    except ValueError:
        return None
    return view.layout(groups, outputs, inputs)


def _signed(i: int, n: int) -> int:
    return (i - (1 << 64) if i >= 1 << 63 else i) % n


SAME = ("ToCopyBackward0", "CloneBackward0", "AliasBackward0", "ContiguousBackward0")
RESHAPED = ("View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze")
TURNED = ("T", "Transpose", "Permute", "Expand")
CUT = ("Slice", "Split", "SplitWithSizes", "UnsafeSplit", "Select", "Unbind")


def _view(node: Any, which: int, n_axes: int) -> list[tuple[Any, ...]] | None:
    """The output ``which`` of a node that makes views, in the words of :class:`View`; None of other nodes.

    ``n_axes`` are those of what it is a view of.
    """
    name, _, number = node.name().partition("Backward")
    shape = tuple(node._input_metadata[which].shape)
    if node.name() in SAME:
        return []
    if name in RESHAPED:
        return [("reshape", shape)]
    if name == "T":
        return [("permute", tuple(range(n_axes))[::-1])]
    if name == "Transpose":
        pair = (1, 0) if number == "1" and n_axes == 2 else (node._saved_dim0, node._saved_dim1)
        return [("swap", *(_signed(i, n_axes) for i in pair))]
    if name == "Permute":
        return [("permute", tuple(_signed(i, n_axes) for i in node._saved_dims))]
    if name == "Expand":
        return [("expand", shape)]
    if name in CUT:
        axis = _signed(node._saved_dim, n_axes)
        if name == "Unbind":
            return [("select", axis, which)]
        if name == "Select":
            return [("select", axis, _signed(node._saved_index, node._saved_self_sym_sizes[axis]))]
        if name == "Slice":
            if node._saved_step != 1:
                return None
            return [
                ("narrow", axis, _signed(node._saved_start, node._saved_self_sym_sizes[axis]), shape[axis])
            ]
        start = sum(m.shape[axis] for m in node._input_metadata[:which])
        return [("narrow", axis, start, shape[axis])]
    return None


@dataclass(frozen=True)
class Operand:
    """A weight as a node has it: behind these views, in this shape."""

    weight: Tensor
    views: tuple[tuple[Any, ...], ...]
    shape: Axes

    def layout(
        self, groups: Axes, outputs: Axes, inputs: Axes, *views: tuple[Any, ...]
    ) -> tuple[Layout, int] | None:
        return _layout(tuple(self.weight.shape), self.views + views, groups, outputs, inputs)


def _operand(node: Any, i: int, weights: Mapping[int, Tensor]) -> Operand | None:
    """The weight that the i-th operand of a node is a view of."""
    if i >= len(node.next_functions):
        return None
    parent, which = node.next_functions[i]
    steps: list[Any] = []
    while parent is not None and not parent.name().endswith("AccumulateGrad"):
        if len(parent.next_functions) != 1 or not hasattr(parent, "_input_metadata"):
            return None
        if parent.name() not in VIEWS:
            return None
        steps.append((parent, which))
        parent, which = parent.next_functions[0]
    weight = None if parent is None else weights.get(id(parent.variable))
    if weight is None:
        return None
    views: list[tuple[Any, ...]] = []
    shape = tuple(weight.shape)
    for step, which in reversed(steps):
        view = _view(step, which, len(shape))
        if view is None:
            return None
        views += view
        shape = tuple(step._input_metadata[which].shape)
    return Operand(weight, tuple(views), shape)


VIEWS = frozenset(SAME) | {f"{name}Backward{i}" for name in (*RESHAPED, *TURNED, *CUT) for i in range(5)}
"""Nodes between a weight and the product that uses it: the same numbers in another shape or precision."""


# What each kind of node says ------------------------------------------------------------------------------------


def _saved(node: Any, name: str) -> Any:
    """What a node keeps; a checkpoint computes it again, and then must not hold on to the rest of its part."""
    raw = getattr(node, f"_raw_saved_{name}", None)
    value = getattr(node, f"_saved_{name}", None)
    holder = getattr(checkpoint, "_Holder", None)
    if holder is not None and isinstance(getattr(raw, "data", None), holder):
        frame = _frame_of(raw)
        if frame is not None:
            frame.recomputed.clear()
            frame.is_recomputed.clear()
    return value


def _frame_of(raw: Any) -> Any:
    hook = getattr(raw, "unpack_hook", None)
    cells = zip(hook.__code__.co_freevars, hook.__closure__ or (), strict=True) if hook is not None else ()
    return next((cell.cell_contents for name, cell in cells if name == "frame"), None)


def _some(rows: Tensor, most: int) -> Tensor:
    """Rows (groups, rows, inputs), evenly spaced where there are more than ``most``."""
    return rows[:, :: max(1, -(-rows.shape[1] // most))]


def _use(
    found: tuple[Layout, int] | None, weight: Tensor, inputs: Callable[[int], Tensor], node: Any
) -> Iterator[Use]:
    if found is not None:
        yield Use(weight, found[0], inputs, node, found[1])


def _product(first: int, left: str, right: str) -> Callable[..., Iterator[Use]]:
    """A reader of products ``X Y`` of matrices, or stacks of them, whose operands are the parents from ``first`` on."""

    def read(node: Any, weights: Mapping[int, Tensor]) -> Iterator[Use]:
        X, Y = (_operand(node, first + i, weights) for i in (0, 1))
        if (X is None) == (Y is None) or (Y is not None and len(Y.shape) == 1):
            return
        data = _saved(node, left if X is None else right)
        if data is None:
            return
        vector = data.ndim == 1
        b = (0,) if data.ndim == 3 else ()
        i, j = len(b), len(b) + 1
        if Y is not None:
            found, weight, rows = Y.layout(b, (j,), (i,)), Y.weight, data
        else:
            assert X is not None
            found, weight, rows = X.layout(b, (i,), (j,)), X.weight, data if vector else data.mT

        def inputs(most: int) -> Tensor:
            if rows.layout != torch.strided:
                every = range(0, len(rows), max(1, -(-len(rows) // most)))
                kept = torch.tensor(every, device=rows.device)
                some: Tensor = rows.to_sparse_coo().index_select(0, kept)
                return some.to_dense()[None]
            if b and found is not None and len(rows) > 1 and found[0].sizes[0] > 1:
                return _some(rows, most)
            return _some(rows.reshape(1, -1, rows.shape[-1]), most)

        yield from _use(found, weight, inputs, node)

    return read


def _convolution(node: Any, weights: Mapping[int, Tensor]) -> Iterator[Use]:
    operand = _operand(node, 1, weights)
    x = None if operand is None else _saved(node, "input")
    if operand is None or x is None:
        return
    groups, spatial = int(node._saved_groups), x.ndim - 2
    shape = operand.shape
    kernel = shape[2:]
    split = ("reshape", (groups, shape[0] // groups, shape[1], *kernel))
    places = tuple(range(3, 3 + spatial))
    if node._saved_transposed:  # every position of the input is a row, which gives a patch of outputs
        found = operand.layout((0,), (2, *places), (1,), split)

        def positions(most: int) -> Tensor:
            flat = x.movedim(1, -1).flatten(0, -2)
            return _some(flat.view(len(flat), groups, -1).movedim(1, 0), most)

        yield from _use(found, operand.weight, positions, node)
        return
    found = operand.layout((0,), (1,), (2, *places), split)
    stride, padding, dilation = (
        [int(s) for s in getattr(node, f"_saved_{name}")] for name in ("stride", "padding", "dilation")
    )
    stride, padding, dilation = ((s * spatial)[:spatial] for s in (stride, padding, dilation))

    def patches(most: int) -> Tensor:
        reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
        v = x[:: max(1, 16 * len(x) // most)]
        pad = [p for each in reversed(padding) for p in (each, each)]
        v = torch.nn.functional.pad(v, pad) if any(pad) else v
        for i in range(spatial):
            v = v.unfold(2 + i, reach[i], stride[i])[..., :: dilation[i]]
        # (N, C, places..., kernel...): of every image some places, away from its edges
        number = len(v) * math.prod(v.shape[2 : 2 + spatial])
        apart = max(1, int((number / most) ** (1 / spatial)))
        for i in range(spatial):
            each = min(apart, v.shape[2 + i])
            v = v[(slice(None),) * (2 + i) + (slice(each // 2, None, each),)]
        # -> (groups, rows, C / groups * kernel)
        v = v.movedim(1, 1 + spatial).reshape(-1, groups, shape[1] * math.prod(kernel))
        return _some(v.movedim(1, 0), most)

    yield from _use(found, operand.weight, patches, node)


def _bilinear(node: Any, weights: Mapping[int, Tensor]) -> Iterator[Use]:
    """``torch.nn.Bilinear``: linear in the products of all pairs of its inputs."""
    operand = _operand(node, 1, weights)
    x, y = (_saved(node, name) for name in ("i1", "i3")) if operand is not None else (None, None)
    if operand is None or x is None or y is None:
        return

    def pairs(most: int) -> Tensor:
        u, v = _some(x[None], most), _some(y[None], most)
        return (u[..., :, None] * v[..., None, :]).flatten(-2)

    yield from _use(operand.layout((), (0,), (1, 2)), operand.weight, pairs, node)


def _grouped(node: Any, weights: Mapping[int, Tensor]) -> Iterator[Use]:
    """Products with one matrix of a stack for each run of rows (experts): the metric is that of all rows."""
    operand = _operand(node, 1, weights)
    data = None if operand is None else _saved(node, "self")
    if operand is not None and data is not None and operand.weight.ndim == 3:
        rows, found = data.reshape(1, -1, data.shape[-1]), operand.layout((0,), (2,), (1,))
        if found is not None:
            yield Use(operand.weight, found[0], lambda most: _some(rows, most), node, first=-1)


def _linear(node: Any, weights: Mapping[int, Tensor]) -> Iterator[Use]:
    """``torch.nn.functional.linear`` where a backend has it in one node."""
    operand = _operand(node, 1, weights)
    if operand is not None:
        yield from _rows_use(node, operand, _saved(node, "input"))


def _rows_use(node: Any, operand: Operand, data: Tensor | None) -> Iterator[Use]:
    if data is not None:
        rows = data.reshape(1, -1, data.shape[-1])
        yield from _use(operand.layout((), (0,), (1,)), operand.weight, lambda most: _some(rows, most), node)


def _table(node: Any, weights: Mapping[int, Tensor]) -> Iterator[Use]:
    operand = _operand(node, 0, weights)
    if operand is not None and operand.weight.ndim == 2:
        rows, width = operand.weight.shape

        def inputs(most: int) -> Tensor:
            raise TypeError("the inputs of a table are unit vectors")

        yield Use(operand.weight, Layout((rows, width), (1, 0), (1, width, rows)), inputs, node, table=True)


def _lstm(node: Any, weights: Mapping[int, Tensor]) -> Iterator[Use]:
    """A layer of torch's LSTM on a CPU: its inputs meet the first weight, its states one step earlier the second."""
    operands = [_operand(node, i, weights) for i in (1, 2)]
    if operands[0] is not None:
        yield from _rows_use(node, operands[0], _saved(node, "input"))
    if operands[1] is not None:
        states, start = _saved(node, "result0"), _saved(node, "hx_")
        yield from _rows_use(node, operands[1], _earlier(states, start, node._saved_reverse))


def _earlier(states: Tensor, start: Tensor, reverse: bool) -> Tensor:
    """States (time, batch, units) one step earlier."""
    start = start.reshape(1, *states.shape[1:]).to(states)
    return torch.cat([states[1:], start] if reverse else [start, states[:-1]])


@torch.no_grad()
def _cudnn(node: Any, weights: Mapping[int, Tensor]) -> Iterator[Use]:
    """Recurrent layers as cuDNN runs them, all in one node: they are run again one by one, without dropout."""
    run: Any = {0: torch.rnn_relu, 1: torch.rnn_tanh, 2: torch.lstm, 3: torch.gru}[int(node._saved_mode)]
    x, h, c = (_saved(node, name) for name in ("input", "hx", "cx"))
    x = x.transpose(0, 1) if node._saved_batch_first else x
    both, n = 2 if node._saved_bidirectional else 1, int(node._saved_num_layers)
    own = list(_saved(node, "weight"))
    each = len(own) // (n * both)
    if each not in (2, 4):  # projections of the states
        return
    sizes = [int(s) for s in getattr(node, "_saved_batch_sizes", None) or ()]
    for layer in range(n):
        start = layer * both
        part = own[start * each : (start + both) * each]
        h0 = h[start : start + both]
        state: Any = (h0, c[start : start + both]) if run is torch.lstm else h0
        options = (part, each > 2, 1, 0.0, False, both == 2)
        packed = (torch.tensor(sizes),) if sizes else ()
        with warnings.catch_warnings():  # that the weights of one layer are not in one piece
            warnings.simplefilter("ignore")
            out = run(x, *packed, state, *options, *(() if sizes else (False,)))[0]
        for direction, mine in enumerate(out.split(h.shape[-1], -1)):
            for offset, data in (
                (0, x),
                (1, mine if sizes else _earlier(mine, h0[direction], direction == 1)),
            ):
                operand = _operand(node, 1 + (start + direction) * each + offset, weights)
                if operand is not None:
                    yield from _rows_use(node, operand, data)
        x = out


READERS: dict[str, Callable[..., Iterator[Use]]] = {
    "MmBackward0": _product(0, "self", "mat2"),
    "AddmmBackward0": _product(1, "mat1", "mat2"),
    "SparseAddmmBackward0": _product(1, "mat1", "mat2"),
    "BmmBackward0": _product(0, "self", "mat2"),
    "BaddbmmBackward0": _product(1, "batch1", "batch2"),
    "MvBackward0": _product(0, "self", "vec"),
    "AddmvBackward0": _product(1, "mat", "vec"),
    "LinearBackward0": _linear,
    "ConvolutionBackward0": _convolution,
    "TrilinearBackward0": _bilinear,
    "GroupedMmBackward0": _grouped,
    "MkldnnRnnLayerBackward0": _lstm,
    "CudnnRnnBackward0": _cudnn,
    "EmbeddingBackward0": _table,
    "EmbeddingBagBackward0": _table,
    "IndexBackward0": _table,
    "IndexSelectBackward0": _table,
}
"""Readers of what nodes keep; for each an iterator over uses."""
