"""When a run has settled, and when it ended above where it began."""

from __future__ import annotations

import pytest

from dladmm.base.history import History, rose, settled


def history_of(values):
    found = History()
    for k, value in enumerate(values, 1):
        found.append(iteration=k, lagrangian=value)
    return found


@pytest.mark.parametrize(("fall", "over"), [(0.9, True), (1.1, False), (-1.0, True)])
def test_a_run_has_settled_when_ten_iterations_together_lower_it_by_less_than_the_tolerance(fall, over):
    last, eps = 5.0, 1e-3
    values = [last + (10 - k) / 10 * fall * eps * last for k in range(11)]
    assert settled(history_of([99.0, *values]), eps) is over
    assert not settled(history_of(values[1:]), 10.0)


@pytest.mark.parametrize(
    ("start", "values", "above"),
    [
        (3.0, [1.0, 5.0, 2.0], False),
        (1.5, [1.0, 2.0], True),
        (1.0, [3.0, 2.0], False),
        (2.0, [1.0, 2.0], False),
    ],
)
def test_a_run_rose_when_it_ended_above_its_start_and_its_first_iteration(start, values, above):
    assert rose(history_of(values), start) is above
