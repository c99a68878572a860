"""The certificate in words: what can be promised before training, and what was seen after it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dladmm.engine.certificate import Certificate


TIE = 1e-9
"""A margin below this is a tie up to rounding (:meth:`dladmm.activations.base.Activation.tie_margin`)."""


def guarantee(
    rho: float,
    H: float,
    follows_forward: bool = False,
    accelerated: bool = False,
    baseline: str | None = None,
    streaming: bool = False,
) -> str:
    """What can be promised before training, in words: Theorem 1 of the paper, or why it does not speak of the run."""
    if baseline is not None:
        return f"A baseline ({baseline}): the theory of dlADMM does not speak of it, and nothing is promised."
    if streaming:
        return (
            "Streaming: a sweep per mini-batch. No theorem of the paper speaks of it and none is claimed; the "
            "objective on a fixed monitor sample is measured after every pass."
        )
    if accelerated:
        return "Accelerated: the true training objective never rises (safeguard); the paper's theorems are not claimed."
    if follows_forward:
        return (
            f"H = {H:g} and rho = {rho:g}, but some rows of the variables follow the forward pass (rows='train') or "
            "are held (rows='fixed'): the theory does not cover that; rows='all' with rho above "
            f"{2 * H:g} is covered."
        )
    if rho > 2 * H:
        return f"H = {H:g} and rho = {rho:g} > 2H = {2 * H:g}: descent is guaranteed at every iteration (Theorem 1)."
    return (
        f"H = {H:g} and rho = {rho:g} <= 2H: convergence is not guaranteed; the smallest safe rho is "
        f"anything above {2 * H:g}."
    )


def sentences(c: Certificate) -> list[str]:
    """The certificate in words, one line a statement: Properties 1 to 3, Theorems 2 and 3 of the paper."""
    if c.iterations == 0:
        return ["No iteration was made: nothing was seen, and nothing is certified.", *_seen_of_objective(c)]
    if c.baseline is not None:
        return _of_baseline(c)
    if c.streaming:
        return _streamed(c)
    if c.accelerated:
        return _safeguarded(c)
    checked = c.iterations - len(c.exempt)
    lines = [
        f"Certified: everything the theory promises was seen in {c.iterations} iterations."
        if c.certified
        else "Not certified: " + _why_not(c),
        "  "
        + (guarantee(c.rho, c.H, c.follows_forward) if _fits(c) else "Nothing is promised of such a loss."),
        *_of_estimate(c),
        *_of_restored(c),
        f"  Property 1 (bounded): largest entry of any variable {c.largest_norm:.3g}; " + _bounded_by(c),
        f"  Property 2 (descent): the Lagrangian fell in {checked - len(c.descent_violations)} of {checked} "
        f"iterations, by at least C2 times the squared steps in "
        f"{checked - len(c.sufficient_descent_violations)} (smallest C2 {_shown(c.smallest_c2)}).",
    ]
    if c.exempt:
        lines.append(
            f"  Outside the theory: iteration {', '.join(map(str, c.exempt))} (start without Lemma 2, or rho changed)."
        )
    lines += [
        f"  Property 3 (stationarity): dist(0, dL) = {c.stationarity.recomputed:.3g}; "
        f"primal residual {c.primal_residual.recomputed:.3g}; Lemma 2 residual {c.dual_optimality.recomputed:.3g}.",
        f"  Theorem 3: c_k = {_shown(c.c_k)} after k = {c.iterations} iterations, k c_k = {_shown(c.k_c_k)}.",
        _limit_points(c),
        f"  Recomputed from raw data: Lagrangian {c.lagrangian.recomputed:.6g} (reported "
        f"{c.lagrangian.reported:.6g}); {'all residuals agree' if c.agrees else 'the residuals do NOT agree'}.",
    ]
    return lines


def why_no_file(c: Certificate) -> str:
    """Why a certificate without a run at hand cannot be written to a file, and what can be done."""
    seen = "print(result.certificate) says what was seen"
    if c.baseline is not None:
        return f"no certificate is written of a baseline ({c.baseline}): the theory does not speak of it; {seen}."
    if c.streaming or c.accelerated:
        mode = "streaming" if c.streaming else "accelerated"
        return (
            f"no certificate is written of a run in mode={mode!r}: no theorem speaks of it, and nothing is certified; "
            f"{seen}. Runs with mode='convergent' can be written."
        )
    if c.restored is not None:
        return (
            f"no certificate is written of the network of iteration {c.restored}, which was put back and is not the "
            "end of the run; EarlyStopping(restore_best=False) keeps the last iterate."
        )
    return (
        "this certificate has no run at hand: it was loaded or pickled, or its run was on several ranks or on a stream "
        "of batches. Save it after training, in the process that trained."
    )


def _safeguarded(c: Certificate) -> list[str]:
    """An accelerated run: what the safeguard promised and what was seen."""
    fell = c.iterations - len(c.descent_violations)
    head = "Safeguarded" if c.monotone and c.bounded and c.agrees else "NOT safeguarded"
    return [
        f"{head}: the true training objective did not rise in {fell} of {c.iterations} iterations.",
        "  " + guarantee(c.rho, c.H, accelerated=True),
        *_of_estimate(c),
        *_seen_of_objective(c),
    ]


def _streamed(c: Certificate) -> list[str]:
    """A streaming run: what was seen on the monitor sample."""
    rises = len(c.descent_violations)
    seen = f"the objective on the monitor sample fell or stayed in {c.iterations - rises} of {c.iterations} passes"
    if rises:
        seen += f" and rose in {rises}, by {_shown(c.largest_rise)} of its value at most"
    return [
        f"Observed, not certified: {seen}.",
        "  " + guarantee(c.rho, c.H, streaming=True),
        *_seen_of_objective(c),
        "  All parameters are finite." if c.bounded else "  A parameter is NOT finite.",
    ]


def _of_baseline(c: Certificate) -> list[str]:
    """A run of another method: what was seen, and no promise."""
    fell = c.iterations - len(c.descent_violations)
    return [
        guarantee(c.rho, c.H, baseline=c.baseline),
        f"  Its objective did not rise in {fell} of {c.iterations} iterations.",
        *_seen_of_objective(c),
    ]


def _seen_of_objective(c: Certificate) -> list[str]:
    agree = "agrees" if c.agrees else "does NOT agree"
    return [
        *_of_restored(c),
        f"  Largest entry of any variable {c.largest_norm:.3g}.",
        f"  Recomputed from raw data: objective {c.lagrangian.recomputed:.6g} (reported {c.lagrangian.reported:.6g}), "
        f"which {agree}.",
    ]


def _of_estimate(c: Certificate) -> list[str]:
    """H of a loss of the user's that was not given."""
    if not c.H_estimated:
        return []
    return [
        f"  H = {c.H:.4g} was estimated as twice the largest curvature seen; what is said here is as good as that."
    ]


def _fits(c: Certificate) -> bool:
    """Whether sampling found nothing that contradicts H and convexity."""
    return c.sampled is None or c.sampled.fits(c.H)


def _of_restored(c: Certificate) -> list[str]:
    if c.restored is None:
        return []
    return [
        f"  Descent and rates are those of the run of {c.iterations} iterations; values and residuals of the end are "
        f"those of the network of iteration {c.restored} and its forward pass."
    ]


def _limit_points(c: Certificate) -> str:
    """Theorem 2: what is claimed of limit points."""
    if c.follows_forward:
        return "  Nothing is claimed of limit points: some rows are no variables of the problem."
    if c.constrained:
        return "  Nothing is claimed of limit points: Theorem 2 needs a continuous penalty, not a constraint."
    if not c.covered:
        return "  Nothing is claimed of limit points."
    if not c.continuous:
        return "  An activation with jumps breaks Assumption 1: descent is certified, limit points are not."
    if c.tie_margin is None:
        return (
            "  Nothing is claimed of limit points: Theorem 2 needs updates that do not jump, and how far these keep "
            "from ties was not measured."
        )
    if c.tie_margin < TIE:
        return (
            f"  Nothing is claimed of limit points: an update of z is within {c.tie_margin:.1g} of a tie, where its "
            "argmin jumps (Assumption 1)."
        )
    where = "exist and are" if _guaranteed(c) else "are, while the variables stay bounded,"
    away = (
        ""
        if c.tie_margin == math.inf
        else f" while updates of z keep from ties as now (by {c.tie_margin:.1g})"
    )
    return f"  Limit points {where} critical points (Theorem 2){away}."


def _guaranteed(c: Certificate) -> bool:
    """Property 1 by the penalty: without one on the biases the objective is not coercive (docs/theory.md)."""
    return c.coercive and c.all_penalised


def _bounded_by(c: Certificate) -> str:
    if _guaranteed(c):
        return "guaranteed by the penalty on all parameters."
    if c.coercive:
        return "observed; the biases have no penalty, so nothing guarantees it (penalise_bias)."
    return "observed, no penalty on W guarantees it."


def _why_not(c: Certificate) -> str:
    reasons = []
    if c.follows_forward:
        reasons.append("some rows of the variables follow the forward pass or are held, outside the theory")
    elif c.constrained:
        reasons.append("the penalty is a constraint, and the theorems need a continuous one")
    elif c.sampled is not None and c.sampled.concave(c.H):
        reasons.append(
            f"the loss is not convex (a curvature of {c.sampled.smallest:.4g} was found by sampling)"
        )
    elif c.sampled is not None and c.sampled.exceeds(c.H):
        reasons.append(
            f"H = {c.H:.4g} is too small: a curvature of {c.sampled.largest:.4g} was found by sampling the loss"
        )
    elif not c.covered:
        reasons.append("rho is not above 2H")
    if c.restored is not None:
        reasons.append(
            f"the network handed back is that of iteration {c.restored}, not the run's last iterate"
        )
    if not c.compared:
        reasons.append(
            "the run was resumed from a snapshot that does not say of which data and settings: it may be two in one"
        )
    if c.failed:
        reasons.append("the run ended because a value was not finite")
    if not c.resolved:
        reasons.append("u is rounded away beside z_L: scale the inputs or use dtype='float64'")
    if not c.monotone:
        reasons.append(f"the Lagrangian rose in {len(c.descent_violations)} iterations")
    elif not c.sufficient_descent:
        reasons.append(f"the descent fell short in {len(c.sufficient_descent_violations)} iterations")
    if not c.bounded:
        reasons.append("a variable is not finite")
    if not c.agrees:
        reasons.append("reported and recomputed residuals differ")
    return "; ".join(reasons) + "."


def _shown(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.3g}"
