"""The order of updates in one iteration, written once: the sweep iterates it, and execution plans from it.

    backward: for l = n..1:  V_l, then B_l          forward: for l = 1..n:  B_l, then V_l

as in Algorithms 1, 2 and 5 of the paper. Any other order of the same updates keeps the descent of Lemma 5, because each
update lowers the Lagrangian whatever came before it, as long as the dual step follows an update of V_n.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dladmm.compute.workspace import NO_PLAN, UpdatePlan
from dladmm.network.chain import Chain


@dataclass(frozen=True)
class Update:
    """One update: V_l (``"output"``) or B_l (``"parameters"``), links counted from 0.

    ``order`` holds False for an update of the backward sweep and True for one of the forward sweep; two updates of the
    same parameters in a row may be made together, then it holds both.
    """

    variable: Literal["output", "parameters"]
    link: int
    order: tuple[bool, ...]


Schedule = tuple[Update, ...]
Sweep = Literal["both", "backward"]


def paper_schedule(n_links: int) -> Schedule:
    """The order of the paper."""
    backward = [
        Update(variable, l, (False,))
        for l in reversed(range(n_links))
        for variable in ("output", "parameters")
    ]
    forward = [Update(variable, l, (True,)) for l in range(n_links) for variable in ("parameters", "output")]
    return (*backward, *forward)


def schedule_of(n_links: int, sweep: Sweep) -> Schedule:
    """The paper's order, or the same with parameters updated on the way back alone.

    What is left still lowers the Lagrangian, update by update (Lemma 5).
    """
    whole = paper_schedule(n_links)
    return whole if sweep == "both" else tuple(u for u in whole if u.variable == "output" or not u.order[0])


def planned(
    schedule: Schedule, chain: Chain, idle: Sequence[bool], *, joined: bool, prepared: bool, continues: bool
) -> list[tuple[Update, UpdatePlan]]:
    """The updates that have something to do, each with what may be computed along with it.

    ``idle[l]`` says that block l has no parameters. ``joined`` makes parameter updates of one block in a row
    together, ``prepared`` plans what is computed for the next update; ``continues`` says that the next sweep begins
    where this one ends, otherwise every sweep begins at a feasible point.
    """
    updates = [u for u in schedule if u.variable == "output" or not idle[u.link]]
    if joined:
        updates = list(_made_together(updates, chain))
    if joined and prepared:
        plans = [_plan(updates, i, chain, continues) for i in range(len(updates))]
    else:
        plans = [
            replace(NO_PLAN, in_settled=_settled(updates, i), in_holds=_holds(updates, i, continues))
            for i in range(len(updates))
        ]
    return list(zip(updates, plans, strict=True))


def _made_together(updates: Sequence[Update], chain: Chain) -> Iterator[Update]:
    """Parameter updates of one block that follow one another become one, where the block can make them together."""
    waiting: Update | None = None
    for update in updates:
        same = waiting is not None and (waiting.variable, waiting.link) == (update.variable, update.link)
        joins = update.variable == "parameters" and chain.blocks[update.link].joins_updates
        if waiting is not None and same and joins:
            waiting = replace(waiting, order=(*waiting.order, *update.order))
            continue
        if waiting is not None:
            yield waiting
        waiting = update
    if waiting is not None:
        yield waiting


def _changes(update: Update) -> set[int]:
    """The links whose variable or prediction an update changes."""
    return {update.link, update.link + 1} if update.variable == "output" else {update.link}


def _settled(updates: Sequence[Update], i: int) -> bool:
    """Whether nothing changes the variable's own link after update i."""
    return not any(updates[i].link in _changes(later) for later in updates[i + 1 :])


def _holds(updates: Sequence[Update], i: int, continues: bool) -> bool:
    """Whether update i meets the variable's own link as a feasible point has it."""
    own = not continues and updates[i].variable == "output"
    return own and not any(updates[i].link in _changes(earlier) for earlier in updates[:i])


def _plan(updates: Sequence[Update], i: int, chain: Chain, continues: bool) -> UpdatePlan:
    update, last = updates[i], len(chain) - 1
    out = update.link + 1 if update.variable == "output" else update.link
    following = updates[i + 1] if i + 1 < len(updates) else None
    residual, offset = _begins_with(following, chain)
    # The last link's target, z_L + u/rho, is made anew for every update: nothing can be prepared for it
    return UpdatePlan(
        in_residual=update.variable == "output" and residual == update.link != last,
        out_residual=residual == out != last,
        out_offset=update.variable == "output" and offset == out != last,
        in_offset_lasts=continues
        and _settled(updates, i)
        and _reads_offset_next(updates, update.link, chain),
        offsets_last=continues,
        out_prediction_dead=update.variable == "output" and _overwritten(updates[i + 1 :], out, chain),
        in_settled=_settled(updates, i),
        in_holds=_holds(updates, i, continues),
    )


def _begins_with(update: Update | None, chain: Chain) -> tuple[int | None, int | None]:
    """The link whose residual, and the one whose offset, an update begins with."""
    if update is None:
        return None, None
    if update.variable == "parameters":
        return (update.link if chain.blocks[update.link].begins_with_residual else None), None
    solver = update.link + 1
    if solver == len(chain) or not chain.blocks[solver].begins_with_residual:
        return None, None
    return solver, update.link


def _reads_offset_next(updates: Sequence[Update], link: int, chain: Chain) -> bool:
    """Whether the first update of the next sweep that has to do with the link begins with its offset."""
    for update in updates:
        if link in _changes(update):
            return _begins_with(update, chain)[1] == link
    return False


def _overwritten(later: Sequence[Update], link: int, chain: Chain) -> bool:
    """Whether the next update that has to do with a link's prediction solves entry by entry and writes it anew."""
    for update in later:
        if link in _changes(update):
            solves = update.variable == "output" and update.link + 1 == link
            return solves and link < len(chain) and chain.blocks[link].rewrites_prediction
    return False
