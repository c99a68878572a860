"""What makes one iteration of the loop: the paper's sweep, and the seam for every other method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from torch import Tensor

from dladmm.base.errors import InputTypeError
from dladmm.blocks import Step
from dladmm.engine.problem import State
from dladmm.engine.sweep import Engine

Seen = TypeVar("Seen")

Look = Callable[[State, list[Step]], Seen]
"""What is to be known of an iterate and of the steps that led to it; it may be asked of trials too."""


class Method(Protocol):
    """What the trainer asks of an iteration."""

    def iterate(self, state: State, look: Look[Seen]) -> Seen | None:
        """Move the state by one iteration and look at it; None when no step lowers the objective any more."""

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What a resumed run needs besides the state."""

    def resume(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        """Put that back."""


class Plain:
    """The paper's iteration."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def iterate(self, state: State, look: Look[Seen]) -> Seen | None:
        return look(state, self.engine.sweep(state))

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {}, {}

    def resume(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        return


class OtherMethod(Method, Protocol):
    """An iteration that is not dlADMM's, such as those of :mod:`dladmm.baselines`.

    ``engine`` is what the trainer measures with from then on: the one it handed over, or one whose energy is that of
    the method. No theorem of the paper is claimed for such a run.
    """

    name: str
    engine: Engine


MethodFactory = Callable[[Engine, State], OtherMethod]
"""Makes the method of a run from the problem and the feasible start; it refuses what it cannot train."""


@dataclass(frozen=True)
class Wanted:
    """What a method asks of the problem that is made for it.

    ``features``: X itself beside A~ of a graph, where A~ X would be formed beforehand. ``accelerated``: the objective
    of accelerated mode, its scale of the inputs and its penalty.
    """

    features: bool = False
    accelerated: bool = False


NOTHING = Wanted()


@dataclass(frozen=True)
class AskingFactory:
    """A factory that asks something of the problem."""

    make: MethodFactory
    wanted: Wanted

    def __call__(self, engine: Engine, state: State) -> OtherMethod:
        return self.make(engine, state)


def wanted_by(method: MethodFactory) -> Wanted:
    """What the factory of a method asks for; nothing where it does not say."""
    return method.wanted if isinstance(method, AskingFactory) else NOTHING


def made_by(factory: MethodFactory, engine: Engine, state: State) -> OtherMethod:
    """The method that a factory makes, checked to be one."""
    made = factory(engine, state)
    if not callable(getattr(made, "iterate", None)) or not isinstance(getattr(made, "engine", None), Engine):
        raise InputTypeError(
            f"method must return an object with iterate, engine and name, as dladmm.baselines do; got {made!r}."
        )
    return made
