"""Golden end-to-end runs on digits, with wide margins; the figures themselves are in docs/results.md."""

from __future__ import annotations

import pytest
from experiments.catalogue import experiment

from dladmm.cli.demo import train_digits
from dladmm.runs.plan import cells


@pytest.mark.slow
def test_certified_convergent_run_reaches_96_percent():
    result = train_digits(0, progress=False, max_iter=100)
    assert result.history["val_accuracy"][-1] >= 0.95
    assert result.certificate.certified, str(result.certificate)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["sign", "step", "quantised"])
def test_networks_back_propagation_cannot_train(activation):
    """The gradient of these activations is zero almost everywhere."""
    planned = {cell.name: cell for cell in cells(experiment("convergent-digits"), "cpu")}
    settings = planned[f"digits-{activation}-0"].given | {"hidden": (400,), "max_iter": 40}
    result = train_digits(0, settings, progress=False)
    assert result.history["val_accuracy"][-1] >= 0.92
    assert result.certificate.certified, str(result.certificate)
    assert not result.certificate.continuous
    assert "Assumption 1" in str(result.certificate)
