"""The chain of the paper's GCN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from dladmm.activations import Activation
from dladmm.blocks import GraphConv
from dladmm.compute.sparse import SparseMatrix
from dladmm.network.chain import Chain, pairs_of_widths


def gcn(
    widths: Sequence[int],
    adjacency: SparseMatrix,
    activation: str | dict[str, Any] | Activation = "relu",
    *,
    rows: Tensor | None = None,
    held: bool = False,
    propagated: bool = False,
) -> Chain:
    """The chain of the paper's GCN (Problem 5): ``Z_l = f(A~ Z_{l-1} W_l)``, the last layer linear; for one graph.

    Parameters
    ----------
    widths : sequence of int
        Number of input features, widths of the hidden layers, number of classes.
    adjacency : SparseMatrix of shape (n_nodes, n_nodes)
        The normalised adjacency A~.
    activation : str, dict or Activation, default "relu"
    rows : Tensor of shape (n,), optional
        Indices of the nodes whose rows of Z_l are variables; the others follow the forward pass, or with ``held`` stay
        as they were at the start. None means all (see :class:`~dladmm.blocks.GraphConv`).
    propagated : bool, default False
        Whether the input will be ``A~ X`` instead of X.

    Returns
    -------
    Chain
    """
    pairs = pairs_of_widths(widths)
    last = len(pairs) - 1
    return Chain(
        [
            GraphConv(
                n_in,
                n_out,
                "identity" if l == last else activation,
                None if propagated and l == 0 else adjacency,
                rows,
                held,
            )
            for l, (n_in, n_out) in enumerate(pairs)
        ]
    )
