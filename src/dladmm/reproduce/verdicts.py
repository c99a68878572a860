"""The verdict on a figure of ours beside the paper's: agrees, better, differs; and how near is near enough."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dladmm.reproduce.fits import Fit
from dladmm.runs.evidence import Mean

AGREES, BETTER, DIFFERS = "agrees", "better", "differs"
MISSING = "not run"
AGAIN = "to be measured again"
UNSEEN = "not measured"
ANOTHER = "another method"
MACHINE = "another machine"
QUICK = "quick: not comparable"

LEAST_ACCURACY = 0.005
FACTOR = 2.0
OWN_ACCURACY = 0.01
HIDDEN = 0.25
"""The exponent at the top of the sizes is larger than that of all of them by more: a fixed cost hides the growth."""

TOLERANCES = (
    "Accuracies agree within 0.005 or two standard errors of the difference of the two means, whichever is larger; the "
    "dlADMM row of a table within 0.01. A baseline above the paper's figure differs from it. Seconds agree within "
    "a factor of 2; beyond, they are of another machine and no verdict. Exponents agree within two standard errors of "
    "their difference, and are not measured where a fixed cost hides the growth. What the paper says in words agrees "
    "where it holds of our runs, statistics of data sets where they are equal. Settings that are not the paper's "
    "(accelerated mode, settings chosen on validation nodes) are another method, beside its figures without a verdict."
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


def accuracy(paper: Mean, ours: Mean, *, baseline: bool = False) -> str:
    """By the standard error of the difference of two means, but no finer than half a percentage point.

    Better is said of our own method alone, whose row also agrees within one percentage point.
    """
    error = math.sqrt(sum(m.deviation**2 / m.count for m in (paper, ours)))
    gain = ours.value - paper.value
    if abs(gain) <= max(LEAST_ACCURACY if baseline else OWN_ACCURACY, 2 * error):
        return AGREES
    return BETTER if gain > 0 and not baseline else DIFFERS


def cost(paper: float, ours: float) -> str:
    """Seconds on two machines: near enough, or no verdict."""
    return AGREES if paper / FACTOR <= ours <= paper * FACTOR else MACHINE


def exponent(paper: Fit, ours: Fit) -> str:
    """By the standard error of the difference; unknown where the growth shows at the largest sizes only."""
    if abs(ours.exponent - paper.exponent) <= 2 * math.hypot(paper.error, ours.error):
        return AGREES
    return UNSEEN if ours.top - ours.exponent > HIDDEN else DIFFERS
