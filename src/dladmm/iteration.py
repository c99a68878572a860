"""The seam for methods other than dlADMM: the same loop, data, network and history around another iteration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dladmm.acceleration import Method
from dladmm.engine import Engine, State


class OtherMethod(Method, Protocol):
    """An iteration that is not dlADMM's, such as those of :mod:`dladmm.baselines`.

    ``engine`` is what the trainer measures with from then on: the one it handed over, or one whose energy is that of
    the method. No theorem of the paper is claimed for such a run.
    """

    name: str
    engine: Engine


MethodFactory = Callable[[Engine, State], OtherMethod]
"""Makes the method of a run from the problem and the feasible start; it refuses what it cannot train."""
