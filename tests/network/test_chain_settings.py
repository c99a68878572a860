"""What accelerated mode changes by the network it is given."""

from __future__ import annotations

import pytest
from torch import nn

from dladmm.network.chain import from_module, mlp, own_settings


@pytest.mark.parametrize("first", [0, 1])
def test_no_pixel_of_a_cnn_is_dropped(first):
    layers = [nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)]
    assert own_settings(from_module(nn.Sequential(*layers[first:])))["dropout"] == 0.0


def test_entries_of_tables_are():
    assert "dropout" not in own_settings(mlp([4, 5, 3]))


def test_a_network_of_signs_has_the_settings_of_signs():
    assert own_settings(mlp([4, 5, 3], "sign"))["dropout"] == 0.5
