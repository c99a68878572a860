"""Measured processes find torch as pip leaves it."""

from __future__ import annotations

import installed


def test_bytecode_may_be_written(monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("SOMETHING_ELSE", "2")
    found = installed.environment()
    assert "PYTHONDONTWRITEBYTECODE" not in found
    assert found["SOMETHING_ELSE"] == "2"


def test_packages_are_compiled_once_and_only_where_it_was_forbidden(monkeypatch):
    ran = []
    monkeypatch.setattr(installed.subprocess, "run", lambda command, env, **_: ran.append(env))
    for forbidden, times in ((False, 0), (True, 1)):
        installed.compile_packages.cache_clear()
        if forbidden:
            monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        else:
            monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        installed.compile_packages()
        installed.compile_packages()
        assert len(ran) == times
    assert "PYTHONDONTWRITEBYTECODE" not in ran[0]
    installed.compile_packages.cache_clear()
