"""The metric of running least-squares steps: full and thin against formulas in float64, and where they agree."""

from __future__ import annotations

import pytest
import torch

from dladmm.solvers import metric as metrics
from dladmm.solvers.metric import FullMetric, ThinMetric, metric_for, random_signs

DAMPING = 10.0


def inputs(n_rows: int, n: int, *, decay: float = 1.0) -> torch.Tensor:
    """Rows whose eigenvalues fall like ``k^-decay``, with a mean."""
    generator = torch.Generator().manual_seed(0)
    spectrum = torch.arange(1, n + 1, dtype=torch.float64) ** (-decay / 2)
    A = torch.randn(n_rows, n, generator=generator, dtype=torch.float64) * spectrum
    mixed = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64)).Q
    return A @ mixed + torch.randn(n, generator=generator, dtype=torch.float64)


def observed(metric: metrics.Metric, A: torch.Tensor, centre: torch.Tensor) -> None:
    """The moments of A about a centre, brought to its mean."""
    centred = A - centre
    second = centred.T @ centred / len(A)
    metric.second.copy_(second if metric.sketch is None else second @ metric.sketch)
    metric.recentre(centred.mean(0))


def literal_step(C: torch.Tensor, mean: torch.Tensor, t: float, d: torch.Tensor, sums: torch.Tensor):
    """``argmin`` of the damped least-squares problem, b eliminated."""
    W = -(d - torch.outer(sums, mean)) @ torch.linalg.inv(C + t * torch.eye(len(C), dtype=C.dtype))
    return torch.cat([W, (-sums - W @ mean)[:, None]], 1)


@pytest.mark.parametrize("thin", [False, True])
def test_a_direction_is_the_damped_least_squares_step_of_w_and_b(thin: bool) -> None:
    n, A = 40, inputs(200, 40)
    metric = ThinMetric(A, n) if thin else FullMetric(A, n)
    mean, centre, scale = A.mean(0), A[0], torch.tensor(0.7, dtype=torch.float64)
    observed(metric, A, centre)
    metric.renew(mean, DAMPING, scale)
    C = torch.cov(A.T, correction=0)
    t = DAMPING * float(C.trace()) / n
    if thin:  # C as its sketch knows it
        S = random_signs(n, metric.second.shape[1]).double()
        Y = C @ S
        t = DAMPING * float((S * Y).sum(0).mean()) / n
        C = Y @ torch.linalg.inv(S.T @ Y) @ Y.T
    E = inputs(200, 7)
    d, sums = E.T @ A, E.sum(0)
    wanted = 0.7 * literal_step(C, mean, t, d, sums)
    running = torch.ones(7, metrics.padded(n), dtype=torch.float64)
    metric.add_to(running, 0.25, d, sums)
    torch.testing.assert_close(running[:, : n + 1], 0.25 + 0.75 * wanted, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(E.T @ metric.of_rows(A)[:, : n + 1], wanted, rtol=1e-9, atol=1e-9)
    assert (metric.of_rows(A)[:, n + 1 :] == 0).all()


def test_without_a_bias_w_is_solved_for_alone() -> None:
    n, A = 40, inputs(200, 40)
    for metric in (FullMetric(A, n), ThinMetric(A, n)):
        second = A.T @ A / len(A)
        metric.second.copy_(second if metric.sketch is None else second @ metric.sketch)
        metric.renew(None, DAMPING, torch.ones((), dtype=torch.float64))
        assert (metric.of_rows(A)[:, n:] == 0).all()
        running = torch.zeros(3, metrics.padded(n), dtype=torch.float64)
        d = torch.randn(3, n, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        metric.add_to(running, 0.0, d, torch.ones(3, dtype=torch.float64))
        assert (running[:, n:] == 0).all()
        assert float((running[:, :n] * d).sum()) < 0


@pytest.mark.parametrize("decay", [0.0, 0.5, 1.0, 2.0])
def test_the_thin_metric_is_near_the_full_one_whatever_the_spectrum(decay: float) -> None:
    """Every direction is within the bound of what the sketch may leave out, and on average within a few per cent."""
    n, A = 512, inputs(2048, 512, decay=decay)
    pair = FullMetric(A, n), ThinMetric(A, n)
    for metric in pair:
        observed(metric, A, A.mean(0))
        metric.renew(A.mean(0), DAMPING, torch.ones((), dtype=torch.float64))
    full = pair[0].matrix[: n + 1, : n + 1]
    eye = torch.eye(n + 1, dtype=torch.float64)
    thin = torch.cat([pair[1].of_rows(eye[:n, :n]) - pair[1].of_rows(torch.zeros_like(eye[:1, :n])),
                      pair[1].of_rows(torch.zeros_like(eye[:1, :n]))])[:, : n + 1]  # fmt: skip
    ratios = torch.linalg.eigvals(torch.linalg.solve(full, thin)).real
    assert float(ratios.min()) > 0.8
    assert float(ratios.max()) < 2.6
    assert 0.9 < float(ratios.mean()) < 1.2


def test_hostile_moments_give_finite_directions() -> None:
    n = 512
    A = torch.zeros(4, n)
    for rows in (A, A + 1, torch.eye(n)[:4] * 1e15, torch.eye(n)[:4] * 1e-15):
        for metric in (FullMetric(A, n), ThinMetric(A, n)):
            mean = rows.mean(0)
            second = (rows - mean).T @ (rows - mean) / 4
            metric.second.copy_(second if metric.sketch is None else second @ metric.sketch)
            metric.renew(mean, DAMPING, torch.ones(()))
            assert metric.of_rows(rows).isfinite().all()


def test_wide_layers_have_a_thin_metric_and_the_same_signs_everywhere() -> None:
    like = torch.zeros(())
    assert isinstance(metric_for(like, metrics.THIN_FROM), ThinMetric)
    assert isinstance(metric_for(like, metrics.THIN_FROM - 1), FullMetric)
    assert isinstance(metric_for(like, metrics.THIN_FROM, groups=2), FullMetric)
    torch.manual_seed(1)
    first = random_signs(600, 5)
    torch.manual_seed(2)
    assert torch.equal(first, random_signs(600, 5))
    assert set(first.unique().tolist()) == {-1.0, 1.0}
