"""dladmm trains neural networks with ADMM instead of back-propagation.

The public names; everything else may change without notice. All are imported when they are first asked for: torch and
scikit-learn take seconds to import, and ``dladmm --help`` needs neither.
"""

from __future__ import annotations

import gc
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dladmm._version import __version__
from dladmm.base.sleeping_threads import threads_that_sleep

if TYPE_CHECKING:
    from dladmm import datasets
    from dladmm.api.train import train
    from dladmm.api.train_graph import train_graph
    from dladmm.base.errors import DataError, DladmmError, InputError, InputTypeError
    from dladmm.base.history import History, Status
    from dladmm.callbacks import Callback
    from dladmm.engine.certificate import Certificate
    from dladmm.engine.options import TrainOptions
    from dladmm.estimators.gcn import GCNClassifier
    from dladmm.estimators.mlp import MLPClassifier
    from dladmm.estimators.module import ModuleClassifier, ModuleRegressor
    from dladmm.estimators.regressor import MLPRegressor
    from dladmm.losses import CallableLoss
    from dladmm.network.chain import Chain, from_module, mlp
    from dladmm.network.graph_chain import gcn
    from dladmm.network.recurrent_module import Recurrent
    from dladmm.solvers.subproblems import SubproblemOptions
    from dladmm.streaming.optimizer import StreamingADMM
    from dladmm.training.checkpoint import SavedModel, load_model
    from dladmm.training.result import ConvergenceNotGuaranteed, Result
    from dladmm.training.standing import NoBetterThanConstant
    from dladmm.training.trainer import Trainer

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
    "NoBetterThanConstant",
    "Recurrent",
    "Result",
    "SavedModel",
    "Status",
    "StreamingADMM",
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

_PLACES = {
    "CallableLoss": "dladmm.losses",
    "Callback": "dladmm.callbacks",
    "Certificate": "dladmm.engine.certificate",
    "Chain": "dladmm.network.chain",
    "ConvergenceNotGuaranteed": "dladmm.training.result",
    "DataError": "dladmm.base.errors",
    "DladmmError": "dladmm.base.errors",
    "GCNClassifier": "dladmm.estimators.gcn",
    "History": "dladmm.base.history",
    "InputError": "dladmm.base.errors",
    "InputTypeError": "dladmm.base.errors",
    "MLPClassifier": "dladmm.estimators.mlp",
    "MLPRegressor": "dladmm.estimators.regressor",
    "ModuleClassifier": "dladmm.estimators.module",
    "ModuleRegressor": "dladmm.estimators.module",
    "NoBetterThanConstant": "dladmm.training.standing",
    "Recurrent": "dladmm.network.recurrent_module",
    "Result": "dladmm.training.result",
    "SavedModel": "dladmm.training.checkpoint",
    "Status": "dladmm.base.history",
    "StreamingADMM": "dladmm.streaming.optimizer",
    "SubproblemOptions": "dladmm.solvers.subproblems",
    "TrainOptions": "dladmm.engine.options",
    "Trainer": "dladmm.training.trainer",
    "from_module": "dladmm.network.chain",
    "gcn": "dladmm.network.graph_chain",
    "load_model": "dladmm.training.checkpoint",
    "mlp": "dladmm.network.chain",
    "train": "dladmm.api.train",
    "train_graph": "dladmm.api.train_graph",
}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        found = getattr(_imported(_PLACES[name]), name)
    elif not name.startswith("_") and find_spec(f"dladmm.{name}") is not None:
        found = _imported(f"dladmm.{name}")
    else:
        raise AttributeError(f"module 'dladmm' has no attribute {name!r}")
    globals()[name] = found
    return found


def _imported(module: str) -> ModuleType:
    """The module, imported without garbage collection, which finds none in torch's objects and takes longer than this
    library's own imports."""
    collects = gc.isenabled()
    gc.disable()
    try:
        with threads_that_sleep():
            return import_module(module)
    finally:
        if collects:
            gc.enable()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
