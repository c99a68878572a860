"""dladmm trains neural networks with ADMM instead of back-propagation.

The public names; everything else may change without notice. The estimators are imported when they are first asked for:
scikit-learn takes longer to import than the rest of the library, and not everybody needs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dladmm import datasets
from dladmm._version import __version__
from dladmm.api.train import train
from dladmm.api.train_graph import train_graph
from dladmm.base.errors import DataError, DladmmError, InputError, InputTypeError
from dladmm.base.history import History, Status
from dladmm.callbacks import Callback
from dladmm.engine.certificate import Certificate
from dladmm.engine.options import TrainOptions
from dladmm.losses import CallableLoss
from dladmm.network.chain import Chain, from_module, gcn, mlp
from dladmm.network.recurrent_module import Recurrent
from dladmm.solvers.subproblems import SubproblemOptions
from dladmm.training.checkpoint import SavedModel, load_model
from dladmm.training.result import ConvergenceNotGuaranteed, Result
from dladmm.training.trainer import Trainer

if TYPE_CHECKING:
    from dladmm.estimators.gcn import GCNClassifier
    from dladmm.estimators.mlp import MLPClassifier
    from dladmm.estimators.module import ModuleClassifier, ModuleRegressor
    from dladmm.estimators.regressor import MLPRegressor

__all__ = [
    "CallableLoss",
    "Callback",
    "Certificate",
    "Chain",
    "ConvergenceNotGuaranteed",
    "DataError",
    "DladmmError",
    "GCNClassifier",
    "History",
    "InputError",
    "InputTypeError",
    "MLPClassifier",
    "MLPRegressor",
    "ModuleClassifier",
    "ModuleRegressor",
    "Recurrent",
    "Result",
    "SavedModel",
    "Status",
    "SubproblemOptions",
    "TrainOptions",
    "Trainer",
    "__version__",
    "datasets",
    "from_module",
    "gcn",
    "load_model",
    "mlp",
    "train",
    "train_graph",
]

_ESTIMATORS = {
    "GCNClassifier": "dladmm.estimators.gcn",
    "MLPClassifier": "dladmm.estimators.mlp",
    "MLPRegressor": "dladmm.estimators.regressor",
    "ModuleClassifier": "dladmm.estimators.module",
    "ModuleRegressor": "dladmm.estimators.module",
}


def __getattr__(name: str) -> Any:
    if name not in _ESTIMATORS:
        raise AttributeError(f"module 'dladmm' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_ESTIMATORS[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
