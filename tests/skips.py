"""Which tests may be skipped where everything they need can be had: those that need a GPU or a user who is not root.

``DLADMM_ONLY_NAMED_SKIPS=1 pytest`` (as ``.ci/run`` does beside the data sets) fails when another test is skipped.
"""

from __future__ import annotations

import os
import re
from collections import Counter

import pytest

VARIABLE = "DLADMM_ONLY_NAMED_SKIPS"
NAMED = (
    "needs a CUDA device",
    "no CUDA device",
    "needs a GPU",
    "needs CUDA's compiler",
    "root reads and writes everything",
    "no browser is installed",  # one for the whole machine, which .ci/run tries to install
    "SCIPY_ARRAY_API is not set",  # scikit-learn's own, as the next
    r"\w+ does not have a decision_function method",
    "NeighborLoader needs pyg-lib",  # which the package index does not have
)


def unnamed(reasons: list[str]) -> list[str]:
    """The reasons that are none of the named ones, each once with its count, most frequent first."""
    bare = (reason.removeprefix("Skipped: ") for reason in reasons)
    others = Counter(reason for reason in bare if not any(re.match(name, reason) for name in NAMED))
    return [f"{count} skipped: {reason}" for reason, count in others.most_common()]


def judge(session: pytest.Session) -> None:
    """Where it is asked for, a test skipped for a reason that is not named fails the run at its end."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or os.environ.get(VARIABLE, "") in ("", "0"):
        return
    others = unnamed([str(report.longrepr[2]) for report in reporter.stats.get("skipped", [])])
    if not others:
        return
    for line in ("", "Skipped, though all that these tests need can be had here:", *others):
        reporter.write_line(line, red=True)
    if session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
