"""Estimators in a process of their own, for fresh_process.py: scikit-learn's, and the library's with its defaults.

scikit-learn's ``MLPClassifier`` behind ``StandardScaler`` is looked at after every pass (``partial_fit``), ours when
``fit`` is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

Rows = tuple[np.ndarray[Any, Any], ...]


def rows_of(given: dict[str, Any]) -> Rows:
    """X, y, Xt, yt; bytes become shares of 255."""
    with np.load(given["file"]) as file:
        x, y, x_test, y_test = (file[name] for name in ("X", "y", "Xt", "yt"))
    x, y = x[: given["rows"]], y[: given["rows"]].astype(np.int64)

    def numbers(part: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        flat = part.reshape(len(part), -1)
        return flat.astype(np.float32) / 255 if flat.dtype == np.uint8 else flat.astype(np.float32)

    return numbers(x), y, numbers(x_test), y_test.astype(np.int64)


def estimated(given: dict[str, Any]) -> dict[str, Any]:
    """When each level was first seen, in seconds since the process was started; looks do not count."""
    rows = rows_of(given)
    own = given["setting"]["method"] != "scikit-learn"
    return (_ours if own else _scikit)(given, rows)


def _scikit(given: dict[str, Any], rows: Rows) -> dict[str, Any]:
    import warnings

    from sklearn.neural_network import MLPClassifier
    from sklearn.preprocessing import StandardScaler

    x, y, x_test, y_test = rows
    scaler = StandardScaler().fit(x)
    x, model = scaler.transform(x), MLPClassifier(tuple(given["widths"]), random_state=given["seed"])
    classes = np.unique(y)

    def one_pass() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.partial_fit(x, y, classes=classes)

    def accuracy() -> float:
        return float((model.predict(scaler.transform(x_test)) == y_test).mean())

    return _timed(given, one_pass, accuracy, given["setting"]["passes"])


def _ours(given: dict[str, Any], rows: Rows) -> dict[str, Any]:
    import warnings

    import torch

    from dladmm import MLPClassifier

    if given["threads"]:
        torch.set_num_threads(given["threads"])
    x, y, x_test, y_test = rows
    model = MLPClassifier(tuple(given["widths"]), random_state=given["seed"], device=given["device"])

    def fit() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(x, y)

    def accuracy() -> float:
        return float((model.predict(x_test) == y_test).mean())

    return _timed(given, fit, accuracy, passes=1)


def _timed(
    given: dict[str, Any], one_pass: Callable[[], None], accuracy: Callable[[], float], passes: int
) -> dict[str, Any]:
    cpu = given.get("cpu_time", False)
    now = time.process_time if cpu else time.time
    first_step = now() if cpu else now() - given["began"]
    clock, best, made = first_step, 0.0, 0
    seen: dict[str, float | None] = dict.fromkeys(map(str, given["levels"]))
    for _ in range(passes):
        began = now()
        one_pass()
        clock += now() - began
        made, best = made + 1, max(best, accuracy())
        for level in given["levels"]:
            if best >= level and seen[str(level)] is None:
                seen[str(level)] = clock
        late = clock > given.get("limit", clock) or time.time() > given["until"]
        if best >= max(given["levels"]) or late:
            break
    return {"first_step": first_step, "seen": seen, "best": best, "passes": made}
