"""Parameters of scikit-learn's MLP, of skorch and of PyG's models, and what they are called here."""

from __future__ import annotations

from difflib import get_close_matches

_STEPS = "there is no learning rate: step lengths follow from the curvature of the loss. Leave it out."
_PASSES = "the number of passes or iterations is max_iter here."
_STRENGTH = (
    "a penalty on the weights is regularizer={'name': 'l2', 'strength': ...} here; 'auto' is a good one."
)
_NETWORK = (
    "a network of your own goes into ModuleClassifier or ModuleRegressor as module_factory, a function of "
    "(n_features, n_outputs), or into dladmm.train."
)

ANSWERS = {
    # scikit-learn
    "alpha": _STRENGTH,
    "solver": "nothing is solved by gradient descent here: mode chooses the algorithm, and 'auto' chooses the mode.",
    "learning_rate": _STEPS,
    "learning_rate_init": _STEPS,
    "power_t": _STEPS,
    "momentum": _STEPS,
    "nesterovs_momentum": _STEPS,
    "beta_1": _STEPS,
    "beta_2": _STEPS,
    "epsilon": _STEPS,
    "shuffle": "rows are always shuffled, by random_state. Leave it out.",
    "max_fun": _PASSES,
    # skorch
    "module": _NETWORK,
    "criterion": "the loss is loss=, a name such as 'cross_entropy', or a Loss.",
    "optimizer": "nothing is solved by gradient descent here: mode chooses the algorithm, and 'auto' chooses the mode.",
    "lr": _STEPS,
    "max_epochs": _PASSES,
    "train_split": "early_stopping=True with validation_fraction holds rows back.",
    "iterator_train": "batches are made here; batch_size is the number of rows of each.",
    # PyG
    "hidden_channels": "widths of hidden layers are hidden_layer_sizes, such as (128, 128).",
    "num_layers": "widths of hidden layers, one number per layer, are hidden_layer_sizes, such as (128, 128).",
    "out_channels": "the number of classes is taken from y. Leave it out.",
    "in_channels": "the number of features is taken from X. Leave it out.",
    "weight_decay": _STRENGTH,
    "epochs": _PASSES,
    "act": "the activation is activation=, such as 'relu'.",
}
"""What a parameter of other libraries is here, in words; names that are parameters here are not asked for."""


def refusal(estimator: str, name: str, known: list[str]) -> str:
    """What is said of a parameter that an estimator does not have: its name here, or the nearest of those there are."""
    if name in ANSWERS:
        hint = ANSWERS[name]
    elif name.startswith("module__"):
        hint = "what the network is made with goes into the function that is given as module_factory."
    else:
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}."
    return f"{estimator} has no parameter {name!r}: {hint}"
