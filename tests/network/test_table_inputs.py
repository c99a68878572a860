"""The first layer of networks for tables: values drawn in, and normal scores of ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm, rankdata

from dladmm.network.soft_clip import LIMIT, SoftClip
from dladmm.network.table_inputs import HIGHEST_SCORE, KNOTS, TableInputs


def rows(n: int = 200, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(
        np.stack([rng.normal(size=n), np.exp(3 * rng.normal(size=n)), rng.integers(0, 4, n)], 1)
    )


def literal_scores(x: np.ndarray) -> np.ndarray:
    """Normal scores of the mean ranks of a column, every value for itself."""
    return np.clip(norm.ppf((rankdata(x) - 0.5) / len(x)), -HIGHEST_SCORE, HIGHEST_SCORE)


def test_values_first_then_ranks():
    x = rows()
    found = TableInputs.of(x)(x)
    assert found.shape == (200, 6)
    assert torch.equal(found[:, :3], SoftClip.of(x)(x))
    assert found[:, :3].abs().max() < LIMIT
    # Four values have their scores exactly; where every value has a rank of its own, they are linear between knots
    assert np.allclose(found[:, 5], literal_scores(x[:, 2].numpy()), atol=1e-12)
    assert np.abs(found[:, 3].numpy() - literal_scores(x[:, 0].numpy())).max() < 0.25
    assert np.abs(found[:, 4].numpy() - literal_scores(x[:, 1].numpy())).mean() < 0.05


def test_at_its_knots_a_score_is_that_of_the_rank():
    x = rows(KNOTS)
    assert np.allclose(TableInputs.of(x)(x)[:, 3], literal_scores(x[:, 0].numpy()), atol=1e-12)


def test_scores_never_fall_and_are_constant_beyond_the_rows():
    x = rows()
    layer = TableInputs.of(x)
    line = torch.linspace(-1e6, 1e6, 5001, dtype=torch.float64)[:, None].expand(-1, 3)
    ends = layer(torch.tensor([[-1e300] * 3, [1e300] * 3], dtype=torch.float64))
    found = layer(line)
    assert (found.diff(dim=0) >= 0).all()
    assert torch.allclose(ends[:, 3:], layer.scores[[0, -1]])
    assert torch.isfinite(ends).all()


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_other_units_change_nothing(unit):
    x = rows()
    assert torch.allclose(TableInputs.of(x * unit)(x * unit), TableInputs.of(x)(x), atol=1e-9)


def test_a_weight_is_a_number_of_rows():
    x, times = rows(40), torch.arange(40) % 3 + 1
    repeated = x.repeat_interleave(times, dim=0)
    weighted = TableInputs.of(x, times[:, None].double())
    plain = TableInputs.of(repeated)
    assert torch.allclose(weighted.scores[:, 2].unique(), plain.scores[:, 2].unique())
    assert torch.allclose(weighted.shift, plain.shift)
    assert torch.allclose(weighted.scale, plain.scale)


def test_a_constant_column_says_nothing():
    x = torch.cat([rows(), torch.full((200, 1), 7.0, dtype=torch.float64)], 1)
    found = TableInputs.of(x)(torch.cat([rows(seed=1), rows(seed=2)[:, :1]], 1))
    assert torch.allclose(found[:, [3, 7]], torch.zeros(200, 2, dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize("unit", [1e-6, 1e6, 0.3])
def test_values_that_differ_by_rounding_share_a_rank_in_every_unit(unit):
    """Many columns hold values of 1e-20 beside others of 1: which of them is larger must not matter."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 3, dtype=torch.float64, generator=generator)
    x[:60, 0] = 0.7 + 1e-16 * torch.randn(60, dtype=torch.float64, generator=generator)
    x[:60, 1] *= 1e-20
    found, scaled = TableInputs.of(x)(x), TableInputs.of(unit * x)(unit * x)
    torch.testing.assert_close(scaled, found, rtol=0, atol=1e-7)
    scores = found[:, 3:]
    assert all(float(scores[:60, k].max() - scores[:60, k].min()) < 1e-7 for k in (0, 1))
    assert float((scores[:, 2].sort().values.diff() > 0).double().mean()) == 1
