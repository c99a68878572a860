"""Random node splits that are the same on every machine and with every version of numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dladmm.base.errors import InputError

Mask = NDArray[np.bool_]


def whole_number(value: object, name: str, *, least: int = 0) -> int:
    """`value` as an int of at least `least`, or InputError; numpy integers are accepted, bool and float are not."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InputError(f"{name} is {value!r}; it must be a whole number of at least {least}")
    return int(value)


def bounded_number(value: object, name: str, *, least: float = 0.0, most: float = 1.0) -> float:
    """`value` as a float within [least, most], or InputError."""
    number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not number or not least <= value <= most:  # type: ignore[operator]
        raise InputError(f"{name} is {value!r}; it must be a number from {least:g} to {most:g}")
    return float(value)  # type: ignore[arg-type]


def stable_order(n: int, seed: int) -> NDArray[np.int64]:
    """A random order of 0..n-1.

    It sorts the raw output of PCG64, which numpy guarantees never to change; `Generator.permutation` has no such
    guarantee, and the split of a benchmark is identified by its seed.
    """
    bits = np.random.PCG64(whole_number(seed, "seed")).random_raw(n)
    return np.argsort(bits, kind="stable").astype(np.int64)


def split_nodes(
    y: NDArray[np.int64], n_classes: int, *, labels_per_class: int, n_test: int | None, n_val: int, seed: int
) -> tuple[Mask, Mask, Mask]:
    """Masks (nodes,) for training, validation and test, from labels y (nodes,).

    `labels_per_class` nodes of every class train; test, then validation nodes are drawn from the rest, so the test
    nodes do not depend on `n_val`. `n_test` None takes every node left after training and validation.
    """
    labels_per_class = whole_number(labels_per_class, "labels_per_class", least=1)
    n_val = whole_number(n_val, "n_val")
    order = stable_order(len(y), seed)
    train = np.zeros(len(y), dtype=bool)
    for label in range(n_classes):
        members = order[y[order] == label]
        if len(members) < labels_per_class:
            raise InputError(
                f"labels_per_class is {labels_per_class}; class {label} has {len(members)} nodes, "
                "ask for no more than the smallest class has"
            )
        train[members[:labels_per_class]] = True
    rest = order[~train[order]]
    wanted = len(rest) - n_val if n_test is None else whole_number(n_test, "n_test")
    if wanted < 0 or wanted + n_val > len(rest):
        raise InputError(
            f"n_test is {n_test} and n_val {n_val}; {len(rest)} nodes are left after the {int(train.sum())} "
            "training nodes, ask for no more than that"
        )
    test, val = np.zeros_like(train), np.zeros_like(train)
    test[rest[:wanted]] = True
    val[rest[wanted : wanted + n_val]] = True
    return train, val, test
