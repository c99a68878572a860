"""Networks that rise or fall with a feature: signs of weights that force it, and a proof from the weights of a module.

Every unit k has a sign s_k: it never falls (+1) or never rises (-1) where a feature with constraint +1 grows. That
holds if the weight from unit k to unit m has the sign s_k s_m, and the weight from feature j to unit k has the sign
s_k c_j, c_j in {-1, 0, 1} being what is asked of the feature (0: the weight is free), because activations never fall.
Half of the units have each sign: f(w x) is convex in x for a relu, -f(-w x) concave, and sums of both can bend either
way, so nothing is lost beside the constraint itself but half of the units for features that are free.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from dladmm.activations import ACTIVATIONS, GELU, Activation, LeakyReLU, get_activation
from dladmm.activations import from_module as activation_of
from dladmm.base.errors import InputError
from dladmm.network.chain import Chain
from dladmm.network.soft_clip import SoftClip
from dladmm.network.table_inputs import TableInputs
from dladmm.regularizers import Signed


def unit_signs(width: int) -> Tensor:
    """+1, -1, +1, ... for the units of a hidden layer, shape (width,)."""
    return 1.0 - 2.0 * (torch.arange(width) % 2)


def weight_signs(widths: Sequence[int], features: Sequence[int], outputs: Sequence[int]) -> list[Tensor]:
    """The sign of every weight, 0 where it is free: one tensor (n_out, n_in) per layer.

    Parameters
    ----------
    widths : sequence of int
        Number of features, widths of the hidden layers, number of outputs.
    features : sequence of {-1, 0, 1}
        1 where outputs of sign 1 must not fall with the feature, -1 where they must not rise, 0 where it is free.
    outputs : sequence of {-1, 1}
        1 for outputs that follow ``features``, -1 for those that do the opposite.
    """
    units = [torch.tensor(features, dtype=torch.float64), *(unit_signs(n).double() for n in widths[1:-1])]
    units.append(torch.tensor(outputs, dtype=torch.float64))
    return [after[:, None] * before for before, after in pairwise(units)]


def constrain(chain: Chain, signs: Sequence[Tensor], copies: int = 1) -> Chain:
    """Give the affine blocks of a chain their signs, the same for every copy of an ensemble; returns the chain."""
    affine = [block for block in chain if block.penalised]
    for block, sign in zip(affine, signs, strict=True):
        block.constraint = Signed(sign.repeat(copies, 1))
    return chain


def check_monotone_activation(spec: object) -> None:
    """Raise InputError for an activation that may fall."""
    f = get_activation(spec)  # type: ignore[arg-type]
    if not never_falls(f):
        raise InputError(f"monotone_constraints needs an activation that never falls, as relu; got {spec!r}.")


def never_falls(f: Activation) -> bool:
    """Whether an activation of this library is non-decreasing; of others it is not known."""
    falls = isinstance(f, GELU) or (isinstance(f, LeakyReLU) and f.slope < 0)
    return type(f) in ACTIVATIONS.values() and not falls


def directions(module: nn.Module, feature: int) -> Tensor:
    """How the outputs of a network can go when a feature grows, by the signs of its weights alone.

    Parameters
    ----------
    module : nn.Sequential of TableInputs or SoftClip, nn.Linear and activations
    feature : int

    Returns
    -------
    Tensor of shape (n_outputs,)
        1: never falls. -1: never rises. 0: does not depend on it. NaN: the weights do not say.
    """
    found: Tensor | None = None
    places = [feature]
    for layer in module.children() if isinstance(module, nn.Sequential) else [module]:
        if isinstance(layer, nn.Linear):
            weight = layer.weight.detach().double().cpu()
            found = torch.zeros(weight.shape[1], dtype=torch.float64) if found is None else found
            if layer is next(m for m in module.modules() if isinstance(m, nn.Linear)):
                found[places] = 1.0
            found = _combined(weight.sign() * found)
        elif isinstance(layer, TableInputs):  # both columns of a feature rise with it
            places.append(feature + layer.n_features)
        elif not isinstance(layer, SoftClip):  # which rises with every feature
            f = activation_of(layer)
            if f is None or not never_falls(f):
                raise InputError(f"directions cannot be told through a layer {type(layer).__name__}.")
    if found is None:
        raise InputError("directions needs a network with an nn.Linear.")
    return found


def _combined(terms: Tensor) -> Tensor:
    """The direction of sums of terms (n_out, n_in) whose directions are known."""
    rises, falls = (terms > 0).any(1), (terms < 0).any(1)
    unknown = terms.isnan().any(1) | (rises & falls)
    return torch.where(unknown, torch.nan, rises.double() - falls.double())
