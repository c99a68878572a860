"""What the theory promises of a run before it begins, and the warning where it promises nothing."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from dladmm.base.errors import InputError
from dladmm.engine.certificate_text import guarantee
from dladmm.losses.sampling import Curvature, curvature_of
from dladmm.training.result import ConvergenceNotGuaranteed

if TYPE_CHECKING:
    from dladmm.training.trainer import Trainer


def promise_of(trainer: Trainer, rho: float) -> str:
    """The promise in words, of a run that starts with this rho."""
    accelerated, streaming = (trainer.options.mode == mode for mode in ("accelerated", "streaming"))
    H, follows = trainer.engine.risk.H, trainer.engine.chain.follows_forward
    return guarantee(rho, H, follows, accelerated, trainer.baseline, streaming)


def warn_unless_covered(trainer: Trainer) -> None:
    """Warn where a run of the paper's algorithm begins outside of its theorems: by rho, or by a loss of one's own."""
    if trainer.options.mode != "convergent" or trainer.baseline is not None:
        return
    if trainer.state.rho <= 2 * trainer.engine.risk.H:
        warnings.warn(trainer.guarantee, ConvergenceNotGuaranteed, stacklevel=3)
    found = _sampled(trainer)
    H = trainer.engine.risk.H
    if found is not None and found.concave(H):
        warnings.warn(
            f"the loss is not convex: a curvature of {found.smallest:.4g} was found by sampling, and the theorems need "
            "one that is nowhere below 0. The run will not be certified.",
            ConvergenceNotGuaranteed,
            stacklevel=3,
        )
    elif found is not None and found.exceeds(H):
        warnings.warn(
            f"H = {H:.4g} is too small: a curvature of {found.largest:.4g} was found by sampling the loss. The run "
            "will not be certified; give the loss a larger H (CallableLoss without H estimates it).",
            ConvergenceNotGuaranteed,
            stacklevel=3,
        )


def _sampled(trainer: Trainer) -> Curvature | None:
    try:
        return curvature_of(trainer.engine.risk, trainer.state.outputs[-1])
    except RuntimeError as error:
        raise InputError(
            f"the loss fails on float64 ({error}), in which the certificate of mode='convergent' is computed. Let it "
            "use the dtype of its arguments, as z.new_tensor(...) and other.to(z) do."
        ) from error
