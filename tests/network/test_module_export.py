"""The trained module is an ordinary torch module."""

from __future__ import annotations

import io
import warnings

import pytest
import torch
from torch import nn

from convergent import train
from dladmm import datasets, from_module, mlp


@pytest.fixture(scope="module")
def trained():
    data = datasets.load("digits")
    return data, train(mlp([64, 20, 10]), data.x_train, data.y_train, max_iter=10).module


def test_state_dict_round_trip(trained):
    data, module = trained
    other = nn.Sequential(nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10))
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(data.x_test), module(data.x_test))


@pytest.mark.parametrize("activation", ["relu", "sign", "quantised", "leaky_relu"])
def test_torchscript(activation):
    data = datasets.load("digits")
    module = train(mlp([64, 20, 10], activation), data.x_train, data.y_train, max_iter=3).module
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(module)
        file = io.BytesIO()
        torch.jit.save(scripted, file)
        file.seek(0)
        loaded = torch.jit.load(file)
    assert torch.equal(loaded(data.x_test), module(data.x_test))


def test_torch_export(trained):
    data, module = trained
    program = torch.export.export(module, (data.x_test[:4],))
    assert torch.allclose(program.module()(data.x_test[:4]), module(data.x_test[:4]), atol=1e-6)


def test_fine_tuning_with_torch_optim(trained):
    data, module = trained
    optimiser = torch.optim.Adam(module.parameters(), lr=1e-3)
    losses = []
    for _ in range(5):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(module(data.x_train), data.y_train)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]


def test_a_trained_module_can_be_trained_on(trained):
    data, module = trained
    result = train(module, data.x_train, data.y_train, max_iter=3, init="keep")
    assert repr(from_module(module)) == repr(from_module(result.module))
