"""Cross-fitted copies on another device than the CPU, without one: tensors of the meta device stay on it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dladmm.api.cross_fit import edge_scale_for, folds_of
from dladmm.callbacks.out_of_fold import OutOfFold
from dladmm.engine.rounds import Rounds
from dladmm.losses import CrossFitted, get_loss
from dladmm.network.ensemble import ensemble, ensemble_parameters, merged
from dladmm.network.table_inputs import TableInputs

COPIES, ROWS, OUTPUTS = 4, 24, 3


DEVICE = torch.device("meta")
"""Tensors on it have shapes and no numbers; operations that mix it with the CPU are refused as on a GPU."""


def test_mixed_devices_are_refused():
    with pytest.raises(RuntimeError, match="device"):
        torch.ones(2, device=DEVICE) + torch.ones(2)


@pytest.mark.parametrize("name", ["cross_entropy", "squared"])
def test_the_loss_of_the_copies_stays_on_the_device(name):
    loss = CrossFitted(get_loss(name), COPIES, OUTPUTS)
    z = torch.ones(ROWS, COPIES * OUTPUTS, device=DEVICE)
    target = loss.targets(torch.ones(ROWS, OUTPUTS, device=DEVICE), torch.zeros(ROWS, device=DEVICE).long())
    found = [
        loss.rows(z, target), loss.gradient(z, target), loss.curvature(z, target, z), loss.unseen(z, target),
        loss.decision(z), loss.decision(target),
    ]  # fmt: skip
    assert {each.device.type for each in found} == {"meta"}
    assert found[3].shape == (ROWS, OUTPUTS)


def test_copies_and_the_network_they_are_merged_into_stay_on_the_device():
    chain = ensemble([5, 7, 6, OUTPUTS], COPIES)
    params = ensemble_parameters(chain, None, torch.float32, DEVICE)
    x = torch.ones(ROWS, 5, device=DEVICE)
    exact = [{name: p.double() for name, p in block.items()} for block in params]
    encoded = torch.ones(ROWS, OUTPUTS, dtype=torch.float64)  # units are taken on the CPU
    units = get_loss("squared").units(encoded)
    for each in (params, merged(exact, COPIES, 0.5), units.fold(merged(exact, COPIES))):
        assert {p.device.type for block in each for p in block.values()} == {"meta"}
    assert chain.predict(params, x).device.type == "meta"
    layer = TableInputs(5).to(DEVICE, torch.float64)
    assert layer(x.double()).device.type == "meta"


def test_batches_stay_on_the_device():
    x, target = torch.ones(ROWS, 5, device=DEVICE), torch.ones(ROWS, OUTPUTS + COPIES, device=DEVICE)
    for counts in (None, torch.ones(ROWS, 1, device=DEVICE)):
        rounds = Rounds.__new__(Rounds)  # which asks for the sum of the counts
        super(Rounds, rounds).__init__(x, target, None, counts, 3, 0, ROWS)
        rounds.ends = [1]
        for batch in rounds.one_pass(0):
            assert batch.x.device.type == batch.target.device.type == "meta"
            assert len(batch.x) == 8


def test_judging_asks_for_numbers_alone():
    """On a real device the values come to the CPU as numbers; here the CPU stands for it."""
    looking = OutOfFold(CrossFitted(get_loss("cross_entropy"), COPIES, OUTPUTS))
    z, y = torch.randn(ROWS, OUTPUTS), torch.eye(OUTPUTS)[torch.arange(ROWS) % OUTPUTS]
    found = looking._judged(z, y, torch.full((ROWS,), 1 / ROWS, dtype=torch.float64))
    assert [type(each) for each in found] == [float, float]
    assert edge_scale_for(z, y, "classification") == pytest.approx(0.3)
    folds = folds_of(torch.from_numpy(np.arange(ROWS) % 3), torch.arange(ROWS), COPIES, torch.Generator())
    assert folds.device.type == "cpu"
