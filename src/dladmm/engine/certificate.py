"""What the theory promises, checked on the run (Section 4 of the paper, with the constants mended).

Property 2 says: if ``rho > 2H``, the Lagrangian falls at every iteration, by at least C_2 times the squared steps.
Here ``C_2`` is the smallest rate any update of that iteration promised: theta/2 and tau/2 (the paper's C_2 prints
theta and tau, its Lemma 5 proves half), the curvature plus damping for exact solves, N nu/2 for b, and
``C_1 = rho/2 - 2H^2/rho`` for z_L and u (:func:`dladmm.engine.sweep.last_layer_rate`).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict, dataclass, field, replace
from typing import Any

import torch

from dladmm.base.errors import InputError
from dladmm.base.fields import fields
from dladmm.base.history import History, largest_rise
from dladmm.engine.certificate_fields import checked
from dladmm.engine.certificate_text import sentences, why_no_file
from dladmm.engine.double import in_double, resolvable, small_enough
from dladmm.engine.problem import State
from dladmm.engine.sweep import Engine
from dladmm.losses.sampling import Curvature, curvature_of


@dataclass(frozen=True)
class Recomputed:
    """A quantity of the last iterate as the run reported it, and as computed again from raw data."""

    reported: float
    recomputed: float

    @property
    def relative_difference(self) -> float:
        scale = max(abs(self.reported), abs(self.recomputed), 1e-300)
        return abs(self.reported - self.recomputed) / scale


@dataclass(frozen=True)
class Certificate:
    """The verdict on a run; ``str()`` says it in words, ``to_dict()`` for machines.

    ``covered``: the theory applies (rho > 2H and more). ``lagrangian``, ``primal_residual``, ``dual_optimality`` and
    ``stationarity`` are those of the end, as reported and as recomputed from raw data in float64; they agree within
    ``agreement_tolerance``. ``smallest_c2``: the smallest C_2 of Property 2; ``c_k``: the smallest squared step of k
    iterations, and ``k_c_k`` k times that (Theorem 3). ``resolved``: rounding is below what was to be seen.

    Attributes that end in ``_violations`` list the iterations (from 1) where a promise did not hold beyond
    rounding. ``exempt`` lists iterations the theory says nothing about: the first, where the start did not obey
    Lemma 2, and those at which rho changed. ``H_estimated`` says that H is no constant of the loss but an estimate
    from the targets (:func:`dladmm.losses.estimated`): then what is claimed of the run is as good as the estimate.
    ``coercive`` says that the penalty grows with W, ``all_penalised`` that it includes every parameter: both together
    guarantee Property 1. ``tie_margin`` says how far the last z-updates are from ties, where their argmin jumps
    (:meth:`dladmm.activations.base.Activation.tie_margin`); None where it was not measured.
    ``sampled``: extreme curvatures found of a loss of one's own. ``restored``: the iteration whose network was put
    back at the end, of which and of whose forward pass the numbers of the end are. ``compared``: False of a run that
    was resumed from a snapshot whose data or settings are not known, so that it may be two runs in one.
    """

    H: float
    rho: float
    nu: float
    covered: bool
    continuous: bool
    coercive: bool
    iterations: int
    exempt: tuple[int, ...]
    descent_violations: tuple[int, ...]
    sufficient_descent_violations: tuple[int, ...]
    smallest_c2: float | None
    largest_norm: float
    lagrangian: Recomputed
    primal_residual: Recomputed
    dual_optimality: Recomputed
    stationarity: Recomputed
    subgradient_constant: float | None
    c_k: float | None
    k_c_k: float | None
    agreement_tolerance: float
    follows_forward: bool = False
    accelerated: bool = False
    baseline: str | None = None
    H_estimated: bool = False
    streaming: bool = False
    largest_rise: float | None = None
    constrained: bool = False
    resolved: bool = True
    failed: bool = False
    sampled: Curvature | None = None
    restored: int | None = None
    compared: bool = True
    all_penalised: bool = False
    tie_margin: float | None = None
    writer: Callable[..., None] | None = field(default=None, repr=False, compare=False)

    @property
    def smallest_safe_rho(self) -> float:
        """Convergence is guaranteed for every rho above this."""
        return 2 * self.H

    @property
    def monotone(self) -> bool:
        """Property 2, first half: the Lagrangian fell at every iteration that is not exempt."""
        return not self.descent_violations

    @property
    def sufficient_descent(self) -> bool:
        """Property 2 whole: it fell by at least C_2 times the squared steps."""
        return not self.sufficient_descent_violations

    @property
    def bounded(self) -> bool:
        """Property 1, observed: no variable and no value left the finite numbers."""
        return math.isfinite(self.largest_norm) and math.isfinite(self.lagrangian.recomputed)

    @property
    def agrees(self) -> bool:
        """Whether the reported numbers of the last iterate equal those recomputed from raw data."""
        scale = 1 + abs(self.lagrangian.recomputed) + self.largest_norm
        values = [self.lagrangian, self.primal_residual, self.dual_optimality]
        values += [] if self.streaming else [self.stationarity]
        return all(
            value.relative_difference <= self.agreement_tolerance
            or abs(value.reported - value.recomputed) <= self.agreement_tolerance * scale
            for value in values
        )

    @property
    def certified(self) -> bool:
        """Covered by the theory, and everything it promises was seen, in at least one iteration."""
        seen = self.monotone and self.sufficient_descent and self.bounded and self.agrees
        whole = self.resolved and not self.failed and self.restored is None and self.compared
        return self.covered and seen and whole and self.iterations > 0

    def save(self, path: str | os.PathLike[str], data: str | os.PathLike[str] | None = None) -> None:
        """Write claims and the tensors they are about to a file that ``dladmm verify`` checks (docs/certificates.md).

        ``data`` is an npz file to write the training data to, as they were given.
        """
        if self.writer is None:
            raise InputError(why_no_file(self))
        self.writer(self, path, data)

    def __getstate__(self) -> dict[str, Any]:
        """What pickles and copies hold: not the run."""
        return self.__dict__ | {"writer": None}

    def to_dict(self) -> dict[str, Any]:
        names = ("monotone", "sufficient_descent", "bounded", "agrees", "certified", "smallest_safe_rho")
        held = asdict(replace(self, writer=None)) | {name: getattr(self, name) for name in names}
        plain: dict[str, Any] = _plain(held)
        del plain["writer"]
        return plain

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Certificate:
        """The certificate ``to_dict`` wrote; numbers that JSON could not hold come back as NaN."""
        held = fields("the certificate", values) | {"writer": None}
        known = {}
        for name, described in cls.__dataclass_fields__.items():
            if name in held or described.default is MISSING:  # older files lack those with a default
                known[name] = value = checked(name, described, held.get(name))
                if isinstance(value, dict):
                    known[name] = (Curvature if name == "sampled" else Recomputed)(**value)
        return cls(**known)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), allow_nan=False)

    def __str__(self) -> str:
        return "\n".join(sentences(self))


def certify(
    engine: Engine,
    state: State,
    history: History,
    start: float,
    exempt: Sequence[int],
    accelerated: bool = False,
    baseline: str | None = None,
    streaming: bool = False,
) -> Certificate:
    """Check the run against the theory; ``start`` is the Lagrangian before the first iteration.

    An accelerated run is at a feasible point after every iteration, where the Lagrangian is the true objective: then
    descent is the safeguard's promise, without a rate. Of a ``baseline`` it says what was seen and claims nothing,
    and so of a ``streaming`` run, measured on its monitor sample after every pass.
    """
    H = engine.risk.H
    lagrangian = [start, *(_number(v) for v in history["lagrangian"])]
    promised = [_number(c) * _number(s) for c, s in zip(history["c2"], history["squared_steps"], strict=True)]
    promised = [0.0] * len(promised) if accelerated or streaming else promised
    follows_forward = engine.chain.follows_forward
    covered = (
        all(_number(rho) > 2 * H for rho in (*history["rho"], state.rho))
        and not follows_forward
        and not accelerated
        and not streaming
        and baseline is None
        and not any(engine.penalty_of(l).is_constraint for l in range(len(engine.chain)))
    )
    sampled = curvature_of(engine.risk, state.outputs[-1]) if covered and engine.risk.loss.own else None
    covered = covered and (sampled is None or sampled.fits(H))
    slack = rounding_slack(state.outputs[-1].dtype)
    rises, shortfalls = [], []
    for k in range(1, len(lagrangian)):
        fall = lagrangian[k - 1] - lagrangian[k]
        allowed = slack * (abs(lagrangian[k - 1]) + abs(lagrangian[k]))
        if k in exempt:
            continue
        if not fall >= -allowed:
            rises.append(k)
        if not fall >= promised[k - 1] - allowed:
            shortfalls.append(k)
    own, measured_on = state, engine
    margin = engine.tie_margin(state, state.predictions) if covered and engine.chunk_rows is None else None
    if covered and state.u.dtype == torch.float32 and engine.chain.continuous and small_enough(engine, state):
        engine, state = in_double(engine, state, in_chunks=True) or (engine, state)
    raw = engine.raw_predictions(state)
    energy = engine.energy(state, raw)
    # A streaming run does not aim at a stationary point of its monitor sample's own problem: nothing to measure
    unknown = torch.full((), math.nan)
    distance = unknown if streaming else engine.stationarity(state, raw)
    steps = [_number(s) for s in history["squared_steps"]]
    c_k = min(steps, default=None)
    return Certificate(
        H=H,
        rho=state.rho,
        nu=state.nu,
        covered=covered,
        continuous=engine.chain.continuous,
        coercive=engine.penalty.coercive,
        iterations=history.n_iter,
        exempt=tuple(exempt),
        descent_violations=tuple(rises),
        sufficient_descent_violations=tuple(shortfalls),
        smallest_c2=min((_number(c) for c in history["c2"]), default=None),
        largest_norm=measured_on.largest_entry(own),
        lagrangian=Recomputed(_number(history.last("lagrangian"), start), float(energy.lagrangian)),
        primal_residual=_recomputed_root(history, "primal_residual", energy.residual_squared),
        dual_optimality=_recomputed_root(history, "dual_optimality", engine.dual_optimality(state)),
        stationarity=_recomputed_root(history, "stationarity", distance),
        subgradient_constant=_subgradient_constant(history),
        c_k=c_k,
        k_c_k=None if c_k is None else c_k * history.n_iter,
        agreement_tolerance=1e-6 if own.u.dtype == torch.float64 else 1e-2,
        follows_forward=follows_forward,
        accelerated=accelerated,
        baseline=baseline,
        H_estimated=bool(getattr(engine.risk.loss, "H_estimated", False)),
        streaming=streaming,
        largest_rise=largest_rise(lagrangian) if streaming else None,
        constrained=any(engine.penalty_of(l).is_constraint for l in range(len(engine.chain))),
        resolved=not covered or resolvable(own),
        sampled=sampled,
        all_penalised=measured_on.all_penalised(own),
        tie_margin=margin,
    )


def rounding_slack(dtype: torch.dtype) -> float:
    """Relative change of the Lagrangian that rounding alone can make in one iteration."""
    return 200 * torch.finfo(dtype).eps


def _recomputed_root(history: History, column: str, squared: torch.Tensor) -> Recomputed:
    recomputed = math.sqrt(float(squared)) if float(squared) >= 0 else math.nan
    return Recomputed(_number(history.last(column), recomputed), recomputed)


def _subgradient_constant(history: History) -> float | None:
    """Largest ``||g|| / sqrt(sum of squared steps)`` seen, those of the hidden z too: C of Property 3, as observed."""
    rows = zip(history["stationarity"], history["squared_steps"], history["z_steps"], strict=True)
    known = [(_number(g), _number(s) + _number(z)) for g, s, z in rows if g is not None and z is not None]
    ratios = [g / math.sqrt(steps) for g, steps in known if steps > 0]
    return max(ratios, default=None)


def _number(value: float | int | None, default: float = math.nan) -> float:
    return default if value is None else float(value)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
