""":class:`GCNClassifier`: a graph convolutional network on the labelled nodes of a graph, trained by dlADMM."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from dladmm.api.graph_problem import VariableRows
from dladmm.api.train_graph import train_graph
from dladmm.base.errors import InputError
from dladmm.base.history import Status
from dladmm.callbacks import Callback, EarlyStopping
from dladmm.compute.sparse import csr_tensor
from dladmm.engine.options import Mode, given
from dladmm.estimators.checks import (
    Array,
    Named,
    check_parameters,
    classes_of,
    finite_output,
    keep_state,
    progress,
    widths,
)
from dladmm.estimators.curves import Curves
from dladmm.estimators.graph_input import graph_input, of_split
from dladmm.estimators.saving import Saved
from dladmm.losses import Loss, get_loss
from dladmm.network.given_graph import graph_fields, is_graph
from dladmm.network.graph import check_node_features, check_node_mask
from dladmm.training.result import ConvergenceNotGuaranteed, Result


class GCNClassifier(Named, Curves, Saved, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Semi-supervised graph convolutional network (Problem 6 of the paper); features need no scaling.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default (128,)
    activation : str, dict or Activation, default "relu"
    loss : str, dict or Loss, optional
        A classification loss; None is softmax cross-entropy.
    rho, mu : float, optional
        Weights of the hard and of the relaxed constraints, in accelerated and convergent mode.
    rows : {"all", "train", "fixed"}
        "all" is the paper's problem; with "train" and "fixed" only rows of labelled nodes are variables.
    self_training : bool, optional
        Give nodes without a label targets from a first network and their neighbours; as in
        :func:`~dladmm.train_graph`.
    mode : {"auto", "streaming", "accelerated", "convergent"}
        "auto" is "streaming", the practical method; "convergent" is the paper's algorithm with its certificate.
    regularizer : str, dict, Regularizer or None, default "auto"
        Penalty on the weights; "auto" follows the signal of the labels (docs/graphs.md).
    w_solver : {"exact", "quadratic"}
        How the W-updates are solved.
    max_iter : int, optional
        Iterations; None is 100 in streaming mode, else 200.
    tol : float, default 1e-4
        Relative tolerance of the stopping criterion.
    early_stopping : bool, default False
        Stop when the accuracy on the nodes of ``val_mask`` no longer improves, and keep the best weights.
    n_iter_no_change : int, default 10
        Iterations without improvement before early stopping.
    random_state : int, RandomState or None
    device : str, default "auto"
    dtype : {"float32", "float64"}
    callbacks : sequence of Callback
    verbose : bool, default False
        Show a progress bar.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    coefs_ : list of ndarray, coefs_[l] of shape (n_in, n_out)
        Weights for unscaled features.
    n_iter_, n_features_in_ : int
    history_, status_, certificate_, state_
        As in :class:`~dladmm.MLPClassifier`.
    module_ : nn.Module
        ``module_(x, edge_index)`` returns logits of shape (n_nodes, n_classes).

    Examples
    --------
    >>> from dladmm import datasets
    >>> karate = datasets.load("karate")
    >>> gcn = GCNClassifier((16,), max_iter=50, random_state=0).fit(karate)
    >>> gcn.predict(karate).shape
    (34,)
    """

    classes_: Array

    def __init__(
        self,
        hidden_layer_sizes: Sequence[int] | int = (128,),
        activation: Any = "relu",
        *,
        loss: Any = None,
        mode: Literal["auto"] | Mode = "auto",
        rho: float | None = None,
        mu: float | None = None,
        rows: VariableRows = "all",
        self_training: bool | None = None,
        regularizer: Any = "auto",
        w_solver: str = "exact",
        max_iter: int | None = None,
        tol: float = 1e-4,
        early_stopping: bool = False,
        n_iter_no_change: int = 10,
        random_state: Any = None,
        device: str = "auto",
        dtype: str = "float32",
        callbacks: Sequence[Callback] = (),
        verbose: bool = False,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.loss = loss
        self.mode = mode
        self.rho = rho
        self.mu = mu
        self.rows = rows
        self.self_training = self_training
        self.regularizer = regularizer
        self.w_solver = w_solver
        self.max_iter = max_iter
        self.tol = tol
        self.early_stopping = early_stopping
        self.n_iter_no_change = n_iter_no_change
        self.random_state = random_state
        self.device = device
        self.dtype = dtype
        self.callbacks = callbacks
        self.verbose = verbose

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        edge_index: Any = None,
        train_mask: Any = None,
        val_mask: Any = None,
        edge_weight: Any = None,
        sample_weight: Any = None,
        split: int | None = None,
    ) -> Self:
        """Train the network on the labelled nodes of a graph.

        Parameters
        ----------
        X : GraphData, PyG Data, or array or sparse matrix of shape (n_nodes, n_features)
        y : array of shape (n_nodes,), optional
            Labels of any type; those of nodes outside the masks are ignored.
        edge_index : array of shape (2, E), optional
        train_mask : boolean array of shape (n_nodes,) or (n_nodes, n_splits), optional
            The labelled nodes; by default the mask of the graph object.
        val_mask : boolean array of shape (n_nodes,) or (n_nodes, n_splits), optional
            Nodes on which ``history_`` records validation loss and accuracy, and which early stopping looks at; with
            early stopping by default the mask of the graph object.
        edge_weight : array of shape (E,), optional
            Weights of the edges; a graph object brings its own.
        sample_weight : array of shape (n_nodes,), optional
            How often each labelled node counts, 0 or more; those of other nodes are ignored.
        split : int, optional
            Which column of masks with several splits, from 0 on; ``score`` takes the same unless told otherwise.
        """
        check_parameters(self)
        x, edges, labels, mask, val = graph_input(
            X, y, edge_index, train_mask, val_mask, split, needs_val=bool(self.early_stopping)
        )
        weights = graph_fields(X).edge_weight if is_graph(X) else edge_weight
        n_nodes = len(labels)
        chosen = check_node_mask(mask, n_nodes, "train_mask").numpy()
        seen = chosen if val is None else chosen | check_node_mask(val, n_nodes, "val_mask").numpy()
        self.classes_ = classes_of(labels[seen])
        encoded = np.searchsorted(self.classes_, np.where(seen, labels, self.classes_[0]))
        loss = get_loss("cross_entropy" if self.loss is None else self.loss)
        if loss.kind != "classification":
            raise InputError(f"loss must be a classification loss, got {loss.name!r}.")
        best = EarlyStopping(monitor="val_accuracy", patience=self.n_iter_no_change)
        stopping = [best] if self.early_stopping else []
        with warnings.catch_warnings():
            if self.rho is not None:
                warnings.simplefilter("ignore", ConvergenceNotGuaranteed)
            result = train_graph(
                x,
                edges,
                encoded,
                mask,
                hidden=widths(self.hidden_layer_sizes),
                activation=self.activation,
                rows=self.rows,
                self_training=self.self_training,
                loss=loss,
                regularizer=self.regularizer,
                validation=val,
                n_classes=len(self.classes_),
                edge_weight=weights,
                sample_weight=sample_weight,
                mode=self.mode,
                **given(rho=self.rho, nu=self.mu),
                w_solver=self.w_solver,
                **given(max_iter=self.max_iter),
                eps_rel=self.tol,
                random_state=int(check_random_state(self.random_state).randint(2**31 - 1)),
                device=self.device,
                dtype=self.dtype,
                callbacks=[*progress(self), *self.callbacks, *stopping],
            )
        self._remember(result, loss)
        self.split_ = split
        if result.status is Status.MAX_ITER:
            message = f"{result.status} Raise max_iter (now {result.history.n_iter}) or tol (now {self.tol})."
            warnings.warn(message, ConvergenceWarning, stacklevel=2)
        return self

    def _remember(self, result: Result, loss: Loss) -> None:
        self.module_: nn.Module = result.module
        self.history_, self.status_, self.certificate_ = result.history, result.status, result.certificate
        keep_state(self, result)
        self.n_iter_ = result.history.n_iter
        # weights for unscaled features
        self.coefs_ = [W.detach().cpu().numpy().T.copy() for W in result.module.parameters()]
        self.n_features_in_ = self.coefs_[0].shape[0]
        self._loss = loss

    def predict(self, X: Any, *, edge_index: Any = None, edge_weight: Any = None) -> Array:
        """The most likely class of every node, shape (n_nodes,), of this or another graph with the same features."""
        output = self._output(X, edge_index, edge_weight)
        return np.asarray(self.classes_[self._loss.decision(output).numpy()])

    def predict_proba(self, X: Any, *, edge_index: Any = None, edge_weight: Any = None) -> Array:
        """Class probabilities (n_nodes, n_classes), columns in the order of ``classes_``."""
        output = self._output(X, edge_index, edge_weight)
        return self._loss.probabilities(output.double()).numpy()

    def score(
        self,
        X: Any,
        y: Any = None,
        *,
        edge_index: Any = None,
        mask: Any = "test",
        edge_weight: Any = None,
        split: int | None = None,
    ) -> float:
        """Accuracy on some nodes of a graph.

        Parameters
        ----------
        X, y, edge_index, edge_weight
            As in :meth:`fit`.
        mask : {"test", "val", "train"} or boolean array of shape (n_nodes,)
            The nodes: a mask of the graph object by name, or a mask.
        split : int, optional
            Which column of masks with several splits; by default that of ``fit``.
        """
        if isinstance(mask, str):
            if mask not in ("train", "val", "test"):
                raise InputError(f"mask must be 'train', 'val', 'test' or a mask, got {mask!r}.")
            name, mask = f"{mask}_mask", getattr(X, f"{mask}_mask", None)
            if mask is None:
                raise InputError(f"the graph has no {name}; give mask= as a boolean array over its nodes.")
        mask = of_split(mask, getattr(self, "split_", None) if split is None else split, "mask")
        labels = np.asarray(X.y if y is None else y)
        chosen = check_node_mask(mask, len(labels), "mask").numpy()
        found = self.predict(X, edge_index=edge_index, edge_weight=edge_weight)
        return float((found[chosen] == labels[chosen]).mean())

    @torch.no_grad()
    def _output(self, X: Any, edge_index: Any, edge_weight: Any) -> Tensor:
        check_is_fitted(self)
        x, edges = X, edge_index
        if edge_index is None and is_graph(X):
            found = graph_fields(X)
            x, edges, edge_weight = found.x, found.edge_index, found.edge_weight
        if edges is None:
            raise InputError("edge_index is missing: give a graph object, or x with edge_index.")
        weight = next(self.module_.parameters())
        features = check_node_features(x, weight.dtype)
        if features.shape[1] != self.n_features_in_:
            raise InputError(
                f"X has {features.shape[1]} features, but GCNClassifier is expecting {self.n_features_in_}."
            )
        dense = isinstance(features, np.ndarray)
        tensor = torch.from_numpy(features) if dense else csr_tensor(features, weight.dtype, weight.device)
        pairs = torch.as_tensor(np.asarray(edges))
        output: Tensor = self.module_(tensor.to(weight.device), pairs, edge_weight).cpu()
        return finite_output(output)
