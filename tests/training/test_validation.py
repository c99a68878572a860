"""Bad input: exception and message, before any work is done."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from convergent import train
from dladmm import InputError, InputTypeError, mlp

X = np.random.default_rng(0).normal(size=(12, 4))
Y = np.arange(12) % 3


def call(*, model=None, x=X, y=Y, **kwargs):
    return train(
        mlp([4, 5, 3]) if model is None else model, x, y, max_iter=kwargs.pop("max_iter", 1), **kwargs
    )


def with_value(value):
    bad = X.copy()
    bad[3, 2] = value
    return bad


CASES = [
    ("nan", {"x": with_value(np.nan)}, InputError, "X contains NaN or infinite"),
    ("inf", {"x": with_value(np.inf)}, InputError, "X contains NaN or infinite"),
    ("too large for float32", {"x": with_value(1e300)}, InputError, "too large for torch.float32"),
    ("one dimension", {"x": X[0]}, InputError, r"X must have rows .* got shape \(4,\)"),
    ("empty", {"x": X[:0], "y": Y[:0]}, InputError, "X is empty"),
    ("no columns", {"x": X[:, :0]}, InputError, "X is empty"),
    ("features", {"x": X[:, :3]}, InputError, "X has 3 features, but the network's first layer takes 4"),
    ("rows differ", {"y": Y[:5]}, InputError, "y has 5 rows, but there are 12 samples"),
    ("scalar y", {"y": 3}, InputError, "y has 0 rows"),
    ("text X", {"x": np.full((12, 4), "a")}, InputTypeError, "X holds text"),
    ("text y", {"y": np.array(["a"] * 12)}, InputTypeError, "y holds text"),
    ("complex", {"x": X + 1j}, InputTypeError, "X is complex"),
    ("label too large", {"y": np.full(12, 3)}, InputError, "0.*2"),
    ("negative label", {"y": Y - 1}, InputError, "0.*2"),
    ("fractional label", {"y": Y + 0.5}, InputError, "integer|whole"),
    ("NaN target", {"y": np.full(12, np.nan)}, InputError, "NaN"),
    ("one class", {"y": np.zeros(12, dtype=int)}, InputError, "one class only"),
    ("rho zero", {"rho": 0}, InputError, "rho must be a positive finite number, got 0"),
    ("rho negative", {"rho": -1.0}, InputError, "rho must be a positive"),
    ("rho NaN", {"rho": float("nan")}, InputError, "rho must be a positive"),
    ("nu zero", {"nu": 0.0}, InputError, "nu must be a positive"),
    ("max_iter", {"max_iter": 0}, InputError, "max_iter must be a whole number >= 1"),
    ("max_iter type", {"max_iter": 2.5}, InputError, "max_iter must be a whole number"),
    ("eps", {"eps_abs": -1}, InputError, "eps_abs"),
    ("loss", {"loss": "entropy"}, InputError, "cross_entropy"),
    ("regulariser", {"regularizer": "l3"}, InputError, "l2"),
    ("solver", {"w_solver": "sgd"}, InputError, "w_solver must be one of"),
    ("unknown option", {"learning_rate": 1}, InputError, "unknown option learning_rate; known are"),
    ("preset", {"preset": "fast"}, InputError, "preset must be one of"),
    ("start", {"start": "warm"}, InputError, "start must be one of"),
    ("dtype", {"dtype": "float16"}, InputError, "dtype must be one of"),
    ("device", {"device": "quantum"}, InputError, "device must be"),
    ("absent device", {"device": "cuda:99"}, InputError, "not available"),
    ("meta device", {"device": "meta"}, InputError, "device must be"),
    ("prox", {"prox": "newton"}, InputError, "prox must be"),
    ("init", {"init": "zeros"}, InputError, "init must be"),
    ("keep a chain", {"init": "keep"}, InputError, "needs a torch module"),
    ("validation rows", {"validation": (X, Y[:3])}, InputError, "y of validation has 3 rows"),
    ("validation NaN", {"validation": (with_value(np.nan), Y)}, InputError, "X of validation contains NaN"),
    ("not a module", {"model": object()}, InputTypeError, "the model must be an nn.Sequential"),
    (
        "last not linear",
        {"model": nn.Sequential(nn.Linear(4, 3), nn.ReLU())},
        InputError,
        "last block must be linear",
    ),
    ("empty module", {"model": nn.Sequential()}, InputError, "at least one block"),
]


@pytest.mark.parametrize(
    ("kwargs", "exception", "message"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_bad_input_is_refused_with_a_clear_message(kwargs, exception, message):
    with pytest.raises(exception, match=message):
        call(**kwargs)


@pytest.mark.parametrize("widths", [[], [3], [3, 0], [3, 2.5], [3, True]])
def test_mlp_checks_widths(widths):
    with pytest.raises(InputError, match="widths"):
        mlp(widths)


def test_unknown_activation_lists_the_known_ones():
    with pytest.raises(InputError, match="relu"):
        mlp([3, 4, 2], "swish")


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: x.astype(np.float16),
        lambda x: (x * 10).astype(np.int8),
        lambda x: np.asfortranarray(x),
        lambda x: x[:, ::-1],
        lambda x: torch.from_numpy(x).requires_grad_(),
        lambda x: x.tolist(),
        lambda x: x > 0,
    ],
)
def test_what_is_reasonable_is_accepted(convert):
    assert call(x=convert(X)).history.n_iter == 1
