"""Dropout inside the network: an activation whose outputs are partly dropped while a sweep looks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dladmm.activations import Activation
from dladmm.blocks.base import Support
from dladmm.blocks.elementwise import Elementwise
from dladmm.compute.work import Work
from dladmm.solvers.subproblems import Anchor, Params, Step, Term

CHANNELS: tuple[type[nn.Module], ...] = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
"""Layers that drop whole channels of a sample."""


class Dropout(Elementwise):
    """``g(z) = m f(z) / (1 - p)``, m 0 or 1: an entry is dropped with probability p.

    A mask is drawn for a sweep (:meth:`dladmm.Chain.drawing`) and is a function of its number: the forward pass, the
    gradients and the updates of one sweep see the same one. Outside of sweeps nothing is dropped.

    Parameters
    ----------
    activation : Activation or str
        f.
    layer : nn.Dropout, nn.Dropout1d, nn.Dropout2d or nn.Dropout3d
        Says p, and whether entries or whole channels are dropped.
    """

    kind = "dropout"

    def __init__(self, activation: Activation | str, layer: nn.Module) -> None:
        super().__init__(activation)
        self.layer, self.p = type(layer), float(layer.p)  # type: ignore[arg-type]
        self.support = self.support & ~(Support.CHUNKS | Support.RECORDING)  # a mask is that of all rows

    draws = True

    def __repr__(self) -> str:
        return f"Dropout({self.activation.name}, p={self.p:g})"

    def _factor(self, v: Tensor) -> Tensor | None:
        """What f(z) is multiplied by, 0 or ``1 / (1 - p)``; None where nothing is dropped."""
        if self.drawn is None or self.p == 0.0:
            return None
        p = self.p * self.drawn.share
        shape = (*v.shape[:2], *[1] * (v.ndim - 2)) if self.layer in CHANNELS else v.shape
        generator = torch.Generator(device=v.device).manual_seed(self.drawn.seed)
        chances = torch.rand(shape, generator=generator, dtype=torch.float32, device=v.device)
        return ((chances >= p) / (1 - p)).to(v.dtype)

    def forward(self, params: Params, v: Tensor) -> Tensor:
        output, factor = super().forward(params, v), self._factor(v)
        return output if factor is None else output * factor

    def write_forward(self, params: Params, v: Tensor, out: Tensor) -> Tensor:
        output, factor = super().write_forward(params, v, out), self._factor(v)
        return output if factor is None else output.mul_(factor)

    def differentiable_forward(self, params: Params, v: Tensor) -> Tensor:
        output, factor = super().differentiable_forward(params, v), self._factor(v)
        return output if factor is None else output * factor

    def to_module(self, params: Params) -> nn.Module:
        made = self.layer(self.p).eval()
        return made if self.activation.name == "identity" else nn.Sequential(super().to_module(params), made)

    def update_input(self, params: Params, v: Tensor, anchor: Anchor, term: Term, work: Work) -> list[Step]:
        """Kept entries: the activation's own subproblem with a scaled target; dropped ones are at the anchor."""
        factor = self._factor(v)
        if factor is None:
            return super().update_input(params, v, anchor, term, work)
        assert self.drawn is not None
        scale = 1 / (1 - self.p * self.drawn.share)
        found, prediction = v.clone(), term.prediction.clone()
        inner = Term(term.weight * scale**2, term.target / scale, prediction)
        # Of copies, which are this method's own: a work that applies at once
        super().update_input(params, found, anchor, inner, Work(work.options, how=work.how))
        new = torch.where(factor.expand_as(v) > 0, found, anchor.value)
        work.assign(v, new)
        work.assign(term.prediction, self.forward(params, new))
        return [Step("z", None, None)]

    def pull_back(
        self, params: Params, v: Tensor, prediction: Tensor, gradient: Tensor, work: Work
    ) -> Tensor:
        factor = self._factor(v)
        dropped = gradient if factor is None else gradient * factor
        return super().pull_back(params, v, prediction, dropped, work)

    def push_input(self, params: Params, v: Tensor, move: Tensor, prediction: Tensor) -> Tensor:
        pushed, factor = super().push_input(params, v, move, prediction), self._factor(v)
        return pushed if factor is None else pushed * factor
