"""How long loops are that cannot ask: as long as calls before them found enough.

A loop that ends when its answer is good enough asks the device after every step. Where launches are recorded nobody
asks: a number of steps is planned, and the device counts how many would have been enough. The host reads that before
the next call, when the device is done anyway; where the plan has changed, launches are recorded anew.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

FIRST_STEPS, MORE_STEPS, REMEMBERED = 5, 2, 8
"""Steps that are planned first, by how many a plan grows, and calls that must have needed fewer before it shrinks."""

_NAME = "steps "


@dataclass
class Loop:
    """One loop: the steps that are planned, at most so many, and what the last calls needed."""

    most: int
    planned: int
    needed: list[int] = field(default_factory=list)
    insufficient: Tensor | None = None

    def learn(self) -> None:
        """After ``insufficient`` of the last call's steps, all but its last one, the answer was not good enough."""
        if self.insufficient is None:
            return
        insufficient = int(self.insufficient)
        # The last step is not looked at: one more than what was enough, or than nobody knows
        needed = insufficient + 2 if insufficient < self.planned - 1 else self.planned + MORE_STEPS
        self.needed = [*self.needed, min(self.most, needed)][-REMEMBERED:]
        grows = self.needed[-1] > self.planned
        if grows or (len(self.needed) == REMEMBERED and max(self.needed) < self.planned):
            self.planned, self.needed = max(self.needed), []


class Foresight:
    """The loops of one engine, by the number of their block and a name."""

    def __init__(self) -> None:
        self._loops: dict[tuple[int, str], Loop] = {}

    def steps(self, owner: int, name: str, most: int) -> int:
        """How many steps to make, of at most so many."""
        loop = self._loops.setdefault((owner, name), Loop(most, FIRST_STEPS))
        loop.most, loop.planned = most, min(most, max(2, loop.planned))  # a file may say anything
        return loop.planned

    def count(self, owner: int, name: str, insufficient: Sequence[Tensor]) -> None:
        """Leave after how many steps but the last the answer was not good enough, where a replay does too."""
        if not insufficient:  # a single step is not looked at
            return
        loop = self._loops[owner, name]
        found = torch.stack([x.to(torch.int64) for x in insufficient]).sum()
        loop.insufficient = found.clone() if loop.insufficient is None else loop.insufficient.copy_(found)

    def plan(self) -> Hashable:
        """What is planned from now on, as the call before this one taught."""
        for loop in self._loops.values():
            loop.learn()
        return tuple(loop.planned for loop in self._loops.values())

    def snapshot(self) -> dict[str, Tensor]:
        """By ``block.name``: what is planned, at most, and what was needed."""
        return {
            f"{owner}.{_NAME}{name}": torch.tensor([loop.planned, loop.most, *loop.needed])
            for (owner, name), loop in self._loops.items()
        }

    def resume(self, owner: int, name: str, value: Tensor) -> None:
        """Put back what a snapshot held."""
        planned, most, *needed = value.tolist()
        self._loops[owner, name.removeprefix(_NAME)] = Loop(most, planned, needed)


def is_of_a_loop(name: str) -> bool:
    """Whether a snapshot's entry of this name, without the block's number, is a loop's."""
    return name.startswith(_NAME)
