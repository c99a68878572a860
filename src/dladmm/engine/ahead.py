"""What a run on a GPU will need of hand-written kernels, read off its network before the data are there."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dladmm.blocks import Params
from dladmm.compute.hand_written import make_ahead
from dladmm.compute.products import worth_a_kernel, worth_a_narrow_kernel
from dladmm.engine.options import TrainOptions
from dladmm.losses import Loss
from dladmm.network.chain import Chain


def make_kernels_ahead(
    chain: Chain,
    loss: Loss,
    n_rows: int,
    params: Sequence[Params],
    options: TrainOptions,
    device: torch.device,
) -> None:
    """Let threads make the kernels of sweeps over all rows while the run is set up.

    Nothing where passes are compiled instead. (Streaming mode needs none of these kernels.)
    """
    if options.compile is True or options.mode == "streaming":
        return
    shapes = [p.shape for block in params for p in block.values()]
    entries = n_rows * max((shape[0] for shape in shapes), default=0)
    softmax = loss.name == "cross_entropy" and chain.blocks[-1].n_out
    solvers = options.subproblems.w_solver, options.subproblems.a_solver
    own = options.precision == "float32" or "exact" in solvers  # Gram matrices are float32 in any precision
    product = own and any(len(shape) == 2 and worth_a_kernel(n_rows, *shape) for shape in shapes)
    last = next((shape for shape in reversed(shapes) if len(shape) == 2), (0, 0))
    few = min(last) if worth_a_narrow_kernel(n_rows, *last) else 0
    make_ahead(entries, softmax or 0, few, product, device)
