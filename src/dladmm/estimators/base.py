"""The base class of :class:`~dladmm.MLPClassifier` and :class:`~dladmm.MLPRegressor`: parameters, training, output."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from dladmm.api.arguments import best_dtype
from dladmm.api.cross_fit import fit_cross_fitted
from dladmm.api.given import check_settings
from dladmm.api.train import train
from dladmm.base.errors import InputError
from dladmm.base.history import Status
from dladmm.callbacks import Callback
from dladmm.engine.options import AutoMode, given, make_options
from dladmm.estimators.checks import (
    Array,
    Named,
    dense,
    finite_output,
    held_out,
    keep_state,
    progress,
    rows_per_batch,
    rows_that_count,
    widths,
)
from dladmm.estimators.choosing import CROSS_FITTED, mode_of, normalises
from dladmm.estimators.curves import Curves
from dladmm.estimators.incremental import Incremental
from dladmm.estimators.monotone import Monotone
from dladmm.estimators.saving import Saved
from dladmm.estimators.tabular import Tabular
from dladmm.losses import Loss
from dladmm.network.chain import mlp
from dladmm.training.checks import check_callbacks, check_device, check_dtype
from dladmm.training.result import ConvergenceNotGuaranteed, Result


class MLPBase(Named, Curves, Saved, Incremental, Tabular, Monotone, BaseEstimator):  # type: ignore[misc]
    """Parameters, training and network output of classifier and regressor."""

    def __init__(
        self,
        hidden_layer_sizes: Sequence[int] | int = (100,),
        activation: Any = "relu",
        *,
        loss: Any = None,
        mode: AutoMode = "auto",
        rho: float | None = None,
        nu: float | None = None,
        regularizer: Any = "auto",
        w_solver: str = "exact",
        a_solver: str = "exact",
        damping: float | None = None,
        batch_size: int | str | None = None,
        max_iter: int | None = None,
        tol: float = 1e-4,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        warm_start: bool = False,
        random_state: Any = None,
        device: str = "auto",
        dtype: str = "auto",
        max_memory: int | str | None = None,
        categorical_features: Any = "auto",
        monotone_constraints: Any = None,
        weights: Any = None,
        callbacks: Sequence[Callback] = (),
        verbose: bool = False,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.loss = loss
        self.mode = mode
        self.rho = rho
        self.nu = nu
        self.regularizer = regularizer
        self.w_solver = w_solver
        self.a_solver = a_solver
        self.damping = damping
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.tol = tol
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.random_state = random_state
        self.device = device
        self.dtype = dtype
        self.max_memory = max_memory
        self.categorical_features = categorical_features
        self.monotone_constraints = monotone_constraints
        self.weights = weights
        self.callbacks = callbacks
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        return tags

    # Training --------------------------------------------------------------------------------------------------

    @property
    def _start(self) -> str:
        """``init`` of :func:`dladmm.train` for a network that was not trained by this estimator before."""
        return "fresh"

    def _fit(self, X: Any, y: Array, n_outputs: int, loss: Loss, sample_weight: Any) -> Self:
        self.__dict__.pop("_online", None)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        X, y, weight = rows_that_count(X, y, sample_weight)
        mode = self._mode_for(X, n_outputs) if self.mode == "auto" else str(self.mode)
        if mode == CROSS_FITTED:
            return self._fit_copies(dense(X), y, n_outputs, loss, seed, weight)
        X = X if mode == "streaming" else dense(X)
        validation, stopping = None, []
        if self.early_stopping:
            X, y, weight, validation, stopping = held_out(self, X, y, weight, seed)
        dtype = self._choose_dtype(X.shape[0], mode)
        device = check_device(self.device)
        keep = self._continues()
        if keep:
            self._check_same_network()
        normalised = mode == "streaming" and weight is None and normalises(self)
        model = self.module_ if keep else self._chain(X.shape[1], n_outputs, normalised)
        with warnings.catch_warnings():
            if self.rho is not None:
                warnings.simplefilter("ignore", ConvergenceNotGuaranteed)
            result = train(
                model,
                X,
                y,
                loss=loss,
                regularizer=self.regularizer,
                init="keep" if keep else self._start,
                random_state=seed,
                device=device,
                dtype=dtype,
                sample_weight=weight,
                scale_targets=True,
                validation=validation,
                callbacks=[*self._callbacks(), *stopping],
                weights=self.weights,
                **self._options(mode),
            )
        self._set_fitted(result, loss, self.n_networks_ if keep else 1)
        return self

    def _options(self, mode: str) -> dict[str, Any]:
        """The settings that :func:`dladmm.train` takes as options."""
        return {
            "mode": mode,
            "w_solver": self.w_solver,
            "a_solver": self.a_solver,
            "eps_rel": self.tol,
            **given(
                rho=self.rho,
                nu=self.nu,
                damping=self.damping,
                max_iter=self.max_iter,
                batch_size=rows_per_batch(self.batch_size),
                max_memory=self.max_memory,
            ),
        }

    def _fit_copies(
        self, X: Array, y: Array, n_outputs: int, loss: Loss, seed: int, weight: Array | None
    ) -> Self:
        """Cross-fitted copies of the network, merged into one of several times the width."""
        sizes = [X.shape[1], *widths(self.hidden_layer_sizes), n_outputs]
        asked = self._options("streaming")
        check_settings({}, None, asked)
        options = make_options(**asked)
        found = fit_cross_fitted(
            sizes,
            self.activation,
            X,
            y,
            loss=loss,
            seed=seed,
            device=check_device(self.device),
            dtype=None if self.dtype == "auto" else check_dtype(self.dtype),
            passes=self.max_iter,
            batch_size=options.batch_size,
            regularizer=options.penalty(self.regularizer),
            sample_weight=weight,
            callbacks=check_callbacks(self._callbacks()),
            signs=self._weight_signs(sizes),
        )
        self._set_fitted(found.result, loss, found.copies)
        self.n_iter_ = found.passes
        return self

    def _mode_for(self, X: Any, n_outputs: int) -> str:
        """What ``mode="auto"`` stands for."""
        return mode_of(self, X, n_outputs)

    def _continues(self) -> bool:
        """Whether ``fit`` continues with the fitted network and its inputs."""
        return bool(self.warm_start) and hasattr(self, "module_")

    def _callbacks(self) -> list[Callback]:
        return [*progress(self), *self.callbacks]

    def _check_same_network(self) -> None:
        """Raise if ``hidden_layer_sizes`` has changed: ``warm_start`` continues with the fitted network."""
        before = tuple(W.shape[1] // self.n_networks_ for W in self.coefs_[:-1])
        now = widths(self.hidden_layer_sizes)
        if before != now:
            raise InputError(
                f"warm_start continues with hidden layers of {before}, but hidden_layer_sizes is now {now}; "
                "set it back, or warm_start=False to start again."
            )

    def _choose_dtype(self, n_rows: int, mode: str) -> str:
        if self.dtype != "auto":
            return str(self.dtype)
        widest = max(widths(self.hidden_layer_sizes), default=1)
        return best_dtype(n_rows, widest, mode, check_device(self.device))

    def _chain(self, n_in: int, n_outputs: int, normalised: bool = False) -> Any:
        sizes = [n_in, *widths(self.hidden_layer_sizes), n_outputs]
        chain = mlp(sizes, self.activation, normalised=normalised)
        return chain if self.monotone_constraints is None else self._constrained(chain, sizes)

    def _set_fitted(self, result: Result, loss: Loss, copies: int) -> None:
        """Store the result and warn where training did not converge; streaming mode ends after its passes."""
        self._remember(result, loss, copies)
        if result.status is Status.MAX_ITER:
            warnings.warn(
                f"{result.status} Raise max_iter (now {result.history.n_iter}) or tol (now {self.tol}) to converge.",
                ConvergenceWarning,
                stacklevel=4,
            )
        elif result.status is Status.INTERRUPTED:
            warnings.warn(str(result.status), UserWarning, stacklevel=4)

    def _remember(self, result: Result, loss: Loss, copies: int = 1) -> None:
        """Set the fitted attributes; weights are those for unscaled X, of a network merged from so many copies."""
        self.module_: nn.Module = result.module
        self.history_, self.status_, self.certificate_ = result.history, result.status, result.certificate
        keep_state(self, result)
        self.n_iter_, self.n_networks_ = result.history.n_iter, copies
        layers = [layer for layer in result.module.children() if isinstance(layer, nn.Linear)]
        self.coefs_ = [layer.weight.detach().cpu().numpy().T.copy() for layer in layers]
        self.intercepts_ = [layer.bias.detach().cpu().numpy().copy() for layer in layers]
        self.n_layers_ = len(self.coefs_) + 1
        self.n_outputs_ = self.coefs_[-1].shape[1]
        self.loss_ = result.history.last("loss")
        self._loss = loss
        if self.monotone_constraints is not None:
            self._prove()

    # Prediction ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _output(self, X: Any) -> Tensor:
        """The network's output (n_samples, n_outputs) for X, checked, on the CPU."""
        check_is_fitted(self)
        X = self._numbers(X, reset=False)
        if sparse.issparse(X):
            X = X.toarray()
        parameter = next(self.module_.parameters())
        x = torch.as_tensor(np.ascontiguousarray(X), dtype=parameter.dtype, device=parameter.device)
        output: Tensor = self.module_(x).cpu()
        return finite_output(output)
