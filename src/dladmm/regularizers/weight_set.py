"""Weights in a set that is not convex: few levels, as +1 and -1, and few of them per unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from dladmm.base.errors import InputError, InputTypeError
from dladmm.base.spec import check_setting, from_spec
from dladmm.regularizers.base import Regularizer
from dladmm.regularizers.penalties import NoPenalty

MOST_BITS = 8


@dataclass(frozen=True)
class WeightSet(Regularizer):
    """argmin_{X in S} (1/(2t))||X - W||^2, the nearest point of S to W; equations (9) and (11) of the paper.

    Omega is the indicator of S: zero there, infinite elsewhere. S is not convex, so the paper's theorems do not cover
    it, and no step shorter than the distance of two levels leaves a point of it. Streaming mode therefore moves latent
    weights and shows the network their projection (:class:`~dladmm.blocks.FiniteAffine`).

    Parameters
    ----------
    levels : int, optional
        The entries of W are ``levels`` equally spaced numbers from ``-scale`` to ``scale``: 2 is -1 and 1, 3 is -1, 0
        and 1, ``2**k`` a grid of k bits. None: any number.
    per_unit : int, optional
        At most so many entries of a row of W (n_out, n_in) are not zero.
    scale : float, default 1.0
        The largest level.
    """

    name: ClassVar[str] = "weight_set"
    is_constraint: ClassVar[bool] = True
    levels: int | None = None
    per_unit: int | None = None
    scale: float = 1.0

    def __post_init__(self) -> None:
        most = 2**MOST_BITS
        check_setting(
            self, "levels", int, f"a whole number from 2 to {most}", lambda v: 2 <= v <= most, optional=True
        )
        check_setting(self, "per_unit", int, "a whole number >= 1", lambda v: v >= 1, optional=True)
        check_setting(self, "scale", float, "a number > 0", lambda v: v > 0)
        if self.levels is None and self.per_unit is None:
            raise InputError("weights: a WeightSet needs levels, per_unit or both.")

    def __str__(self) -> str:
        names = {None: "real", 2: "binary", 3: "ternary"}
        what = names.get(self.levels, f"{self.levels} levels")
        return what if self.per_unit is None else f"{what}, {self.per_unit} per unit"

    @property
    def quadratic(self) -> float | None:
        return None

    @property
    def coercive(self) -> bool:
        return self.levels is not None

    @property
    def largest(self) -> int:
        """The largest level as a whole number: 1 of two or three levels, 3 of four, where levels are 1 and 3."""
        levels = 2 if self.levels is None else self.levels
        return (levels - 1) // (2 if levels % 2 else 1)

    def prox(self, W: Tensor, step: float | Tensor) -> Tensor:
        nearest = self._nearest(W)
        if self.per_unit is None:
            return nearest
        # What an entry gains by not being zero; the largest gains are kept
        gain = (W.square() - (W - nearest).square()).flatten(1)
        kept = gain.topk(min(self.per_unit, gain.shape[1]), dim=1)
        mask = torch.zeros_like(gain).scatter_(1, kept.indices, (kept.values > 0).to(gain.dtype))
        return nearest * mask.view(W.shape)

    def _nearest(self, W: Tensor) -> Tensor:
        """The nearest level of every entry; with a budget zero is one more."""
        if self.levels is None:
            return W
        if self.levels == 2:
            return (W >= 0).to(W.dtype).mul_(2 * self.scale).sub_(self.scale)
        steps = self.levels - 1
        place = ((W / self.scale + 1) * (steps / 2) + 0.5).floor_().clamp_(0, steps)
        return place.mul_(2).sub_(steps).mul_(self.scale / steps)

    def value(self, W: Tensor) -> Tensor:
        far = (W - self.prox(W, 1.0)).abs() > 1e-5 * self.scale
        return torch.where(far.any(), float("inf"), 0.0).to(torch.float64)

    def stationarity(self, W: Tensor, g: Tensor) -> Tensor:
        """Levels are isolated points, where every g will do; of real entries those that are not zero, or may be so."""
        found = torch.zeros_like(g)
        if self.levels is None:
            full = ((W != 0).flatten(1).sum(1) >= (self.per_unit or 0)).view(-1, *[1] * (W.ndim - 1))
            found = torch.where((W != 0) | ~full, g.abs(), found)
        outside = (W - self.prox(W, 1.0)).abs() > 1e-5 * self.scale
        return found.masked_fill(outside, float("inf"))

    def whole(self, W: Tensor) -> Tensor:
        """W in S with the levels as whole numbers up to :attr:`largest`, int16."""
        return (W * (self.largest / self.scale)).round_().to(torch.int16)


class Box(Regularizer):
    """argmin_{-bound <= X <= bound} Omega(X) + (1/(2t))||X - W||^2: the penalty's own prox, clipped.

    What latent weights keep to. Omega must act on every entry by itself; an infinite bound constrains nothing.
    """

    name: ClassVar[str] = "box"
    is_constraint: ClassVar[bool] = True
    records: ClassVar[bool] = True

    def __init__(self, bound: float, penalty: Regularizer | None = None) -> None:
        self.bound = bound
        self.penalty = NoPenalty() if penalty is None else penalty

    def beside(self, penalty: Regularizer) -> Box:
        """The same constraint and this penalty."""
        return Box(self.bound, penalty)

    def turned(self, W: Tensor) -> Tensor:
        """Initial weights inside."""
        return W.clamp(-self.bound, self.bound)

    @property
    def quadratic(self) -> float | None:
        return None

    @property
    def coercive(self) -> bool:
        return True

    def value(self, W: Tensor) -> Tensor:
        outside = (W.abs() > self.bound * (1 + 1e-6)).any()
        return self.penalty.value(W) + torch.where(outside, float("inf"), 0.0).to(torch.float64)

    def prox(self, W: Tensor, step: float | Tensor) -> Tensor:
        return self.penalty.prox(W, step).clamp(-self.bound, self.bound)

    def stationarity(self, W: Tensor, g: Tensor) -> Tensor:
        inside = self.penalty.stationarity(W, g)
        # at the bound the normal cone takes up a gradient that would push W outside
        pushed = (W.abs() >= self.bound) & (W * g < 0)
        return inside.masked_fill(pushed, 0.0)

    def times(self, share: float | Tensor) -> Regularizer:
        return Box(self.bound, self.penalty.times(share))


NAMES: dict[str, dict[str, int]] = {"binary": {"levels": 2}, "ternary": {"levels": 3}}


def get_weight_set(spec: Any) -> WeightSet | None:
    """The set of ``spec``; None for any real weights.

    None or "real"; "binary"; "ternary"; a number of bits, where 1 is binary; one of them with a budget, "ternary:20" or
    "real:20", at most 20 weights per unit; a dictionary such as ``{"levels": 3, "per_unit": 20}``; or the object.
    """
    if spec is None or (isinstance(spec, str) and spec == "real"):
        return None
    if isinstance(spec, str) and ":" in spec:
        return _with_budget(spec)
    if isinstance(spec, str):
        if spec not in NAMES:
            raise InputError(
                f"unknown weights {spec!r}; known: real, {', '.join(NAMES)}, a number of bits from 1 to {MOST_BITS}."
            )
        return WeightSet(**NAMES[spec])
    if isinstance(spec, bool) or not isinstance(spec, (int, dict, WeightSet)):
        raise InputTypeError(
            f"weights must be 'real', 'binary', 'ternary', a number of bits, a dictionary or a WeightSet, got {spec!r}."
        )
    if isinstance(spec, int):
        if not 1 <= spec <= MOST_BITS:
            raise InputError(f"weights of {spec} bits: a number of bits is from 1 to {MOST_BITS}.")
        return WeightSet(levels=2**spec)
    given = {"name": WeightSet.name} | spec if isinstance(spec, dict) else spec
    return from_spec("weights", {WeightSet.name: WeightSet}, WeightSet, given)


def _with_budget(spec: str) -> WeightSet:
    """The set of "ternary:20", "real:20" or "2:20", a number of bits."""
    kind, budget = spec.split(":", 1)
    if not (budget.isascii() and budget.isdecimal()):
        raise InputError(
            f"weights {spec!r}: behind the colon is a whole number, how many weights of a unit may differ from zero."
        )
    own = get_weight_set(int(kind) if kind.isascii() and kind.isdecimal() else kind)
    return WeightSet(None if own is None else own.levels, int(budget))
