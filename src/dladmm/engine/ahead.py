"""What a run on a GPU will need of hand-written kernels, read off its problem before it begins."""

from __future__ import annotations

from collections.abc import Sequence

from dladmm.blocks import Params
from dladmm.compute.hand_written import make_ahead
from dladmm.compute.products import worth_a_kernel
from dladmm.engine.options import TrainOptions
from dladmm.engine.problem import Problem


def make_kernels_ahead(problem: Problem, params: Sequence[Params], options: TrainOptions) -> None:
    """Let threads make the kernels of sweeps over all rows while the run is set up.

    Nothing where passes are compiled instead. (Streaming mode needs none of these kernels.)
    """
    if options.compile is True:
        return
    rows, shapes = len(problem.x), [p.shape for block in params for p in block.values()]
    entries = rows * max((shape[0] for shape in shapes), default=0)
    softmax = problem.risk.loss.name == "cross_entropy" and problem.chain.blocks[-1].n_out
    solvers = options.subproblems.w_solver, options.subproblems.a_solver
    own = options.precision == "float32" or "exact" in solvers  # Gram matrices are float32 in any precision
    product = own and any(len(shape) == 2 and worth_a_kernel(rows, *shape) for shape in shapes)
    make_ahead(entries, softmax or 0, product, problem.x.device)
