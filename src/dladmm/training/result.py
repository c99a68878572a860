"""What training gives back."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from torch import nn

from dladmm.base.history import History, Status
from dladmm.engine.certificate import Certificate
from dladmm.engine.problem import State


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
        return self.__dict__ | {"state": None}

    def __repr__(self) -> str:
        accuracy = self.history.last("train_accuracy")
        shown = "" if accuracy is None else f", train accuracy {accuracy:.4f}"
        certified = "certified" if self.certificate.certified else "not certified"
        if self.certificate.accelerated:
            certified = "safeguarded" if self.certificate.monotone else "NOT safeguarded"
        if self.certificate.streaming:
            certified = "streaming, nothing claimed"
        if self.certificate.baseline is not None:
            certified = f"baseline {self.certificate.baseline}"
        return f"Result({self.status.name}, {self.history.n_iter} iterations{shown}, {certified})"
