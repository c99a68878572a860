"""``partial_fit``: rows that come call by call, each learned from once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils import check_random_state

from dladmm.api.sample_problem import Prepared, sample_trainer
from dladmm.api.streams import stream_of_arrays
from dladmm.base.errors import InputError
from dladmm.compute.communicator import ALONE
from dladmm.engine.streaming import Streaming
from dladmm.engine.streaming_options import StreamingOptions
from dladmm.estimators.checks import rows_per_batch, rows_that_count
from dladmm.estimators.choosing import normalises
from dladmm.losses import Loss
from dladmm.training.checks import check_device
from dladmm.training.diagnostics import evidence_of
from dladmm.training.standing import Evidence
from dladmm.training.trainer import Trainer

Array = NDArray[Any]


STEPS_TO_JUDGE = 100
"""Mini-batches after which ``partial_fit`` says whether the network has learnt anything."""


def _after_some_steps(trainer: Trainer, restored: bool) -> Evidence | None:
    """How the network stands on rows of the first calls; None while it has seen too little to be judged."""
    assert isinstance(trainer.method, Streaming)
    return None if trainer.method.step_number < STEPS_TO_JUDGE else evidence_of(trainer, restored)


class Incremental:
    """Mixin of the estimators that have ``partial_fit``."""

    _remember: Callable[..., None]

    def _learn(self, X: Any, y: Array, n_outputs: int, loss: Loss, sample_weight: Any) -> Self:
        """One pass over these rows, with the running sums of all calls before; the network is that of any-time mode.

        X has shape (n_samples, n_features), y holds encoded targets.
        """
        own: Any = self
        X, y, weight = rows_that_count(X.toarray() if sparse.issparse(X) else X, y, sample_weight)
        online: Prepared | None = getattr(self, "_online", None)
        if online is None:
            online = self._begun(X, y, n_outputs, loss, weight)
            online.trainer.judge = _after_some_steps
            result = online.trainer.fit()
        else:
            rows = online.checks.batch(X, y, weight)
            trainer = online.trainer
            seed = own._online_seed
            batches = stream_of_arrays(rows, online.checks.chain, trainer.options, seed, ALONE).batches
            result = trainer.one_more_pass(batches)
        self._online = online
        self._remember(result, loss, getattr(self, "n_networks_", 1))
        return self

    def _begun(self, X: Array, y: Array, n_outputs: int, loss: Loss, weight: Array | None) -> Prepared:
        own: Any = self
        self._online_seed = int(check_random_state(own.random_state).randint(2**31 - 1))
        keep = hasattr(self, "module_")  # after fit, or load: learn on
        if keep:
            own._check_same_network()
            if own._asked() is not None:
                raise InputError(
                    "monotone_constraints is kept by fit, and by partial_fit from its first call on, but not by "
                    "partial_fit after fit or load."
                )
        rows = rows_per_batch(own.batch_size)
        batch_size: dict[str, Any] = {} if rows is None else {"batch_size": rows}
        return sample_trainer(
            own.module_ if keep else own._chain(X.shape[1], n_outputs, weight is None and normalises(own)),
            X,
            y,
            loss=loss,
            regularizer=own.regularizer,
            init="keep" if keep else own._start,
            random_state=self._online_seed,
            device=check_device(own.device),
            dtype="float32" if own.dtype == "auto" else own.dtype,
            sample_weight=weight,
            callbacks=own._callbacks(),
            one_class=True,
            mode="streaming",
            weights=own.weights,
            max_iter=1,
            dropout=0.0,
            streaming=StreamingOptions(planned=False),
            **batch_size,
        )
