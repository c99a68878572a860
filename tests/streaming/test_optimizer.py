"""StreamingADMM: beside a literal reference, on every module, its memory, its files, what it says when it cannot."""

import copy
import io
import json
import pickle
import warnings
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import dladmm
import reference_spectral
from dladmm import StreamingADMM
from dladmm.streaming.optimizer import Exact, Sketch, is_observed, is_renewed, msgn, random_signs
from dladmm.streaming.surroundings import tensors_in

R = torch.randn


def mlp(*sizes, seed=0, act=nn.Tanh):
    torch.manual_seed(seed)
    layers = [each for n, m in pairwise(sizes) for each in (nn.Linear(n, m), act())]
    return nn.Sequential(*layers[:-1])


def rows(n=24, n_in=6, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, n_in, generator=generator)
    return x, (x @ torch.randn(n_in, classes, generator=generator)).argmax(1)


def train(module, optimizer, steps=10, data=None, loss=F.cross_entropy):
    x, y = data or rows()
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(module(x), y)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


def maps_of(optimizer, module):
    """The sizes of all weights that were seen as maps, by name."""
    return {
        n: optimizer._maps[p].sizes
        for n, p in module.named_parameters()
        if optimizer._maps.get(p) is not None
    }


def numbers(module):
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


# The mathematics ----------------------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        h = self.l1(x).tanh()
        return self.l3(h + self.l2(h).tanh())


@pytest.mark.parametrize("settings", [{}, {"total_steps": 20, "weight_decay": 0.2, "lr": 0.05}])
def test_literal_reference(settings):
    torch.manual_seed(0)
    module = Residual().double()
    names = {
        f"{kind}{i}": f"l{i}.{word}" for i in (1, 2, 3) for kind, word in (("W", "weight"), ("b", "bias"))
    }
    start = {short: module.get_parameter(name).detach().numpy() for short, name in names.items()}
    rng = np.random.default_rng(0)
    batches = [(rng.normal(size=(10, 4)), rng.integers(0, 3, 10)) for _ in range(18)]
    expected = reference_spectral.run(start, batches, **{"lr": 0.01, **settings})
    optimizer = StreamingADMM(module, **settings)
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        optimizer.step()
    for short, name in names.items():
        np.testing.assert_allclose(
            module.get_parameter(name).detach().numpy(), expected[short], rtol=1e-8, atol=1e-8
        )
    assert maps_of(optimizer, module) == {"l1.weight": (1, 6, 4), "l2.weight": (1, 6, 6)}


@pytest.mark.parametrize("shape", [(2, 5, 5), (1, 3, 8), (3, 8, 3)])
def test_msgn_brings_singular_values_near_1(shape):
    G = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    U, _, V = torch.linalg.svd(G, full_matrices=False)
    values = torch.linalg.svdvals(U.mT @ msgn(G) @ V.mT)
    assert values.min() > 0.6
    assert values.max() < 1.25
    assert not msgn(torch.zeros(1, 3, 4)).any()


def inputs(n_rows, n_in, rank, seed=0):
    generator = torch.Generator().manual_seed(seed)
    A = torch.randn(n_rows, rank, generator=generator, dtype=torch.float64)
    return (A @ torch.randn(rank, n_in, generator=generator, dtype=torch.float64))[None] * torch.logspace(
        -1, 1, n_in
    )


def dense(metric, S, n):
    return metric.before(torch.eye(n, dtype=S.dtype)[None], S)[0]


def preconditioner(C):
    n = len(C)
    return 2 * torch.linalg.inv(C / (C.trace() / n) + torch.eye(n, dtype=C.dtype))


def test_exact_factor():
    A = inputs(30, 6, 6)
    metric = Exact(6, 8)
    S = dense(metric, metric.factor(metric.moment(A)), 6)
    torch.testing.assert_close(S @ S.mT, preconditioner((A.mT @ A / 30)[0]))
    X = torch.randn(1, 8, 6, dtype=torch.float64)
    torch.testing.assert_close(metric.after(X, S[None])[0], X[0] @ S.mT)


@pytest.mark.parametrize("rank", [1, 3, 5, 20])
def test_sketched_factor(rank):
    """Exact where the inputs have no more directions than the sketch has columns; else that of Nystrom's C."""
    A = inputs(50, 20, rank)
    C, metric = (A.mT @ A / 50)[0], Sketch(20, 10)
    moment = metric.moment(A)
    assert moment.shape == (1, 20, 6)
    torch.testing.assert_close(moment[0, :, -1].sum(), C.trace())
    O = random_signs(20, 5, C.device).double()
    near = C @ O @ torch.linalg.pinv(O.mT @ C @ O, rtol=1e-9, hermitian=True) @ O.mT @ C
    if rank <= 5:
        torch.testing.assert_close(near, C)
    S = dense(metric, metric.factor(moment), 20)
    P = 2 * torch.linalg.inv(near / (C.trace() / 20) + torch.eye(20, dtype=C.dtype))
    torch.testing.assert_close(S @ S.mT, P)
    torch.testing.assert_close(S, S.mT)
    assert metric.factor(torch.zeros(2, 20, 6)).abs().max() < 1e-2


def test_what_is_observed_and_renewed():
    assert [k for k in range(1, 21) if is_observed(k)] == [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20]
    assert [k for k in range(1000, 1100) if is_observed(k)] == [1008, 1024, 1056, 1088]
    assert [h for h in range(1, 30) if is_renewed(h)] == [1, 2, 3, 4, 6, 9, 13, 19, 28]


# Modules ------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Self attention by hand, attention across other widths, two inputs and two heads."""

    def __init__(self):
        super().__init__()
        self.table, self.position = nn.Embedding(11, 8), nn.Parameter(torch.zeros(5, 8))
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.across = nn.MultiheadAttention(8, 2, kdim=6, vdim=6, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.heads = nn.ModuleList([nn.Linear(8, 3), nn.Linear(8, 2)])

    def forward(self, tokens, memory):
        h = self.table(tokens) + self.position
        q, k, v = self.qkv(self.norm(h)).view(len(h), 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
        h = h + self.out(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(h.shape)
        )
        h = (h + self.across(h, memory, memory)[0]).mean(1)
        return {"classes": self.heads[0](h), "values": [self.heads[1](h)]}


def test_attention_several_inputs_and_heads():
    torch.manual_seed(0)
    module = Attention()
    optimizer = StreamingADMM(module, lr=0.03)
    tokens, memory, y = torch.randint(0, 11, (12, 5)), torch.randn(12, 4, 6), torch.randint(0, 3, (12,))
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        out = module(tokens, memory=memory)
        loss = F.cross_entropy(out["classes"], y) + out["values"][0].square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    assert set(maps_of(optimizer, module)) == {
        "qkv.weight",
        "out.weight",
        *(f"across.{kind}_proj_weight" for kind in "qkv"),
        "across.out_proj.weight",
    }


@dataclass
class Output:
    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...] = ()


class Characters(nn.Module):
    """A recurrent language model with tied weights that hands its states on."""

    def __init__(self, kind):
        super().__init__()
        self.table, self.rnn = nn.Embedding(7, 6), kind(6, 6, 2, batch_first=True)
        self.head = nn.Linear(6, 7)
        self.head.weight = self.table.weight

    def forward(self, tokens):
        out, state = self.rnn(self.table(tokens))
        return Output(self.head(out), state)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_states_beside_the_outputs_are_not_the_last(kind):
    torch.manual_seed(0)
    module = Characters(kind)
    optimizer = StreamingADMM(module, lr=0.03, total_steps=60)
    tokens = torch.arange(20).remainder(7).view(2, 10)
    loss = lambda out, y: F.cross_entropy(out.logits.flatten(0, 1), y.flatten())  # noqa: E731
    losses = train(module, optimizer, 60, (tokens, tokens.roll(-1, 1)), loss)
    assert losses[-1] < 0.8 * losses[0]
    sizes = (1, module.rnn.weight_ih_l0.shape[0], 6)
    assert maps_of(optimizer, module) == {f"rnn.weight_{k}h_l{i}": sizes for k in "ih" for i in (0, 1)}


def test_a_loop_over_time_outside_of_the_module():
    """A state that is handed to the next call is no output, and a call does not look into the one before."""

    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.state, self.up, self.head = nn.Linear(6, 6), nn.Linear(2, 6), nn.Linear(6, 3)

        def forward(self, x, h):
            h = (self.up(x) + self.state(h)).tanh()
            return self.head(h), h

    torch.manual_seed(0)
    module, times, walks = Cell(), 6, []
    optimizer = StreamingADMM(module, lr=0.03, total_steps=60)
    optimizer._pass_of = lambda uses, make=optimizer._pass_of: walks.append(len(uses)) or make(uses)
    x, y = torch.randn(times, 20, 2), torch.randint(0, 3, (20,))
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        h = torch.zeros(20, 6)
        for t in range(times):
            out, h = module(x[t], h=h)
        loss = F.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.85 * losses[0]
    assert set(walks) == {3}
    assert set(maps_of(optimizer, module)) == {"state.weight", "up.weight"}


class Experts(nn.Module):
    """Experts in a stack, of which a batch may leave some without rows; and one that most batches leave out."""

    def __init__(self):
        super().__init__()
        self.up, self.rare = nn.Parameter(torch.randn(3, 8, 6) / 3), nn.Linear(6, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x, rare=False):
        parts = [F.linear(x[i::3], self.up[i]) for i in range(3) if len(x[i::3])]
        h = torch.cat(parts)
        return self.head((h + self.rare(x) if rare else h).relu())


def test_experts_and_parts_that_most_batches_leave_out():
    torch.manual_seed(0)
    module = Experts()
    optimizer = StreamingADMM(module)
    x, y = rows()
    for i in range(30):
        optimizer.zero_grad()
        F.cross_entropy(
            module(x[:2] if i % 5 == 1 else x, rare=i % 3 == 2), y[:2] if i % 5 == 1 else y
        ).backward()
        before = optimizer.state[module.rare.weight].get("momentum", torch.zeros(())).clone()
        optimizer.step()
        if module.rare.weight.grad is None and "momentum" in optimizer.state[module.rare.weight]:
            assert torch.equal(optimizer.state[module.rare.weight]["momentum"], before)
    assert maps_of(optimizer, module) == {"up": (3, 8, 6), "rare.weight": (1, 8, 6)}
    first, _, third = optimizer.state[module.up]["observed"]
    assert first > third > 0
    moment = optimizer.state[module.up]["moment"]
    assert not torch.equal(moment[0], moment[1])


@pytest.mark.skipif(
    not hasattr(torch.nn.functional, "grouped_mm"), reason="this torch has no products by groups"
)
def test_experts_in_one_product():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.head = nn.Parameter(torch.randn(2, 8, 16) / 3), nn.Linear(16, 3)

        def forward(self, x):
            ends = torch.tensor([10, len(x)], dtype=torch.int32)
            return self.head(F.grouped_mm(x.bfloat16(), self.up.bfloat16(), offs=ends).to(x.dtype).relu())

    torch.manual_seed(0)
    module, (x, y) = Net(), rows(24, 8)
    optimizer = StreamingADMM(module, total_steps=30)
    losses = train(module, optimizer, 30, (x, y))
    assert losses[-1] < losses[0]
    assert maps_of(optimizer, module) == {"up": (2, 16, 8)}
    assert optimizer.state[module.up]["observed"] == [13, 13]
    assert torch.equal(*optimizer.state[module.up]["moment"])


def test_low_rank_adapters_and_frozen_parts():
    class Adapted(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner.requires_grad_(False)
            self.a, self.b = (
                nn.Linear(inner.in_features, 2, bias=False),
                nn.Linear(2, inner.out_features, bias=False),
            )
            nn.init.zeros_(self.b.weight)

        def forward(self, x):
            return self.inner(x) + self.b(self.a(x))

    module = mlp(6, 8, 8, 3)
    module[2] = Adapted(module[2])
    module[0].requires_grad_(False)
    frozen = numbers(module)
    optimizer = StreamingADMM(module)
    losses = train(module, optimizer, 60)
    assert losses[-1] < losses[0]
    assert maps_of(optimizer, module) == {"2.a.weight": (1, 2, 8), "2.b.weight": (1, 8, 2)}
    for name in ("0.weight", "2.inner.weight", "2.inner.bias"):
        assert torch.equal(module.get_parameter(name), frozen[name])


def test_weights_behind_parametrizations_are_the_rest():
    module = mlp(6, 8, 8, 3)
    nn.utils.parametrizations.weight_norm(module[2])
    module[0].weight = nn.Parameter(module[0].weight.detach().to(torch.float32))
    optimizer = StreamingADMM(module)
    losses = train(module, optimizer, 40)
    assert losses[-1] < losses[0]
    assert set(maps_of(optimizer, module)) == {"0.weight"}


def test_a_module_without_a_map_says_so():
    module = nn.utils.parametrizations.weight_norm(nn.Linear(6, 3))
    with pytest.warns(UserWarning, match="no weight of the module was seen in a linear map"):
        losses = train(module, StreamingADMM(module), 40)
    assert losses[-1] < losses[0]


def test_tables_with_sparse_gradients_and_complex_weights():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.EmbeddingBag(9, 6, sparse=True, mode="mean")
            self.spectrum = nn.Parameter(torch.randn(6, 6, dtype=torch.complex64) / 3)
            self.f, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x):
            h = self.table(x)
            return self.head(self.f(h + (h.to(torch.complex64) @ self.spectrum).abs()))

    torch.manual_seed(0)
    module = Net()
    optimizer = StreamingADMM(module)
    x, y = torch.randint(0, 9, (20, 4)), torch.randint(0, 3, (20,))
    losses = train(module, optimizer, 60, (x, y))
    assert losses[-1] < losses[0]
    assert set(maps_of(optimizer, module)) == {"f.weight"}


def test_checkpointed_parts_are_seen():
    class Net(nn.Module):
        def __init__(self, reentrant):
            super().__init__()
            self.first, self.part, self.head = mlp(6, 8), mlp(8, 8, 8), mlp(8, 3)
            self.reentrant = reentrant

        def forward(self, x):
            h = self.first(x)
            again = {None: lambda f, x, **_: f(x)}.get(self.reentrant, checkpoint)
            return self.head(again(self.part, h, use_reentrant=self.reentrant))

    results = {}
    for reentrant in (None, False, True):
        module = Net(reentrant)
        optimizer = StreamingADMM(module)
        if reentrant:
            with pytest.warns(
                UserWarning, match=r"CheckpointFunctionBackward: part.0.weight, part.2.weight take Adam"
            ):
                train(module, optimizer)
            assert set(maps_of(optimizer, module)) == {"first.0.weight"}
        else:
            train(module, optimizer)
            assert len(maps_of(optimizer, module)) == 3
        results[reentrant] = numbers(module)
    assert same(results[None], results[False])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own, as it compiles
@pytest.mark.parametrize("kind", ["given", "given whole", "later", "in place", "a part"])
def test_compiled_modules_take_the_same_steps(kind):
    def make():
        module = mlp(6, 8, 8, 3)
        module.insert(1, nn.BatchNorm1d(8))
        return module

    plain = make()
    train(plain, StreamingADMM(plain), 10)
    torch.compiler.reset()
    module = called = make()
    if kind.startswith("given"):
        called = torch.compile(module, backend="aot_eager", fullgraph=kind == "given whole")
    elif kind == "a part":
        module[3] = torch.compile(module[3], backend="aot_eager")
    optimizer = StreamingADMM(called)
    if kind == "later":
        called = torch.compile(module, backend="aot_eager")
    elif kind == "in place":
        module.compile(backend="aot_eager")
    train(called, optimizer, 10)
    assert len(maps_of(optimizer, module)) == 2
    for a, b in zip(plain.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert module[1].num_batches_tracked == 10


def test_autocast_and_a_scaler():
    module = mlp(6, 8, 8, 3)
    optimizer = StreamingADMM(module)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    x, y = rows()
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(module(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert len(maps_of(optimizer, module)) == 2
    assert all(
        t.dtype == torch.float32 for s in optimizer.state.values() for t in s.values() if torch.is_tensor(t)
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parameters_of_half_precision(dtype):
    module = mlp(6, 16, 16, 3).to(dtype)
    optimizer = StreamingADMM(module)
    x, y = rows()
    losses = train(module, optimizer, 40, (x.to(dtype), y))
    assert losses[-1] < losses[0]
    assert len(maps_of(optimizer, module)) == 2


def test_accumulated_gradients_average_the_observations():
    x, y = rows(24)
    whole, parts = mlp(6, 8, 3), mlp(6, 8, 3)
    a, b = StreamingADMM(whole), StreamingADMM(parts)
    F.cross_entropy(whole(x), y).backward()
    for part in (slice(0, 12), slice(12, 24)):
        (F.cross_entropy(parts(x[part]), y[part]) / 2).backward()
    a.step()
    b.step()
    torch.testing.assert_close(a.state[whole[0].weight]["moment"], b.state[parts[0].weight]["moment"])
    assert b.state[parts[0].weight]["observed"] == [1]
    for p, q in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


def test_forward_passes_without_gradients_do_not_count():
    results = []
    for extra in (0, 20):
        module = mlp(6, 8, 3)
        optimizer = StreamingADMM(module)
        for _ in range(extra):
            module(torch.full((4, 6), 9.0))
        with torch.no_grad():
            module(torch.full((4, 6), 9.0))
        train(module, optimizer, 3)
        results.append(numbers(module))
    assert same(*results)


@pytest.mark.parametrize("where", ["inputs", "gradient"])
def test_one_batch_that_is_not_finite(where):
    module = mlp(6, 8, 8, 3)
    optimizer = StreamingADMM(module)
    x, y = rows()
    for i in range(60):
        optimizer.zero_grad()
        bad = i in (0, 4, 30)
        loss = F.cross_entropy(module(x * float("inf") if bad and where == "inputs" else x), y)
        (loss * float("nan") if bad and where == "gradient" else loss).backward()
        optimizer.step()
    assert all(t.isfinite().all() for s in optimizer.state.values() for t in s.values() if torch.is_tensor(t))
    assert F.cross_entropy(module(x), y) < 0.9


def test_data_parallel_and_other_wrappers_and_copies():
    module = mlp(6, 8, 3)
    optimizer = StreamingADMM(module)
    average = torch.optim.swa_utils.AveragedModel(module)  # a deep copy
    average(torch.randn(2, 6)).sum().backward()
    torch.save(module, io.BytesIO())
    losses = train(nn.Sequential(module), optimizer, 5)
    assert np.isfinite(losses).all()
    assert all(
        "optimizer" not in vars(h) or h.optimizer() is None for h in average.module._forward_hooks.values()
    )


def test_a_second_optimizer_takes_over():
    module = mlp(6, 8, 3)
    train(module, StreamingADMM(module), 2)
    again = StreamingADMM(module)
    train(module, again, 2)
    assert again.state[module[0].weight]["observed"] == [2]


def test_outputs_of_every_make():
    a, b, c = (torch.zeros(1) for _ in range(3))
    output = Output(a, (b, {"x": c}))
    output.self = output
    output.module = nn.Linear(1, 1)
    assert [id(t) for t in tensors_in([output, 3, None])] == [id(a), id(b), id(c)]


# Loops of one's own -------------------------------------------------------------------------------------------


class Operators(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def test_a_step_asks_the_device_for_nothing():
    """What cannot be recorded: numbers that the host waits for, and tensors that it makes."""
    module = nn.Sequential(ResNet(), nn.Flatten(), nn.LayerNorm(5))
    optimizer = StreamingADMM(module, total_steps=100, weight_decay=0.1)
    x = R(6, 3, 8, 8)
    counts = []
    for _ in range(9):
        optimizer.zero_grad()
        module(x).square().sum().backward()
        with Operators() as operators:
            optimizer.step()
        counts.append(len(operators.names))
    waits = {
        "_local_scalar_dense",
        "nonzero",
        "is_nonzero",
        "equal",
        "lift_fresh",
        "lift_fresh_copy",
        "full",
        "zeros",
    }
    assert not waits & set(operators.names)
    views = {
        "view",
        "t",
        "transpose",
        "unbind",
        "permute",
        "_unsafe_view",
        "split_with_sizes",
        "expand",
        "detach",
    }
    launches = [name for name in operators.names if name not in views]
    assert len(launches) <= 45 * len(optimizer._stacks)
    assert counts[-1] < counts[0]


def test_recordings_need_steps_before(monkeypatch):
    module = mlp(6, 8, 3)
    optimizer = StreamingADMM(module)
    F.cross_entropy(module(rows()[0]), rows()[1]).backward()
    monkeypatch.setattr("dladmm.streaming.optimizer.recording", lambda: True)
    with pytest.raises(RuntimeError, match="take the first eight steps without recording"):
        optimizer.step()


def test_schedulers_closures_and_weight_decay():
    module = mlp(6, 8, 3)
    optimizer = StreamingADMM(module, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    x, y = rows()

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(module(x), y)
        loss.backward()
        return loss

    losses = []
    for _ in range(20):
        losses.append(optimizer.step(closure).item())
        schedule.step()
    assert losses[-1] < losses[0]
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0, abs=1e-9)
    before = numbers(module)
    optimizer.step(closure)
    assert same(before, numbers(module))


def test_a_rate_in_a_tensor():
    a, b = mlp(6, 8, 3), mlp(6, 8, 3)
    train(a, StreamingADMM(a, lr=0.02), 4)
    train(b, StreamingADMM(b, lr=torch.tensor(0.02, dtype=torch.float64)), 4)
    assert same(numbers(a), numbers(b))


def test_steps_after_the_plan_say_so():
    module = mlp(6, 8, 3)
    optimizer = StreamingADMM(module, total_steps=4)
    train(module, optimizer, 4)
    before = numbers(module)
    with pytest.warns(UserWarning, match="4 steps of total_steps are done"):
        train(module, optimizer, 2)
    assert same(before, numbers(module))


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = mlp(6, 8, 8), mlp(8, 3)


def test_a_module_of_which_parts_are_called():
    module = Parts()
    optimizer = StreamingADMM(module)
    x, y = rows()
    loss = F.cross_entropy(module.decoder(module.encoder(x)), y)
    loss.backward()
    before = numbers(module)
    with pytest.raises(RuntimeError, match=r"optimizer.observe\(loss\) before loss.backward\(\)"):
        optimizer.step()
    assert same(before, numbers(module))
    for _ in range(5):
        optimizer.zero_grad()
        loss = F.cross_entropy(module.decoder(module.encoder(x)), y)
        optimizer.observe(loss)
        loss.backward()
        optimizer.step()
    assert set(maps_of(optimizer, module)) == {"encoder.0.weight", "encoder.2.weight"}


@pytest.mark.parametrize(("wrong", "error", "words"), [
    (lambda m: StreamingADMM(m.parameters()), TypeError, "takes the module, not generator"),
    (lambda m: StreamingADMM(m.requires_grad_(False)), ValueError, "no parameter with requires_grad=True"),
    (lambda m: StreamingADMM(nn.ReLU()), ValueError, "no parameter with requires_grad=True"),
    (lambda m: StreamingADMM(nn.LazyLinear(3)), ValueError, "call it once on a batch"),
    (lambda m: StreamingADMM(m, lr=-1), ValueError, "lr must be a finite number >= 0, not -1"),
    (lambda m: StreamingADMM(m, lr="0.1"), ValueError, "lr must be"),
    (lambda m: StreamingADMM(m, weight_decay=float("nan")), ValueError, "weight_decay must be"),
    (lambda m: StreamingADMM(m, total_steps=0), ValueError, "total_steps must be a whole number >= 1 or None, not 0"),
    (lambda m: StreamingADMM(m).add_param_group({"params": [nn.Parameter(R(1))]}), ValueError, "has one group"),
])  # fmt: skip
def test_what_is_refused(wrong, error, words):
    with pytest.raises(error, match=words):
        wrong(mlp(6, 3))


# Memory and files ---------------------------------------------------------------------------------------------


class ResNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        conv = lambda n, m, s=1: nn.Sequential(nn.Conv2d(n, m, 3, s, 1, bias=False), nn.BatchNorm2d(m))  # noqa: E731
        self.first = conv(3, width)
        self.parts = nn.ModuleList([conv(width, width), conv(width, width), conv(width, 2 * width, 2)])
        self.short, self.head = nn.Conv2d(width, 2 * width, 1, 2), nn.Linear(2 * width, 5)

    def forward(self, x):
        h = self.first(x).relu()
        h = (h + self.parts[1](self.parts[0](h).relu())).relu()
        h = (self.short(h) + self.parts[2](h)).relu()
        return self.head(h.mean((2, 3)))


def squeezed(dtype):
    return lambda: (mlp(48, 24, 24, 48, 64, 4).to(dtype), torch.randn(9, 48, dtype=dtype))


@pytest.mark.parametrize("make", [
    lambda: (ResNet(), torch.randn(6, 3, 8, 8)),
    lambda: (nn.TransformerEncoderLayer(16, 2, 64, batch_first=True), torch.randn(3, 5, 16)),
    lambda: (nn.Sequential(nn.Embedding(99, 16), nn.LSTM(16, 24, 2, bidirectional=True)), torch.zeros(4, 3).long()),
    lambda: (mlp(30, 200, 2), torch.randn(9, 30)),
    lambda: (mlp(200, 30, 20, 200), torch.randn(9, 200)),
    lambda: (nn.Conv2d(64, 16, 5, groups=4), torch.randn(2, 64, 6, 6)),
    squeezed(torch.float64), squeezed(torch.float32), squeezed(torch.bfloat16),
])  # fmt: skip
def test_states_are_at_most_three_times_the_parameters(make):
    torch.manual_seed(0)
    module, x = make()
    module = nn.Sequential(module)
    optimizer = StreamingADMM(module)
    for _ in range(3):
        optimizer.zero_grad()
        out = next(t for t in tensors_in(module(x)) if t.requires_grad)
        out.float().square().sum().backward()
        optimizer.step()
    size = sum(p.numel() * p.element_size() for p in module.parameters())
    tensors = [
        t.untyped_storage() for s in optimizer.state.values() for t in s.values() if torch.is_tensor(t)
    ]
    held = {t.data_ptr(): t.nbytes() for t in tensors}
    assert sum(held.values()) <= 3 * size


class Varied(nn.Module):
    """Of everything: wide and tall maps, convolutions, groups, a table, gains, parts that some batches leave out."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2)
        )
        self.table, self.mix, self.again = nn.Embedding(4, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x, kind, again=False):
        h = self.first(x).mean((2, 3)) + self.table(kind)
        h = h + self.mix(h).tanh()
        return self.head(h + self.again(h).tanh() if again else h)


def varied_steps(module, optimizer, start, stop):
    for i in range(start, stop):
        generator = torch.Generator().manual_seed(i)
        x, kind = torch.randn(6, 3, 6, 6, generator=generator), torch.randint(0, 4, (6,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(module(x, kind, again=i % 4 == 3), kind % 3).backward()
        optimizer.step()


def through_torch(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def through_json(state):
    """As files without pickles do: numbers as JSON."""
    tensors = {
        i: {k: t.clone() for k, t in s.items() if torch.is_tensor(t)} for i, s in state["state"].items()
    }
    plain = {i: {k: v for k, v in s.items() if k not in tensors[i]} for i, s in state["state"].items()}
    read = json.loads(json.dumps({"state": plain, "param_groups": state["param_groups"]}))
    return {
        "param_groups": read["param_groups"],
        "state": {int(i): {**s, **tensors[int(i)]} for i, s in read["state"].items()},
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("stop", [3, 11, 14])
@pytest.mark.parametrize("way", [through_torch, through_json, copy.deepcopy])
def test_resumes_to_the_bit(stop, way, dtype):
    torch.set_default_dtype(dtype)
    try:
        torch.manual_seed(0)
        module = Varied()
        optimizer = StreamingADMM(module, total_steps=30, weight_decay=0.1)
        varied_steps(module, optimizer, 0, stop)
        again, state = copy.deepcopy(module), way(optimizer.state_dict())
        varied_steps(module, optimizer, stop, 20)
        resumed = StreamingADMM(again, lr=0.5)
        resumed.load_state_dict(state)
        varied_steps(again, resumed, stop, 20)
    finally:
        torch.set_default_dtype(torch.float32)
    assert same(numbers(module), numbers(again))
    assert resumed.param_groups[0] | {"params": None} == optimizer.param_groups[0] | {"params": None}
    assert len(maps_of(resumed, again)) == 4


def test_resumes_in_half_precision():
    module = mlp(6, 16, 16, 3).to(torch.bfloat16)
    optimizer = StreamingADMM(module)
    x, y = rows()
    train(module, optimizer, 5, (x.bfloat16(), y))
    again = copy.deepcopy(module)
    resumed = StreamingADMM(again)
    resumed.load_state_dict(optimizer.state_dict())
    train(module, optimizer, 9, (x.bfloat16(), y))
    train(again, resumed, 9, (x.bfloat16(), y))
    assert same(numbers(module), numbers(again))


@pytest.mark.parametrize("way", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_copies_and_pickles_with_its_module(way):
    module = mlp(6, 8, 3)
    optimizer = StreamingADMM(module)
    train(module, optimizer, 5)
    again, copied = way((module, optimizer))
    train(module, optimizer, 5)
    train(again, copied, 5)
    assert copied is not optimizer
    assert same(numbers(module), numbers(again))


def test_states_of_other_parameters_are_refused():
    optimizer = StreamingADMM(mlp(6, 8, 3))
    with pytest.raises(ValueError, match="parameter group"):
        optimizer.load_state_dict(StreamingADMM(mlp(6, 3)).state_dict())


def test_it_is_a_torch_optimizer():
    assert dladmm.StreamingADMM is StreamingADMM
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "StreamingADMM" in repr(StreamingADMM(mlp(6, 3)))
