"""Malformed calls of the estimators: what each must answer."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.exceptions import NotFittedError

from chaos.table import EDGES, MASK, REFUSED, X, Y, with_value
from dladmm import GCNClassifier, InputError, InputTypeError, MLPClassifier, MLPRegressor, ModuleClassifier


def classified(x: Any = X, y: Any = Y, sw: Any = None, **settings: Any) -> MLPClassifier:
    return MLPClassifier((5,), **{"max_iter": 2} | settings).fit(x, y, sw)


def regressed(x: Any = X, y: Any = X[:, 0], **settings: Any) -> MLPRegressor:
    return MLPRegressor((5,), **{"max_iter": 2} | settings).fit(x, y)


def graph(
    x: Any = X, y: Any = Y, e: Any = EDGES, m: Any = MASK, val_mask: Any = None, **settings: Any
) -> GCNClassifier:
    estimator = GCNClassifier((5,), **{"max_iter": 2} | settings)
    return estimator.fit(x, y, edge_index=e, train_mask=m, val_mask=val_mask)


def warm() -> MLPClassifier:
    """Fitted once, and ready to go on."""
    return MLPClassifier((5,), warm_start=True, max_iter=2).fit(X, Y)


# fmt: off
REFUSED_ESTIMATORS: REFUSED = [
    ("one row clf", lambda: classified(X[:1], Y[:1]),
     InputError, "y holds one class only (np.int64(0)); at least two"),
    ("1e300 reg y", lambda: regressed(y=X[:, 0] * 1e300),
     InputError, "the network's first pass gives inf: X, y or"),
    ("complex y reg", lambda: regressed(y=X[:, 0] + 1j),
     ValueError, "Complex data not supported"),
    ("None clf", lambda: classified(x=None), ValueError, "Expected 2D array, got scalar array instead"),
    ("clf sw zero", lambda: classified(sw=np.zeros(12)),
     ValueError, "Sample weights must contain at least one non-zero number."),
    ("clf sw neg", lambda: classified(sw=-np.ones(12)),
     InputError, "sample_weight has negative entries; each says how often a"),
    ("clf sw drops class", lambda: classified(sw=(Y == 0).astype(float)),
     InputError, "y holds one class only; at least two are"),
    ("clf random_state str", lambda: classified(random_state="a"),
     ValueError, "'a' cannot be used to seed a numpy.random.RandomState"),
    ("hidden neg", lambda: MLPClassifier((-3,)).fit(X, Y),
     InputError, "hidden_layer_sizes must be whole numbers >= 1, one per"),
    ("hidden zero", lambda: MLPClassifier((0,)).fit(X, Y),
     InputError, "hidden_layer_sizes must be whole numbers >= 1, one per"),
    ("hidden float", lambda: MLPClassifier((2.7,)).fit(X, Y),
     InputError, "hidden_layer_sizes must be whole numbers >= 1, one per"),
    ("hidden str", lambda: MLPClassifier("abc").fit(X, Y),
     InputError, "hidden_layer_sizes must be whole numbers >= 1, one per"),
    ("hidden None", lambda: MLPClassifier(None).fit(X, Y),
     InputError, "hidden_layer_sizes must be whole numbers >= 1, one per"),
    ("hidden nested", lambda: MLPClassifier(((3,),)).fit(X, Y),
     InputError, "hidden_layer_sizes must be whole numbers >= 1, one per"),
    ("clf rho neg", lambda: classified(rho=-1), InputError, "rho must be a positive finite number, got -1."),
    ("clf tol neg", lambda: classified(tol=-1), InputError, "eps_rel must be a finite number >= 0, got"),
    ("clf tol str", lambda: classified(tol="a"), InputError, "eps_rel must be a finite number >= 0, got"),
    ("clf dtype", lambda: classified(dtype="float16"),
     InputError, "dtype must be one of ['float32', 'float64'], got 'float16'."),
    ("clf device", lambda: classified(device="tpu"),
     InputError, "device must be 'auto', 'cpu' or 'cuda[:N]', got 'tpu'."),
    ("clf loss reg", lambda: classified(loss="squared"),
     InputError, "loss must be a classification loss, got 'squared'."),
    ("reg loss clf", lambda: regressed(loss="cross_entropy"),
     InputError, "loss must be a regression loss, got 'cross_entropy'."),
    ("clf y float", lambda: classified(y=X[:, 0]),
     ValueError, "Unknown label type: continuous. Maybe you are trying to"),
    ("clf y nan", lambda: classified(y=np.where(Y == 0, np.nan, Y)), ValueError, "Input y contains NaN."),
    ("clf y 2d", lambda: classified(y=np.eye(3)[Y]), ValueError, "y should be a 1d array, got an array"),
    ("clf y multilabel", lambda: classified(y=np.ones((12, 3), int)),
     ValueError, "y should be a 1d array, got an array"),
    ("clf y mixed", lambda: classified(y=np.array(["a", 1, None] * 4, dtype=object)),
     TypeError, "'<' not supported between instances of 'int' and 'str'"),
    ("clf one class", lambda: classified(y=np.zeros(12)),
     InputError, "y holds one class only (np.float64(0.0)); at least two"),
    ("clf predict unfit", lambda: MLPClassifier().predict(X),
     NotFittedError, "This MLPClassifier instance is not fitted yet. Call 'fit'"),
    ("clf predict features", lambda: classified().predict(X[:, :3]),
     ValueError, "X has 3 features, but MLPClassifier is expecting 4"),
    ("clf predict nan", lambda: classified().predict(with_value(np.nan)),
     ValueError, "Input X contains NaN."),
    ("clf predict 1d", lambda: classified().predict(X[0]),
     ValueError, "Expected 2D array, got 1D array instead"),
    ("clf predict empty", lambda: classified().predict(X[:0]),
     ValueError, "Found array with 0 sample(s) (shape=(0, 4)) while a"),
    ("clf predict str", lambda: classified().predict(np.full((2, 4), "a")),
     ValueError, "could not convert string to float: np.str_('a')"),
    ("clf predict huge f32", lambda: classified(dtype="float32").predict_proba(X * 1e60),
     InputError, "X has values so large that the network's outputs"),
    ("clf vf", lambda: classified(early_stopping=True, validation_fraction=1.5),
     InputError, "validation_fraction=1.5 of 12 rows cannot be held back: The"),
    ("clf vf small", lambda: classified(early_stopping=True, validation_fraction=0.01),
     InputError, "validation_fraction=0.01 of 12 rows cannot be held back: The"),
    ("clf patience", lambda: classified(early_stopping=True, validation_fraction=0.3, n_iter_no_change=0),
     InputError, "patience must be a whole number >= 1, got"),
    ("clf warm other classes", lambda: warm().fit(X, Y + 1),
     InputError, "warm_start needs the same classes as before [0 1"),
    ("clf warm other features", lambda: warm().fit(X[:, :3], Y),
     InputError, "X has 3 features, but the network's first layer"),
    ("clf warm other hidden", lambda: warm().set_params(hidden_layer_sizes=(7,)).fit(X, Y),
     InputError, "warm_start continues with hidden layers of (5,), but"),
    ("reg y inf", lambda: regressed(y=np.where(Y == 0, np.inf, Y)),
     ValueError, "Input y contains infinity or a value too large"),
    ("reg y str", lambda: regressed(y=np.array(["a"] * 12)),
     ValueError, "could not convert string to float: np.str_('a')"),
    ("reg y rows", lambda: regressed(y=X[:5, 0]),
     ValueError, "Found input variables with inconsistent numbers of samples:"),
    ("reg y 3d", lambda: regressed(y=np.zeros((12, 2, 2))), ValueError, "Found array with dim 3, while dim <= 2"),
    ("modclf factory none", lambda: ModuleClassifier(lambda a, b: None, max_iter=2).fit(X, Y),
     InputTypeError, "module_factory must return an nn.Module, got NoneType."),
    ("modclf factory str", lambda: ModuleClassifier("x", max_iter=2).fit(X, Y),
     InputTypeError, "module_factory must be a function of (n_features,"),
    ("gcn edges shape", lambda: graph(e=EDGES.T), InputError, "edge_index must have shape (2, edges), got (4, 2);"),
    ("gcn edges range", lambda: graph(e=EDGES + 10),
     InputError, "edge_index names nodes 10..14, but x has 12 rows:"),
    ("gcn edges neg", lambda: graph(e=EDGES - 1), InputError, "edge_index names nodes -1..3, but x has 12 rows:"),
    ("gcn edges float", lambda: graph(e=EDGES + 0.5),
     InputTypeError, "edge_index must hold whole numbers, got dtype float64."),
    ("gcn edges str", lambda: graph(e="abc"),
     InputError, "edge_index must have shape (2, edges), got (); transpose"),
    ("gcn edges nan", lambda: graph(e=EDGES * np.nan),
     InputTypeError, "edge_index must hold whole numbers, got dtype float64."),
    ("gcn edges None", lambda: graph(e=None), InputError, "fit needs a graph object, or X with y,"),
    ("gcn mask idx", lambda: graph(m=np.array([0, 1, 2])),
     InputTypeError, "train_mask must be a boolean mask, got dtype int64;"),
    ("gcn mask empty", lambda: graph(m=np.zeros(12, bool)),
     InputError, "train_mask selects no node; at least one is needed."),
    ("gcn mask shape", lambda: graph(m=np.ones(5, bool)),
     InputError, "train_mask must have shape (12,), one entry per node,"),
    ("gcn mask str", lambda: graph(m="train"), InputTypeError, "train_mask must be a boolean mask, got dtype <U5."),
    ("gcn mask None", lambda: graph(m=None),
     InputError, "train_mask is missing: it says which nodes are labelled."),
    ("gcn val mask", lambda: graph(val_mask=np.zeros(12, bool)),
     InputError, "val_mask selects no node; at least one is needed."),
    ("gcn y nan", lambda: graph(y=np.full(12, np.nan)),
     InputError, "y contains NaN or infinite values; leave out the"),
    ("gcn y one class", lambda: graph(y=np.zeros(12, int)),
     InputError, "y holds one class only (np.int64(0)); at least two"),
    ("gcn y 2d", lambda: graph(y=np.eye(3)[Y]), InputTypeError, "y must hold one label per node, got shape"),
    ("gcn y short", lambda: graph(y=Y[:5]), InputError, "y must hold one label per node, 12; got"),
    ("gcn y object", lambda: graph(y=np.array(["a", 1, None] * 4, dtype=object)),
     InputTypeError, "y mixes labels that cannot be ordered ('<' not"),
    ("gcn x nan", lambda: graph(x=with_value(np.nan)),
     InputError, "x contains NaN or infinite values; impute or remove"),
    ("gcn x empty", lambda: graph(x=X[:0]), InputError, "x is empty (shape (0, 4)); at least one"),
    ("gcn x 1d", lambda: graph(x=X[0]), InputError, "x must have shape (nodes, features), got (4,)."),
    ("gcn x str", lambda: graph(x=X.astype(str)), InputTypeError, "x is not numeric (dtype <U32)."),
    ("gcn x 1e300", lambda: graph(x=X * 1e300), InputError, "x has values too large for torch.float32; scale the"),
    ("gcn x complex", lambda: graph(x=X + 1j),
     InputTypeError, "x is complex; only real numbers are supported (dtype"),
    ("gcn x None", lambda: graph(x=None), InputTypeError, "x is not numeric (dtype object)."),
    ("gcn rows", lambda: graph(rows="some"), InputError, "rows must be 'all' or 'train', got 'some'."),
    ("gcn predict noedges", lambda: graph().predict(X),
     InputError, "edge_index is missing: give a graph object, or x"),
    ("gcn predict edges", lambda: graph().predict(X, edge_index=EDGES + 10),
     InputError, "edge_index names nodes 10..14, but x has 12 rows:"),
    ("gcn predict features", lambda: graph().predict(X[:, :2], edge_index=EDGES),
     InputError, "X has 2 features, but GCNClassifier is expecting 4."),
    ("gcn score mask", lambda: graph().score(X, Y, edge_index=EDGES, mask="some"),
     InputError, "mask must be 'train', 'val', 'test' or a mask,"),
    ("gcn unfit", lambda: GCNClassifier().predict(X, edge_index=EDGES),
     NotFittedError, "This GCNClassifier instance is not fitted yet. Call 'fit'"),
]

ACCEPTED_ESTIMATORS = [
    ("tiny 1e-30 clf", lambda: classified(X * 1e-30)),
    ("huge clf", lambda: classified(X * 1e30)),
    ("huge reg y", lambda: regressed(y=X[:, 0] * 1e30)),
    ("tiny reg y", lambda: regressed(y=X[:, 0] * 1e-30)),
    ("constant X", lambda: classified(np.ones((12, 4)))),
    ("zero X", lambda: classified(np.zeros((12, 4)))),
    ("object clf", lambda: classified(X.astype(object))),
    ("string X", lambda: classified(X.astype(str))),
    ("hidden empty", lambda: MLPClassifier((), max_iter=2).fit(X, Y)),
    ("gcn edges empty", lambda: graph(e=np.zeros((2, 0)))),
    ("gcn x 1e30", lambda: graph(x=X * 1e30)),
    ("gcn x 1e-30", lambda: graph(x=X * 1e-30)),
]
# fmt: on
