"""Every kind of use: the rows A that were found, with the F that arrives on the way back, give autograd's gradient."""

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from dladmm.streaming.uses import Layout, View, uses_of

R = torch.randn


def parameter(*shape):
    return nn.Parameter(R(*shape) / 2)


class Net(nn.Module):
    """A forward pass given as a function of a module with these parameters and parts."""

    def __init__(self, forward, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self._forward = forward

    def forward(self):
        return self._forward(self)


def sequences(*lengths):
    return nn.utils.rnn.pack_sequence([R(n, 5) for n in lengths], enforce_sorted=False)


def linear(n, m):
    return nn.Linear(n, m)


def experts(n):
    """A stack of experts of which each gets its own rows, by index."""
    x = R(7, 4, requires_grad=True)
    return torch.cat([F.linear(x[i::3], n.w[i]) for i in range(3)])


# name -> (forward, parts, number of uses)
KINDS = {
    "linear": (lambda n: n.f(R(6, 4)), {"f": linear(4, 3)}, 1),
    "linear on one row": (lambda n: n.f(R(4)), {"f": linear(4, 3)}, 1),
    "linear without bias on one row": (lambda n: n.f(R(4)), {"f": nn.Linear(4, 3, bias=False)}, 1),
    "square linear": (lambda n: n.f(R(6, 4)), {"f": linear(4, 4)}, 1),
    "linear over three axes": (lambda n: n.f(R(2, 3, 4, requires_grad=True)), {"f": linear(4, 3)}, 1),
    "linear over strided rows": (
        lambda n: n.f(R(2, 3, 4, requires_grad=True).mT.mT.transpose(0, 1)),
        {"f": linear(4, 3)},
        1,
    ),
    "two linear maps": (lambda n: n.g(n.f(R(6, 4)).relu()), {"f": linear(4, 3), "g": linear(3, 2)}, 2),
    "a vector": (lambda n: n.w @ R(4), {"w": parameter(3, 4)}, 1),
    "a vector and a sum": (lambda n: torch.addmv(R(3), n.w, R(4)), {"w": parameter(3, 4)}, 1),
    "weight on the left": (lambda n: n.w @ R(4, 6), {"w": parameter(3, 4)}, 1),
    "weight on the left of a stack": (lambda n: n.w @ R(5, 4, 6), {"w": parameter(3, 4)}, 1),
    "square weight on the left": (lambda n: n.w @ R(4, 6), {"w": parameter(4, 4)}, 1),
    "columns first, as Hugging Face's Conv1D": (
        lambda n: torch.addmm(n.b, R(6, 4), n.w),
        {"w": parameter(4, 4), "b": parameter(4)},
        1,
    ),
    "tied": (lambda n: F.linear(F.linear(R(6, 4), n.w).relu(), n.w), {"w": parameter(4, 4)}, 2),
    "tied and transposed": (
        lambda n: F.linear(F.linear(R(6, 4), n.w).relu(), n.w.T),
        {"w": parameter(3, 4)},
        2,
    ),
    "tall part of a weight": (
        lambda n: torch.cat([F.linear(R(6, 4), w) for w in n.w.split([2, 6])], 1),
        {"w": parameter(8, 4)},
        2,
    ),
    "chunks": (
        lambda n: torch.cat([F.linear(R(6, 4), w) for w in n.w.chunk(3)], 1),
        {"w": parameter(6, 4)},
        3,
    ),
    "slices": (
        lambda n: torch.cat([F.linear(R(6, 4), n.w[:2]), F.linear(R(6, 4), n.w[-3:])], 1),
        {"w": parameter(5, 4)},
        2,
    ),
    "einsum": (lambda n: torch.einsum("btd,dhk->bthk", R(2, 3, 5), n.w), {"w": parameter(5, 2, 4)}, 1),
    "einsum back": (
        lambda n: torch.einsum("bthk,hkd->btd", R(2, 3, 2, 4), n.w),
        {"w": parameter(2, 4, 5)},
        1,
    ),
    "einsum with heads first": (
        lambda n: torch.einsum("btd,hdk->bhtk", R(2, 3, 5), n.w),
        {"w": parameter(2, 5, 4)},
        1,
    ),
    "einsum by groups": (
        lambda n: torch.einsum("bgd,dgk->bgk", R(7, 3, 5), n.w),
        {"w": parameter(5, 3, 4)},
        1,
    ),
    "einsum by groups, last": (
        lambda n: torch.einsum("bgd,kdg->bgk", R(7, 3, 5), n.w),
        {"w": parameter(4, 5, 3)},
        1,
    ),
    "tensordot": (lambda n: torch.tensordot(R(2, 3, 5), n.w, ([1, 2], [0, 1])), {"w": parameter(3, 5, 4)}, 1),
    "experts in a stack": (
        lambda n: torch.bmm(R(3, 6, 4, requires_grad=True), n.w),
        {"w": parameter(3, 4, 5)},
        1,
    ),
    "square experts in a stack": (lambda n: torch.bmm(R(3, 6, 4), n.w), {"w": parameter(3, 4, 4)}, 1),
    "experts in a stack on the left": (lambda n: torch.bmm(n.w, R(3, 4, 6)), {"w": parameter(3, 5, 4)}, 1),
    "experts and a sum": (lambda n: torch.baddbmm(R(3, 6, 5), R(3, 6, 4), n.w), {"w": parameter(3, 4, 5)}, 1),
    "experts by index": (experts, {"w": parameter(3, 5, 4)}, 3),
    "experts by unbind": (
        lambda n: torch.cat([R(6, 4) @ w for w in n.w.unbind(0)]),
        {"w": parameter(3, 4, 5)},
        3,
    ),
    "a stack of stacks": (lambda n: torch.matmul(R(2, 3, 6, 4), n.w), {"w": parameter(2, 3, 4, 5)}, 1),
    "bilinear": (lambda n: n.f(R(6, 3), R(6, 4)), {"f": nn.Bilinear(3, 4, 5)}, 1),
    "sparse rows": (lambda n: torch.sparse.mm(R(6, 4).relu().to_sparse(), n.w), {"w": parameter(4, 3)}, 1),
    "sparse rows, compressed": (lambda n: R(6, 4).relu().to_sparse_csr() @ n.w, {"w": parameter(4, 3)}, 1),
    "conv1d": (lambda n: n.f(R(2, 4, 9)), {"f": nn.Conv1d(4, 3, 3, stride=2, padding=1)}, 1),
    "conv2d": (
        lambda n: n.f(R(2, 4, 7, 8, requires_grad=True)),
        {"f": nn.Conv2d(4, 3, (3, 2), stride=(2, 1), padding=(1, 0))},
        1,
    ),
    "conv2d, channels last": (
        lambda n: n.f(R(2, 4, 7, 8)),
        {"f": nn.Conv2d(4, 3, 3).to(memory_format=torch.channels_last)},
        1,
    ),
    "conv2d, one image": (lambda n: n.f(R(4, 7, 8)), {"f": nn.Conv2d(4, 3, 3)}, 1),
    "conv2d, 1 x 1": (lambda n: n.f(R(2, 4, 5, 5)), {"f": nn.Conv2d(4, 3, 1, stride=2)}, 1),
    "conv2d by groups": (lambda n: n.f(R(2, 6, 5, 5)), {"f": nn.Conv2d(6, 4, 3, groups=2)}, 1),
    "conv2d, a channel each": (
        lambda n: n.f(R(2, 4, 5, 5)),
        {"f": nn.Conv2d(4, 8, 3, groups=4, padding=1)},
        1,
    ),
    "conv2d, dilated": (lambda n: n.f(R(2, 3, 9, 9)), {"f": nn.Conv2d(3, 4, 3, dilation=2, padding=2)}, 1),
    "conv2d, same": (lambda n: n.f(R(2, 3, 6, 6)), {"f": nn.Conv2d(3, 4, 3, padding="same")}, 1),
    "conv2d, reflected": (
        lambda n: n.f(R(2, 3, 6, 6)),
        {"f": nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect")},
        1,
    ),
    "conv2d with a linear weight": (
        lambda n: F.conv2d(R(2, 4, 5, 5), n.f.weight[:, :, None, None]),
        {"f": linear(4, 3)},
        1,
    ),
    "conv3d": (lambda n: n.f(R(2, 2, 4, 5, 4)), {"f": nn.Conv3d(2, 3, (1, 2, 3), padding=(0, 1, 1))}, 1),
    "transposed conv1d": (lambda n: n.f(R(2, 4, 5)), {"f": nn.ConvTranspose1d(4, 3, 3, stride=2)}, 1),
    "transposed conv2d": (lambda n: n.f(R(2, 4, 5, 5)), {"f": nn.ConvTranspose2d(4, 3, 2, stride=2)}, 1),
    "transposed conv2d by groups": (
        lambda n: n.f(R(2, 4, 3, 3)),
        {"f": nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2)},
        1,
    ),
    "LSTM": (lambda n: n.f(R(4, 3, 5))[0], {"f": nn.LSTM(5, 6)}, 5),
    "LSTM, two layers both ways": (
        lambda n: n.f(R(3, 4, 5))[0],
        {"f": nn.LSTM(5, 6, 2, bidirectional=True, batch_first=True)},
        20,
    ),
    "LSTM, packed": (lambda n: n.f(sequences(4, 2, 3))[0].data, {"f": nn.LSTM(5, 6, bidirectional=True)}, 10),
    "GRU": (lambda n: n.f(R(4, 3, 5))[0], {"f": nn.GRU(5, 6)}, 5),
    "GRU, packed": (lambda n: n.f(sequences(3, 2))[0].data, {"f": nn.GRU(5, 6, 2)}, 8),
    "RNN": (lambda n: n.f(R(4, 3, 5))[0], {"f": nn.RNN(5, 6)}, 5),
    "GRU cell": (lambda n: n.f(R(3, 5), n.f(R(3, 5))), {"f": nn.GRUCell(5, 6)}, 4),
    "LSTM cell": (lambda n: n.f(R(3, 5), n.f(R(3, 5)))[0], {"f": nn.LSTMCell(5, 6)}, 4),
    "attention": (
        lambda n: n.f(*[R(4, 2, 8, requires_grad=True)] * 3, need_weights=False)[0],
        {"f": nn.MultiheadAttention(8, 2)},
        2,
    ),
    "attention across": (
        lambda n: n.f(R(3, 2, 8), *[R(4, 2, 8)] * 2)[0],
        {"f": nn.MultiheadAttention(8, 2)},
        3,
    ),
    "attention of three": (
        lambda n: n.f(R(3, 2, 8), R(4, 2, 8), R(4, 2, 8))[0],
        {"f": nn.MultiheadAttention(8, 2)},
        4,
    ),
    "attention across other widths": (
        lambda n: n.f(R(3, 2, 8), R(4, 2, 5), R(4, 2, 6))[0],
        {"f": nn.MultiheadAttention(8, 2, kdim=5, vdim=6)},
        4,
    ),
    "encoder layer": (
        lambda n: n.f(R(2, 4, 8)),
        {"f": nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)},
        4,
    ),
    "checkpoint": (
        lambda n: checkpoint(n.f, R(6, 4, requires_grad=True), use_reentrant=False),
        {"f": nn.Sequential(linear(4, 5), nn.GELU(), linear(5, 3))},
        2,
    ),
}


def quietly(function, *args):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args)


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


def weights_of(module):
    return {id(p): p for p in module.parameters() if p.requires_grad}


def own_gradient(use, A, f):
    """F^T A in the shape of the weight, from the rows of a use and what reached its node on the way back."""
    groups, n_out, n_in = use.layout.sizes
    name = use.node.name()
    if name == "ConvolutionBackward0" and use.node._saved_transposed:
        # every position of the input gives the patch of outputs that it is added to
        assert not any(use.node._saved_padding)
        for i, (kernel, stride) in enumerate(zip(use.weight.shape[2:], use.node._saved_stride, strict=True)):
            f = f.unfold(2 + i, kernel, stride)
        rows = f.movedim(1, use.weight.ndim - 1).reshape(-1, groups, n_out).movedim(1, 0)
    elif name == "ConvolutionBackward0":
        rows = f.movedim(1, -1).reshape(-1, groups, n_out).movedim(1, 0)
    elif name in ("TrilinearBackward0", "MvBackward0", "AddmvBackward0"):
        rows = f.reshape(1, -1, f.shape[-1])
    else:
        rows = f.mT if is_left(use) else f
        rows = rows if rows.ndim == 3 and len(A) > 1 else rows.reshape(1, -1, rows.shape[-1])
    part = rows.mT @ A
    matrices = torch.zeros(groups, n_out, n_in)
    start = first_row(use) if part.shape[1] < n_out else 0
    matrices[use.first : use.first + len(part), start : start + part.shape[1]] = part
    return use.layout.parameter(matrices, use.weight)


def is_left(use):
    """Whether the weight is the left operand of its product."""
    node = use.node.next_functions[-2][0]
    while node is not None and not node.name().endswith("AccumulateGrad"):
        node = node.next_functions[0][0] if len(node.next_functions) == 1 else None
    return node is not None and node.variable is use.weight


def first_row(use):
    """Where the part of a weight that a use has begins, from its slices."""
    (node, which), start = use.node.next_functions[-1], 0
    while not node.name().endswith("AccumulateGrad"):
        if node.name() == "SliceBackward0":
            start += ((node._saved_start + 2**63) % 2**64 - 2**63) % node._saved_self_sym_sizes[0]
        elif node.name().startswith("Split"):
            start += sum(m.shape[0] for m in node._input_metadata[:which])
        node, which = node.next_functions[0]
    return start


@pytest.mark.parametrize("kind", KINDS)
def test_rows_and_forces_give_the_gradient(kind):
    forward, parts, number = KINDS[kind]
    module = Net(forward, **parts).double()
    out = quietly(module)
    uses, opaque = uses_of([out], weights_of(module))
    assert len(uses) == number
    assert not opaque
    assert any(use.last for use in uses)
    rows = [use.inputs(10**9) for use in uses]
    assert all(A.shape[2] == use.layout.sizes[2] for A, use in zip(rows, uses, strict=True))
    products = []
    for use, A in zip(uses, rows, strict=True):
        use.node.register_prehook(
            lambda f, u=use, A=A: products.append((u.weight, own_gradient(u, A, f[0]))) or None
        )
    (out * R(out.shape)).sum().backward()
    matrices = [p for p in module.parameters() if p.ndim > 1 and p.grad is not None]
    assert {id(w) for w, _ in products} == {id(p) for p in matrices}
    for p in matrices:
        total = sum(product for weight, product in products if weight is p)
        torch.testing.assert_close(total, p.grad, rtol=1e-10, atol=1e-10)
    assert all(use.inputs(2).shape[1] <= 2 for use in uses if kind != "checkpoint")


@pytest.mark.parametrize("both", [False, True])
def test_states_of_an_lstm_in_one_node(both):
    """oneDNN's node of a layer holds all of its states: beside states by hand."""
    torch.set_default_dtype(torch.float32)
    lstm, data = nn.LSTM(5, 6, bidirectional=both), R(4, 3, 5)
    uses, _ = uses_of([lstm(data)[0]], weights_of(lstm))
    found = {id(use.weight): use.inputs(10**9)[0].view(4, 3, -1) for use in uses}
    assert len(uses) == len(found) == 2 + 2 * both
    for suffix in ("", "_reverse")[: 1 + both]:
        weights = [
            getattr(lstm, f"{name}_l0{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        ]
        torch.testing.assert_close(found[id(weights[0])], data)
        states, h, c = [], torch.zeros(3, 6), torch.zeros(3, 6)
        for x in data.flip(0) if suffix else data:
            states.append(h)
            h, c = torch.lstm_cell(x, (h, c), *weights)
        expected = torch.stack(states)
        torch.testing.assert_close(found[id(weights[1])], expected.flip(0) if suffix else expected)


def test_where_nothing_is_a_map():
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            return x @ w

        @staticmethod
        def backward(ctx, f):
            return None, f

    normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    w, v = parameter(4, 4), parameter(4, 4)
    for out, weights in (
        (normed(R(6, 4)), weights_of(normed)),
        (R(6, 4) @ (w @ v), {id(w): w, id(v): v}),  # a product of two weights
        (R(6, 2) @ w[:, ::2].T, {id(w): w}),  # no rectangle
        (R(6, 2) @ w[:, :2].T, {id(w): w}),  # of some inputs alone
        (R(6, 8) @ w.view(2, 8).T @ w.view(8, 2).T, {id(v): v}),  # another weight
        (w + v, {id(w): w, id(v): v}),
        (Own.apply(R(6, 4), w), {id(w): w}),
    ):
        assert uses_of([out], weights) == ([], set())


def test_reentrant_checkpoints_are_opaque():
    f = nn.Linear(4, 3)
    out = checkpoint(f, R(6, 4, requires_grad=True), use_reentrant=True)
    assert uses_of([out], weights_of(f)) == ([], {"CheckpointFunctionBackward"})


def test_checkpoints_are_computed_again_and_forgotten():
    runs = []

    def part(x):
        runs.append(None)
        return f(x)

    f = nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 3))
    x = R(6, 4, requires_grad=True)
    checkpoint(part, x, use_reentrant=False).square().sum().backward()
    expected = [p.grad.clone() for p in f.parameters()]
    f.zero_grad()
    out = checkpoint(part, x, use_reentrant=False)
    runs.clear()
    uses, _ = uses_of([out], weights_of(f))
    rows = {id(use.weight): use.inputs(99)[0] for use in uses}
    assert len(runs) == 2  # one for each map
    torch.testing.assert_close(rows[id(f[0].weight)], x)
    frame = uses[0].node._raw_saved_mat1.unpack_hook.__closure__
    frames = [c.cell_contents for c in frame if type(c.cell_contents).__name__ == "_CheckpointFrame"]
    assert [len(frame.recomputed) for frame in frames] == [0]
    out.square().sum().backward()
    for p, g in zip(f.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, g)


def test_tables_are_told_from_maps():
    table, head = nn.Embedding(7, 4), nn.Linear(4, 7)
    head.weight = table.weight
    uses, _ = uses_of([head(table(torch.tensor([1, 2])))], weights_of(table))
    assert [(use.table, use.last) for use in uses] == [(False, True), (True, False)]
    bag = nn.EmbeddingBag(7, 4)
    for out in (
        bag(torch.tensor([[1, 2]])),
        bag.weight[torch.tensor([1])],
        bag.weight.index_select(0, torch.tensor([1])),
    ):
        (use,) = uses_of([out], weights_of(bag))[0]
        assert use.table
        assert use.layout.matrices(bag.weight).shape == (1, 4, 7)
        with pytest.raises(TypeError, match="unit vectors"):
            use.inputs(1)


def test_hidden_states_among_the_outputs_are_not_the_last():
    f, g, h = (nn.Linear(4, 4) for _ in range(3))
    hidden = f(R(6, 4))
    middle = g(hidden.relu())
    a, b = h(middle), middle.sum()
    weights = {id(m.weight): m.weight for m in (f, g, h)}
    uses, _ = uses_of([a, hidden, b], weights)
    outputs = {id(use.weight): set(use.outputs) for use in uses}
    assert outputs == {id(h.weight): {0}, id(g.weight): {2}, id(f.weight): set()}


def test_maps_without_a_use_stand_before_the_outputs_too():
    f, head = nn.Linear(4, 4), nn.Linear(4, 3)
    x, adjacency = R(6, 4), R(6, 6).relu().to_sparse_csr()
    frozen = nn.Linear(4, 3).requires_grad_(False)
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    image = nn.Conv2d(4, 3, 1).requires_grad_(False)
    for after, last in (
        (lambda h: h.relu(), True),
        (lambda h: adjacency @ h, True),  # no weight
        (lambda h: torch.softmax(h @ h.T, 1), False),  # of pairs
        (normed, False),
        (frozen, False),
        (lambda h: h + h @ frozen.weight.T @ frozen.weight, True),
        (lambda h: image(h.view(6, 4, 1, 1)), False),
        (head, False),
    ):
        uses, _ = uses_of([after(f(x))], {id(p): p for m in (f, frozen, image) for p in m.parameters()})
        assert [use.last for use in uses if use.weight is f.weight] == [last]
    with torch.autocast("cpu", torch.bfloat16):
        out = frozen.float()(f.float()(x.float()))
    (use,) = uses_of([out], {id(p): p for m in (f, frozen) for p in m.parameters()})[0]
    assert not use.last


@pytest.mark.parametrize("seed", range(40))
def test_views_know_every_place(seed):
    """Random chains of views, beside a tensor of places."""
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.choice([1, 2, 3, 4], size=rng.integers(2, 5)))
    view, places = View(shape), torch.arange(int(np.prod(shape))).reshape(shape)
    try:
        for _ in range(rng.integers(1, 6)):
            axis = int(rng.integers(places.ndim)) if places.ndim else 0
            kind = rng.choice(["permute", "reshape", "narrow", "select"])
            if kind == "permute":
                order = [int(i) for i in rng.permutation(places.ndim)]
                view.permute(order)
                places = places.permute(order)
            elif kind == "reshape":
                numbers = [int(n) for n in places.shape]
                i = int(rng.integers(len(numbers)))
                new = [*numbers[:i], int(np.prod(numbers[i:]))]
                view.reshape(tuple(new))
                places = places.reshape(new)
            elif kind == "narrow" and places.shape[axis] > 1:
                start = int(rng.integers(places.shape[axis] - 1))
                view.narrow(axis, start, 2 if places.shape[axis] - start > 1 else 1)
                places = places.narrow(axis, start, 2 if places.shape[axis] - start > 1 else 1)
            elif kind == "select" and places.ndim > 2:
                index = int(rng.integers(places.shape[axis]))
                view.select(axis, index)
                places = places.select(axis, index)
    except ValueError:
        return
    base = sum(d.start * d.stride for d in view.chosen)
    found = torch.tensor([base])
    sizes = []
    for axis in view.axes:
        n = 1
        for d in axis:
            n *= d.count
            found = (found[:, None] + (d.start + torch.arange(d.count)) * d.stride).reshape(-1)
        sizes.append(n)
    assert tuple(sizes) == tuple(places.shape)
    assert torch.equal(found.reshape(places.shape), places)


def test_layouts_there_and_back():
    p = R(4, 5, 6)
    layout = Layout((4, 5, 6), (1, 2, 0), (5, 6, 4))
    assert torch.equal(layout.matrices(p), p.permute(1, 2, 0))
    assert torch.equal(layout.parameter(layout.matrices(p), p), p)
    several = R(3, 4, 5, 6)
    assert torch.equal(layout.matrices(several)[5:10], layout.matrices(several[1]))
    assert torch.equal(layout.parameter(layout.matrices(several), several), several)
