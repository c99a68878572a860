"""The model argument of ``train``: what is refused, and whether its weights are kept."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from numbers import Integral
from typing import Any

import numpy as np
from torch import Tensor, nn

from dladmm.base.errors import InputError, InputTypeError
from dladmm.blocks import Dropout
from dladmm.engine.method import MethodFactory
from dladmm.engine.options import TrainOptions
from dladmm.network.chain import Chain, takes_tokens
from dladmm.network.given_module import StartsFromWeights, refuse_unseen_parts, trained_layer


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
    if method is not None and not callable(method):
        raise InputTypeError(
            f"method must be a function such as those of dladmm.baselines, or None, got {method!r}."
        )


def check_hidden(hidden: Any) -> None:
    """Raise unless ``hidden`` is a sequence of whole numbers; how large they are is the network's to say."""
    if isinstance(hidden, (str, bytes)) or not isinstance(hidden, Iterable):
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
        refuse_unseen_parts(model)
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
    first = chain.blocks[0]
    if isinstance(getattr(first, "block", first), Dropout):
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
