"""By what the outputs of cross-fitted networks are multiplied: the choice of rows that were not learnt from."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dladmm import MLPRegressor
from dladmm.callbacks.out_of_fold import DOUBTED, DOUBTED_ROWS, SHARPNESS, SHRUNK, OutOfFold
from dladmm.losses import CrossFitted, get_loss


def judged(name: str, z: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    looking = OutOfFold(CrossFitted(get_loss(name), 4, z.shape[1]))
    return looking._judged(z, y, torch.full((len(z),), 1 / len(z), dtype=torch.float64))


def best(name: str, among, z: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """The least mean loss of all multiples, and the multiple."""
    values = {s: float(get_loss(name).rows(s * z, y).double().mean()) for s in among}
    least = min(values, key=values.get)
    return values[least], least


def drawn(n_rows: int, strength: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of three classes, and labels that agree with them the more the larger the strength."""
    generator = torch.Generator().manual_seed(n_rows)
    z = 4 * torch.randn(n_rows, 3, dtype=torch.float64, generator=generator)
    noise = torch.randn(n_rows, 3, dtype=torch.float64, generator=generator)
    return z, torch.nn.functional.one_hot((strength * z + noise).argmax(1), 3).double()


@pytest.mark.parametrize("strength", [0.05, 0.3, 5.0])
def test_many_rows_have_the_sharpness_of_the_least_loss(strength):
    z, y = drawn(DOUBTED_ROWS, strength)
    assert judged("cross_entropy", z, y) == pytest.approx(best("cross_entropy", SHARPNESS, z, y))


@pytest.mark.parametrize("strength", [0.05, 5.0])
def test_the_labels_of_few_rows_are_doubted(strength):
    z, y = drawn(20, strength)
    doubt = DOUBTED / (20 + DOUBTED)
    value, sharpness = judged("cross_entropy", z, y)
    assert value == pytest.approx(best("cross_entropy", SHARPNESS, z, y)[0])
    assert sharpness == best("cross_entropy", SHARPNESS, z, (1 - doubt) * y + doubt / 3)[1]
    if strength == 5.0:  # all of them right: without doubt as sharp as can be
        assert sharpness < 1.0 < best("cross_entropy", SHARPNESS, z, y)[1]


@pytest.mark.parametrize(("part", "expected"), [(0.0, 0.1), (0.42, 0.4), (0.95, 1.0), (3.0, 1.0)])
def test_squared_errors_shrink_towards_the_mean(part, expected):
    z = torch.linspace(-2, 2, 50, dtype=torch.float64)[:, None]
    assert judged("squared", z, part * z) == pytest.approx(best("squared", SHRUNK, z, part * z))
    assert judged("squared", z, part * z)[1] == expected
    assert judged("huber", z, part * z)[1] == 1.0


@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
def test_noise_is_answered_with_little_more_than_its_mean():
    draw = np.random.default_rng(0)
    X, y = draw.normal(size=(60, 10)), 1e6 + draw.normal(size=60)
    model = MLPRegressor((20,), random_state=0, device="cpu").fit(X, y)
    assert model.predict(draw.normal(size=(200, 10))).std() < 0.3
