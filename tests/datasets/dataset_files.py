"""Small valid files in every format the library reads, made from scratch."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
from typing import Any

import numpy as np
from scipy import sparse


def idx(array: np.ndarray) -> bytes:
    header = bytes((0, 0, 8, array.ndim)) + b"".join(struct.pack(">I", size) for size in array.shape)
    return header + array.astype(np.uint8).tobytes()


def image_files(train: int = 30, test: int = 10, *, packed: bool = True, seed: int = 0) -> dict[str, bytes]:
    """The four idx files of a tiny data set of 4 x 4 images, by name without .gz."""
    rng = np.random.default_rng(seed)
    files = {}
    for part, rows in (("train", train), ("t10k", test)):
        files[f"{part}-images-idx3-ubyte"] = idx(rng.integers(256, size=(rows, 4, 4)))
        files[f"{part}-labels-idx1-ubyte"] = idx(rng.integers(10, size=rows))
    return {name: gzip.compress(data, mtime=0) if packed else data for name, data in files.items()}


# Pickles as Python 2 wrote them


def _number(value: int) -> bytes:
    if 0 <= value < 2**8:
        return b"K" + struct.pack("<B", value)
    return b"M" + struct.pack("<H", value) if 0 <= value < 2**16 else b"J" + struct.pack("<i", value)


def _string(value: bytes) -> bytes:
    length = len(value)
    return (b"U" + struct.pack("<B", length) if length < 256 else b"T" + struct.pack("<i", length)) + value


def _array(array: np.ndarray) -> bytes:
    shape = b"(" + b"".join(_number(size) for size in array.shape) + b"t"
    code = f"{array.dtype.kind}{array.dtype.itemsize}".encode()
    made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    dtype = b"cnumpy\ndtype\n" + _string(code) + b"K\x00K\x01\x87R"
    dtype += b"(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    return made + b"(K\x01" + shape + dtype + b"\x89" + _string(array.tobytes()) + b"tb"


def pickled_array(array: np.ndarray) -> bytes:
    return b"\x80\x02" + _array(array) + b"."


def pickled_rows(matrix: sparse.csr_array) -> bytes:
    state = b"".join(
        (
            _string(b"format") + b"q\x04" + _string(b"csr"),
            _string(b"_shape") + _number(matrix.shape[0]) + _number(matrix.shape[1]) + b"\x86",
            _string(b"indptr") + _array(matrix.indptr.astype(np.int32)),
            _string(b"has_sorted") + b"\x88",
            _string(b"indices") + _array(matrix.indices.astype(np.int32)),
            _string(b"maxprint") + b"K2",
            _string(b"data") + _array(matrix.data.astype(np.float32)),
        )
    )
    return b"\x80\x02cscipy.sparse.csr\ncsr_matrix\nq\x01)\x81q\x02}q\x03(" + state + b"ub."


def pickled_graph(neighbours: dict[int, list[int]]) -> bytes:
    body = b""
    for node, others in neighbours.items():
        body += _number(node) + b"]r" + struct.pack("<I", node + 10)
        if len(others) == 1:
            body += _number(others[0]) + b"a"
        elif others:
            body += b"(" + b"".join(_number(other) for other in others) + b"e"
    return b"\x80\x02ccollections\ndefaultdict\nq\x01c__builtin__\nlist\nq\x02\x85Rq\x03(" + body + b"u."


def planetoid_files(seed: int = 0) -> dict[str, bytes]:
    """A graph of 3 classes: 600 nodes outside the test set, 10 test nodes, and node 605 left out."""
    rng = np.random.default_rng(seed)
    first, train, classes, width = 600, 9, 3, 8
    order = rng.permutation(np.delete(np.arange(first, first + 11), 5))
    allx = sparse.random_array((first, width), density=0.2, rng=rng, format="csr", dtype=np.float32)
    tx = sparse.random_array((10, width), density=0.3, rng=rng, format="csr", dtype=np.float32)
    ally, ty = (np.eye(classes, dtype=np.int32)[np.arange(n) % classes] for n in (first, 10))
    neighbours: dict[int, list[int]] = {node: [(node + 1) % 611] for node in range(611)}
    neighbours[0] += [0, 5, 5]  # a self loop and a repeated edge
    neighbours[605] = []
    return {
        "x": pickled_rows(allx[:train]),
        "y": pickled_array(ally[:train]),
        "allx": pickled_rows(allx),
        "ally": pickled_array(ally),
        "tx": pickled_rows(tx),
        "ty": pickled_array(ty),
        "graph": pickled_graph(neighbours),
        "test.index": "".join(f"{node}\n" for node in order).encode(),
    }


def npz(arrays: dict[str, np.ndarray], *, packed: bool = False) -> bytes:
    buffer = io.BytesIO()
    (np.savez_compressed if packed else np.savez)(buffer, **arrays)
    return buffer.getvalue()


def planetoid_arrays(nodes: int = 12) -> dict[str, np.ndarray]:
    row = np.arange(nodes, dtype=np.int32)
    return {
        "features_data": np.ones(nodes, dtype=np.float32),
        "features_indices": row % 5,
        "features_indptr": np.arange(nodes + 1, dtype=np.int32),
        "features_shape": np.array([nodes, 5]),
        "labels": np.arange(nodes) % 3,
        "edge_index": np.stack([row, (row + 1) % nodes]),
        "train_index": np.arange(3),
        "val_index": np.arange(3, 6),
        "test_index": np.arange(6, 9),
        "num_classes": np.array(3),
        "filled_index": np.empty(0, dtype=np.int64),
    }


def coauthor_arrays(nodes: int = 12) -> dict[str, np.ndarray]:
    row = np.arange(nodes, dtype=np.int32)
    rows = {"data": np.full(nodes, 3.0, dtype=np.float32), "indptr": np.arange(nodes + 1, dtype=np.int32)}
    return {
        **{f"adj_{key}": value for key, value in rows.items()},
        "adj_indices": (row + 1) % nodes,
        "adj_shape": np.array([nodes, nodes]),
        **{f"attr_{key}": value for key, value in rows.items()},
        "attr_indices": row % 5,
        "attr_shape": np.array([nodes, 5]),
        "labels": np.arange(nodes) % 3,
        "class_names": np.array(["a", Bomb(), "c"], dtype=object),
    }


class Bomb:
    """Unpickling this would run code; the tests see whether anybody does."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("import builtins; builtins.dladmm_bomb = True",)


def bomb_pickle(protocol: int) -> bytes:
    return pickle.dumps(Bomb(), protocol=protocol)
