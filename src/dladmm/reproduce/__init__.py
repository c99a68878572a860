"""The paper's experiments, one for each table and figure, each result beside the paper's own figure.

    dladmm reproduce all --scale quick              # small sizes, a few minutes on two cores
    dladmm reproduce mlp-accuracy --device cuda     # the paper's sizes
    python -m dladmm.reproduce gcn-accuracy --device cuda --only 'cora-*' --out OUT

The last form needs torch, numpy, scipy and scikit-learn alone. See ``docs/reproduce.md``.
"""

from dladmm.reproduce.catalogue import ORDER, experiment
from dladmm.reproduce.command import list_experiments, reproduce
from dladmm.runs.experiment import Experiment
from dladmm.runs.running import Session

__all__ = ["ORDER", "Experiment", "Session", "experiment", "list_experiments", "reproduce"]
