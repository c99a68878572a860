""":class:`ModuleClassifier` and :class:`ModuleRegressor`: any network that ``train`` takes, as an estimator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import nn
from torch.random import fork_rng

from dladmm.api.given import takes
from dladmm.base.errors import InputTypeError
from dladmm.blocks.base import layer_of
from dladmm.callbacks import Callback
from dladmm.engine.options import AutoMode
from dladmm.estimators.checks import keep_state
from dladmm.estimators.documented import with_parameters_of
from dladmm.estimators.mlp import MLPClassifier
from dladmm.estimators.regressor import MLPRegressor
from dladmm.losses import Loss
from dladmm.training.checks import check_device
from dladmm.training.result import Result

Factory = Callable[[int, int], nn.Module]

FLOAT64_SAMPLES = 500
"""Samples up to which ``dtype="auto"`` uses float64 on a CPU."""


class FromFactory:
    """Mixin: the network is what ``module_factory(n_features, n_outputs)`` returns."""

    module_factory: Factory | None
    dtype: str
    device: str
    random_state: Any
    _continues: Callable[[], bool]

    @property
    def _start(self) -> str:
        """Weights that the factory loads or trains are started from, those that torch draws are drawn anew."""
        return "fresh" if self.module_factory is None else "auto"

    def _chain(self, n_in: int, n_outputs: int, normalised: bool = False) -> Any:
        make = _one_hidden_layer if self.module_factory is None else self.module_factory
        if isinstance(make, nn.Module):
            raise InputTypeError(
                f"module_factory is a network, {type(make).__name__}; give a function that makes one: "
                "ModuleClassifier(lambda n_features, n_outputs: network)."
            )
        other_class = isinstance(make, type) and not issubclass(make, nn.Module)
        if not callable(make) or other_class or not takes(make, n_in, n_outputs):
            raise InputTypeError(
                "module_factory must be a function of two numbers, of features and of outputs, that returns a network; "
                f"got {make!r}. For a class: lambda n_features, n_outputs: Network(...)."
            )
        with fork_rng(devices=[], enabled=isinstance(self.random_state, Integral)):
            if isinstance(self.random_state, Integral):
                torch.manual_seed(int(self.random_state))
            made = make(n_in, n_outputs)
        if not isinstance(made, nn.Module):
            raise InputTypeError(f"module_factory must return an nn.Module, got {type(made).__name__}.")
        return made

    def _mode_for(self, X: Any, n_outputs: int) -> str:
        """As in :func:`dladmm.train`: one network is trained as it is."""
        return "streaming"

    def _check_same_network(self) -> None:
        """Any network can be continued; ``train`` checks whether it accepts X."""

    def _choose_dtype(self, n_rows: int, mode: str) -> str:
        if self.dtype != "auto":
            return str(self.dtype)
        small = n_rows <= FLOAT64_SAMPLES and check_device(self.device).type == "cpu"
        return "float64" if small else "float32"

    def _remember(self, result: Result, loss: Loss, copies: int = 1) -> None:
        self.module_ = result.module
        self.history_, self.status_, self.certificate_ = result.history, result.status, result.certificate
        keep_state(self, result)
        self.n_iter_, self.n_networks_ = result.history.n_iter, copies
        self.n_outputs_ = len(list(result.module.parameters())[-1])
        self.loss_, self._loss = result.history.last("loss"), loss


@with_parameters_of(MLPClassifier)
class ModuleClassifier(FromFactory, MLPClassifier):
    """Classifier for any network that :func:`dladmm.train` accepts.

    X has shape (n_samples, n_features), as in scikit-learn; a network for images begins with ``nn.Unflatten``. Sample
    weights need a network without batch normalisation. Attributes that are not listed are those of
    :class:`~dladmm.MLPClassifier`, without ``coefs_`` and ``intercepts_``.

    Parameters
    ----------
    module_factory : callable, optional
        ``module_factory(n_features, n_classes)`` returns any module with ``n_classes`` outputs; None is one hidden
        layer of 100 relu units. Which weights a run starts from is what ``init="auto"`` of :func:`dladmm.train` says.
    mode : {"auto", "accelerated", "convergent", "streaming"}
        "auto" is "streaming", a sweep per mini-batch. "convergent" is the paper's algorithm with its certificate;
        "accelerated" sees all rows in every iteration, and the objective never rises.

    Attributes
    ----------
    module_ : nn.Module
        The trained network.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> def network(n_features, n_classes):
    ...     return nn.Sequential(nn.Linear(n_features, 20), nn.Tanh(), nn.Linear(20, n_classes))
    >>> ModuleClassifier(network, max_iter=50, random_state=0).fit(X, y).score(X, y) > 0.9
    True
    """

    def __init__(
        self,
        module_factory: Factory | None = None,
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
        callbacks: Sequence[Callback] = (),
        verbose: bool = False,
        class_weight: Any = None,
    ) -> None:
        super().__init__(
            loss=loss, mode=mode, rho=rho, nu=nu, regularizer=regularizer, w_solver=w_solver, a_solver=a_solver,
            damping=damping, batch_size=batch_size, max_iter=max_iter, tol=tol, early_stopping=early_stopping,
            validation_fraction=validation_fraction, n_iter_no_change=n_iter_no_change, warm_start=warm_start,
            random_state=random_state, device=device, dtype=dtype, max_memory=max_memory,
            categorical_features=categorical_features, callbacks=callbacks, verbose=verbose,
            class_weight=class_weight,
        )  # fmt: skip
        self.module_factory = module_factory


@with_parameters_of(MLPRegressor)
class ModuleRegressor(FromFactory, MLPRegressor):
    """Regressor for any network that :func:`dladmm.train` accepts; ``y`` may have several columns and any units.

    Attributes that are not listed are those of :class:`~dladmm.MLPRegressor`, without ``coefs_`` and ``intercepts_``.

    Parameters
    ----------
    module_factory : callable, optional
        ``module_factory(n_features, n_outputs)`` returns any module with ``n_outputs`` outputs; None is one hidden
        layer of 100 relu units. Which weights a run starts from is what ``init="auto"`` of :func:`dladmm.train` says.
    mode : {"auto", "accelerated", "convergent", "streaming"}
        "auto" is "streaming", a sweep per mini-batch. "convergent" is the paper's algorithm with its certificate;
        "accelerated" sees all rows in every iteration, and the objective never rises.

    Attributes
    ----------
    module_ : nn.Module
        The trained network.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> def network(n_features, n_outputs):
    ...     return nn.Sequential(nn.Linear(n_features, 20), nn.Tanh(), nn.Linear(20, n_outputs))
    >>> ModuleRegressor(network, loss="huber", max_iter=50, random_state=0).fit(X, y).score(X, y) > 0.4
    True
    """

    def __init__(
        self,
        module_factory: Factory | None = None,
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
        callbacks: Sequence[Callback] = (),
        verbose: bool = False,
    ) -> None:
        super().__init__(
            loss=loss, mode=mode, rho=rho, nu=nu, regularizer=regularizer, w_solver=w_solver, a_solver=a_solver,
            damping=damping, batch_size=batch_size, max_iter=max_iter, tol=tol, early_stopping=early_stopping,
            validation_fraction=validation_fraction, n_iter_no_change=n_iter_no_change, warm_start=warm_start,
            random_state=random_state, device=device, dtype=dtype, max_memory=max_memory,
            categorical_features=categorical_features, callbacks=callbacks, verbose=verbose,
        )  # fmt: skip
        self.module_factory = module_factory


def _one_hidden_layer(n_features: int, n_outputs: int) -> nn.Module:
    # train draws fresh weights; so torch's global generator stays unchanged
    first, last = (
        layer_of(nn.Linear, *sizes, params={"W": torch.zeros(sizes[::-1]), "b": torch.zeros(sizes[1])})
        for sizes in ((n_features, 100), (100, n_outputs))
    )
    return nn.Sequential(first, nn.ReLU(), last)
