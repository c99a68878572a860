"""What a run's tensors will take at their peak, known before it begins, and how many rows fit a limit.

Counted is what the run makes, above X and y as they were given. Of N rows it holds, for every link of the chain, the
variable and its prediction (accelerated mode: those of the trial, where the variables of the accepted point lie), u and
the targets. Beside them there are matrices with the size of the parameters, Gram matrices in float64, and what an
update works with: buffers and temporaries of as many rows as are worked on at once. Only the last shrink when
``max_memory`` asks for it. Streaming mode holds no variables of all rows (:func:`streamed_peak`). docs/memory.md has
the formulas in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from dladmm.blocks import Affine
from dladmm.blocks.affine_rows import gram_pays
from dladmm.compute.execution import CACHED, WHOLE
from dladmm.compute.product_kernels import DEEP, has_products
from dladmm.compute.products import worth_a_kernel
from dladmm.engine.batches import MONITOR_ROWS
from dladmm.network.chain import Chain
from dladmm.regularizers import NoPenalty, Regularizer
from dladmm.solvers.metric import THIN_FROM

if TYPE_CHECKING:
    from dladmm.engine.options import TrainOptions

PROX_BYTES = 112
"""Bytes that solving for one entry of z_L takes on the way, in float64 (``softmax_prox``)."""

DROP_BYTES = 32
"""What deciding about one entry of X takes on the way (:mod:`dladmm.network.input_dropout`)."""

CHUNK = 1 << 21
"""Entries of a chunk on the CPU at most: larger ones are no faster, and leave larger holes in the process's memory."""

COPIED_Z = 20_000_000
"""Entries up to which convergent mode copies the hidden z, to measure how far they move (``z_steps``)."""

MARGIN = 0.97
"""The part of a limit that is planned with: the estimate is not exact."""

FEWEST_ROWS = 16
"""Fewer rows at once save nothing any more."""


@dataclass(frozen=True)
class Needs:
    """What decides how much memory a run takes; ``peak`` is the estimate in bytes.

    ``cast`` says that X has to be copied into the run's dtype or onto its device, ``stored`` are the bytes of an
    entry of X as given. ``in_parts`` says that long products are made of float16 parts of their factors.
    ``at_once`` rows are worked on at a time, None all; then X is copied nowhere.
    """

    chain: Chain
    n_rows: int
    options: TrainOptions
    penalty: Regularizer
    dtype: torch.dtype = torch.float32
    n_validation: int = 0
    counts: bool = False
    cast: bool = False
    stored: int = 4
    on_gpu: bool = False
    in_parts: bool = False
    at_once: int | None = None

    @property
    def known(self) -> bool:
        """Whether this is a chain whose needs are known: linear layers and activations."""
        return all(block.kind in ("dense", "entrywise") for block in self.chain)

    @property
    def peak(self) -> int:
        """The most bytes that the run's tensors take at one time."""
        sweep = self._sweep + (self._gradients if self._accelerated else 0)
        during = max(sweep, self._evaluation, self._stationarity) + self._grams
        copied = 0 if self.at_once else self.n_rows * self._copied
        given_back = (self._buffers + copied) * self._size  # by the time of the certificate
        return self._held + max(during, self._certificate - given_back, self._dropping)

    @property
    def least(self) -> int:
        """What it takes when as few rows are worked on at once as makes sense."""
        return replace(self, at_once=min(FEWEST_ROWS, self.n_rows)).peak

    @property
    def most_rows(self) -> int:
        """More rows at once are no faster."""
        return max(FEWEST_ROWS, (WHOLE if self.on_gpu else CHUNK) // max(self._n_in, *self._widths))

    # What is held all the time ---------------------------------------------------------------------------------

    @cached_property
    def _affine(self) -> list[Affine]:
        return [cast(Affine, block) for block in self.chain if block.kind == "dense"]

    @cached_property
    def _widths(self) -> list[int]:
        """The width of every link's variable."""
        found: list[int] = []
        for block in self.chain:
            found.append(block.n_out or (found[-1] if found else self._n_in))
        return found

    @property
    def _n_in(self) -> int:
        return self._affine[0].n_in

    @property
    def _size(self) -> int:
        return self.dtype.itemsize

    @property
    def _rows(self) -> int:
        """Rows worked on at once."""
        return self.n_rows if self.at_once is None else min(self.at_once, self.n_rows)

    @property
    def _accelerated(self) -> bool:
        return self.options.mode == "accelerated"

    @property
    def _parameters(self) -> int:
        return sum((block.n_in + block.bias) * block.n_out for block in self._affine)

    @property
    def _outputs(self) -> int:
        return self._widths[-1]

    @property
    def _held(self) -> int:
        """Inputs, variables, predictions, u, targets, parameters, and the buffers of the updates."""
        o, N, size = self.options, self.n_rows, self._size
        links = 2 * sum(self._widths)
        ends = (3 if self._accelerated else 2) * self._outputs + self.counts
        copies = held_out = 0
        if self.at_once is None:
            copies = int(self.cast or o.scale_inputs) + int(o.dropout > 0)
            held_out = self.n_validation * self._n_in * int(self.cast or o.scale_inputs)
            links += self._copied
        entries = N * (links + ends + copies * self._n_in) + held_out + self.n_validation * self._outputs
        entries += (4 if self._accelerated else 2) * self._parameters + self._buffers
        return entries * size + (8 * N if o.dropout > 0 else 0)

    @property
    def _copied(self) -> int:
        """Width of all hidden z, where they are copied before an iteration."""
        pairs = zip(self._widths, self.chain.blocks[1:], strict=False)
        hidden = sum(width for width, block in pairs if block.kind == "entrywise")
        return hidden if self.options.mode == "convergent" and self.n_rows * hidden <= COPIED_Z else 0

    @property
    def _buffers(self) -> int:
        """Entries of the scratch: gap, moved, gradient, move."""
        solver, affine = self.options.subproblems, self._affine
        later = affine[1:]
        moved = [block.n_out for block in (later if self._steps_on_gram else affine)]
        inputs = [block.n_in for block in later]
        lasts = self.options.mode == "convergent" and self.at_once is None  # ``UpdatePlan.offsets_last``
        widths = [
            sum({block.n_out for block in affine}),
            sum(set(moved)),
            sum(inputs if lasts else set(inputs)),
        ]
        widths += [sum(set(inputs))] if solver.a_solver == "exact" else []
        return self._rows * sum(widths)

    @property
    def _steps_on_gram(self) -> bool:
        return self.penalty.quadratic is not None and gram_pays(self.n_rows, self._n_in)

    @property
    def _exact_w(self) -> bool:
        return self.options.subproblems.w_solver == "exact"

    @property
    def _grams(self) -> int:
        """Gram matrices and factors in float64, inverses of the updates of a."""
        kept = self._affine if self._exact_w else self._affine[: int(self._steps_on_gram)]
        if self.options.dropout > 0:  # those of the inputs and those of the inputs with dropped entries
            kept = [*kept[:1], *kept]
        squares = sum((2 if self._exact_w else 1) * 8 * block.n_in**2 for block in kept)
        if self.options.subproblems.a_solver == "exact":
            squares += sum(self._size * min(b.n_in, b.n_out) ** 2 for b in self._affine[1:])
        return squares

    # What comes and goes ---------------------------------------------------------------------------------------

    @property
    def _gradients(self) -> int:
        """Accelerated mode with a penalty: the gradient of R in the outputs of all W; through f it is made in place."""
        jumps = 0 if all(block.continuous for block in self.chain) else max(self._widths)
        entries = self.n_rows * (sum(block.n_out for block in self._affine) + jumps)
        return 0 if self.penalty.is_zero else entries * self._size

    @property
    def _inputs(self) -> int:
        """A chunk of the inputs: read, cast, scaled, dropped."""
        if self.at_once is None:
            return 0
        o, size = self.options, self._size
        entry = self.stored + (size if self.stored != size else 0) + 2 * size * o.scale_inputs
        return self._rows * self._n_in * (entry + size * (o.dropout > 0)) + self._dropping

    @property
    def _dropping(self) -> int:
        """Deciding which entries are dropped: numbers of 64 bits, of one part of a pass."""
        return DROP_BYTES * min(self._rows * self._n_in, self._part) if self.options.dropout > 0 else 0

    @property
    def _pass(self) -> int:
        """Temporaries of the update of a z_l, a pass over all rows that works part by part."""
        return 4 * min(self.n_rows * max(self._widths), self._part) * self._size

    @property
    def _part(self) -> int:
        """Entries of a part of a pass (:mod:`dladmm.compute.passes`)."""
        return WHOLE if self.on_gpu else CACHED

    @property
    def _sweep(self) -> int:
        size, rows, K = self._size, self._rows, self._outputs
        prox = self.n_rows * K * 3 * size + rows * K * PROX_BYTES
        square = max(8 * 2 * b.n_in**2 for b in self._affine) if self._exact_w else 0
        matrix = max(8 * 4 * b.n_in * b.n_out for b in self._affine)
        counted = rows * max(b.n_in for b in self._affine) * size if self.counts else 0
        w = max(square, matrix, self._inputs + counted) + self._parts
        a = 0
        if self.options.subproblems.a_solver == "exact" and len(self._affine) > 1:
            later = self._affine[1:]
            a = max(8 * 4 * min(b.n_in, b.n_out) ** 2 for b in later)
            a = max([a, *(2 * rows * b.n_out * size for b in later if b.n_out < b.n_in)])
        return max(prox, w, a + 8 * 6 * rows, self._pass)

    @property
    def _parts(self) -> int:
        """Both factors of a long sum over rows, and the scales of their blocks (compute/product_kernels.py)."""
        long = (
            [b for b in self._affine if worth_a_kernel(self._rows, b.n_out, b.n_in)] if self.in_parts else []
        )
        return max((self._rows * (4 * b.n_in + 4 * b.n_out) * (DEEP + 1) // DEEP for b in long), default=0)

    @property
    def _forward(self) -> int:
        """Bytes of a forward pass that keeps two layers."""
        widest = max(a + b for a, b in zip([0, *self._widths], self._widths, strict=False))
        rows = self._rows if self.at_once is not None else max(self._rows, self.n_validation)
        return rows * widest * self._size + self._inputs

    @property
    def _evaluation(self) -> int:
        return self._forward + 2 * self.n_rows * self._outputs * (self._size + 8)

    @property
    def _stationarity(self) -> int:
        rows, size, K = self._rows, self._size, self._outputs
        widest = max(
            [max(2 * b.n_out, b.n_out + b.n_in, 2 * b.n_in) for b in self._affine[1:]]
            + [self._affine[0].n_out]
        )
        working = max(rows * widest, 5 * min(rows * max(self._widths), self._part)) * size
        return working + 3 * self.n_rows * K * size + self._inputs

    @property
    def _certificate(self) -> int:
        """The stationarity once more, with all predictions recomputed, when the run is over."""
        if self.at_once is None:
            return self._stationarity + self.n_rows * sum(self._widths) * self._size
        widths = [self._n_in, *self._widths]
        both = max(a + b for a, b in zip(widths, self._widths, strict=False))
        return self._stationarity + self._rows * both * self._size


def needs_of(
    chain: Chain,
    X: Any,
    options: TrainOptions,
    penalty: Regularizer | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
    n_validation: int = 0,
    counts: bool = False,
) -> Needs:
    """The needs of a run on these inputs; ``counts`` says that there are sample weights."""
    X = X if isinstance(X, Tensor) else np.asanyarray(X)
    n_rows = len(X) if X.ndim else 0
    at = "cpu" if device is None else device.type
    lies = X.device.type if isinstance(X, Tensor) else "cpu"
    copied = str(X.dtype).removeprefix("torch.") != str(dtype).removeprefix("torch.") or lies != at
    penalty = NoPenalty() if penalty is None else penalty
    stored = X.dtype.itemsize
    parts = device is not None and at == "cuda" and dtype == torch.float32 and has_products(device)
    given = chain, n_rows, options, penalty, dtype, n_validation, counts, copied, stored
    return Needs(*given, on_gpu=at == "cuda", in_parts=parts)


def known_widths(chain: Chain) -> list[int] | None:
    """The inputs, the widths of the linear layers, in order; None for a network of other layers."""
    if chain.blocks[0].kind != "dense" or any(block.kind not in ("dense", "entrywise") for block in chain):
        return None
    affine = [cast(Affine, block) for block in chain if block.kind == "dense"]
    return [affine[0].n_in, *(block.n_out for block in affine)]


def streamed_peak(
    widths: Sequence[int],
    n_first: int,
    n_batch: int,
    size: int,
    *,
    n_validation: int = 0,
    on_gpu: bool = False,
) -> int:
    """The most bytes that streaming mode takes above rows that it reads where they lie, for numbers of ``size`` bytes.

    ``n_first`` rows are read to scale the inputs, of which the monitor sample of the history keeps its variables.
    """
    n_in, links = widths[0], 2 * sum(widths[1:-1]) + widths[-1]
    monitor = min(n_first, MONITOR_ROWS)
    thin = [n for n in widths[:-1] if n >= THIN_FROM and not on_gpu]
    grams = sum(n * n for n in widths[:-1]) - sum(3 * n * n // 4 for n in thin)
    parameters = sum((a + 1) * b for a, b in pairwise(widths))
    entries = 4 * n_first * n_in // 3 + 2 * monitor * links + 5 * monitor * n_in // 4 + parameters + 3 * grams
    return size * (entries + n_batch * (n_in + links) + n_validation * n_in)
