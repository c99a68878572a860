"""Every line of ``make chaos`` at its small size."""

from __future__ import annotations

import signal
import time
import warnings

import pytest

from chaos.ledger import Ledger, Violation, require, time_limit
from chaos.plan import LINES

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.name)
def test_a_share_of_each_line(line):
    if line.module == "pages":
        pytest.importorskip("playwright.sync_api")
    ledger = Ledger(line.name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a line that judges warnings says so itself
        line.run(ledger, line.small, seed=1)
    assert ledger.tried > 0
    assert ledger.faults == []
    assert ledger.lost == 0


def test_the_bad_input_table_is_as_long_as_it_says():
    from chaos.bad_calls import REFUSED_CALLS
    from chaos.bad_commands import COMMANDS
    from chaos.bad_estimators import REFUSED_ESTIMATORS
    from chaos.bad_files import ATTACKS, DISK_FULL, UNPRIVILEGED

    calls = len(REFUSED_CALLS) + len(REFUSED_ESTIMATORS)
    assert calls + len(COMMANDS) + len(ATTACKS) + len(UNPRIVILEGED) + len(DISK_FULL) >= 300


def test_the_ledger_counts_what_is_lost():
    ledger = Ledger("x")
    with ledger.attempt("fine"):
        require(True, "no")
    with ledger.attempt("not fine"):
        require(False, "a promise")
    with ledger.attempt("a stranger"):
        raise RuntimeError("from elsewhere")
    with ledger.attempt("endless", limit=0.05):
        while True:
            pass
    assert (ledger.tried, ledger.lost) == (4, 3)
    assert ledger.faults[0] == "not fine: Violation: a promise"
    assert "no end after 0.05 s" in ledger.faults[2]


def test_a_time_limit_is_gone_after_its_block():
    with pytest.raises(Violation, match="no end"), time_limit(0.01, by_clock=True):
        time.sleep(5)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
