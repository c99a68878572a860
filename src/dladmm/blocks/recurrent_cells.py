"""The cells of recurrent layers and their derivatives, by hand.

    s_t = cell(x_t W^T + b, h_{t-1} U^T + b', s_{t-1})

A unit's state depends on the two sums of its own rows alone, so that all derivatives are entry by entry, and a gradient
in the states is one in the sums by a product with their slopes. Whoever has evaluated a cell has its slopes: a gradient
costs no second evaluation, and back through time takes one small product a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from dladmm.solvers.subproblems import Params


class Slopes(NamedTuple):
    """Derivatives of a cell's state, entry by entry; leading dimensions are any, as (samples, T).

    Attributes
    ----------
    inputs, states : Tensor of shape (..., gates x hidden)
        In the sums of the inputs and of the states; of an LSTM of c through the first three gates, of h in the last.
    kept : Tensor of shape (..., hidden), optional
        Of h in the h before (GRU), of c in the c before (LSTM), beside what goes through the sums.
    shown : Tensor of shape (..., hidden), optional
        Of h in c (LSTM).
    """

    inputs: Tensor
    states: Tensor
    kept: Tensor | None = None
    shown: Tensor | None = None

    def at(self, t: int) -> Slopes:
        """Those of step t, of slopes of (samples, T, hidden)."""
        return Slopes(*(None if x is None else x[:, t] for x in self))  # type: ignore[arg-type]

    def some(self, every: int) -> Slopes:
        """Rows (N, hidden) of every so many samples (samples, T, hidden)."""
        return Slopes(*(None if x is None else x[::every].flatten(0, 1) for x in self))  # type: ignore[arg-type]


class Unrolled:
    """A layer at parameters and states: what its cells predict there, ``cell(x_t, s_{t-1})`` of every t, and slopes.

    Every step of a layer ends at one, from which the next step takes prediction and gradient without an evaluation:
    ``inputs`` are the sums of the inputs, ``before`` the states a step before, ``held`` what slopes are made of.
    """

    def __init__(
        self,
        kind: str,
        params: Params,
        states: Tensor,
        predicted: Tensor,
        held: Sequence[Tensor],
        *,
        inputs: Tensor,
        earlier: Tensor | None = None,
    ) -> None:
        self.params, self.states, self.predicted, self.inputs = params, states, predicted, inputs
        self._kind, self._earlier, self.held = kind, earlier, tuple(held)

    @cached_property
    def before(self) -> Tensor:
        return before(self.states) if self._earlier is None else self._earlier

    @cached_property
    def slopes(self) -> Slopes:
        return slopes_of(self._kind, self.held, self.before)


def before(s: Tensor) -> Tensor:
    """The states a step before, from zeros on: (samples, T, states)."""
    return torch.cat([torch.zeros_like(s[:, :1]), s[:, :-1]], 1)


def bent(x: Tensor) -> Tensor:
    """``tanh x = 2 sigmoid(2 x) - 1``; x is written over. On a CPU torch's sigmoid takes a tenth of its tanh's time."""
    return x.mul_(2).sigmoid_().mul(2).sub_(1)


def advanced(kind: str, inputs: Tensor, states: Tensor, before: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The new states (of an LSTM h and c), and what their slopes are made of; ``states`` may be written over.

    Parameters
    ----------
    inputs, states : Tensor of shape (..., gates x hidden)
        ``x W^T + b`` and ``h U^T + b'``, gates in torch's order.
    before : Tensor of shape (..., states)
    """
    if kind == "relu":
        new = states.add_(inputs).relu_()
        return new, (new,)
    if kind == "tanh":
        new = bent(states.add_(inputs))
        return new, (new,)
    n = before.shape[-1]
    if kind == "GRU":
        gates = torch.add(inputs[..., : 2 * n], states[..., : 2 * n]).sigmoid_()
        kept = states[..., 2 * n :]
        candidate = bent(torch.addcmul(inputs[..., 2 * n :], gates[..., :n], kept))
        return torch.lerp(candidate, before, gates[..., n:]), (gates, candidate, kept)
    n //= 2
    gates = states.add_(inputs)
    gates[..., 2 * n : 3 * n].mul_(2)  # so that all four are one sigmoid: the third is a tanh
    gates.sigmoid_()
    i, f, g, o = gates.chunk(4, -1)
    g = g.mul(2).sub_(1)
    c = torch.mul(f, before[..., n:]).addcmul_(i, g)
    shown = bent(c.clone())
    return torch.cat([o * shown, c], -1), (gates, g, shown)


def slopes_of(kind: str, held: tuple[Tensor, ...], before: Tensor) -> Slopes:
    """The slopes where :func:`advanced` came by; ``before`` are the states it started from."""
    if kind in ("tanh", "relu"):
        (new,) = held
        slope = torch.mul(new, new).neg_().add_(1) if kind == "tanh" else new.sign()
        return Slopes(slope, slope)
    if kind == "GRU":
        gates, candidate, kept = held
        r, z = gates.chunk(2, -1)
        bend = torch.addcmul(gates, gates, gates, value=-1)  # of a sigmoid: p (1 - p)
        inner = torch.mul(candidate, candidate).sub_(1).mul_(z - 1)
        reset, update = bend[..., : r.shape[-1]].mul_(inner).mul_(kept), bend[..., r.shape[-1] :]
        update.mul_(before - candidate)
        return Slopes(torch.cat([reset, update, inner], -1), torch.cat([reset, update, inner * r], -1), z)
    gates, g, shown = held
    n = shown.shape[-1]
    i, f, _, o = gates.chunk(4, -1)
    slope = torch.addcmul(gates, gates, gates, value=-1)
    slope[..., 2 * n : 3 * n].mul_(4)  # of g = 2 p - 1, p the sigmoid of twice its sums
    for gate, factor in enumerate((g, before[..., n:], i, shown)):
        slope[..., gate * n : (gate + 1) * n].mul_(factor)
    return Slopes(slope, slope, f, torch.addcmul(o, o * shown, shown, value=-1))


def pulled(slopes: Slopes, pull: Tensor, *, of: str) -> Tensor:
    """A gradient ``pull`` in the states (..., states) as one in the sums ``of`` "inputs" or "states"."""
    own = slopes.inputs if of == "inputs" else slopes.states
    if slopes.shown is not None:
        h, c = pull.chunk(2, -1)
        through = torch.addcmul(c, h, slopes.shown)
        pull = torch.cat([through, through, through, h], -1)
        return pull.mul_(own)
    gates = own.shape[-1] // pull.shape[-1]
    return own * pull if gates == 1 else own * torch.cat([pull] * gates, -1)


def pulled_before(slopes: Slopes, pull: Tensor, U: Tensor) -> Tensor:
    """A gradient in the states (..., states) as one in the states a step before: ``J^T pull``, J = ds_t/ds_{t-1}."""
    through = pulled(slopes, pull, of="states") @ U
    if slopes.kept is None:
        return through
    if slopes.shown is None:
        return through.addcmul_(pull, slopes.kept)
    h, c = pull.chunk(2, -1)
    return torch.cat([through, torch.addcmul(c, h, slopes.shown).mul_(slopes.kept)], -1)


def through_time(slopes: Slopes, pull: Tensor, U: Tensor) -> Tensor:
    """``sum_{t' >= t} (ds_t'/de_t)^T pull_t'`` of ``s_t = cell(x_t, s_{t-1}) + e_t``: a gradient in s as one in e.

    Parameters
    ----------
    pull : Tensor of shape (samples, T, states)
    U : Tensor of shape (gates x hidden, hidden)
    """
    found = pull.clone()
    for t in range(pull.shape[1] - 1, 0, -1):
        found[:, t - 1].add_(pulled_before(slopes.at(t), found[:, t], U))
    return found


def pushed(slopes: Slopes, of_gates: Tensor) -> Tensor:
    """How states change by changes of their gates (..., gates x hidden), which are slopes times changes of the sums."""
    if slopes.shown is not None:
        i, f, g, h = of_gates.chunk(4, -1)
        c = i + f + g
        return torch.cat([torch.addcmul(h, c, slopes.shown), c], -1)
    if slopes.kept is None:
        return of_gates
    r, z, n = of_gates.chunk(3, -1)
    return r + z + n


def pushed_on(slopes: Slopes, change: Tensor, U: Tensor) -> Tensor:
    """A change of the states a step before as one of the states (..., states): ``J change``, J = ds_t/ds_{t-1}."""
    hidden = U.shape[1]
    found = pushed(slopes, slopes.states * (change[..., :hidden] @ U.T))
    if slopes.kept is None:
        return found
    if slopes.shown is None:
        return found.addcmul_(change, slopes.kept)
    c = change[..., hidden:] * slopes.kept
    return found.add_(torch.cat([c * slopes.shown, c], -1))


def forward_through_time(slopes: Slopes, change: Tensor, U: Tensor) -> Tensor:
    """``d_t = change_t + J_t d_{t-1}``: what changes of single steps make of all states (samples, T, states)."""
    found = change.clone()
    for t in range(1, change.shape[1]):
        found[:, t].add_(pushed_on(slopes.at(t), found[:, t - 1], U))
    return found


def squared_slopes(slopes: Slopes, share: Tensor | None = None) -> list[Tensor]:
    """How strongly a cell answers to each row of its two matrices: mean squares of the slopes over (N, ...) rows.

    Parameters
    ----------
    share : Tensor of shape (N,), optional
        What a row counts in the mean, 1 in all; without it all count alike.
    """

    def mean(slope: Tensor) -> Tensor:
        squares = slope.square()
        if slopes.shown is not None:  # c itself, and h through it
            n = slopes.shown.shape[-1]
            squares[..., : 3 * n].mul_(torch.cat([slopes.shown.square().add_(1)] * 3, -1))
        return squares.mean(0) if share is None else share.to(squares.dtype) @ squares

    inputs = mean(slopes.inputs)
    return [inputs, inputs if slopes.states is slopes.inputs else mean(slopes.states)]
