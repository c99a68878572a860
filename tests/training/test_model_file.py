"""Model files: the module that comes back computes the same, and nothing else is ever built."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch import nn

from convergent import train
from dladmm import DataError, InputError, Recurrent, Status, mlp
from dladmm.activations import ACTIVATIONS, get_activation
from dladmm.losses import CallableLoss, get_loss
from dladmm.network.chain import layers_of
from dladmm.network.graph_module import GraphLayer, GraphNetwork
from dladmm.training.checkpoint import load, load_model, save, save_model
from dladmm.training.model_file import WeightsOnly

SPECS = [*ACTIVATIONS, {"name": "leaky_relu", "slope": 0.3}, {"name": "quantised", "levels": 5}]


@pytest.fixture(scope="module")
def result():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 5)), rng.integers(0, 3, 40)
    return train(mlp([5, 8, 3]), X, y, max_iter=4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_every_activation_comes_back(tmp_path, spec, dtype):
    middle = get_activation(spec).module()
    module = nn.Sequential(nn.Linear(4, 6), middle, nn.Linear(6, 2, bias=False)).to(dtype)
    save_model(module, tmp_path / "m", loss={"name": "huber", "delta": 0.5})
    before = torch.get_rng_state()
    loaded = load_model(tmp_path / "m")
    assert torch.equal(torch.get_rng_state(), before)
    x = torch.randn(30, 4, dtype=dtype)
    assert torch.equal(loaded.module(x), module(x))
    assert loaded.loss == get_loss({"name": "huber", "delta": 0.5})
    assert list(loaded.module.state_dict()) == list(module.state_dict())
    assert all(p.requires_grad for p in loaded.module.parameters())


def test_a_result_comes_back_with_all_it_had(tmp_path, result):
    extra = {"classes": ["<b>", "ü", "c"], "mean": [0.5, None]}
    save_model(result, tmp_path / "m", loss="cross_entropy", extra=extra, state=True)
    loaded = load_model(tmp_path / "m")
    x = torch.randn(7, 5)
    assert torch.equal(loaded.module(x), result.module(x))
    assert loaded.extra == extra
    assert loaded.status is Status.MAX_ITER
    assert loaded.history.to_dict() == result.history.to_dict()
    assert loaded.certificate == result.certificate.to_dict()
    assert (loaded.state.rho, loaded.state.nu) == (result.state.rho, result.state.nu)
    for name in ("W", "b", "z", "a", "predictions"):
        for first, second in zip(getattr(loaded.state, name), getattr(result.state, name), strict=True):
            assert torch.equal(first, second)
    assert torch.equal(loaded.state.u, result.state.u)


def test_without_the_state_the_file_is_small_and_a_module_is_enough(tmp_path, result):
    save_model(result, tmp_path / "small")
    save_model(result, tmp_path / "large", state=True)
    assert (tmp_path / "small").stat().st_size < (tmp_path / "large").stat().st_size
    assert load_model(tmp_path / "small").state is None
    save_model(nn.Linear(3, 2), tmp_path / "linear")
    loaded = load_model(tmp_path / "linear")
    assert (loaded.loss, loaded.status, loaded.extra) == (None, None, {})
    with pytest.raises(InputError, match="state=True needs a Result"):
        save_model(result.module, tmp_path / "m", state=True)


def test_a_graph_network_comes_back(tmp_path):
    module = GraphNetwork(
        [GraphLayer(torch.randn(4, 6), nn.ReLU()), GraphLayer(torch.randn(2, 4), nn.Identity())]
    )
    save_model(module, tmp_path / "g")
    x, edges = torch.randn(5, 6), torch.tensor([[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]])
    assert torch.equal(load_model(tmp_path / "g").module(x, edges), module(x, edges))


def test_it_can_be_trained_on(tmp_path, result):
    save_model(result, tmp_path / "m")
    module = load_model(tmp_path / "m").module
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    module(torch.randn(3, 5)).square().sum().backward()
    optimiser.step()
    assert not torch.equal(module[0].weight, result.module[0].weight)


class Doubled(nn.Module):
    """A module of the user's."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.register_buffer("factor", torch.tensor(2.0))

    def forward(self, x):
        return self.factor * self.inner(x)


def image_network():
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.ZeroPad2d(1), nn.Conv2d(1, 4, 3, padding=1, stride=2), nn.BatchNorm2d(4),
        nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 2, groups=2, bias=False), nn.GELU(), nn.AvgPool2d(1),
        nn.Upsample(scale_factor=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(4), nn.Linear(4, 3),
    )  # fmt: skip


def sequence_network(kind, **settings):
    recurrent = Recurrent(kind(4, 5, batch_first=True, **settings))
    return nn.Sequential(nn.Unflatten(1, (16, 4)), recurrent, nn.Sequential(nn.Tanh(), nn.Linear(5, 3)))


@pytest.mark.parametrize(
    "module",
    [
        image_network(),
        sequence_network(nn.RNN, nonlinearity="relu"),
        sequence_network(nn.GRU, bias=False),
        sequence_network(nn.LSTM),
        nn.Sequential(nn.Unflatten(1, (4, 16)), nn.Conv1d(4, 3, 3, padding="same"), nn.GroupNorm(1, 3),
                      nn.PReLU(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(24, 3)),
    ],
    ids=["images", "elman", "gru", "lstm", "signals"],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_known_layer_comes_back(tmp_path, module, dtype):
    module = module.to(dtype)
    x = torch.randn(9, 64, dtype=dtype)
    module(x)  # running statistics that are not those of a fresh layer
    module.eval()
    save_model(module, tmp_path / "m")
    before = torch.get_rng_state()
    loaded = load_model(tmp_path / "m").module
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(loaded(x), module(x))
    assert [type(layer) for layer in loaded] == [type(layer) for layer in layers_of(module)]
    assert all(p.requires_grad and p.dtype == dtype for p in loaded.parameters())


@pytest.mark.parametrize("network", [image_network, lambda: sequence_network(nn.GRU)], ids=["cnn", "rnn"])
@pytest.mark.parametrize("mode", ["convergent", "accelerated"])
def test_results_of_any_network_come_back(tmp_path, network, mode):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 64)), rng.integers(0, 3, 20)
    result = train(network(), X, y, max_iter=2, mode=mode)
    result.save(tmp_path / "m", state=True)
    loaded = load_model(tmp_path / "m")
    x = torch.randn(7, 64)
    assert torch.equal(loaded.module(x), result.module(x))
    for first, second in zip(loaded.state.outputs, result.state.outputs, strict=True):
        assert torch.equal(first, second)


def test_of_code_only_the_weights_are_kept(tmp_path):
    def network():
        return nn.Sequential(nn.Linear(4, 6), Doubled(), nn.Linear(6, 2))

    module = network()
    with pytest.warns(WeightsOnly, match="Doubled is code"):
        save_model(module, tmp_path / "m")
    with pytest.raises(DataError, match=r"layer 1 is a Doubled.*load_model\(path, module=network\)"):
        load_model(tmp_path / "m")
    mine, x = network(), torch.randn(5, 4)
    before = mine(x)
    assert torch.equal(load_model(tmp_path / "m", module=mine).module(x), module(x))
    assert torch.equal(mine(x), before)
    with pytest.raises(DataError, match="the network has 3 layers, the module given 1"):
        load_model(tmp_path / "m", module=nn.Linear(4, 2))
    with pytest.raises(DataError, match="layer 1, Linear, has a"):
        load_model(tmp_path / "m", module=nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda m: m["layers"][2]["arguments"].update(out_channels=2**40),
            "has a weight of shape|describes no network",
        ),
        (
            lambda m: m["layers"][2]["arguments"].update(hook="x"),
            "Conv2d must have the arguments in_channels",
        ),
        (lambda m: m["layers"][2].update({"class": "Module"}), "describes no network"),
        (lambda m: m["layers"][2].update(arguments=[1]), "describes no network"),
        (lambda m: m["layers"][3]["arguments"].update(affine=False), "layer 3, BatchNorm2d, has a"),
    ],
)
def test_made_up_layers_are_refused(tmp_path, change, message):
    save_model(image_network(), tmp_path / "m")
    tensors, meta = load(tmp_path / "m", "model")
    change(meta)
    save(tmp_path / "m", "model", tensors, meta)
    with pytest.raises(DataError, match=message):
        load_model(tmp_path / "m")


def test_other_modules_and_losses_that_are_code_are_refused(tmp_path):
    with pytest.raises(InputError, match="cannot describe ModuleList"):
        save_model(nn.ModuleList([nn.Linear(2, 2)]), tmp_path / "m")
    with pytest.raises(InputError, match="loss 'callable' is code"):
        save_model(
            nn.Linear(2, 2), tmp_path / "m", loss=CallableLoss(lambda z, t: (z - t).square().sum(1), H=2.0)
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["layers"][0].update(n_out=9), "layer 0 of 5 -> 9 has a weight of shape"),
        (lambda m: m["layers"][0].update(n_out=2**60), "n_out must be a whole number"),
        (lambda m: m["layers"][0].update(type="eval"), "the type of layer 0 must be one of .*, got .eval."),
        (lambda m: m["layers"][1].update(f={"name": "os.system"}), "unknown activation"),
        (lambda m: m["layers"][1].update(f={"name": "relu", "x": 1}), "no parameter 'x'"),
        (lambda m: m["layers"].append({"type": "linear"}), "describes no network"),
        (lambda m: m.update(layers=5), "describes no network"),
        (lambda m: m.update(network="x"), "describes no network"),
        (lambda m: m.update(loss={"name": "callable"}), "unknown loss"),
        (lambda m: m.update(result={"status": "NICE"}), "describes no network"),
        (lambda m: m.update(state={"rho": 1, "nu": 1, "blocks": 10**9}), "describes no network"),
    ],
)
def test_made_up_documents_are_refused(tmp_path, result, change, message):
    save_model(result, tmp_path / "m")
    tensors, meta = load(tmp_path / "m", "model")
    change(meta)
    save(tmp_path / "m", "model", tensors, meta)
    with pytest.raises(DataError, match=message):
        load_model(tmp_path / "m")


def test_no_pickle(tmp_path, result, monkeypatch):
    def forbidden(*args, **kwargs):
        raise AssertionError("pickle was used")

    for module, names in (
        (pickle, ("dump", "dumps", "load", "loads", "Unpickler")),
        (torch, ("save", "load")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, forbidden)
    save_model(result, tmp_path / "m", loss="cross_entropy", state=True)
    load_model(tmp_path / "m")
