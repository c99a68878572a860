"""Torch's losses (``nn.CrossEntropyLoss()``, ``F.mse_loss``, ...) as the losses of this library.

A run minimises a sum over rows, so ``reduction`` changes the unit of the loss and nothing else: it is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from dladmm.base.errors import InputError, InputTypeError
from dladmm.losses.base import Loss
from dladmm.losses.classification import BinaryLogistic
from dladmm.losses.cross_entropy import CrossEntropy
from dladmm.losses.poisson import Poisson
from dladmm.losses.quantile import Absolute
from dladmm.losses.regression import Huber, Squared

REDUCTIONS = ("reduction", "size_average", "reduce")


def _numbers(value: Any) -> tuple[float, ...] | None:
    return None if value is None else tuple(float(each) for each in Tensor.flatten(value.detach().cpu()))


def _cross_entropy(weight: Any = None, label_smoothing: float = 0.0, ignore_index: int = -100) -> Loss:
    return CrossEntropy(_numbers(weight), label_smoothing)


def _binary(weight: Any = None, pos_weight: Any = None) -> Loss:
    if weight is not None:
        raise InputError("weight of BCEWithLogitsLoss is not supported; give train a sample_weight.")
    return BinaryLogistic(_numbers(pos_weight))


def _smooth_l1(beta: float = 1.0) -> Loss:
    return Absolute() if beta == 0 else Huber(beta)  # the Huber loss over beta


def _poisson(log_input: bool = True, full: bool = False, eps: float = 1e-8) -> Loss:
    if not log_input:
        raise InputError("log_input=False is not supported: outputs are logarithms of the expected y.")
    return Poisson()


UNDERSTOOD: dict[Any, Callable[..., Loss]] = {
    nn.CrossEntropyLoss: _cross_entropy, F.cross_entropy: _cross_entropy,
    nn.MSELoss: Squared, F.mse_loss: Squared,
    nn.HuberLoss: Huber, F.huber_loss: Huber,
    nn.SmoothL1Loss: _smooth_l1, F.smooth_l1_loss: _smooth_l1,
    nn.L1Loss: Absolute, F.l1_loss: Absolute,
    nn.BCEWithLogitsLoss: _binary, F.binary_cross_entropy_with_logits: _binary,
    nn.PoissonNLLLoss: _poisson, F.poisson_nll_loss: _poisson,
}  # fmt: skip
"""What torch's losses and their functional forms are here."""

ARGUMENTS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.CrossEntropyLoss: ("weight", "label_smoothing", "ignore_index"),
    nn.HuberLoss: ("delta",),
    nn.SmoothL1Loss: ("beta",),
    nn.BCEWithLogitsLoss: ("weight", "pos_weight"),
    nn.PoissonNLLLoss: ("log_input", "full"),
}
"""The settings of each that are read."""

INSTEAD: dict[Any, str] = {
    nn.NLLLoss: "use nn.CrossEntropyLoss() and leave nn.LogSoftmax out of the network",
    F.nll_loss: "use F.cross_entropy and leave nn.LogSoftmax out of the network",
    nn.BCELoss: "use nn.BCEWithLogitsLoss() and leave nn.Sigmoid out of the network",
    F.binary_cross_entropy: "use F.binary_cross_entropy_with_logits and leave nn.Sigmoid out of the network",
}


def ignored_by_torch(given: Any) -> int | None:
    """The label that torch's cross-entropy leaves out, -100 unless another was given; None for other losses."""
    if isinstance(given, partial):
        own = given.keywords.get("ignore_index", -100)
        return int(own) if given.func is F.cross_entropy else None
    if isinstance(given, nn.CrossEntropyLoss):
        return int(given.ignore_index)
    return -100 if given is F.cross_entropy or given is nn.CrossEntropyLoss else None


def loss_of_torch(given: Any) -> Loss | None:
    """The loss that a loss module, its class, its functional form or a ``partial`` of that is; None for other things.

    Other losses of torch are refused by name: an own function of the outputs is the way to them.
    """
    settings: dict[str, Any] = {}
    if isinstance(given, partial):
        if given.args:
            return None
        given, settings = given.func, dict(given.keywords)
    if isinstance(given, nn.Module):
        settings = {name: getattr(given, name) for name in ARGUMENTS.get(type(given), ())}
        given = type(given)
    try:
        make = UNDERSTOOD.get(given)
    except TypeError:  # not hashable, so none of torch's
        return None
    name = getattr(given, "__name__", repr(given))
    if make is None:
        if _is_torchs(given):
            known = ", ".join(each.__name__ for each in UNDERSTOOD if isinstance(each, type))
            remedy = INSTEAD.get(given, f"understood are {known}; or give a function of (outputs, targets)")
            raise InputTypeError(f"loss {name} is not understood: {remedy}.")
        return None
    settings = {key: value for key, value in settings.items() if key not in REDUCTIONS}
    try:
        return make(**settings)
    except TypeError as error:
        raise InputError(f"loss {name}: {error}") from error


def _is_torchs(given: Any) -> bool:
    """Whether it is a loss module of torch, or a loss function of ``torch.nn.functional`` by its name."""
    if isinstance(given, type) and issubclass(given, nn.Module):
        return given.__module__ == "torch.nn.modules.loss"
    name = getattr(given, "__name__", "")
    of_torch = getattr(F, name, None) is given
    return of_torch and (name.endswith("_loss") or "entropy" in name or name in ("kl_div",))
