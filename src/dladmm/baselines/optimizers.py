"""The gradient methods of the paper's experiments and their learning rates.

Section 5.1 has the rates for MLPs, Section 5.2 those for GCNs; all methods are full-batch. The paper does not say
whether its loss is a sum or a mean. With a mean loss GD at a rate of 1e-6 would not move, so for MLPs GD uses the sum;
all others use the mean over the labelled samples.

L-BFGS is not in the paper. An epoch is one iteration of torch's, with ten pairs of memory and a line search for the
strong Wolfe conditions that starts at ``lr = 1``; each of its trial points costs a forward and a backward pass.

With mini-batches (:mod:`dladmm.baselines.minibatch`) all rates are for the mean loss. Muon is not in the paper either;
it is there where torch has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from torch import Tensor, optim

from dladmm.base.errors import InputError
from dladmm.base.spec import number
from dladmm.baselines.gradient import GradientMethod
from dladmm.baselines.minibatch import MiniBatches, MiniBatchMethod
from dladmm.baselines.muon import AVAILABLE as MUON
from dladmm.baselines.muon import MuonWithAdamW
from dladmm.baselines.optimizer_state import Stepper
from dladmm.engine.method import MethodFactory

Network = Literal["mlp", "gcn"]
Reduction = Literal["sum", "mean"]


@dataclass(frozen=True)
class Rate:
    """A learning rate, and the reduction of the loss it is meant for: "sum" or "mean" over the labelled samples."""

    lr: float
    reduction: Reduction = "mean"


LEARNING_RATES: dict[str, dict[Network, Rate]] = {
    "gd": {"mlp": Rate(1e-6, "sum"), "gcn": Rate(0.1)},
    "adagrad": {"mlp": Rate(1e-3), "gcn": Rate(1e-3)},
    "adadelta": {"mlp": Rate(0.1), "gcn": Rate(1e-3)},
    "adam": {"mlp": Rate(1e-3), "gcn": Rate(1e-2)},
    "lbfgs": {"mlp": Rate(1.0), "gcn": Rate(1.0)},
}
if MUON:
    LEARNING_RATES["muon"] = {"mlp": Rate(1e-3), "gcn": Rate(1e-2)}

BATCH_RATES = {"gd": Rate(0.1)}
"""Rates with mini-batches, where they are not those of MLPs above."""

WITHOUT_BATCHES = ("lbfgs", "admm")
"""Methods that need the whole objective."""

Schedule = Literal["linear"]
"""The course of the learning rate with mini-batches: "linear" lets it fall to zero over ``max_iter`` passes."""

LARGEST_RATE = 1e30
"""Upper limit of learning rates, representable in float32."""

TRIALS = 25
"""Maximum number of trial points of the line search of L-BFGS in one epoch."""


def _lbfgs(params: list[Tensor], lr: float) -> Stepper:
    found = optim.LBFGS(
        params,
        lr=lr,
        max_iter=1,
        max_eval=1 + TRIALS,
        history_size=10,
        tolerance_grad=0.0,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )
    return cast(Stepper, found)  # its step needs a closure, which the full-batch method gives


_MAKERS: dict[str, Callable[[list[Tensor], float], Stepper]] = {
    "gd": lambda params, lr: optim.SGD(params, lr=lr, fused=_fuses(params)),
    "adagrad": lambda params, lr: optim.Adagrad(params, lr=lr),
    "adadelta": lambda params, lr: optim.Adadelta(params, lr=lr),
    "adam": lambda params, lr: optim.Adam(params, lr=lr, fused=_fuses(params)),
    "lbfgs": _lbfgs,
    "muon": MuonWithAdamW,
}


def _fuses(params: list[Tensor]) -> bool | None:
    """Whether a step is one kernel: on a GPU; elsewhere torch's default."""
    return True if params[0].is_cuda else None


def gradient_method(name: str, network: Network, lr: float | None) -> MethodFactory:
    """The factory of a full-batch method, with the paper's learning rate for this kind of network or with ``lr``."""
    rate = LEARNING_RATES[name][network]
    chosen = _checked_rate(lr, rate)
    return lambda engine, state: GradientMethod(
        engine, state, name, lambda params: _MAKERS[name](params, chosen), mean=rate.reduction == "mean"
    )


def batch_method(
    name: str, lr: float | None, batch_size: Any, schedule: Any, passes: int, seed: int
) -> MethodFactory:
    """The factory of a method with mini-batches; ``passes`` is the planned number, for the schedule."""
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise InputError(f"batch_size must be a whole number >= 1, or None, got {batch_size!r}.")
    if name in WITHOUT_BATCHES:
        raise InputError(f"{name} needs the whole objective in every step; leave batch_size out.")
    if schedule not in (None, *get_args(Schedule)):
        raise InputError(f"schedule must be 'linear' or None, got {schedule!r}.")
    rate = BATCH_RATES.get(name, LEARNING_RATES[name]["mlp"])
    chosen = _checked_rate(lr, rate)
    plan = MiniBatches(batch_size, passes, schedule == "linear", seed)
    return lambda engine, state: MiniBatchMethod(
        engine, state, name, lambda params: _MAKERS[name](params, chosen), plan, mean=rate.reduction == "mean"
    )


def _checked_rate(lr: float | None, rate: Rate) -> float:
    chosen = rate.lr if lr is None else number("lr", lr, low=0.0, strict=True)
    if chosen > LARGEST_RATE:
        raise InputError(f"lr must be at most {LARGEST_RATE:g}, got {lr!r}.")
    return chosen
