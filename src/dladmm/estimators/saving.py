"""``save`` and ``load`` for estimators: one file without pickle that holds the network and what ``fit`` reports."""

from __future__ import annotations

import os
from typing import Any, Self

import numpy as np

from dladmm.base.errors import DataError, InputError
from dladmm.base.fields import items, text
from dladmm.base.spec import Named
from dladmm.engine.certificate import Certificate
from dladmm.losses import Loss
from dladmm.network.table_inputs import TableInputs
from dladmm.tables import TableEncoder
from dladmm.training.checkpoint import load_model, save_model
from dladmm.training.result import Result


class Saved:
    """Mixin that adds ``save(path)`` and ``load(path)`` to an estimator."""

    def save(self, path: str | os.PathLike[str], *, state: bool = False) -> None:
        """Write the fitted estimator to one file: network, parameters, history and certificate, not the callbacks.

        Parameters
        ----------
        path : str or path
        state : bool, default False
            Also write ``state_``, the last iterate of ``mode="convergent"``: variables of every training row, as large
            as the training data and made of them.
        """
        if not hasattr(self, "module_"):
            raise InputError(f"this {type(self).__name__} is not fitted yet: call fit before save.")
        fitted: Any = self
        iterate: Any = getattr(fitted, "state_", None)
        if state and iterate is None:
            raise InputError(
                f"state=True writes the last iterate, which {type(self).__name__} keeps in mode='convergent' only."
            )
        result = Result(fitted.status_, fitted.history_, fitted.certificate_, fitted.module_, iterate)
        classes = getattr(self, "classes_", None)
        extra: dict[str, Any] = {
            "estimator": type(self).__name__,
            "parameters": {
                name: _json_value(name, value) for name, value in fitted.get_params(deep=False).items()
            },
            "classes": None if classes is None else {"dtype": classes.dtype.str, "values": classes.tolist()},
            "n_features_in": int(fitted.n_features_in_),
            "feature_names_in": getattr(self, "feature_names_in_", np.array([])).tolist() or None,
            "single": getattr(self, "_single", None),
            "n_networks": getattr(self, "n_networks_", 1),
        }
        encoder = getattr(self, "encoder_", None)
        if encoder is not None:
            extra["table"] = encoder.to_dict()
        save_model(result, path, loss=fitted._loss, extra=extra, state=state)

    def __getstate__(self) -> dict[str, Any]:
        """What pickles and copies hold: everything but the last iterate, which has variables of every training row."""
        held: dict[str, Any] = dict(super().__getstate__())  # type: ignore[call-overload]
        held.pop("state_", None)
        return held

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The fitted estimator that ``save`` wrote, on the CPU."""
        saved = load_model(path)
        extra, name = saved.extra, cls.__name__
        if extra.get("estimator") != name:
            raise DataError(f"{path} holds {extra.get('estimator') or 'a bare network'}, not a {name}.")
        if saved.status is None or saved.history is None or saved.certificate is None:
            raise DataError(f"{path} lacks what a fitted {name} needs.")
        try:
            certificate = Certificate.from_dict(saved.certificate)
            iterate: Any = saved.state
            result = Result(saved.status, saved.history, certificate, saved.module, iterate)
            return cls._restored(extra, result, saved.loss)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError) as error:
            raise DataError(f"{path} does not describe a fitted {name}: {error!r}") from error

    @classmethod
    def _restored(cls, extra: dict[str, Any], result: Result, loss: Loss | None) -> Self:
        estimator: Any = cls(**extra["parameters"])
        estimator._remember(result, loss)
        last, first = (list(result.module.parameters())[place] for place in (-1, 0))
        table = extra.get("table")  # none in files of earlier versions, and for sparse rows
        encoder = None if table is None else TableEncoder.from_dict(table)
        begins = next(result.module.children(), None)
        taken = begins.n_features if isinstance(begins, TableInputs) else first.shape[1]
        counted = (len(encoder.columns), len(encoder.outputs)) if encoder else (taken, taken)
        if (extra["n_features_in"], taken) != counted:
            raise ValueError(f"{extra['n_features_in']!r} features for a network of {taken}")
        if encoder is not None:
            estimator.encoder_ = encoder
        estimator.n_features_in_ = extra["n_features_in"]
        estimator.n_networks_ = extra.get("n_networks", 1)  # files of earlier versions have one
        if extra["classes"] is not None:
            kind = np.dtype(extra["classes"]["dtype"])
            estimator.classes_ = np.array(extra["classes"]["values"], dtype=kind)
            if estimator.classes_.shape != (last.shape[0],):
                raise ValueError(f"{estimator.classes_.shape} classes for {last.shape[0]} outputs")
        if extra["feature_names_in"] is not None:
            n_features = extra["n_features_in"]
            names = [
                text("a feature's name", each)
                for each in items("names", extra["feature_names_in"], n_features)
            ]
            if len(names) != n_features or (encoder and names != [column.name for column in encoder.columns]):
                raise DataError("the names of the features are not those of the columns")
            estimator.feature_names_in_ = np.array(names, dtype=object)
        if extra["single"] is not None:
            estimator._single = extra["single"]
        loaded: Self = estimator
        return loaded


def _json_value(name: str, value: Any) -> Any:
    """A parameter as a JSON value; callbacks and random generators are left out."""
    if name == "callbacks":
        return []
    if isinstance(value, Named):
        return value.to_spec()
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (tuple, list)):
        return [item if isinstance(item, (str, bool)) else int(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str, dict)):
        return value
    if name == "random_state":
        return None
    raise InputError(f"parameter {name} ({type(value).__name__}) cannot be written to a file.")
