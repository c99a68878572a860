"""What ``train`` was given, checked: its settings, the model, and rows with their targets as tensors."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from dladmm.base.errors import InputError, InputTypeError
from dladmm.base.scipy_sparse import sparse
from dladmm.base.spec import is_several
from dladmm.blocks import Params
from dladmm.compute.communicator import ALONE, Communicator
from dladmm.engine.batches import Batch
from dladmm.engine.method import MethodFactory
from dladmm.engine.options import TrainOptions
from dladmm.losses import Loss, Units
from dladmm.network.chain import Chain, takes_tokens
from dladmm.network.given_module import StartsFromWeights, refuse_lazy, refuse_unseen_parts, trained_layer
from dladmm.training.checks import (
    check_features,
    check_fits,
    check_sample_weight,
    check_source,
    check_target_mask,
    check_targets,
    to_array,
    to_tensor,
)


def check_settings(words: dict[str, Any], method: Any, options: dict[str, Any]) -> None:
    """Raise where a setting is of a type that no setting has: text that is none, arrays in the place of a number."""
    for name, value in words.items():
        if not isinstance(value, str):
            raise InputTypeError(f"{name} must be a name, a text, got {value!r}.")
    for name, value in options.items():
        if isinstance(value, (np.ndarray, Tensor)) and value.ndim > 0:
            raise InputTypeError(
                f"{name} must be a single value, got an array of shape {tuple(value.shape)}."
            )
    if not isinstance(options.get("verbose", False), int):
        raise InputTypeError(f"verbose must be True or False, got {options['verbose']!r}.")
    if options.get("self_training") not in (None, True, False):
        raise InputTypeError(f"self_training must be True, False or None, got {options['self_training']!r}.")
    other_class = isinstance(method, type) and not hasattr(method, "iterate")
    if method is not None and (other_class or not callable(method)):
        raise InputTypeError(
            f"method must be a function such as those of dladmm.baselines, or None, got {method!r}."
        )


def check_hidden(hidden: Any) -> None:
    """Raise unless ``hidden`` is a sequence of whole numbers; how large they are is the network's to say."""
    if isinstance(hidden, (str, bytes)) or not is_several(hidden):
        raise InputError(f"hidden must be a list of whole numbers, one per hidden layer, got {hidden!r}.")
    if not all(isinstance(n, Integral) for n in hidden):
        raise InputError(f"hidden must hold whole numbers (widths of hidden layers), got {hidden!r}.")


def check_names(model: Any, init: str, prox: str, method: MethodFactory | None, streams: bool) -> None:
    """Raise where names of ``train`` are wrong, or the module holds what a chain would leave out."""
    if init not in ("auto", "fresh", "keep"):
        raise InputError(f"init must be 'auto', 'fresh' or 'keep', got {init!r}.")
    if init == "keep" and isinstance(model, Chain):
        raise InputError("init='keep' needs a torch module to keep the weights of; a chain has none.")
    if isinstance(model, nn.Module):
        if not streams:
            refuse_unseen_parts(model)
        refuse_lazy(model)
        own = list(model.parameters())
        if own and not any(p.requires_grad for p in own):
            raise InputError(
                "every parameter of the network has requires_grad=False: nothing is left to train. Set it for the "
                "layers that should be trained."
            )
    if prox not in ("auto", "fista"):
        raise InputError(f"prox must be 'auto' or 'fista', got {prox!r}.")
    if streams and prox != "auto":
        raise InputError("mode='streaming' has no z_L-update to solve: leave prox out.")
    if streams and method is not None:
        raise InputError("mode='streaming' is a method itself: leave mode or method out.")


def check_chain(chain: Chain, options: TrainOptions, method: MethodFactory | None) -> None:
    """Raise where the chain cannot be trained in this mode."""
    random = next((block for block in chain if block.draws), None)
    if random is not None and (options.mode == "convergent" or method is not None):
        raise InputError(
            f"{random!r} is random, and {'another method' if method else 'convergent mode'} needs a function that "
            "gives the same output every time. Use mode='streaming' or 'accelerated', or leave the dropout out."
        )
    if options.mode != "streaming" or method is not None:
        finite = next((block for block in chain if block.weight_set is not None), None)
        if finite is not None:
            raise InputError(f"{finite!r} has weights of a finite set, which mode='streaming' alone trains.")
    first = chain.blocks[0]
    if getattr(first, "block", first).kind == "dropout":
        raise InputError(
            "the network begins with dropout of its inputs; leave that layer out and give the option dropout instead."
        )
    if takes_tokens(chain) and options.mode == "accelerated" and options.dropout > 0:
        raise InputError(
            "dropout drops entries of X, which would be other tokens; leave it out for an Embedding."
        )


def init_of(init: str, model: nn.Module | Chain) -> str:
    """ "keep" or "fresh"; "auto" keeps weights that are not as torch draws them, and says so."""
    if init != "auto":
        return init
    layer = None if isinstance(model, Chain) else trained_layer(model)
    if layer is None:
        return "fresh"
    warnings.warn(
        f"the weights of layer {layer!r} are not as torch draws them: training starts from the weights of the network, "
        "as init='keep' does. Give init='keep' to say so yourself, or init='fresh' to draw new ones.",
        StartsFromWeights,
        stacklevel=5,
    )
    return "keep"


def is_stream(X: Any) -> bool:
    """Whether X brings its own batches (and targets): no array, and no function of ``(rank, world)``."""
    if isinstance(X, (Dataset, DataLoader)):
        return True
    if isinstance(X, (Tensor, np.ndarray, str, bytes, dict)) or hasattr(X, "__array__"):
        return False
    if isinstance(X, (list, tuple)):
        return len(X) > 0 and isinstance(X[0], tuple)
    if not callable(X) and sparse.issparse(X):
        return False
    return hasattr(X, "__iter__") or (callable(X) and takes(X, unknown=False))


def takes(function: Callable[..., Any], *arguments: Any, unknown: bool = True) -> bool:
    """Whether a function can be called with these arguments; ``unknown`` where it has no signature, being C."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:
        return unknown
    return True


@dataclass(frozen=True)
class RowChecks:
    """What rows are checked against: the network, its first parameters, the loss, and the tensors' dtype and device.

    Targets come out in ``units`` where there are any.
    """

    chain: Chain
    params: Sequence[Params]
    loss: Loss
    n_outputs: int
    dtype: torch.dtype
    device: torch.device
    at_once: int | None = None
    comm: Communicator = ALONE
    units: Units | None = None
    ignored: int | None = None
    """The label of targets that do not count."""

    def whole(
        self, features: Any, targets: Any, mask: Any, suffix: str = ""
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Inputs, encoded targets and the weights of a mask, on the run's device."""
        where: dict[str, Any] = {"dtype": self.dtype, "device": self.device}
        named: dict[str, Any] = {"name": "X" + suffix, "may_be_empty": not self.comm.alone, **where}
        if self.at_once is None:
            x = check_features(features, self.chain, **named)
        else:  # the engine accepts a source of rows in place of a tensor
            x = cast(Tensor, check_source(features, self.chain, at_once=self.at_once, **named))
        self.chain.blocks[0].check_input(x, "X" + suffix)
        positions = check_fits(self.chain, self.params, x, self.n_outputs, "X" + suffix)
        targets, counted = self._without_ignored(targets)
        target = self.targets(targets, len(x), positions, "y" + suffix, **where)
        mask = counted if mask is None else mask
        if mask is None:
            return x, target, None
        may_be_empty = not self.comm.alone
        return x, target, check_target_mask(mask, len(x), positions, x, "target_mask" + suffix, may_be_empty)

    def batch(self, x: Any, y: Any, weight: Any) -> Batch:
        """One batch of a stream, where it lies: the step brings it to the network's device."""
        x = x.toarray() if sparse.issparse(x) else to_array(x, "x")
        place = x.device if isinstance(x, Tensor) else torch.device("cpu")
        where: dict[str, Any] = {"dtype": self.dtype, "device": place}
        found = check_features(x, self.chain, name="x", **where)
        self.chain.blocks[0].check_input(found, "x")
        first = found[:1].to(self.device)
        positions: tuple[int, ...] = ()
        if found.ndim > 2 or self.chain.blocks[0].kind != "dense":
            positions = check_fits(self.chain, self.params, first, self.n_outputs, "x")
        y, counted = self._without_ignored(y)
        target = self.targets(y, len(found), positions, "y", **where)
        counts = None if weight is None else check_sample_weight(weight, found)
        mask = None if counted is None else counted.reshape(-1, 1).to(found)
        return Batch(found, target, mask, counts)

    def _without_ignored(self, y: Any) -> tuple[Any, Tensor | None]:
        """Targets with class 0 in the place of ignored ones, and which count; None where all do."""
        if self.ignored is None:
            return y, None
        labels = to_tensor(y, "y")
        counted = labels != self.ignored
        return torch.where(counted, labels, 0), counted

    def targets(
        self,
        y: Any,
        n_rows: int,
        positions: tuple[int, ...],
        name: str,
        dtype: torch.dtype,
        device: torch.device,
    ) -> Tensor:
        """Encoded targets, in ``units``: those are taken off in float64, where little is lost far from zero."""
        precise = dtype if self.units is None else torch.float64
        found = check_targets(
            y, self.loss, n_rows, self.n_outputs, name=name, positions=positions, dtype=precise, device=device
        )
        return found if self.units is None else self.units.apply(found).to(dtype)
