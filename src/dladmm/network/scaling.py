"""Input scaling ``x' = (x - shift) / scale``, so that one set of defaults works for data of any unit.

A first layer ``W' x' + b'`` on scaled inputs is the layer ``(W'/scale) x + b' - (W'/scale) shift`` on the inputs as
they are, so the scaling is folded into the weights after training and the network takes unscaled X.

For an affine layer every feature is centred and divided by its largest deviation, which undoes any change of unit or
origin of single features, and all of them by one number that makes the mean length of a row 1. A graph layer has no
bias and its features are counts or weights of one kind: those are not centred, every one is divided by a small power of
its root mean square, so that rare words count a little more, and one number makes the mean length of a row 0.3 (3 in
streaming mode).

A convolution sees patches, and pads them with zeros that must stay zeros: there every channel is divided by its largest
entry, and all of them by one number that makes the mean length of a patch 1; without padding channels are centred too.

In front of a recurrent layer, or of a linear layer at every position, features are centred over all steps and divided
by their largest deviation, which brings them to where cells answer best, between -1 and 1; a feature with a few values
far out is divided by ten standard deviations instead.

With rows this short the first layer's initial weights are small compared with those it learns, so that it learns
features instead of keeping random ones; docs/acceleration.md has the figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from dladmm.base.scipy_sparse import sparse
from dladmm.blocks import Affine, Block, Composed, Convolution, Params, Positionwise, RecurrentStates, Whole
from dladmm.compute.chunks import Source, concatenated, in_chunks
from dladmm.compute.communicator import ALONE, Communicator

Inputs = TypeVar("Inputs", Tensor, Source)

ROW_LENGTH, STREAMED_LENGTH, NODE_LENGTH = 1.0, 3.0, 0.3
"""Mean length after scaling: of a row or patch; of a sample or node in streaming mode; of a node else."""
FAR_OUT = 10.0
"""Standard deviations of a sequence's feature beyond which its largest value does not set the scale."""
FAR = 1e4
"""A mean of so many spreads is far from zero: outputs for unscaled inputs are then compared with those trained."""
LARGEST_SIZE = 4.0
"""Modules that are trained as they are keep inputs whose root mean squares are at most so large, and mostly not small:
centring every pixel of prepared images cost .01 of accuracy on Fashion-MNIST."""
RARITY = 0.15
"""A node's feature is divided by this power of its root mean square; 0 would treat all alike, 1 would standardise."""


@dataclass(frozen=True)
class Scaling:
    """``x' = (x - shift) / scale``, with ``shift`` and ``scale`` per feature (broadcast against one sample).

    ``columns`` are shift and scale per column of the first weight W, where those differ from the features; ``names``
    are those of the first block's weight and bias.
    """

    shift: Tensor
    scale: Tensor
    columns: tuple[Tensor, Tensor] | None = None
    names: tuple[str, str] = ("W", "b")

    @classmethod
    @torch.no_grad()
    def fit(
        cls,
        first: Block,
        x: Tensor | Source,
        sample_weight: Tensor | None = None,
        at_once: int | None = None,
        comm: Communicator = ALONE,
        sample_length: float | None = None,
    ) -> Scaling | None:
        """The scaling of the inputs x (N, ...) for this first block; None if it cannot be folded into the block.

        ``sample_weight`` has shape (N, 1); ``at_once`` is the number of rows to process at once. Inputs on several
        ranks are scaled together. ``sample_length`` is the mean length of a scaled sample; without one rows and patches
        have the length that accelerated mode is tuned for.
        """
        if isinstance(first, Whole):
            if first.of_inputs is None or isinstance(x, Source) or x.ndim != 2 or x.layout != torch.strided:
                return None
            if _is_common(_mean(x.square(), sample_weight, comm=comm).sqrt()):
                return None
            found = cls._of_features(x, sample_weight, at_once, comm, math.sqrt(x.shape[1]))
            return replace(found, names=first.of_inputs)
        if first.kind == "dense" or isinstance(x, Source):
            if first.kind != "dense" or x.ndim > 2 or x.layout != torch.strided:
                return None
            affine = cast(Affine, first)
            return cls._of_features(
                x, sample_weight, at_once, comm, sample_length, affine.bias, affine.weight_set is not None
            )
        if x.layout != torch.strided:
            return None
        if first.kind == "mapped":
            outer = cast(Composed, first)
            inner = outer.mapped(x)
            if not outer.only_moves_entries(x):
                return None
            own = cls.fit(outer.block, inner, sample_weight, comm=comm, sample_length=sample_length)
            if own is None:
                return None
            shift, scale = (t.expand(inner[:1].shape) for t in (own.shift, own.scale))
            placed = [outer.adjoint(t.contiguous(), x[:1])[0] for t in (shift, scale)]
            return cls(placed[0], placed[1], own.columns or (own.shift, own.scale), own.names)
        if first.kind in ("recurrent", "positions") and x.ndim > 2:
            steps = cls._of_steps(cast("RecurrentStates | Positionwise", first), x, sample_weight, comm)
            return steps if first.of_inputs is None else replace(steps, names=first.of_inputs)
        if first.kind == "convolution":
            return cls._of_channels(cast(Convolution, first), x, sample_weight, comm, sample_length)
        return None

    @classmethod
    def _of_features(
        cls,
        x: Tensor | Source,
        sample_weight: Tensor | None,
        at_once: int | None,
        comm: Communicator,
        sample_length: float | None,
        bias: bool = True,
        one_scale: bool = False,
    ) -> Scaling:
        """One shift and scale per feature; ``at_once`` rows are processed at a time."""
        shift = _mean(x, sample_weight, at_once, comm) if bias else _zero_shift(x)
        deviation, _ = _largest_deviation(x, shift, at_once, comm)
        if one_scale:  # whose levels stay levels when one number is folded into them
            deviation = deviation.max().expand_as(deviation).clone()

        def lengths(part: Tensor) -> Tensor:
            found: Tensor = torch.linalg.vector_norm((part - shift).div_(deviation), dim=1, keepdim=True)
            return found

        mean = _mean(concatenated(at_once, lengths, x), sample_weight, comm=comm)
        # A row is 1 long or longer where any feature varies; where none does, lengths are rounding
        least = 0.5 / len(x) if sample_weight is None and comm.alone else 0.0
        length = torch.where(mean > least, mean / (sample_length or ROW_LENGTH), torch.ones_like(mean))
        return cls(shift, deviation * length)

    @classmethod
    def _of_steps(
        cls,
        first: RecurrentStates | Positionwise,
        x: Tensor,
        sample_weight: Tensor | None,
        comm: Communicator,
    ) -> Scaling:
        """One shift and scale per feature of x (N, steps, features); means are over samples and steps."""
        steps, at_each = x.reshape(-1, x.shape[-1]), math.prod(x.shape[1:-1])
        weight = None if sample_weight is None else sample_weight.repeat_interleave(at_each, 0)
        shift = _mean(steps, weight, comm=comm) if first.bias else _zero_shift(steps)
        largest, constant = _largest_deviation(steps, shift, comm=comm)
        deviation = _mean(((steps - shift) / largest).square_(), weight, comm=comm).sqrt_()
        # Where only rows that do not count vary, there is no deviation to speak of
        near = torch.where(constant | (deviation == 0), torch.ones_like(deviation), FAR_OUT * deviation)
        return cls(shift, largest * near.clamp_max_(1.0))

    @classmethod
    def _of_channels(
        cls,
        first: Convolution,
        x: Tensor,
        sample_weight: Tensor | None,
        comm: Communicator,
        sample_length: float | None,
    ) -> Scaling:
        """One shift and scale per channel of x (N, channels, ...); means are over samples and positions."""
        channels = x.transpose(0, 1).flatten(1).T
        weight = None if sample_weight is None else sample_weight.repeat_interleave(x[0, 0].numel(), 0)
        centred = first.bias and not any(first.padding)
        shift = _mean(channels, weight, comm=comm) if centred else _zero_shift(channels)
        deviation, _ = _largest_deviation(channels, shift, comm=comm)
        shaped = [t.reshape(-1, *[1] * (x.ndim - 2)) for t in (shift, deviation)]
        scaled = (x - shaped[0]) / shaped[1]
        lengths = (
            first.patch_lengths(scaled) if sample_length is None else scaled.flatten(1).norm(dim=1)[:, None]
        )
        length = _mean(lengths.flatten(1).mean(1, keepdim=True), sample_weight, comm=comm) / (
            sample_length or ROW_LENGTH
        )
        scale = shaped[1] * torch.where(length > 0, length, torch.ones_like(length))
        per_output = [t.flatten().reshape(first.groups, -1) for t in (shaped[0], scale)]
        columns = [
            t.repeat_interleave(first.channels_out // first.groups, 0).reshape(
                first.channels_out, -1, *[1] * (x.ndim - 2)
            )
            for t in per_output
        ]
        return cls(shaped[0], scale, (columns[0], columns[1]))

    @classmethod
    def of_nodes(
        cls,
        features: Any,
        dtype: torch.dtype,
        device: torch.device,
        comm: Communicator = ALONE,
        node_length: float = NODE_LENGTH,
    ) -> Scaling:
        """One scale per feature of a graph's nodes: ``rms^RARITY`` times a common factor.

        ``features`` (n_nodes, n_features) are dense or scipy-sparse; with ``comm`` those of one rank's nodes.
        ``node_length`` is the mean length of a scaled row.
        """
        squares = features.multiply(features) if sparse.issparse(features) else np.square(features)
        own = np.asarray(squares.sum(axis=0), dtype=np.float64).ravel()
        *total, n_nodes = _totals(np.append(own, features.shape[0]), comm)
        size = np.where(np.array(total) > 0, np.array(total) / max(n_nodes, 1), 1.0) ** (RARITY / 2)
        lengths = np.sqrt(np.asarray(squares @ size**-2.0, dtype=np.float64))
        length = float(_totals(lengths.sum(keepdims=True), comm)[0] / max(n_nodes, 1))
        scale = torch.from_numpy(size * (length / node_length if length > 0 else 1.0)).to(device, dtype)
        return cls(torch.zeros_like(scale), scale)

    @classmethod
    def standard(cls, x: Tensor, sample_weight: Tensor | None = None) -> Scaling:
        """Mean 0 and deviation 1 of every column of x (N, n); rows count by ``sample_weight`` (N, 1).

        The scale of a constant column is infinite: it counts for nothing, also where it is not constant in other rows.
        """
        shift = _mean(x, sample_weight)
        largest, _ = _largest_deviation(x, shift)  # divided by first: squares of large numbers are infinite
        deviation = _mean(((x - shift) / largest).square_(), sample_weight).sqrt_()
        varies = (x.amax(0) > x.amin(0)) & (deviation > 0)
        return cls(shift, torch.where(varies, largest * deviation, torch.full_like(shift, math.inf)))

    def apply(self, x: Inputs) -> Inputs:
        """The scaled inputs, of the shape and layout of x."""
        if isinstance(x, Source):
            return x.changed(lambda part, _: (part - self.shift).div_(self.scale))
        if x.layout == torch.sparse_csr:
            columns = x.col_indices()
            values = x.values() / self.scale[columns]
            return torch.sparse_csr_tensor(x.crow_indices(), columns, values, x.shape, check_invariants=False)
        return (x - self.shift).div_(self.scale)

    @property
    def far(self) -> bool:
        """Whether means are so large beside spreads that a network for unscaled inputs may round."""
        return bool((self.shift.abs() > FAR * self.scale).any())

    def fold(self, params: Sequence[Params]) -> list[Params]:
        """Parameters for unscaled inputs, from those for scaled inputs.

        In float64: beside a mean a million times its deviation, ``W shift`` in float32 is wrong by more than b. The
        shift is folded with W as it was rounded, by which inputs are multiplied later.
        """
        first, (shift, scale) = dict(params[0]), self._columns()
        W, b = self.names
        first[W] = (first[W].double() / scale.double()).to(first[W].dtype)
        if b in first:
            shifted = (first[W].double() * shift.double()).flatten(1).sum(1)
            first[b] = (first[b].double() - shifted).to(first[b].dtype)
        return [first, *params[1:]]

    def unfold(self, params: Sequence[Params]) -> list[Params]:
        """Parameters for scaled inputs, from those for unscaled inputs."""
        first, (shift, scale) = dict(params[0]), self._columns()
        W, b = self.names
        if b in first:
            first[b] = first[b] + (first[W] * shift).flatten(1).sum(1)
        first[W] = first[W] * scale
        return [first, *params[1:]]

    def _columns(self) -> tuple[Tensor, Tensor]:
        return (self.shift, self.scale) if self.columns is None else self.columns


def _is_common(sizes: Tensor) -> bool:
    """Whether features of these root mean squares are at a common scale already, as people prepare them."""
    return float(sizes.max()) <= LARGEST_SIZE and float(sizes.median()) >= 1 / LARGEST_SIZE**2


def _totals(own: np.ndarray[Any, Any], comm: Communicator) -> np.ndarray[Any, Any]:
    sums = torch.from_numpy(own).to(getattr(comm, "device", torch.device("cpu")))
    found: np.ndarray[Any, Any] = comm.total(sums)[0].cpu().numpy()
    return found


def _zero_shift(x: Tensor | Source) -> Tensor:
    return torch.zeros(x.shape[1], dtype=x.dtype, device=x.device)


def _largest_deviation(
    x: Tensor | Source, shift: Tensor, at_once: int | None = None, comm: Communicator = ALONE
) -> tuple[Tensor, Tensor]:
    """The largest ``|x - shift|`` of every feature, 1 where the feature is constant up to rounding; and where it is."""
    highest, minus_lowest = torch.full_like(shift, -torch.inf), torch.full_like(shift, -torch.inf)
    for (part,) in in_chunks(at_once, x):
        if len(part):  # a rank may have no rows
            highest = torch.maximum(highest, part.amax(0))
            minus_lowest = torch.maximum(minus_lowest, -part.amin(0))
    highest, minus_lowest = comm.largest(highest, minus_lowest)
    deviation = torch.maximum(highest - shift, shift + minus_lowest)
    constant = deviation <= 8 * torch.finfo(x.dtype).eps * torch.maximum(highest.abs(), minus_lowest.abs())
    return torch.where(constant, torch.ones_like(deviation), deviation), constant


def _mean(
    x: Tensor | Source,
    sample_weight: Tensor | None,
    at_once: int | None = None,
    comm: Communicator = ALONE,
) -> Tensor:
    """The weighted mean over the rows, computed in float64."""
    own = reduce(Tensor.add_, (_sum(part, weight) for part, weight in in_chunks(at_once, x, sample_weight)))
    counted = own.new_full((), len(x)) if sample_weight is None else sample_weight.double().sum()
    total, count = comm.total(own, counted)
    return (total / count).to(x.dtype)


def _sum(x: Tensor, sample_weight: Tensor | None) -> Tensor:
    if sample_weight is None:
        return x.sum(0, dtype=torch.float64)
    weight = sample_weight[:, 0].double()
    return torch.stack([(column.double() * weight).sum() for column in x.T])
