"""What training gives back."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from dladmm.base.history import History, Status
from dladmm.engine.certificate import Certificate
from dladmm.engine.problem import State
from dladmm.training.standing import Evidence, Standing


class ConvergenceNotGuaranteed(UserWarning):
    """rho is not above 2H."""


@dataclass(frozen=True)
class Result:
    """What training gives back.

    Attributes
    ----------
    status : Status
    history : History
    certificate : Certificate
    module : nn.Module
        The trained network.
    state : State or None
        The last iterate, with variables of every training row; None in a result that was pickled, and in one that was
        loaded from a file without it.
    """

    status: Status
    history: History
    certificate: Certificate
    module: nn.Module
    state: State
    evidence: Evidence | None = field(default=None, repr=False, compare=False)

    @property
    def standing(self) -> Standing | None:
        """Accuracy or R^2 beside a constant answer and a linear model; None where rows are not at hand."""
        return None if self.evidence is None else self.evidence.standing

    def save(self, path: str | os.PathLike[str], *, state: bool = False) -> None:
        """Write network, history and certificate to one file; ``dladmm.load_model`` reads it.

        Parameters
        ----------
        path : str or path
        state : bool, default False
            Also write the last iterate, which is as large as the training data and made of them.
        """
        from dladmm.training.checkpoint import save_model

        save_model(self, path, state=state)

    def __getstate__(self) -> dict[str, Any]:
        """What pickles and copies hold: the network and the record of the run, not the rows' variables."""
        return self.__dict__ | {"state": None, "evidence": None}

    def __repr__(self) -> str:
        stands = self.standing
        shown = ""
        if stands is not None:
            linear = "" if stands.linear is None else f", linear model {stands.linear:.4f}"
            shown = f"{stands.measure} {stands.network:.4f} on {stands.rows} (constant {stands.constant:.4f}{linear}), "
            shown += "" if stands.warning is None else "NO BETTER than these, "
        certified = "certified" if self.certificate.certified else "not certified"
        if self.certificate.accelerated:
            certified = "safeguarded" if self.certificate.monotone else "NOT safeguarded"
        if self.certificate.streaming:
            certified = "streaming, nothing claimed"
        if self.certificate.baseline is not None:
            certified = f"baseline {self.certificate.baseline}"
        return f"Result({shown}{self.status.name} after {self.history.n_iter} iterations, optimisation {certified})"
