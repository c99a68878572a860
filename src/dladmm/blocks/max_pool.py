"""Max pooling over windows that do not overlap, with the exact argmin over its input."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor, nn

from dladmm.blocks.base import Block, Support
from dladmm.compute.passes import squared_norm
from dladmm.compute.work import Work
from dladmm.solvers.subproblems import Anchor, Params, Step, Term


class MaxPool(Block):
    """``g(v)_j = max of v over window j``, windows side by side; entries beyond the last whole window are not seen."""

    support = Support.COUNTS | Support.RANKS | Support.RECORDING

    def __init__(self, window: tuple[int, ...]) -> None:
        self.window = window

    @classmethod
    def from_module(cls, layer: nn.Module) -> MaxPool | None:
        """The block of a max pooling layer whose windows do not overlap; None for another layer."""
        if not isinstance(layer, (nn.MaxPool1d, nn.MaxPool2d)):
            return None
        dims = 1 if isinstance(layer, nn.MaxPool1d) else 2

        def sizes(value: int | tuple[int, ...]) -> tuple[int, ...]:
            return (value,) * dims if isinstance(value, int) else tuple(value)

        window = sizes(layer.kernel_size)
        plain = sizes(layer.padding) == (0,) * dims and sizes(layer.dilation) == (1,) * dims
        if not plain or layer.ceil_mode or layer.return_indices or sizes(layer.stride or window) != window:
            return None
        return cls(window)

    def __repr__(self) -> str:
        return f"MaxPool({'x'.join(map(str, self.window))})"

    def initial_parameters(self, generator: torch.Generator | None, scale: float) -> Params:
        return {}

    def to_module(self, params: Params) -> nn.Module:
        return nn.MaxPool1d(self.window[0]) if len(self.window) == 1 else nn.MaxPool2d(self.window)

    def forward(self, params: Params, v: Tensor) -> Tensor:
        if len(self.window) == 1:
            return nn.functional.max_pool1d(v, self.window[0])
        return nn.functional.max_pool2d(v, self.window)

    def update_input(self, params: Params, v: Tensor, anchor: Anchor, term: Term, work: Work) -> list[Step]:
        """``argmin_v (nu/2)||v - m||^2 + (c/2)||target - max v||^2`` window by window, Algorithm 1, lines 4 and 9.

        Let s be the new maximum: entries above s come down to it, and where none reaches s the largest rises to it.
        With the j largest entries at s, ``s = (nu (m_1 + .. + m_j) + c target)/(j nu + c)``; the right j is the first
        for which the next entry is not above s. The problem is convex for s below the largest entry and for s above
        it, and both have this one stationary point, so it is the global minimiser.
        """
        nu, c = anchor.weight, term.weight
        squared = work.solve_rows(v, anchor, term, _solved, window=self.window, nu=nu, c=c)
        return [Step("z", squared, None)]

    def _windows(self, x: Tensor, write: Tensor | None = None) -> Tensor:
        """x as (samples, channels, positions.., entries of a window); ``write`` puts such entries back into x."""
        sizes = [size // w for size, w in zip(x.shape[2:], self.window, strict=True)]
        whole = x
        for dim, (size, w) in enumerate(zip(sizes, self.window, strict=True)):
            whole = whole.narrow(2 + dim, 0, size * w).unfold(2 + dim, w, w)
        if write is not None:
            whole.copy_(write.reshape(whole.shape))
            return write
        return whole.flatten(2 + len(sizes))

    def push_input(self, params: Params, v: Tensor, move: Tensor, prediction: Tensor) -> Tensor:
        """The move of each window's largest entry, the first where several share the maximum."""
        places = self._windows(v).argmax(-1, keepdim=True)
        return self._windows(move).gather(-1, places)[..., 0].reshape(prediction.shape)

    def input_gradient(self, params: Params, v: Tensor, term: Term, work: Work) -> Tensor:
        return self.pull_back(params, v, term.prediction, term.weight * term.residual(), work)

    def pull_back(
        self, params: Params, v: Tensor, prediction: Tensor, gradient: Tensor, work: Work
    ) -> Tensor:
        found = torch.empty_like(v)
        for some, of_some, out in work.parts(v, gradient, found):
            with torch.enable_grad():
                leaf = some.detach().requires_grad_()
                (pulled,) = torch.autograd.grad(self.forward({}, leaf), leaf, of_some)
            out.copy_(pulled)
        return found

    def input_stationarity(self, params: Params, v: Tensor, anchor: Anchor, term: Term, work: Work) -> Tensor:
        """``||nu (v - m) + xi||^2`` for the nearest subgradient xi of the pull on the maximum.

        Where several entries share the maximum, a pull downwards may be divided among them in any shares (the hull of
        a convex kink); a pull upwards acts on one of them (a concave kink has no more limiting subgradients).
        """
        pull = term.weight * term.residual().unsqueeze(-1)
        values = self._windows(v)
        centre = anchor.weight * self._windows(v - anchor.value)
        at_top = values == values.amax(-1, keepdim=True)
        shares = _nearest_in_simplex(-centre / torch.where(pull == 0, 1.0, pull), at_top)
        best = torch.where(at_top, pull * centre, torch.inf).argmin(-1, keepdim=True)
        single = torch.zeros_like(centre).scatter(-1, best, 1.0)
        gradient = anchor.weight * (v - anchor.value)
        self._windows(gradient, write=centre + pull * torch.where(pull > 0, shares, single))
        return squared_norm(gradient, work.counts)


LARGEST_NETWORK = 9
"""Entries of a window up to which they are ordered by comparisons of whole planes, which are faster than a sort."""


def _solved(
    v: Tensor, f: Tensor, m: Tensor, a: Tensor, *, window: tuple[int, ...], nu: float, c: float
) -> tuple[Tensor, Tensor]:
    """The new v and its maxima, for the target a. A plane is one entry of every window."""
    ordered = _descending(_planes(m, window))
    pulled, weight = nu * ordered[0] + c * a, nu + c
    top = pulled / weight
    for following in ordered[1:]:
        pulled, weight = pulled + nu * following, weight + nu
        top = torch.where(top >= following, top, pulled / weight)
    new = m.clone()
    waiting = torch.ones_like(top, dtype=torch.bool)  # for the first entry that is a window's largest
    for plane in _planes(new, window):
        largest = (plane == ordered[0]) & waiting
        waiting &= ~largest
        plane.copy_(torch.where(largest, top, torch.minimum(plane, top)))
    return new, top


_solved.pools = True  # type: ignore[attr-defined]  # by which dladmm.compute.kernels recognises it


def _planes(x: Tensor, window: tuple[int, ...]) -> list[Tensor]:
    """Views of x, one for every place in a window; entries beyond the last whole window are in none."""
    ends = [size // w * w for size, w in zip(x.shape[2:], window, strict=True)]
    found = []
    for place in product(*map(range, window)):
        steps = [slice(i, end, w) for i, end, w in zip(place, ends, window, strict=True)]
        found.append(x[:, :, steps[0]] if len(steps) == 1 else x[:, :, steps[0], steps[1]])
    return found


def _descending(planes: list[Tensor]) -> list[Tensor]:
    """The planes with every window's entries in falling order."""
    if len(planes) > LARGEST_NETWORK:
        return list(torch.stack(planes, -1).sort(dim=-1, descending=True).values.unbind(-1))
    planes = list(planes)
    for parity in range(len(planes)):  # odd-even transposition: n rounds order n entries
        for i in range(parity % 2, len(planes) - 1, 2):
            first, second = planes[i], planes[i + 1]
            planes[i], planes[i + 1] = torch.maximum(first, second), torch.minimum(first, second)
    return planes


def _nearest_in_simplex(x: Tensor, allowed: Tensor) -> Tensor:
    """``argmin_s ||s - x||^2`` over s >= 0 that sum to 1 and are zero where not ``allowed``, along the last axis."""
    x = torch.where(allowed, x, -torch.inf)
    ordered = x.sort(dim=-1, descending=True).values
    counts = torch.arange(1, x.shape[-1] + 1, device=x.device, dtype=x.dtype)
    finite = torch.where(ordered.isinf(), 0.0, ordered)
    threshold = (finite.cumsum(-1) - 1) / counts
    last = ((ordered > threshold).long() * counts.long()).argmax(-1, keepdim=True)
    return (x - threshold.gather(-1, last)).clamp_min(0.0)
