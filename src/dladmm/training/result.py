"""What training gives back, and what the theory promises of it before it begins."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

from dladmm.base.errors import InputError
from dladmm.base.history import History, Status
from dladmm.engine.certificate import Certificate
from dladmm.engine.certificate_text import guarantee
from dladmm.engine.double import resolvable
from dladmm.engine.problem import State
from dladmm.losses.sampling import Curvature, curvature_of
from dladmm.training.standing import Evidence, Standing

if TYPE_CHECKING:
    from dladmm.training.trainer import Trainer


class ConvergenceNotGuaranteed(UserWarning):
    """rho is not above 2H, the numbers are too large for their type, or the loss contradicts what is said of it."""


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
        """Accuracy, R^2 or loss beside a constant answer and a linear model; None where nothing was measured."""
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
            worse = "a constant" if stands.no_better else "a linear model"
            shown += "" if stands.warning is None else f"NO BETTER than {worse}, "
        certified = "certified" if self.certificate.certified else "not certified"
        if self.certificate.accelerated:
            certified = "safeguarded" if self.certificate.monotone else "NOT safeguarded"
        if self.certificate.streaming:
            certified = "streaming, nothing claimed"
        if self.certificate.baseline is not None:
            certified = f"baseline {self.certificate.baseline}"
        if self.certificate.iterations == 0:
            certified = "not begun"
        return f"Result({shown}{self.status.name} after {self.history.n_iter} iterations, optimisation {certified})"


def promise_of(trainer: Trainer, rho: float) -> str:
    """The promise in words, of a run that starts with this rho."""
    accelerated, streaming = (trainer.options.mode == mode for mode in ("accelerated", "streaming"))
    H, follows = trainer.engine.risk.H, trainer.engine.chain.follows_forward
    return guarantee(rho, H, follows, accelerated, trainer.baseline, streaming)


def warn_unless_covered(trainer: Trainer) -> None:
    """Warn where a run of the paper's algorithm begins outside of its theorems: by rho, by digits, by an own loss."""
    if trainer.state.rho <= 2 * trainer.engine.risk.H:
        warnings.warn(trainer.guarantee, ConvergenceNotGuaranteed, stacklevel=4)
    if not resolvable(trainer.state):
        largest, dtype = float(trainer.state.outputs[-1].abs().max()), str(trainer.state.u.dtype)[6:]
        warnings.warn(
            f"the network's outputs begin at {largest:.2g}, beside which u is rounded away in {dtype}: the updates do "
            "not see it, and a run that ends so is not certified. Scale the features of X (scale_inputs=True, or "
            "scikit-learn's StandardScaler), or leave out columns such as timestamps.",
            ConvergenceNotGuaranteed,
            stacklevel=4,
        )
    if not trainer.engine.risk.loss.own:
        return
    found, H = _sampled(trainer), trainer.engine.risk.H
    if found.concave(H):
        warnings.warn(
            f"the loss is not convex: a curvature of {found.smallest:.4g} was found by sampling, and the theorems need "
            "one that is nowhere below 0. The run will not be certified.",
            ConvergenceNotGuaranteed,
            stacklevel=4,
        )
    elif found.exceeds(H):
        warnings.warn(
            f"H = {H:.4g} is too small: a curvature of {found.largest:.4g} was found by sampling the loss. The run "
            "will not be certified; give the loss a larger H (CallableLoss without H estimates it).",
            ConvergenceNotGuaranteed,
            stacklevel=4,
        )


def _sampled(trainer: Trainer) -> Curvature:
    try:
        return curvature_of(trainer.engine.risk, trainer.state.outputs[-1])
    except RuntimeError as error:
        raise InputError(
            f"the loss fails on float64 ({error}), in which the certificate of mode='convergent' is computed. Let it "
            "use the dtype of its arguments, as z.new_tensor(...) and other.to(z) do."
        ) from error
