"""CI fails when a test is skipped that needs neither a GPU nor a user who is not root."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from skips import VARIABLE, judge, unnamed

GPU = "Skipped: needs a CUDA device"
ABSENT = "Skipped: could not import 'pyarrow': No module named 'pyarrow'"


def test_the_named_reasons_pass_and_others_are_counted():
    assert unnamed([GPU, "Skipped: MLPClassifier does not have a decision_function method."]) == []
    assert unnamed([GPU, ABSENT, ABSENT, "no need: needs a GPU"]) == [
        f"2 skipped: {ABSENT.removeprefix('Skipped: ')}",
        "1 skipped: no need: needs a GPU",
    ]


def ended(reasons, exitstatus=0):
    """The exit status and the words of a run of pytest in which these reasons were given."""
    said = []
    reports = [SimpleNamespace(longrepr=("test_x.py", 1, reason)) for reason in reasons]
    reporter = SimpleNamespace(stats={"skipped": reports}, write_line=lambda line, **_: said.append(line))
    plugins = SimpleNamespace(get_plugin=lambda name: reporter)
    session = SimpleNamespace(config=SimpleNamespace(pluginmanager=plugins), exitstatus=exitstatus)
    judge(session)
    return session.exitstatus, said


def test_a_run_with_another_reason_fails_and_says_it(monkeypatch):
    monkeypatch.setenv(VARIABLE, "1")
    assert ended([GPU]) == (0, [])
    status, said = ended([GPU, ABSENT])
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "pyarrow" in said[-1]
    monkeypatch.setenv(VARIABLE, "0")
    assert ended([GPU, ABSENT]) == (0, [])
