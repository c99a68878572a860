"""Small random problems that several test files share."""

from __future__ import annotations

import numpy as np
import torch

from dladmm.engine.sweep import Engine
from dladmm.losses import Risk, get_loss
from dladmm.network.chain import mlp
from dladmm.regularizers import get_regularizer
from dladmm.solvers.subproblems import SubproblemOptions


def random_problem(
    seed,
    *,
    activation="relu",
    loss="cross_entropy",
    regularizer=None,
    depth=None,
    rho_factor=3.0,
    nu=1.0,
    samples=None,
    dtype=torch.float64,
    **options,
):
    """An engine and a feasible state for a random network on random data."""
    rng = np.random.default_rng(seed)
    depth = int(rng.integers(1, 5)) if depth is None else depth
    samples = int(rng.integers(5, 40)) if samples is None else samples
    widths = [*rng.integers(1, 9, depth).tolist(), 3]
    x = torch.from_numpy(rng.normal(size=(samples, widths[0])) * 10 ** rng.uniform(-1, 1)).to(dtype)
    the_loss = get_loss(loss)
    if the_loss.kind == "classification":
        y = torch.from_numpy(rng.integers(0, 3, samples))
    else:
        y = torch.from_numpy(rng.normal(size=(samples, 3)))
    risk = Risk(the_loss, the_loss.encode(y, 3, dtype), None)
    chain = mlp(widths, activation)
    engine = Engine(chain, x, risk, get_regularizer(regularizer), SubproblemOptions(**options))
    generator = torch.Generator().manual_seed(seed)
    params = chain.initial_parameters(generator, 1.0, dtype=dtype, device=torch.device("cpu"))
    for block, p in zip(chain, params, strict=True):
        for name in block.penalised:
            p[name] = engine.penalty.prox(p[name], 0.0)
    return engine, engine.feasible_state(params, rho_factor * risk.H, nu)
