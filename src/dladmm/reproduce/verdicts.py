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
OWN_ACCURACY = 0.01
HIDDEN = 0.25
"""The exponent at the top of the sizes is larger than that of all of them by more: a fixed cost hides the growth."""
RISING = 0.05
"""An exponent that falls short of the paper's is larger at the top by more: with larger sizes it would go on rising."""

TOLERANCES = (
    "Accuracies agree within 0.005 or two standard errors of the difference of the two means, whichever is larger; the "
    "dlADMM row of a table within 0.01. A baseline above the paper's figure differs from it. Seconds stand beside the "
    "paper's without a verdict: they are of another machine. Exponents agree within two standard errors of their "
    "difference, and are not measured where the growth shows at the largest sizes alone. What the paper says in words "
    "agrees where it holds of our runs, statistics of data sets where they are equal. Settings that are not the "
    "paper's (accelerated mode, settings chosen on validation nodes, other learning rates) are another method, beside "
    "its figures without a verdict."
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


def exponent(paper: Fit, ours: Fit) -> str:
    """By the standard error of the difference; unknown where the growth shows at the largest sizes only."""
    if hidden(ours, paper):
        return UNSEEN
    near = abs(ours.exponent - paper.exponent) <= 2 * math.hypot(paper.error, ours.error)
    return AGREES if near else DIFFERS


def hidden(fit: Fit, paper: Fit) -> bool:
    """Whether the growth shows at the largest sizes alone: below them a cost that does not grow is most of the time.

    That is where the exponent of all sizes falls short of that of the largest, by more than in the paper's own figures;
    or where it falls short of the paper's, and still rises with the sizes by more than its error.
    """
    rising = fit.top - fit.exponent
    short = paper.exponent - fit.exponent > 2 * math.hypot(paper.error, fit.error)
    beyond = rising - max(0.0, paper.top - paper.exponent) > HIDDEN
    return beyond or (short and rising > max(RISING, 2 * fit.error))
