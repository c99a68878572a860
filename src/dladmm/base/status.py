"""Why a run ended: an enum whose values are the messages shown to users."""

from __future__ import annotations

from enum import Enum


class Status(Enum):
    """How a run ended. ``ok`` is false when the run failed and the command line should exit with 1."""

    CONVERGED = "Converged: primal residual and stationarity are below their tolerances."
    MAX_ITER = "Stopped after max_iter iterations, before the tolerances were met."
    # Baselines end with this status too, so it gives no advice about rho: the certificate does where it applies.
    DIVERGED = (
        "Diverged: the augmented Lagrangian, which should fall, has grown; "
        "the certificate says what is promised."
    )
    NON_FINITE = (
        "Stopped because a value became NaN or infinite; the last finite parameters were kept and the other "
        "variables set to their forward pass."
    )
    STALLED = "Stopped because no shorter step lowers the training objective any more."
    INTERRUPTED = "Interrupted by the user; the parameters of the last whole iteration were kept."
    EARLY_STOPPED = "Stopped early: the validation score has not improved for the given patience."

    @property
    def ok(self) -> bool:
        """Whether the run did not fail."""
        return self not in (Status.DIVERGED, Status.NON_FINITE)

    def __str__(self) -> str:
        return self.value
