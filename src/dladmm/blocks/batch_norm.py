"""Batch normalisation as a link of its own: ``g(v) = gain (v - mean) / sqrt(var + eps) + shift`` per unit."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dladmm.blocks.generic import Generic
from dladmm.compute.execution import on_gpu
from dladmm.compute.work import Work
from dladmm.solvers.subproblems import Params

LAYERS: tuple[type[nn.Module], ...] = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


MOST_KEPT = 1 << 22
"""Entries of a batch whose statistics are kept until the next one."""


class _Known(NamedTuple):
    """The batch that was normalised last, as it was then, and its statistics."""

    v: Tensor
    version: int
    mean: Tensor
    inverse: Tensor


class BatchNorm(Generic):
    """``nn.BatchNorm1d``, 2d or 3d; in training mean and variance are those of the rows at hand, in every mode.

    g couples the rows: its Jacobian takes the mean of a change, and its part along the normalised values, out of it.
    That Jacobian is symmetric up to the gain, so that targets are handed down, and changes handed up, in a few passes
    over v and without a graph of autograd. The subproblems of the other modes are those of
    :class:`~dladmm.blocks.Generic`.

    Shapes: v is (N, units) or (N, channels, ...).

    Parameters
    ----------
    module : nn.BatchNorm1d, nn.BatchNorm2d or nn.BatchNorm3d
        The layer, with running statistics.
    """

    normalises = True
    records_gradients = True

    def __repr__(self) -> str:
        return f"BatchNorm({self.module!r})"

    @classmethod
    def from_module(cls, layer: nn.Module) -> BatchNorm | None:
        """The block of a layer that keeps running statistics; None of any other."""
        return cls(layer) if type(layer) in LAYERS and layer.running_mean is not None else None

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._known: _Known | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_known": None}

    def forward(self, params: Params, v: Tensor) -> Tensor:
        if not self.module.training:
            return super().forward(params, v)
        gain, shift = (self._given(params, name, v) for name in ("weight", "bias"))
        output, mean, inverse = torch.native_batch_norm(v, gain, shift, None, None, True, 0.0, self._eps)
        # Kept for what a sweep asks next; on a GPU it may be recorded in parts, whose memory is not shared
        few = v.numel() <= MOST_KEPT and not on_gpu(v) and not v.requires_grad
        self._known = _Known(v, v._version, mean, inverse) if few else None
        return output

    @property
    def _eps(self) -> float:
        return float(self.module.eps)  # type: ignore[arg-type]

    def observe(self, params: Params, v: Tensor) -> None:
        """Mean and variance of all rows, the variance without Bessel's correction: as training has them."""
        own = self.module.to(device=v.device, dtype=v.dtype)
        _, mean, inverse = self._normalised(v)
        own.running_mean.copy_(mean)  # type: ignore[operator]
        own.running_var.copy_(inverse.square().reciprocal_().sub_(self._eps).clamp_min_(0))  # type: ignore[operator]

    def _given(self, params: Params, name: str, v: Tensor) -> Tensor | None:
        """A parameter, trained or frozen; None where the layer has none."""
        if name in params:
            return params[name]
        own = getattr(self.module, name)
        return None if own is None else own.detach().to(v)

    def _normalised(self, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``(v - mean) / deviation``, and mean and ``1 / deviation`` with one entry per unit.

        By torch's own kernels: ``torch.var_mean`` over rows takes ten times as long on a CPU.
        """
        return torch.native_batch_norm(v, None, None, None, None, True, 0.0, self._eps)

    def _statistics(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and ``1 / deviation`` of v."""
        known = self._known
        if known is not None and known.v is v and known.version == v._version:
            return known.mean, known.inverse
        _, mean, inverse = self._normalised(v)
        return mean, inverse

    def _backward(
        self, v: Tensor, change: Tensor, gain: Tensor | None, wanted: list[bool]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """``J_v^T change``, ``<n, change>`` and ``<1, change>``, n the normalised v; those that are ``wanted``."""
        found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_batch_norm_backward(
            change, v, gain, None, None, *self._statistics(v), True, self._eps, wanted
        )
        return found

    def _times_gain(self, params: Params, x: Tensor) -> Tensor:
        gain = self._given(params, "weight", x)
        return x if gain is None else x * gain.view(-1, *[1] * (x.ndim - 2))

    def pull_back(
        self, params: Params, v: Tensor, prediction: Tensor, gradient: Tensor, work: Work
    ) -> Tensor:
        return self._backward(v, gradient, self._given(params, "weight", v), [True, False, False])[0]

    def push_input(self, params: Params, v: Tensor, move: Tensor, prediction: Tensor) -> Tensor:
        return self._times_gain(params, self._backward(v, move, None, [True, False, False])[0])

    def push_parameters(self, params: Params, moves: Params, v: Tensor, prediction: Tensor) -> Tensor:
        gain, shift = moves["weight"], moves["bias"]
        return torch.native_batch_norm(v, gain, shift, None, None, True, 0.0, self._eps)[0]

    def parameter_gradient(
        self, params: Params, v: Tensor, prediction: Tensor, gradient: Tensor, work: Work
    ) -> Params:
        _, of_gain, of_shift = self._backward(
            v, gradient, self._given(params, "weight", v), [False, True, True]
        )
        found = {"weight": of_gain, "bias": of_shift}
        return {name: found[name] for name in params}
