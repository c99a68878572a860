"""Rounds of passes: what a run does between two looks at the rows that were held out of it."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from dladmm.engine.batches import ArrayBatches, Batch, shuffled

GROWTH = 1.4
"""The passes of a run grow by this factor from one look to the next, by one at least."""

FIRST_STEPS = 4
"""Steps before the first look."""


def looks(passes: int, batches_in_pass: int) -> list[int]:
    """After which passes a run of so many looks at its held-out rows: 1, 2, 3, 4, 5, 8, 11, ... and the last."""
    found, look = [], float(max(1, -(-FIRST_STEPS // batches_in_pass)))
    while look < passes:
        found.append(int(look))
        look = max(look + 1, GROWTH * look)
    return [*found, passes]


class Rounds(ArrayBatches):
    """Batches of rows in memory, where an iteration of the loop is a round: the passes up to the next look.

    Every pass has its own order of the rows, as in :class:`~dladmm.engine.batches.ArrayBatches`.
    """

    def __init__(
        self, x: Tensor, target: Tensor, counts: Tensor | None, n_batches: int, passes: int, seed: int
    ) -> None:
        n_samples = len(x) if counts is None else float(counts.double().sum())
        super().__init__(x, target, None, counts, n_batches, seed, n_samples)
        self.ends = looks(passes, n_batches)

    def batches_per_pass(self) -> int | None:
        return None  # rounds differ in length

    def passes_until(self, rounds: int) -> int:
        """Passes that so many rounds have."""
        return self.ends[rounds - 1] if rounds else 0

    def one_pass(self, number: int, skip: int = 0) -> Iterator[Batch]:
        for own in range(self.passes_until(number), self.ends[number]):
            if skip >= self._n_batches:
                skip -= self._n_batches
                continue
            # Rows are brought into their order once per pass: a batch is then a view
            rows = self.batch(shuffled(len(self.x), self.seed, own).to(self.x.device))
            size = len(self.x) // self._n_batches
            for j in range(skip, self._n_batches):
                yield rows.part(j * size, (j + 1) * size)
            skip = 0
