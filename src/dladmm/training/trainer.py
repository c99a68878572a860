"""The loop around the engine: measuring, stopping, keeping what is good, telling callbacks."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from torch import Tensor, nn

from dladmm.base.errors import BatchError, InputError
from dladmm.base.history import History, Status, rose, unbounded
from dladmm.base.outside import outside
from dladmm.callbacks import Callback
from dladmm.compute.chunks import Source
from dladmm.compute.communicator import ALONE, Communicator, Shards
from dladmm.compute.execution import EAGER, product_precision, threads_for
from dladmm.compute.recording import Replayed
from dladmm.engine.ahead import make_kernels_ahead
from dladmm.engine.batches import Batches
from dladmm.engine.method import Method, MethodFactory, Plain, made_by
from dladmm.engine.options import TrainOptions, execution_of, own_method, refuse_own_settings
from dladmm.engine.rho_rules import raises_rho
from dladmm.engine.schedule import schedule_of
from dladmm.engine.streaming import Streaming
from dladmm.engine.sweep import Engine
from dladmm.losses import Risk, Units
from dladmm.network.chain import Chain
from dladmm.network.scaling import Scaling
from dladmm.regularizers import Regularizer
from dladmm.training.agreement import Agreement
from dladmm.training.checkpoint import resume_snapshot, take_snapshot
from dladmm.training.diagnostics import (
    agreed_seconds,
    certify_run,
    diagnostics_interval,
    evaluate,
    evidence_of,
    has_converged,
    look_of,
    measure,
    measured_with_products,
)
from dladmm.training.passes import Passes
from dladmm.training.result import Result, promise_of, warn_unless_covered
from dladmm.training.standing import Evidence, NoBetterThanConstant
from dladmm.training.z_steps import copied_z, moved_z


class Trainer:
    """Trains one chain on one data set: ``fit()`` runs the loop and returns a :class:`Result`.

    Everything it is given has been checked already; :func:`dladmm.train` is the front door. ``method`` puts another
    iteration in the place of dlADMM's. With ``comm`` every rank has a trainer of its own rows, and what is decided is
    the same on all. ``zeroed``: rows of V_l, l < n, that start at 0; ``start``: the Lagrangian before the first
    iteration; ``exempt``: iterations outside the theory.
    """

    def __init__(
        self,
        chain: Chain,
        x: Tensor | Source,
        risk: Risk,
        options: TrainOptions,
        *,
        penalty: Regularizer | None = None,
        params: list[dict[str, Tensor]],
        counts: Tensor | None = None,
        validation: tuple[Tensor, Risk] | None = None,
        callbacks: Sequence[Callback] = (),
        method: MethodFactory | None = None,
        scaling: Scaling | None = None,
        units: Units | None = None,
        seed: int = 0,
        chunk_rows: int | None = None,
        batches: Batches | None = None,
        comm: Communicator = ALONE,
        shards: Shards | None = None,
        zeroed: Tensor | None = None,
    ) -> None:
        self.scaling, self.units, self.seed, self.comm, self._batches = scaling, units, seed, comm, batches
        self.agreement = None if comm.alone else Agreement(comm)
        self.scales: tuple[float, ...] | None = None  # of the iterate, where they were measured along with it
        if method is not None and not comm.alone:
            raise InputError("the baselines run in one process; leave method out on several ranks.")
        self.options, self.callbacks, self.validation = options, tuple(callbacks), validation
        order = None if options.sweep == "both" else schedule_of(len(chain), options.sweep)
        given = options.subproblems, counts, chunk_rows, comm, shards
        self.engine = Engine(chain, x, risk, penalty, *given, schedule=order)
        if x.is_cuda and batches is None and method is None:
            make_kernels_ahead(chain, risk.loss, len(x), params, options, x.device)
        self.engine.within_constraints(params)
        rho = options.starting_rho(risk.H)
        self.state = self.engine.starting_state(options.start, params, rho, options.starting_nu(rho), zeroed)
        self.baseline: str | None = None
        if method is None:
            self.method: Method = own_method(self.engine, self.state, options, batches, seed, scaling)
        else:
            refuse_own_settings(options)
            other = self.method = made_by(method, self.engine, self.state)
            self.engine, self.baseline = other.engine, other.name
        self.passes = Passes(self, self.method) if isinstance(self.method, Streaming) else None
        self.history, self._starting_rho = History(), rho
        self.given: dict[str, Any] | None = None  # the data as they were given
        self.known_by: dict[str, Any] | None = None  # dladmm.training.identity, once it was asked for
        self.compared, self._restored = True, False  # not compared: resumed from unknown data or settings
        self.exempt = [1] if options.start != "feasible" else []
        every = options.diagnostics_every or (1 if self.passes is not None else None)
        self._every = every or diagnostics_interval(self.state, self.engine.n_rows)
        self.start = float(self.engine.energy(self.state).lagrangian)
        if not math.isfinite(self.start):
            raise InputError(
                f"the network's first pass gives {self.start}: X, y or the initial weights are not finite, or "
                f"too large for {self.state.u.dtype}; scale them or use dtype='float64'."
            )
        self._requested, self.restored_from = cast("Status | None", None), cast("int | None", None)
        self.judge: Callable[[Trainer, bool], Evidence | None] | None = evidence_of
        """How the network stands at the end; None for a run whose network nobody gets."""
        self._told_useless = False
        self.engine.how = execution_of(options, self.method, self.engine, self.state)
        self._advance: Callable[[], Tensor | None] = self._move
        if self.engine.how.recorded and isinstance(self.method, Plain):
            self._advance = Replayed(self._move, self._depends_on, self.engine.workspace)

    @property
    def guarantee(self) -> str:
        """What the theory promises of the run as it starts, in words."""
        return promise_of(self, self._starting_rho)

    def fit(self) -> Result:
        """Run until converged, diverged, non-finite, interrupted, stopped by a callback, or max_iter."""
        try:
            with threads_for(self.engine.largest_product(self.state, self._batches)):
                result = self._run()
        except BaseException:
            self._tell("on_failure")
            raise
        self._say_if_useless(result)
        return result

    def _say_if_useless(self, result: Result) -> None:
        """Warn where the network is no better than a constant; once, in a run that goes on call by call."""
        found = result.evidence
        useless = found is not None and found.measured.no_better and result.status is not Status.INTERRUPTED
        if found is not None and useless and not self._told_useless:
            warnings.warn(found.measured.useless, NoBetterThanConstant, stacklevel=outside())
        self._told_useless = useless

    def _run(self) -> Result:
        if self.options.mode == "convergent" and self.baseline is None:
            warn_unless_covered(self)
        self._requested = self.scales = None
        if self.passes is not None:
            self.passes.begin()
        self._tell("on_train_begin")
        before = self.state
        try:
            status = self._loop()
        except BatchError:
            self._tell("on_loop_end")
            raise
        self._complete_last_row()
        self._tell("on_loop_end")
        if self.passes is not None and self.passes.batch > 0 and self.state is before:  # ended in mid-pass
            self.restore(self.passes.network())
        self.engine.workspace.release()
        certificate = certify_run(self, self._restored, status)
        if status.complete and not certificate.covered and rose(self.history, self.start):
            status = Status.DIVERGED
        evidence = None if self.judge is None else self.judge(self, self._restored)
        if evidence is not None and evidence.measured.no_better:
            status = status.of_no_use
        kept = self._module(self.state.params), self.state, evidence
        result = Result(status, self.history, certificate, *kept)
        self._tell("on_train_end", result)
        return result

    def _module(self, params: list[dict[str, Tensor]]) -> nn.Module:
        params = self.engine.observe(params)
        params = params if self.scaling is None else self.scaling.fold(params)
        return self.engine.chain.to_module(params if self.units is None else self.units.fold(params))

    def present_network(self) -> nn.Module:
        """The network as the run stands now, also in the middle of a pass of streaming mode."""
        return self._module(self.state.params if self.passes is None else self.passes.network())

    def one_more_pass(self, batches: Batches) -> Result:
        """Streaming mode: one pass over other batches, with everything learned and summed so far."""
        assert isinstance(self.method, Streaming)
        self.method.take(batches)
        self.options = replace(self.options, max_iter=self.history.n_iter + 1)
        return self.fit()

    def request_stop(self, status: Status) -> None:
        """For callbacks: end the run with this status once the present iteration is told to all of them."""
        self._requested = status

    def agreed_request(self) -> Status | None:
        """The status with which any callback on any rank has asked to stop; every rank must ask."""
        if self.agreement is not None:
            self._requested = self.agreement.status(self._requested)
        return self._requested

    def restore(self, params: list[dict[str, Tensor]], iteration: int | None = None) -> None:
        """Put other parameters in place, and all variables to their forward pass so that they fit.

        ``iteration`` is the one that the parameters are of, the last one unless given.
        """
        self.state = self.engine.feasible_state(params, self.state.rho, self.state.nu)
        self._restored, self.restored_from = True, self.history.n_iter if iteration is None else iteration

    def _loop(self) -> Status:
        if self.history.n_iter and has_converged(self):
            return Status.CONVERGED
        if self._requested is not None:
            return self._requested
        kept = self.state.clone_parameters()
        for k in range(self.history.n_iter + 1, self.options.max_iter + 1):
            try:
                ended = self._iterate(k)
                if ended is not None and self._in_mid_pass:
                    return ended
                if ended is not None:
                    self.restore(kept)
                    return ended
                for kept_block, block in zip(kept, self.state.params, strict=True):
                    for name, p in block.items():
                        kept_block[name].copy_(p)
                if self.options.rho_rule and raises_rho(self.options, self.history, self.state, self.engine):
                    self.exempt.append(k + 1)
                self._tell("on_epoch_end")
            except KeyboardInterrupt:
                if not self.comm.alone and self.history.n_iter < k:
                    raise  # the others wait for this rank in mid-sweep: they end by their timeout
                if self.history.n_iter < k:  # in mid-sweep the variables are half old, half new
                    self.restore(kept if self.passes is None else self.passes.network())
                if self.comm.alone:
                    return Status.INTERRUPTED
                self._requested = Status.INTERRUPTED
            _, converged = self.comm.at_once(self.agreed_request, partial(has_converged, self))
            if unbounded(self.history, self.start):
                return Status.DIVERGED
            if converged:
                return Status.CONVERGED
            if self._requested is not None:
                return self._requested
        return Status.MAX_ITER if self.passes is None else Status.PASSES_MADE

    def _iterate(self, k: int) -> Status | None:
        """One iteration and its row of the history; a status when there is no next iterate."""
        due = k % self._every == 0 or k == self.options.max_iter
        z = copied_z(self) if due and self.options.mode == "convergent" else None
        self.began = time.perf_counter()
        with product_precision(self.options.precision):
            signs = self._advance()
        if signs is None:
            return self._requested if self._in_mid_pass and self._requested else Status.STALLED
        row, finite = measure(self.state, signs)
        calls = [partial(measured_with_products, self), *([] if z is None else [partial(moved_z, self, z)])]
        took, measured = agreed_seconds(self, calls if due and finite else [])
        seconds = float(self.history.last("seconds") or 0.0) + took
        if not finite:
            return Status.NON_FINITE
        row |= {name: value for part in measured for name, value in part.items()}
        if not due and self.options.rho_rule == "authors":
            row |= evaluate(self.engine, self.state, self.validation)
        previous = self.history.last("lagrangian")
        descent = (self.start if previous is None else previous) - float(row["lagrangian"] or 0.0)
        self.history.append(iteration=k, seconds=seconds, descent=descent, **row)
        self._restored, self.restored_from = False, None
        return None

    @property
    def _in_mid_pass(self) -> bool:
        return self.passes is not None and self.passes.batch > 0

    def _move(self) -> Tensor | None:
        """One iteration, and what it is measured by; None when there is none any more."""
        signs = self.method.iterate(self.state, look_of(self))
        if signs is not None:
            feasible = self.state.predictions[-1] is self.state.outputs[-1]
            self.engine.observe(self.state.params, self.state.outputs if feasible else None)
        return signs

    def _depends_on(self) -> tuple[Any, ...]:
        """What a recorded iteration is made for: the numbers in it, and where the state lies."""
        state, plan = self.state, self.engine.workspace.foresight.plan()
        held = [*state.outputs, *state.predictions, state.u, *(p for b in state.params for p in b.values())]
        return state.rho, state.nu, self.engine.options, plan, *(tensor.data_ptr() for tensor in held)

    def _complete_last_row(self) -> None:
        """Measure the last iterate where the run ended between two measurements."""
        if self.history.n_iter and self.history["loss"][-1] is None and not self._restored:
            self.history.amend(**measured_with_products(self))

    @property
    def measuring(self) -> Engine:
        """The engine as it measures, outside of iterations: nothing rounded, nothing compiled."""
        return self.engine.seen_as(how=EAGER)

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything a later run needs to go on bit for bit: tensors by name, and what JSON can hold."""
        return take_snapshot(self)

    def resume(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        """Take up a snapshot of a run on the same data and network; ``fit`` then goes on where it stood."""
        resume_snapshot(self, tensors, meta)

    def _tell(self, hook: str, *told: Any) -> None:
        for callback in self.told():
            getattr(callback, hook)(self, *told)

    def told(self) -> Iterator[Callback]:
        """The callbacks of this rank: those that only read and write files run on the first rank."""
        return (each for each in self.callbacks if getattr(each, "every_rank", True) or self.comm.rank == 0)
