"""Modules that are no chain are trained as they are in streaming mode."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.data import DataLoader

from dladmm import datasets, train
from dladmm.callbacks import Checkpoint
from dladmm.engine.module_sweep import ModuleSweep


class Residual(nn.Module):
    def __init__(self, width=64, depth=3, n_in=64):
        super().__init__()
        self.first = nn.Linear(n_in, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.1))
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = self.first(x.flatten(1))
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(2))
        self.head = nn.Linear(16 * 16, 10)

    def forward(self, x):
        x = F.relu(self.norms[0](self.first(x.view(-1, 1, 8, 8))))
        x = x + F.relu(self.norms[1](self.second(x)))
        return self.head(F.avg_pool2d(x, 2).flatten(1))


class Attention(nn.Module):
    """Attention over the rows of a digit, by torch's fused function."""

    def __init__(self, width=32):
        super().__init__()
        self.embed, self.place = nn.Linear(8, width), nn.Parameter(0.02 * torch.randn(8, width))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x):
        x = self.embed(x.view(-1, 8, 8)) + self.place
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return self.head(x.mean(1))


class Tied(nn.Module):
    """One hidden layer applied three times, and a hook that doubles the outputs."""

    def __init__(self):
        super().__init__()
        self.first, self.shared, self.head = nn.Linear(64, 48), nn.Linear(48, 48), nn.Linear(48, 10)
        self.head.register_forward_hook(lambda module, args, output: 2 * output)

    def forward(self, x):
        x = F.gelu(self.first(x))
        for _ in range(3):
            x = x + F.gelu(self.shared(x)) if bool(x.isfinite().all()) else x
        return self.head(x)


def normed():
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(64, 48)), nn.ReLU(), nn.Linear(48, 10))


NETWORKS = {
    "residual": Residual,
    "batch norm": ResNet,
    "attention": Attention,
    "tied": Tied,
    "weight norm": normed,
}


@pytest.fixture(scope="module")
def digits():
    data = datasets.load("digits")
    return tuple(t.numpy() for t in (data.x_train, data.y_train, data.x_test, data.y_test))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_module_is_trained_in_place_and_learns(name, digits):
    x, y, x_test, y_test = digits
    torch.manual_seed(0)
    module = NETWORKS[name]()
    result = train(module, x, y, mode="streaming", max_iter=6, validation=(x_test, y_test))
    module.eval()
    with torch.no_grad():
        accuracy = float((module(torch.from_numpy(x_test).float()).argmax(1).numpy() == y_test).mean())
    assert accuracy > 0.93
    assert result.history["val_accuracy"][-1] == pytest.approx(accuracy, abs=1e-6)
    assert result.history.n_iter == 6


@pytest.mark.filterwarnings("ignore:the network is no better")
def test_its_own_weights_are_the_start_unless_fresh_ones_are_asked_for(digits):
    x, y, _, _ = digits
    starts = []
    for init in ("auto", "fresh"):
        torch.manual_seed(3)
        module = Residual()
        with torch.no_grad():
            module.head.weight.zero_()
            module.head.bias.copy_(torch.arange(10.0))
        result = train(module, x[:64], y[:64], mode="streaming", max_iter=1, batch_size=64, init=init)
        starts.append(float(result.module.head.bias.detach().std()))
    assert starts[0] == pytest.approx(3.03, abs=0.2)
    assert starts[1] < 0.5


def test_frozen_parts_stay_to_the_bit(digits):
    x, y, _, _ = digits
    module = Residual()
    module.first.requires_grad_(False)
    module.blocks[0][1].weight.requires_grad_(False)
    before = {name: p.clone() for name, p in module.named_parameters()}
    train(module, x, y, mode="streaming", max_iter=2)
    for name, p in module.named_parameters():
        assert torch.equal(p, before[name]) == (not p.requires_grad), name


def test_an_interrupted_run_goes_on_to_the_bit(digits, tmp_path):
    x, y, _, _ = digits
    whole, halved = (ResNet() for _ in range(2))
    halved.load_state_dict(whole.state_dict())
    again = ResNet()
    again.load_state_dict(whole.state_dict())
    settings = {"mode": "streaming", "max_iter": 4, "random_state": 5}
    train(whole, x, y, **settings)

    class Interrupt(Checkpoint):
        def on_epoch_end(self, trainer):
            super().on_epoch_end(trainer)
            if trainer.history.n_iter == 2:
                raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        train(halved, x, y, callbacks=[Interrupt(tmp_path)], **settings)
    train(again, x, y, callbacks=[Checkpoint(tmp_path, resume=True)], **settings)
    for (name, p), q in zip(whole.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(p, q) or name.endswith("num_batches_tracked"), name


def test_per_pixel_targets_of_a_convolution(digits):
    x, _, _, _ = digits
    image = x.reshape(-1, 1, 8, 8)
    bright = (image[:, 0] > 0.5).astype(np.int64)

    class Pixels(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 2, 1)

        def forward(self, v):
            return self.b(F.relu(self.a(v)) + v)

    result = train(Pixels(), image, bright, mode="streaming", max_iter=3)
    assert result.history["train_accuracy"][-1] > 0.9


def test_tokens_reach_an_embedding_as_whole_numbers():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 20, (600, 12))
    y = (x == 3).any(1).astype(np.int64)

    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.a, self.b = nn.Embedding(20, 16), nn.Linear(16, 16), nn.Linear(16, 2)

        def forward(self, v):
            e = self.table(v)
            return self.b((e + F.relu(self.a(e))).amax(1))

    result = train(Bag(), x, y, mode="streaming", max_iter=12)
    assert result.history["train_accuracy"][-1] > 0.95


def test_penalties_count(digits):
    x, y, _, _ = digits
    sizes = {}
    for name, penalty in (
        ("none", None),
        ("l2", {"name": "l2", "strength": 30.0}),
        ("l1", {"name": "l1", "strength": 30.0}),
    ):
        torch.manual_seed(0)
        module = Residual(width=32, depth=1)
        train(module, x, y, mode="streaming", max_iter=4, regularizer=penalty)
        weight = module.blocks[0][1].weight.detach()
        sizes[name] = float(weight.norm()), float((weight == 0).float().mean())
    assert sizes["l2"][0] < 0.9 * sizes["none"][0]
    assert sizes["l1"][1] > 0.05 > sizes["none"][1]


def test_what_does_not_go_through_is_refused_before_work_begins(digits):
    from dladmm import InputError

    x, y, _, _ = digits
    with pytest.raises(InputError, match="does not go through Residual"):
        train(Residual(n_in=50), x, y, mode="streaming")

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(64, 10)

        def forward(self, v):
            return self.a(v), v

    with pytest.raises(InputError, match="takes one tensor"):
        train(Pair(), x, y, mode="streaming")


class TwoInputsTwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.table = nn.Conv2d(1, 8, 3), nn.Linear(3, 8)
        self.body = nn.Linear(8 * 36 + 8, 32)
        self.label, self.number = nn.Linear(32, 10), nn.Linear(32, 1)

    def forward(self, image, table):
        both = torch.cat([F.relu(self.image(image)).flatten(1), F.relu(self.table(table))], 1)
        h = F.relu(self.body(both))
        return {"label": self.label(h), "number": self.number(h)[:, 0]}


def both(outputs, targets):
    """A loss of two heads, whose second part is not convex."""
    label = F.cross_entropy(outputs["label"], targets["label"])
    return label + (1 - torch.cos(outputs["number"] - targets["number"])).mean()


class Rows(torch.utils.data.Dataset):
    """Samples ((image, table), targets), whose tuples torch collates into lists."""

    def __init__(self, image, table, targets):
        self.image, self.table, self.targets = image, table, targets

    def __len__(self):
        return len(self.image)

    def __getitem__(self, i):
        return (self.image[i], self.table[i]), {name: t[i] for name, t in self.targets.items()}


@pytest.mark.parametrize("how", ["tuple", "dict", "stream", "loader", "dataset"])
def test_several_inputs_several_heads_and_any_loss(how, digits):
    x, y, x_test, y_test = digits
    image, table = x.reshape(-1, 1, 8, 8).astype(np.float32), x[:, :3].astype(np.float32)
    inputs = {"image": image, "table": table} if how == "dict" else (image, table)
    targets = {"label": y, "number": x.mean(1).astype(np.float32)}
    torch.manual_seed(0)
    module = TwoInputsTwoHeads()
    if how == "stream":
        rows = [slice(i, i + 64) for i in range(0, len(x), 64)]
        batches = [((image[r], table[r]), {name: t[r] for name, t in targets.items()}) for r in rows]
        result = train(module, batches, loss=both, mode="streaming", max_iter=8)
    elif how in ("loader", "dataset"):
        found = Rows(image, table, targets)
        own = how == "dataset"
        stream = found if own else DataLoader(found, batch_size=64, shuffle=True)
        size = 64 if own else None
        result = train(module, stream, loss=both, mode="streaming", max_iter=8, batch_size=size)
    else:
        result = train(module, inputs, targets, loss=both, mode="streaming", max_iter=5)
    module.eval()
    with torch.no_grad():
        out = module(
            torch.from_numpy(x_test.reshape(-1, 1, 8, 8)).float(), torch.from_numpy(x_test[:, :3]).float()
        )
    assert float((out["label"].argmax(1).numpy() == y_test).mean()) > 0.93
    assert result.history["loss"][-1] < 0.2


def test_targets_of_several_parts_need_a_loss_of_ones_own(digits):
    from dladmm import InputError

    x, y, _, _ = digits
    with pytest.raises(InputError, match="several parts"):
        train(Residual(), x, (y, y), mode="streaming")


def test_ignored_targets_do_not_count(digits):
    """Half of the labels are wrong and ignored: what is learnt is what the others say."""
    x, _, _, _ = digits
    image = x.reshape(-1, 1, 8, 8)
    label = (image[:, 0] > 0.5).astype(np.int64)
    label[:, 1::2] = 7

    class Pixels(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 2, 1)

        def forward(self, v):
            return self.b(F.relu(self.a(v)) + v)

    loss = nn.CrossEntropyLoss(ignore_index=7)
    result = train(Pixels(), image, label, loss=loss, mode="streaming", max_iter=6)
    assert result.history["train_accuracy"][-1] > 0.85
    torch.manual_seed(0)
    rows = [(image[i : i + 64], label[i : i + 64]) for i in range(0, len(x), 64)]
    result = train(Pixels(), rows, loss=loss, mode="streaming", max_iter=6)
    assert result.history["train_accuracy"][-1] > 0.85


def test_a_compiled_module_is_trained_in_place(digits):
    x, y, x_test, y_test = digits
    module = Residual(depth=1)
    compiled = torch.compile(module, backend="eager")
    train(compiled, x, y, mode="streaming", max_iter=4)
    module.eval()
    with torch.no_grad():
        accuracy = (module(torch.from_numpy(x_test).float()).argmax(1).numpy() == y_test).mean()
    assert accuracy > 0.93


def test_an_estimator_learns_from_rows_that_come_call_by_call(digits):
    from dladmm import ModuleClassifier

    x, y, x_test, y_test = digits
    torch.manual_seed(0)
    estimator = ModuleClassifier(lambda n_in, n_out: Residual(depth=1), mode="streaming", random_state=0)
    for start in range(0, 4 * len(x), 256):
        rows = np.arange(start, start + 256) % len(x)
        estimator.partial_fit(x[rows], y[rows], classes=np.arange(10))
    assert estimator.score(x_test, y_test) > 0.9


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["residual", "batch norm", "attention", "tied"])
def test_recorded_launches_make_the_same_steps(name, digits, monkeypatch):
    x, y, x_test, y_test = digits
    runs = []
    for recorded in (True, False):
        if not recorded:
            monkeypatch.setattr(ModuleSweep, "_recordable", lambda *_: False)
        torch.manual_seed(0)
        module = NETWORKS[name]()
        for part in module.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0
        settings = {"max_iter": 6, "batch_size": 32, "device": "cuda", "validation": (x_test, y_test)}
        runs.append(train(module, x, y, mode="streaming", **settings))
    accuracies = [run.history["val_accuracy"][-1] for run in runs]
    assert min(accuracies) > 0.9
    assert abs(accuracies[0] - accuracies[1]) < 0.02
    assert runs[0].history["loss"][0] == pytest.approx(runs[1].history["loss"][0], rel=0.05)


class Curve(nn.Module):
    def __init__(self, skip=False):
        super().__init__()
        self.first, self.inner, self.head = nn.Linear(4, 24), nn.Linear(24, 24), nn.Linear(24, 1)
        self.skip = nn.Linear(4, 1) if skip else None

    def forward(self, x):
        v = F.relu(self.first(x))
        out = self.head(v + F.relu(self.inner(v)))
        return out if self.skip is None else out + self.skip(x)


def curve(units):
    x = np.random.default_rng(0).uniform(-1, 1, (400, 4))
    y = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2]
    return (x * np.logspace(-1, 3, 4) + 5, 1000 * y + 1e5) if units else (x, y)


def trained_on_curve(module, units, **settings):
    x, y = curve(units)
    return train(module, x, y, loss="squared", max_iter=12, mode="streaming", dtype="float64", **settings)


def test_units_of_inputs_and_targets_drop_out():
    """The first and the last layer undo them; the module itself takes and gives numbers as they came."""
    explained = []
    for units in (False, True):
        torch.manual_seed(0)
        module = Curve()
        explained.append(trained_on_curve(module, units).history["train_r2"][-1])
        x, y = curve(units)
        with torch.no_grad():
            found = module(torch.from_numpy(x).to(module.head.bias.dtype))[:, 0].numpy()
        assert 1 - ((found - y) ** 2).mean() / y.var() > 0.95
    assert explained[1] == pytest.approx(explained[0], abs=0.02)


def test_a_trained_module_goes_on_from_where_it_was():
    torch.manual_seed(0)
    module = Curve()
    first = trained_on_curve(module, True).history["train_r2"][-1]
    again = trained_on_curve(module, True, init="keep", batch_size=400)
    assert again.history["train_r2"][0] > first - 0.05


def test_inputs_that_meet_two_layers_are_left_as_they_are():
    torch.manual_seed(0)
    module = Curve(skip=True)
    trained_on_curve(module, False)
    x, y = curve(False)
    with torch.no_grad():
        found = module(torch.from_numpy(x).to(module.head.bias.dtype))[:, 0].numpy()
    assert 1 - ((found - y) ** 2).mean() / y.var() > 0.9


def test_rows_count_by_their_weight(digits):
    """Half of the labels are wrong, and count next to nothing."""
    x, y, _, _ = digits
    wrong = np.arange(len(y)) % 2 == 1
    labels = np.where(wrong, (y + 1) % 10, y)
    torch.manual_seed(0)
    module = Residual(depth=1)
    weight = np.where(wrong, 1e-4, 1.0)
    train(module, x, labels, mode="streaming", max_iter=5, sample_weight=weight)
    module.eval()
    with torch.no_grad():
        found = module(torch.from_numpy(x).float()).argmax(1).numpy()
    assert (found == y).mean() > 0.9


@pytest.mark.parametrize(("unit", "largest"), [(1.0, 1.0), (1000.0, 10.0)])
def test_inputs_are_scaled_unless_they_are_prepared(unit, largest):
    seen = []

    class Looking(Curve):
        def forward(self, x):
            if self.training:
                seen.append(float(x.detach().abs().max()))
            return super().forward(x)

    x, y = curve(False)
    torch.manual_seed(0)
    train(Looking(), unit * x, y, loss="squared", max_iter=12, mode="streaming")
    assert max(seen) <= largest
    assert (max(seen) == pytest.approx(np.abs(x).max(), rel=1e-6)) == (unit == 1.0)
