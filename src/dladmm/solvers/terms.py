"""The quadratic terms that tie a variable to its block, and what an update says about itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

Params = dict[str, Tensor]
"""B_l of the paper: the named parameters of one block."""


class Step(NamedTuple):
    """One variable's move: its squared length and the decrease of the Lagrangian the theory promises for it.

    The Lagrangian falls by at least ``rate * squared``; ``rate`` is the paper's theta/2, tau/2, nu/2 ... and
    ``None`` where only "does not rise" is promised (the hidden z_l, whose length nobody needs then). ``own`` says that
    both speak of this process's rows alone; over all ranks ``squared`` and ``rate * squared`` add up.

    ``tie`` is ``||v - value||^2`` of the anchor once v has moved, of this process's rows, where the update knows it;
    ``link`` is the number of that link, set where nothing moves it any more before the iteration ends.
    """

    variable: str
    squared: Tensor | None
    rate: Tensor | None
    own: bool = False
    tie: Tensor | None = None
    link: int | None = None


class Anchor(NamedTuple):
    """``(weight/2) ||v - value||^2``: what ties a variable to the block that produces it."""

    weight: float
    value: Tensor


@dataclass(frozen=True)
class Term:
    """``(weight/2) ||target - prediction||^2``: what ties a block's output variable to the block.

    ``prediction`` is the cached ``g(B, v)``. Updates move it along with B and v, in place, so that it never has to
    be computed again.
    """

    weight: float
    target: Tensor
    prediction: Tensor

    def residual(self) -> Tensor:
        """``E = prediction - target``."""
        return self.prediction - self.target
