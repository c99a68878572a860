"""What `load` returns, `ImageData` or `GraphData`, and random splits of it that are the same on every machine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dladmm.base.errors import InputError
from dladmm.base.scipy_sparse import sparse

Mask = NDArray[np.bool_]


def _check(holds: bool, argument: str, got: object, allowed: str) -> None:
    if not holds:
        raise InputError(f"{argument} is {got}; it must be {allowed}")


def _check_labels(name: str, y: torch.Tensor, rows: int, n_classes: int) -> None:
    _check(y.dtype == torch.int64, name, f"of dtype {y.dtype}", "of dtype torch.int64")
    _check(y.shape == (rows,), name, f"of shape {tuple(y.shape)}", f"of shape ({rows},), one label per row")
    if rows:
        low, high = int(y.min()), int(y.max())
        _check(low >= 0 and high < n_classes, name, f"in {low}..{high}", f"in 0..{n_classes - 1}")


@dataclass(frozen=True, eq=False, repr=False)
class ImageData:
    """Labelled samples, split into training, test and possibly validation samples.

    Images are flattened, one per row, with pixels in [0, 1]. `moons` and `spirals` are points in the plane.

    Attributes
    ----------
    x_train, x_test : Tensor of shape (n_samples, n_features), float32
    y_train, y_test : Tensor of shape (n_samples,), int64
        Classes 0..n_classes-1.
    n_classes : int
    x_val, y_val : Tensor or None
        Validation samples, where the data set has them.
    image_shape : (height, width) or None
    name : str
    """

    x_train: torch.Tensor
    y_train: torch.Tensor
    x_test: torch.Tensor
    y_test: torch.Tensor
    n_classes: int
    x_val: torch.Tensor | None = None
    y_val: torch.Tensor | None = None
    image_shape: tuple[int, int] | None = None
    name: str = "data"

    def __post_init__(self) -> None:
        both = (self.x_val is None) == (self.y_val is None)
        _check(both, "x_val, y_val", "given one without the other", "both given or both None")
        for part, x, y in self._parts():
            _check(x.ndim == 2, f"x_{part}", f"of shape {tuple(x.shape)}", "of shape (rows, features)")
            _check(x.dtype == torch.float32, f"x_{part}", f"of dtype {x.dtype}", "of dtype torch.float32")
            _check(
                x.shape[1] == self.n_features, f"x_{part}", f"{x.shape[1]} wide", f"{self.n_features} wide"
            )
            _check_labels(f"y_{part}", y, x.shape[0], self.n_classes)

    def _parts(self) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
        parts = [("train", self.x_train, self.y_train), ("test", self.x_test, self.y_test)]
        if self.x_val is not None and self.y_val is not None:
            parts.append(("val", self.x_val, self.y_val))
        return parts

    @property
    def n_features(self) -> int:
        return int(self.x_train.shape[1])

    def __repr__(self) -> str:
        rows = ", ".join(f"{len(y)} {part}" for part, _, y in self._parts())
        return f"ImageData({self.name}: {rows}, {self.n_features} features, {self.n_classes} classes)"


@dataclass(frozen=True, eq=False, repr=False)
class GraphData:
    """A graph with features and a label for every node, and masks of training, validation and test nodes.

    The field names are PyG's; `to_pyg` and `from_pyg` convert.

    Attributes
    ----------
    x : scipy.sparse.csr_array or Tensor of shape (n_nodes, n_features), float32
        Node features; `x_dense()` is always a tensor.
    edge_index : Tensor of shape (2, E), int64
        Every undirected edge in both directions.
    y : Tensor of shape (n_nodes,), int64
        Classes 0..n_classes-1.
    train_mask, val_mask, test_mask : Tensor of shape (n_nodes,), bool
    n_classes : int
    name : str
    """

    x: sparse.csr_array | torch.Tensor
    edge_index: torch.Tensor
    y: torch.Tensor
    train_mask: torch.Tensor
    val_mask: torch.Tensor
    test_mask: torch.Tensor
    n_classes: int
    name: str = field(default="graph")

    def __post_init__(self) -> None:
        known = isinstance(self.x, (sparse.csr_array, torch.Tensor))
        _check(known, "x", type(self.x).__name__, "a scipy.sparse.csr_array or a torch.Tensor")
        _check(self.x.ndim == 2, "x", f"of shape {tuple(self.x.shape)}", "of shape (nodes, features)")
        nodes, edges = self.n_nodes, self.edge_index
        _check(edges.dtype == torch.int64, "edge_index", f"of dtype {edges.dtype}", "of dtype torch.int64")
        pairs = edges.ndim == 2 and edges.shape[0] == 2
        _check(pairs, "edge_index", f"of shape {tuple(edges.shape)}", "of shape (2, edges)")
        if edges.numel():
            low, high = int(edges.min()), int(edges.max())
            _check(low >= 0 and high < nodes, "edge_index", f"in {low}..{high}", f"in 0..{nodes - 1}")
        _check_labels("y", self.y, nodes, self.n_classes)
        for part in ("train_mask", "val_mask", "test_mask"):
            mask = getattr(self, part)
            fits = mask.dtype == torch.bool and mask.shape == (nodes,)
            _check(fits, part, f"{mask.dtype} {tuple(mask.shape)}", f"torch.bool of shape ({nodes},)")

    @property
    def n_nodes(self) -> int:
        return int(self.x.shape[0])

    @property
    def n_features(self) -> int:
        return int(self.x.shape[1])

    @property
    def n_edges(self) -> int:
        """Directed edges, as in the paper's table: each undirected edge counts twice."""
        return int(self.edge_index.shape[1])

    def __repr__(self) -> str:
        split = "/".join(str(int(m.sum())) for m in (self.train_mask, self.val_mask, self.test_mask))
        return (
            f"GraphData({self.name}: {self.n_nodes} nodes, {self.n_edges} directed edges, "
            f"{self.n_features} features, {self.n_classes} classes, {split} train/val/test)"
        )

    def x_dense(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The features as a dense tensor (n_nodes, n_features) (Coauthor Physics: 1.2 GB in float32)."""
        if isinstance(self.x, torch.Tensor):
            return self.x.to(dtype)
        return torch.from_numpy(self.x.toarray()).to(dtype)

    def x_sparse(self) -> torch.Tensor:
        """The features as a coalesced torch sparse COO tensor (torch's CSR still warns that it is beta)."""
        if isinstance(self.x, torch.Tensor):
            return self.x.to_sparse().coalesce()
        matrix = self.x.tocoo()
        index = torch.from_numpy(np.stack([matrix.row, matrix.col]).astype(np.int64))
        values = torch.from_numpy(np.array(matrix.data))
        return torch.sparse_coo_tensor(index, values, size=self.x.shape, check_invariants=True).coalesce()

    def adjacency(self) -> sparse.csr_array:
        """A with A[i, j] = 1 for an edge i -> j (float32, n x n); a repeated edge still gives 1."""
        row, col = self.edge_index.cpu().numpy()
        ones = np.ones(len(row), dtype=np.float32)
        matrix = sparse.csr_array(sparse.coo_array((ones, (row, col)), shape=(self.n_nodes, self.n_nodes)))
        matrix.data[:] = 1.0
        return matrix

    def resplit(
        self, *, labels_per_class: int, n_test: int | None = None, n_val: int = 0, seed: int = 0
    ) -> GraphData:
        """The same graph with a new random split; `n_test` None means all remaining nodes."""
        masks = split_nodes(
            self.y.cpu().numpy(),
            self.n_classes,
            labels_per_class=labels_per_class,
            n_test=n_test,
            n_val=n_val,
            seed=seed,
        )
        train, val, test = (torch.from_numpy(mask) for mask in masks)
        return replace(self, train_mask=train, val_mask=val, test_mask=test)

    def to_pyg(self, *, sparse_x: bool = False) -> Any:
        """A `torch_geometric.data.Data`; `x` is dense, or torch sparse COO with `sparse_x`."""
        from dladmm.datasets._pyg import to_pyg

        return to_pyg(self, sparse_x=sparse_x)

    @classmethod
    def from_pyg(cls, data: Any, *, name: str = "graph") -> GraphData:
        """A GraphData from a PyG `Data`. Missing masks are all False; `resplit` draws new ones."""
        from dladmm.datasets._pyg import from_pyg

        return from_pyg(data, name=name)


def whole_number(value: object, name: str, *, least: int = 0) -> int:
    """`value` as an int of at least `least`, or InputError; numpy integers are accepted, bool and float are not."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InputError(f"{name} is {value!r}; it must be a whole number of at least {least}")
    return int(value)


def bounded_number(value: object, name: str, *, least: float = 0.0, most: float = 1.0) -> float:
    """`value` as a float within [least, most], or InputError."""
    number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not number or not least <= value <= most:  # type: ignore[operator]
        raise InputError(f"{name} is {value!r}; it must be a number from {least:g} to {most:g}")
    return float(value)  # type: ignore[arg-type]


def stable_order(n: int, seed: int) -> NDArray[np.int64]:
    """A random order of 0..n-1.

    It sorts the raw output of PCG64, which numpy guarantees never to change; `Generator.permutation` has no such
    guarantee, and the split of a benchmark is identified by its seed.
    """
    bits = np.random.PCG64(whole_number(seed, "seed")).random_raw(n)
    return np.argsort(bits, kind="stable").astype(np.int64)


def split_nodes(
    y: NDArray[np.int64], n_classes: int, *, labels_per_class: int, n_test: int | None, n_val: int, seed: int
) -> tuple[Mask, Mask, Mask]:
    """Masks (nodes,) for training, validation and test, from labels y (nodes,).

    `labels_per_class` nodes of every class train; test, then validation nodes are drawn from the rest, so the test
    nodes do not depend on `n_val`. `n_test` None takes every node left after training and validation.
    """
    labels_per_class = whole_number(labels_per_class, "labels_per_class", least=1)
    n_val = whole_number(n_val, "n_val")
    order = stable_order(len(y), seed)
    train = np.zeros(len(y), dtype=bool)
    for label in range(n_classes):
        members = order[y[order] == label]
        if len(members) < labels_per_class:
            raise InputError(
                f"labels_per_class is {labels_per_class}; class {label} has {len(members)} nodes, "
                "ask for no more than the smallest class has"
            )
        train[members[:labels_per_class]] = True
    rest = order[~train[order]]
    wanted = len(rest) - n_val if n_test is None else whole_number(n_test, "n_test")
    if wanted < 0 or wanted + n_val > len(rest):
        raise InputError(
            f"n_test is {n_test} and n_val {n_val}; {len(rest)} nodes are left after the {int(train.sum())} "
            "training nodes, ask for no more than that"
        )
    test, val = np.zeros_like(train), np.zeros_like(train)
    test[rest[:wanted]] = True
    val[rest[wanted : wanted + n_val]] = True
    return train, val, test
