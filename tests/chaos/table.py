"""The bad input table: calls beside the exception and the words they must give, and the judge of all of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from chaos.ledger import require
from dladmm import Status

REFUSED = list[tuple[str, Callable[[], object], type[Exception], str]]
"""Name, call, the exception it must raise, and words that must stand in the message."""

X = np.random.default_rng(0).normal(size=(12, 4))
Y = np.arange(12) % 3
EDGES = np.array([[0, 1, 2, 3], [1, 2, 3, 4]])
MASK = np.ones(12, dtype=bool)


def with_value(value: float) -> np.ndarray:
    """X with one entry replaced."""
    bad = X.copy()
    bad[3, 2] = value
    return bad


def judge_refusal(call: Callable[[], object], exception: type[Exception], words: str) -> None:
    """The call must raise this exception with these words, whatever it warns of on the way."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call()
        except exception as error:
            require(words in str(error), f"the message lacks {words!r}: {error}")
            return
        except Exception as error:
            require(False, f"raised {type(error).__name__} in the place of {exception.__name__}: {error}")
    require(False, "was accepted")


def judge_acceptance(call: Callable[[], Any]) -> None:
    """Odd, but welcome: a status, and a model of finite numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = call()
    status = getattr(result, "status", None) or result.status_
    require(isinstance(status, Status), f"no status but {status!r}")
    module = getattr(result, "module", None) or result.module_
    for name, tensor in module.state_dict().items():
        # The scale of a constant feature is infinite, so that it counts for nothing (dladmm.network.table_inputs)
        welcome = tensor.isfinite() | (tensor == torch.inf) if name.endswith("scale") else tensor.isfinite()
        require(bool(welcome.all()), f"{name} of the returned model is not finite")
