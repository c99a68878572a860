"""A share of the numerics of ``make chaos``, and every problem that ever failed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chaos.problems import judge

STORED = sorted((Path(__file__).parents[1] / "corpus").glob("problem-*.json"))


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_stored_problems_stay_solved(path):
    judge(json.loads(path.read_text(encoding="utf-8")))


def test_there_are_stored_problems():
    assert len(STORED) >= 3
