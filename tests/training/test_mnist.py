"""A small part of MNIST through the whole path: files, engine, certificate. The full figures are in docs/results.md."""

from __future__ import annotations

import os

import pytest

from convergent import train
from dladmm import DataError, datasets, mlp


@pytest.mark.realdata
@pytest.mark.slow
def test_three_thousand_images():
    if not os.environ.get("DLADMM_DATA"):
        pytest.skip("DLADMM_DATA does not point at a folder with the benchmark data sets")
    try:
        data = datasets.load("mnist")
    except DataError as error:
        pytest.skip(str(error))
    result = train(
        mlp([784, 100, 100, 10]),
        data.x_train[:3000],
        data.y_train[:3000],
        validation=(data.x_test, data.y_test),
        nu=10.0,
        damping=0.03,
        max_iter=8,
    )
    assert result.history["val_accuracy"][-1] > 0.78
    assert result.certificate.certified, str(result.certificate)
