"""The verdict on a figure of ours beside the paper's: agrees, better, differs; and how near is near enough."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dladmm.runs.evidence import Mean

AGREES, BETTER, DIFFERS = "agrees", "better", "differs"
MISSING = "not run"
QUICK = "quick: not comparable"

LEAST_ACCURACY = 0.005
FACTOR = 2.0
EXPONENT = 0.25

TOLERANCES = (
    "Accuracies agree within 0.005 or two standard errors of the difference of the two means, whichever is larger. "
    "Seconds and memory agree within a factor of 2 (another machine). Exponents agree within 0.25. What the "
    "paper says in words agrees where it holds of our runs, statistics of data sets where they are equal."
)


@dataclass(frozen=True)
class Finding:
    """One line of the summary: what was looked at, the paper's figure, ours, the verdict, and why it differs."""

    what: str
    paper: str
    ours: str
    verdict: str
    why: str = ""

    def at(self, comparable: bool) -> Finding:
        """The same where sizes are the paper's; elsewhere no verdict is passed."""
        if comparable or self.verdict == MISSING:
            return self
        return replace(self, verdict=QUICK, why="")


def accuracy(paper: Mean, ours: Mean) -> str:
    """By the standard error of the difference of two means, but no finer than half a percentage point."""
    error = math.sqrt(sum(m.deviation**2 / m.count for m in (paper, ours)))
    gain = ours.value - paper.value
    if abs(gain) <= max(LEAST_ACCURACY, 2 * error):
        return AGREES
    return BETTER if gain > 0 else DIFFERS


def cost(paper: float, ours: float) -> str:
    """Seconds, or memory: less is better."""
    if ours < paper / FACTOR:
        return BETTER
    return AGREES if ours <= paper * FACTOR else DIFFERS


def exponent(paper: float, ours: float) -> str:
    """Growing more slowly than in the paper's table is better."""
    if abs(ours - paper) <= EXPONENT:
        return AGREES
    return BETTER if ours < paper else DIFFERS
