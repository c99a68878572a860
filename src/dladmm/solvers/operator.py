"""A linear operator as the least-squares solver sees it: by its products, sums and Gram matrix."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor


class Operator(Protocol):
    """A, by what the solver needs of it. Every sum is over the rows of all ranks.

    ``W`` is seen as (outputs, inputs), or as (groups, outputs, inputs) where A differs from group to group.
    """

    weight: float
    groups: int

    @property
    def samples(self) -> float | Tensor:
        """How many rows A has, each as often as it counts."""

    @property
    def n_inputs(self) -> int:
        """Columns of A."""

    @property
    def gram_pays(self) -> bool:
        """Whether products with the Gram matrix are cheaper than products with the rows."""

    def adjoint(self, E: Tensor, with_column_sums: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """``E^T A`` of any E, the column sums of E and, where asked for, those of A."""

    def gradient(self, with_column_sums: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """``E^T A``, the column sums of E and, where asked for, those of A."""

    def gram(self) -> Tensor:
        """``A^T A`` in float64."""

    def column_sums(self) -> Tensor:
        """``1^T A`` in float64."""

    def products(self, heading: Tensor) -> Any:
        """``A heading^T``, for :meth:`squared` and :meth:`advance`."""

    def squared(self, products: Any) -> Tensor:
        """``||A heading^T||^2``."""

    def advance(self, products: Any, multiple: Tensor | None, shift: Tensor | None) -> None:
        """Move the cached prediction by ``multiple A heading^T + 1 shift^T``; ``products`` may be None."""


def grouped(W: Tensor, A: Operator) -> Tensor:
    """W as (outputs, inputs), or as (groups, outputs, inputs)."""
    return W.reshape(-1, A.n_inputs) if A.groups == 1 else W.reshape(A.groups, -1, A.n_inputs)
