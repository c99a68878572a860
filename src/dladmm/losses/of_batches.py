"""Any scalar function of a batch's outputs and targets as a loss, for the practical method alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from dladmm.base.errors import InputError, InputTypeError
from dladmm.base.parts import Parts
from dladmm.losses.base import Kind, Loss


@dataclass(frozen=True)
class BatchLoss(Loss):
    """The mean loss of a batch, ``fn(outputs, targets)``: a number, whatever it is made of.

    It need not be convex, nor treat rows independently, so it has neither H nor prox.

    Parameters
    ----------
    fn : callable
    outputs, targets : Parts
        How ``fn`` is given the flat rows: tuples and dictionaries as such, a tuple of one as its element.
    """

    name: ClassVar[str] = "batch"
    exact: ClassVar[bool] = False
    one_answer_per_row: ClassVar[bool] = False
    fn: Callable[[Any, Any], Tensor]
    outputs: Parts
    targets: Parts
    kind: Kind = "regression"
    H: float = 1.0

    def to_spec(self) -> dict[str, Any]:
        raise InputError(
            "a loss made of a Python function cannot be written to a file; pass it again on loading"
        )

    def encode(self, y: Tensor, n_outputs: int, dtype: torch.dtype) -> Tensor:
        return y.flatten(1).to(dtype) if y.ndim > 1 else y[:, None].to(dtype)

    def value(self, z: Tensor, target: Tensor) -> Tensor:
        """``fn`` of the batch."""
        outputs, targets = self.outputs.unpack(z), self.targets.unpack(target)
        one = self.outputs.names is None and len(self.outputs.shapes) == 1
        only = self.targets.names is None and len(self.targets.shapes) == 1
        found = self.fn(outputs[0] if one else outputs, targets[0] if only else targets)  # type: ignore[index]
        if not isinstance(found, Tensor):
            raise InputTypeError(f"the loss must return a tensor, got {type(found).__name__}.")
        if found.ndim > 0 and found.shape != z.shape[:1]:
            raise InputError(
                f"the loss must return one number for the batch, or one per row; got shape {tuple(found.shape)}."
            )
        return found.mean()

    def rows(self, z: Tensor, target: Tensor) -> Tensor:
        """The batch's loss, for each row."""
        return self.value(z, target).expand(len(z))

    def gradient(self, z: Tensor, target: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = z.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.value(leaf, target) * len(z), leaf)
        return gradient

    def prox(self, v: Tensor, target: Tensor, r: Tensor | float) -> Tensor:
        raise InputError("a loss of whole batches has no prox: it is for mode='streaming'.")

    def decision(self, z: Tensor) -> Tensor:
        return z
