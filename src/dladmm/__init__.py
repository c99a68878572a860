"""dladmm trains neural networks with ADMM instead of back-propagation.

The public names; everything else may change without notice.
"""

from __future__ import annotations

from dladmm import datasets
from dladmm._version import __version__
from dladmm.api import train
from dladmm.callbacks import Callback
from dladmm.certificate import Certificate
from dladmm.chain import Chain, from_module, gcn, mlp
from dladmm.checkpoint import SavedModel, load_model
from dladmm.errors import DataError, DladmmError, InputError, InputTypeError
from dladmm.estimators import MLPClassifier, MLPRegressor
from dladmm.graph_api import train_graph
from dladmm.graph_estimator import GCNClassifier
from dladmm.history import History
from dladmm.losses import CallableLoss
from dladmm.module_estimator import ModuleClassifier
from dladmm.options import TrainOptions
from dladmm.recurrent_module import Recurrent
from dladmm.status import Status
from dladmm.subproblems import SubproblemOptions
from dladmm.trainer import ConvergenceNotGuaranteed, Result, Trainer

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
