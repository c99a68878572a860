"""``baselines.train`` and ``baselines.train_graph``: the training functions with another method."""

from __future__ import annotations

from typing import Any, Literal, get_args

from torch import nn

from dladmm.api import train as api
from dladmm.api import train_graph as graph_api
from dladmm.base.errors import InputError
from dladmm.baselines.optimizers import (
    LEARNING_RATES,
    Network,
    Recipe,
    Schedule,
    batch_method,
    gradient_method,
)
from dladmm.baselines.taylor import BETA, RHO, taylor_method
from dladmm.engine.method import AskingFactory, MethodFactory, Wanted
from dladmm.engine.options import TrainOptions
from dladmm.network.chain import Chain
from dladmm.network.graph import with_normalised_rows
from dladmm.solvers.subproblems import SubproblemOptions
from dladmm.training.checks import check_seed
from dladmm.training.result import Result

METHODS = (*LEARNING_RATES, "admm")
"""gd, adagrad, adadelta, adam, lbfgs and, where torch has it, muon (:mod:`dladmm.baselines.optimizers`), and the
ADMM of Taylor et al."""

SHARED = {"max_iter", "eps_abs", "eps_rel", "init_scale", "init_std", "diagnostics_every", "scale_inputs"}
"""The options of the inputs, the loop and the start, which all methods share."""

METHOD_OPTIONS = {"admm": {"rho", "beta", "gamma", "warmup", "variables"}}
"""Options that only one method has."""

Objective = Literal["accelerated"]
"""What is minimised, where it is not loss and regularizer as given."""

PASSES = 10
"""``max_iter`` with mini-batches, where none is given."""

INIT_SCALE = 1.0
"""He's initialisation, usual for gradient methods; the random numbers are those of dlADMM for the same seed."""


def train(
    name: str,
    model: nn.Module | Chain,
    X: Any,
    y: Any,
    *,
    lr: float | None = None,
    batch_size: int | None = None,
    schedule: Schedule | None = None,
    dropout: float = 0.0,
    weight_decay: float = 0.0,
    objective: Objective | None = None,
    **arguments: Any,
) -> Result:
    """Train a network with a baseline, in the same loop as :func:`dladmm.train`.

    Parameters
    ----------
    name : {"gd", "adagrad", "adadelta", "adam", "lbfgs", "muon", "admm"}
        The method; "muon" where torch has it (2.9).
    model : nn.Module or Chain
    X : array or Tensor of shape (n_samples, ...)
    y : array or Tensor of shape (n_samples,) or (n_samples, n_outputs)
    lr : float, optional
        Learning rate instead of the paper's; not for "admm".
    batch_size : int, optional
        Rows of a mini-batch; ``max_iter`` (default 10) then counts passes over the data, and the history is that of a
        monitor sample of at most 2,048 training rows. None is full batch, as in the paper; not for "lbfgs" and "admm".
    schedule : {"linear"}, optional
        With mini-batches, lets the learning rate fall linearly to zero over ``max_iter`` passes.
    dropout : float, default 0
        The share of the inputs of every layer with weights, X included, that a step does not see.
    weight_decay : float, default 0
        That of the ``torch.optim`` optimiser, beside ``regularizer``; not for "lbfgs", "muon" and "admm".
    objective : {"accelerated"}, optional
        Minimise what accelerated mode minimises: inputs at its scale, its default penalty. Not for "admm".
    arguments
        Further arguments of :func:`dladmm.train`. Of its options these apply: ``max_iter``, ``eps_abs``, ``eps_rel``,
        ``init_scale`` (default 1, He's), ``init_std``, ``diagnostics_every`` and ``scale_inputs`` (default False: X as
        it is; True: the library's own scaling, as streaming mode has it). "admm" also takes ``rho`` (1),
        ``beta`` (1), ``gamma`` (10), ``warmup`` (30) and ``variables`` (:mod:`dladmm.baselines.taylor`).

    Returns
    -------
    Result
        Its certificate reports measurements and makes no claims.

    Examples
    --------
    >>> from dladmm import datasets, mlp
    >>> data = datasets.load("digits")
    >>> result = train("adam", mlp([64, 30, 10]), data.x_train, data.y_train, max_iter=5)
    >>> result.certificate.covered
    False
    """
    recipe = Recipe(dropout, weight_decay, check_seed(arguments.get("random_state", 0)))
    arguments, method = _checked(name, "mlp", lr, arguments, recipe, objective, batch_size, schedule)
    return api.train(model, X, y, method=method, **arguments)


def train_graph(
    name: str,
    data: Any,
    *given: Any,
    lr: float | None = None,
    dropout: float = 0.0,
    weight_decay: float = 0.0,
    objective: Objective | None = None,
    normalise_rows: bool = False,
    **arguments: Any,
) -> Result:
    """Train a GCN with a baseline, in the same loop as :func:`dladmm.train_graph`.

    Parameters
    ----------
    name : {"gd", "adagrad", "adadelta", "adam", "lbfgs", "muon"}
    data : GraphData, PyG Data, or array of shape (n_nodes, n_features)
    given
        ``edge_index``, ``y`` and ``train_mask`` where ``data`` is an array.
    lr : float, optional
        Learning rate instead of the paper's.
    dropout, weight_decay, objective
        As in :func:`dladmm.baselines.train`; dropout is of the features and of the hidden layers.
    normalise_rows : bool, default False
        Divide every node's features by their sum, as people do with counts of words; the trained network takes
        features of that kind.
    arguments
        Further arguments of :func:`dladmm.train_graph`; options as in :func:`dladmm.baselines.train`.

    Returns
    -------
    Result

    Examples
    --------
    >>> from dladmm import datasets
    >>> result = train_graph("gd", datasets.load("karate"), hidden=(16,), max_iter=5)
    >>> result.history.n_iter
    5
    """
    recipe = Recipe(dropout, weight_decay, check_seed(arguments.get("random_state", 0)))
    arguments, method = _checked(name, "gcn", lr, arguments, recipe, objective)
    if normalise_rows:
        data = with_normalised_rows(data)
    return graph_api.train_graph(data, *given, method=method, **arguments)


def _checked(
    name: str,
    network: Network,
    lr: float | None,
    arguments: dict[str, Any],
    recipe: Recipe,
    objective: Objective | None,
    batch_size: int | None = None,
    schedule: Schedule | None = None,
) -> tuple[dict[str, Any], MethodFactory]:
    """The arguments for dlADMM's training function, and the method."""
    if name not in METHODS:
        raise InputError(f"unknown baseline {name!r}; known: {', '.join(METHODS)}.")
    if network == "gcn" and name == "admm":
        raise InputError(
            "admm (Taylor et al.) has no closed form for graph convolutions; it trains MLPs only."
        )
    if network == "gcn" and "batch_size" in arguments:
        raise InputError("a graph is one sample: baselines train it on all nodes; leave batch_size out.")
    if schedule is not None and batch_size is None:
        raise InputError("schedule is for mini-batches; give batch_size too.")
    own = METHOD_OPTIONS.get(name, set())
    of_dladmm = {*TrainOptions.__dataclass_fields__, *SubproblemOptions.__dataclass_fields__, "preset", "mu"}
    foreign = sorted(set(arguments) & (of_dladmm | METHOD_OPTIONS["admm"] | {"method"}) - SHARED - own)
    if foreign:
        allowed = ", ".join(sorted({"lr", *SHARED} if name != "admm" else SHARED | own))
        raise InputError(f"{name} has no option {', '.join(foreign)}; its options are {allowed}.")
    if objective not in (None, *get_args(Objective)):
        raise InputError(f"objective must be 'accelerated' or None, got {objective!r}.")
    if objective is not None and ("regularizer" in arguments or "scale_inputs" in arguments):
        raise InputError(f"objective={objective!r} has its own regularizer and scale_inputs; leave them out.")
    wanted = Wanted(features=network == "gcn" and recipe.dropout > 0, accelerated=objective is not None)
    arguments = {"init_scale": INIT_SCALE} | ({"scale_inputs": True} if objective else {}) | arguments
    if batch_size is not None:
        arguments = {"max_iter": PASSES} | arguments
        method = batch_method(name, lr, batch_size, schedule, arguments["max_iter"], recipe)
        return arguments, AskingFactory(method, wanted)
    if name != "admm":
        return arguments, AskingFactory(gradient_method(name, network, lr, recipe), wanted)
    if recipe.dropout or recipe.weight_decay or objective:
        raise InputError("admm has no dropout, weight_decay and objective; leave them out.")
    if lr is not None:
        raise InputError("admm has no learning rate; leave lr out.")
    beta = arguments.pop("beta", BETA)
    settings = {key: arguments.pop(key) for key in sorted(own - {"rho"}) if key in arguments}
    method = taylor_method(arguments.get("random_state", 0), **settings)
    return {"rho": RHO} | arguments | {"nu": beta}, method
