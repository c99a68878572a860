"""``monotone_constraints``: the prediction rises, or falls, with a feature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from torch import Tensor

from dladmm.base.errors import InputError
from dladmm.network.chain import Chain
from dladmm.network.monotone import check_monotone_activation, constrain, directions, weight_signs
from dladmm.tables import TableEncoder


class Monotone:
    """Mixin of the estimators with ``monotone_constraints``."""

    monotone_constraints: Any
    n_features_in_: int
    encoder_: TableEncoder | None

    def _constrained(self, chain: Chain, sizes: Sequence[int]) -> Chain:
        """The MLP of these widths, its weights constrained as asked."""
        signs = self._weight_signs(sizes)
        return chain if signs is None else constrain(chain, signs)

    def _weight_signs(self, sizes: Sequence[int]) -> list[Tensor] | None:
        """The signs of the weights of an MLP of these widths, one tensor per layer; None without constraints."""
        own: Any = self
        asked = self._asked()
        if asked is None:
            return None
        if isinstance(self, ClassifierMixin) and sizes[-1] > 2:
            raise InputError(
                f"monotone_constraints needs two classes, got {sizes[-1]}: of several, none can rise with a feature "
                "unless all others fall."
            )
        if own.mode == "convergent" or own.warm_start:
            name = "mode='convergent'" if own.mode == "convergent" else "warm_start=True"
            raise InputError(f"monotone_constraints cannot be kept with {name}; leave one of the two out.")
        if own.weights is not None:
            raise InputError("monotone_constraints cannot be kept beside weights; leave one of the two out.")
        check_monotone_activation(own.activation)
        return weight_signs(sizes, self._of_inputs(asked, sizes[0]), self._of_outputs(sizes[-1]))

    def _asked(self) -> list[int] | None:
        """-1, 0 or 1 per feature of X; None if nothing is asked of any."""
        given = self.monotone_constraints
        if given is None:
            return None
        if isinstance(given, Mapping):
            names = getattr(self, "feature_names_in_", None)
            if names is None:
                raise InputError(
                    "monotone_constraints names features, but X has no column names; give a list."
                )
            unknown = [name for name in given if name not in set(names.tolist())]
            if unknown:
                raise InputError(f"monotone_constraints has {unknown[0]!r}, which is no column of X.")
            values: list[Any] = [given.get(name, 0) for name in names.tolist()]
        else:
            values = np.asarray(given, dtype=object).reshape(-1).tolist()
            if len(values) != self.n_features_in_:
                raise InputError(
                    f"monotone_constraints has {len(values)} entries, but X has {self.n_features_in_} features."
                )
        wrong = [value for value in values if isinstance(value, bool) or value not in (-1, 0, 1)]
        if wrong:
            raise InputError(f"monotone_constraints must be -1, 0 or 1 for every feature, got {wrong[0]!r}.")
        return [int(value) for value in values] if any(values) else None

    def _of_inputs(self, asked: Sequence[int], n_inputs: int) -> list[int]:
        """What is asked of every input of the network; where a value is missing is free."""
        encoder = getattr(self, "encoder_", None)
        if encoder is None:
            return list(asked)
        found: list[int] = []
        for code, sign in zip(encoder.columns, asked, strict=True):
            if code.kind == "category" and sign:
                raise InputError(
                    f"monotone_constraints has {code.name!r}, a category: its levels have no order."
                )
            found += [sign, *[0] * (len(code.outputs) - 1)] if code.outputs else []
        return found

    def _of_outputs(self, n_outputs: int) -> list[int]:
        return [-1, 1] if isinstance(self, ClassifierMixin) else [1] * n_outputs

    def _prove(self) -> None:
        """Check by the weights of the network alone that it is monotone."""
        own: Any = self
        asked = self._asked() if hasattr(self, "n_features_in_") else None  # not while a file is read
        if asked is None:
            return
        inputs = self._of_inputs(asked, 0)
        outputs = np.array(self._of_outputs(own.n_outputs_))
        for place, sign in enumerate(inputs):
            if sign and not (directions(own.module_, place).numpy() * outputs * sign >= 0).all():
                raise RuntimeError(f"input {place} of the network is not monotone: please report this fault.")
