"""Random problems of every kind, each held to what the library promises."""

from __future__ import annotations

import json

from chaos.ledger import Ledger
from chaos.problems import draw, judge

SECONDS = 60.0
"""No problem takes two seconds; one that takes this long has no end."""


def run(ledger: Ledger, count: int, seed: int) -> None:
    for number in range(count):
        problem = draw(1_000_000 * seed + number)
        with ledger.attempt(json.dumps(problem), SECONDS):
            result = judge(problem)
            ledger.count(result.status.name)
