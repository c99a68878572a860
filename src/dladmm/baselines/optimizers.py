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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from torch import Tensor, optim

from dladmm.base.errors import InputError
from dladmm.base.spec import number
from dladmm.baselines.gradient import GradientMethod
from dladmm.baselines.minibatch import MiniBatches, MiniBatchMethod
from dladmm.baselines.muon import AVAILABLE as MUON
from dladmm.baselines.muon import MuonWithAdamW
from dladmm.baselines.optimizer_state import Stepper
from dladmm.engine.method import MethodFactory

if TYPE_CHECKING:
    from dladmm.baselines.dropout import RandomDropout

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

WITHOUT_DECAY = ("lbfgs", "muon", "admm")
"""Methods whose optimiser has no ``weight_decay`` that is a penalty."""

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


_MAKERS: dict[str, Callable[[list[Tensor], float, float], Stepper]] = {
    "gd": lambda params, lr, decay: optim.SGD(params, lr=lr, weight_decay=decay, fused=_fuses(params)),
    "adagrad": lambda params, lr, decay: optim.Adagrad(params, lr=lr, weight_decay=decay),
    "adadelta": lambda params, lr, decay: optim.Adadelta(params, lr=lr, weight_decay=decay),
    "adam": lambda params, lr, decay: optim.Adam(params, lr=lr, weight_decay=decay, fused=_fuses(params)),
    "lbfgs": lambda params, lr, decay: _lbfgs(params, lr),
    "muon": lambda params, lr, decay: MuonWithAdamW(params, lr),
}


def _fuses(params: list[Tensor]) -> bool | None:
    """Whether a step is one kernel: on a GPU; elsewhere torch's default."""
    return True if params[0].is_cuda else None


@dataclass(frozen=True)
class Recipe:
    """What people add to a gradient method: dropout (drawn from ``seed``) and torch's own ``weight_decay``."""

    dropout: float = 0.0
    weight_decay: float = 0.0
    seed: int = 0

    def checked(self, name: str) -> Recipe:
        """The same with numbers that are known to be such."""
        if isinstance(self.dropout, bool) or not isinstance(self.dropout, (int, float)):
            raise InputError(f"dropout must be a number from 0 to below 1, got {self.dropout!r}.")
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout must be a number from 0 to below 1, got {self.dropout!r}.")
        if self.dropout and name == "lbfgs":
            raise InputError(
                "lbfgs compares values of one objective, which dropout changes; leave dropout out."
            )
        if self.weight_decay and name in WITHOUT_DECAY:
            raise InputError(
                f"{name} has no weight_decay here; give regularizer={{'name': 'l2', ...}} instead."
            )
        return replace(self, weight_decay=number("weight_decay", self.weight_decay, low=0.0))

    @property
    def random_dropout(self) -> RandomDropout | None:
        if not self.dropout:
            return None
        from dladmm.baselines.dropout import RandomDropout

        return RandomDropout(float(self.dropout), self.seed)


def gradient_method(
    name: str, network: Network, lr: float | None, recipe: Recipe | None = None
) -> MethodFactory:
    """The factory of a full-batch method, with the paper's learning rate for this kind of network or with ``lr``."""
    rate = LEARNING_RATES[name][network]
    chosen, made = _checked_rate(lr, rate), (recipe or Recipe()).checked(name)
    return lambda engine, state: GradientMethod(
        engine,
        state,
        name,
        lambda params: _MAKERS[name](params, chosen, made.weight_decay),
        mean=rate.reduction == "mean",
        dropout=made.random_dropout,
    )


def batch_method(
    name: str,
    lr: float | None,
    batch_size: Any,
    schedule: Any,
    passes: int,
    recipe: Recipe,
) -> MethodFactory:
    """The factory of a method with mini-batches; ``passes`` is the planned number, for the schedule.

    The order of the rows and what is dropped are drawn from the recipe's seed.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise InputError(f"batch_size must be a whole number >= 1, or None, got {batch_size!r}.")
    if name in WITHOUT_BATCHES:
        raise InputError(f"{name} needs the whole objective in every step; leave batch_size out.")
    if schedule not in (None, *get_args(Schedule)):
        raise InputError(f"schedule must be 'linear' or None, got {schedule!r}.")
    rate = BATCH_RATES.get(name, LEARNING_RATES[name]["mlp"])
    chosen, recipe = _checked_rate(lr, rate), recipe.checked(name)
    plan = MiniBatches(batch_size, passes, schedule == "linear", recipe.seed)
    return lambda engine, state: MiniBatchMethod(
        engine,
        state,
        name,
        lambda params: _MAKERS[name](params, chosen, recipe.weight_decay),
        plan,
        mean=rate.reduction == "mean",
        dropout=recipe.random_dropout,
    )


def _checked_rate(lr: float | None, rate: Rate) -> float:
    chosen = rate.lr if lr is None else number("lr", lr, low=0.0, strict=True)
    if chosen > LARGEST_RATE:
        raise InputError(f"lr must be at most {LARGEST_RATE:g}, got {lr!r}.")
    return chosen
