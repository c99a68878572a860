"""Which method a run iterates with, how it is executed, and the authors' rule for rho."""

from __future__ import annotations

from dataclasses import replace

from dladmm.base.errors import InputError
from dladmm.base.history import History
from dladmm.compute.execution import Execution
from dladmm.engine.accelerated import Accelerated
from dladmm.engine.batches import Batches
from dladmm.engine.method import Method, Plain
from dladmm.engine.options import TrainOptions
from dladmm.engine.state import State
from dladmm.engine.streaming import Streaming
from dladmm.engine.sweep import Engine
from dladmm.network.scaling import Scaling


def own_method(
    engine: Engine,
    state: State,
    options: TrainOptions,
    batches: Batches | None,
    seed: int,
    scaling: Scaling | None,
) -> Method:
    """dlADMM's method for the mode; streaming mode needs batches."""
    if options.mode == "convergent":
        return Plain(engine)
    if options.mode == "accelerated":
        return Accelerated(engine, state, options.dropout, seed)
    assert batches is not None
    passes, dropout = options.max_iter, options.dropout
    return Streaming(engine, state, batches, passes, options.streaming, dropout, seed, scaling)


def refuse_own_settings(options: TrainOptions) -> None:
    """Another method starts feasible and brings the engine it is measured with."""
    if options.mode != "convergent" or options.start != "feasible" or options.rho_rule is not None:
        raise InputError("mode, start and rho_rule are settings of dlADMM; leave them out beside method.")


def execution_of(options: TrainOptions, method: Method, engine: Engine) -> Execution:
    """Passes compiled where that was asked for; launches recorded where the paper's sweep waits for nothing."""
    on_gpu = engine.x.is_cuda and engine.comm.alone
    recorded = options.compile and on_gpu and isinstance(method, Plain) and engine.recordable
    rounded = options.precision == "bfloat16"
    return Execution(compiled=options.compile, recorded=recorded, rounded_directions=rounded)


def raises_rho(history: History, state: State, engine: Engine) -> bool:
    """The authors' rule: ten times rho and both starts when the training loss rose three times running."""
    losses = [value for value in history["loss"][-4:] if value is not None]
    if len(losses) < 4 or not losses[0] < losses[1] < losses[2] < losses[3] or state.rho >= 0.1:
        return False
    state.rho = min(10 * state.rho, 0.1)
    o = engine.options
    engine.options = replace(o, alpha0=o.alpha0 and 10 * o.alpha0, t0=o.t0 and 10 * o.t0)
    return True
