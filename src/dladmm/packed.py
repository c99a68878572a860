"""Reads a packed network (``dladmm export --packed``) and predicts with it: XOR, popcount and whole numbers.

This file needs numpy and nothing else, neither dladmm nor torch: copy it beside the packed file.

    python packed.py model.packed.npz rows.npy          # one prediction per line

A packed file is an npz archive without pickled objects. Weights are bits (np.packbits along the inputs): W is the sum
of ``2**j (2 bit_j - 1)`` over its planes j, and zero where a mask says so. A hidden layer gives the number of
thresholds that its whole-numbered sum has reached; that number, in bits, is the next layer's input.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

FORMAT = 1
MOST_UNITS, MOST_LAYERS, MOST_PLANES = 1 << 20, 64, 8
AT_ONCE = 1 << 22
"""Words that are compared at a time."""


class PackedNetwork:
    """A packed network.

    Parameters
    ----------
    path : str or path
        The file that ``dladmm export --packed`` wrote.
    """

    def __init__(self, path: Any) -> None:
        with np.load(path, allow_pickle=False) as file:
            meta = _meta(file)
            self.n_in, self.unit = meta["n_in"], float(meta["unit"])
            self.classes = None if meta["classes"] is None else np.array(meta["classes"])
            self.scale = float(meta["scale"])
            self.layers = [_Layer(file, l, sizes) for l, sizes in enumerate(meta["layers"])]
            last = self.layers[-1].n_out
            self.weights = _array(file, "last_weights", np.int32, (meta["n_outputs"], last))
            self.bias = _array(file, "last_bias", np.int64, (meta["n_outputs"],))
        self._size = sum(layer.n_bytes for layer in self.layers) + self.weights.nbytes + self.bias.nbytes

    def codes(self, X: Any) -> np.ndarray[Any, Any]:
        """The last hidden layer's numbers (N, units) for rows X (N, features): how many thresholds were reached."""
        rows = self.whole(X)
        found = self.layers[0].reached(rows @ self.layers[0].matrix().T.astype(np.float64))
        for layer, before in zip(self.layers[1:], self.layers, strict=False):
            found = layer.reached(layer.sums(found, before.planes_out))
        return found

    def whole(self, X: Any) -> np.ndarray[Any, Any]:
        """Rows as whole multiples of the unit that the network was exported with."""
        rows = np.asarray(X)
        if rows.ndim != 2 or rows.shape[1] != self.n_in:
            raise ValueError(f"X must have shape (rows, {self.n_in}), got {rows.shape}.")
        if rows.dtype.kind in "iub":
            return rows.astype(np.float64)
        found = np.rint(rows.astype(np.float64) / self.unit)
        if not np.allclose(found * self.unit, rows, rtol=0, atol=1e-3 * self.unit):
            raise ValueError(f"X must hold whole multiples of {self.unit:g}, or whole numbers.")
        return found

    def decision_function(self, X: Any) -> np.ndarray[Any, Any]:
        """The network's outputs (N, n_outputs): whole numbers times a power of two, float64."""
        levels = 2 * self.codes(X).astype(np.int64) - (self.layers[-1].levels - 1)
        found: np.ndarray[Any, Any] = (levels @ self.weights.T.astype(np.int64) + self.bias) * self.scale
        return found

    def predict(self, X: Any) -> np.ndarray[Any, Any]:
        """The class of every row of X (N, features); of a network for numbers its outputs."""
        output = self.decision_function(X)
        if self.classes is None:
            return output
        found: np.ndarray[Any, Any] = self.classes[output.argmax(1)]
        return found

    @property
    def n_bytes(self) -> int:
        """Bytes of weights and thresholds."""
        return self._size

    def __repr__(self) -> str:
        widths = "-".join(
            str(n) for n in (self.n_in, *(layer.n_out for layer in self.layers), len(self.bias))
        )
        return f"PackedNetwork({widths}, {self.n_bytes:,} bytes)"


class _Layer:
    """Bits of the weights, thresholds, and how many levels come out."""

    def __init__(self, file: Any, l: int, sizes: dict[str, Any]) -> None:
        self.n_in, self.n_out, self.planes, self.levels = (
            sizes[k] for k in ("n_in", "n_out", "planes", "levels")
        )
        self.planes_out = max(1, (self.levels - 1).bit_length())
        width = -(-self.n_in // 8)
        self.signs = _array(file, f"signs_{l}", np.uint8, (self.planes, self.n_out, width))
        self.mask = _array(file, f"mask_{l}", np.uint8, (self.n_out, width)) if sizes["masked"] else None
        self.thresholds = _array(file, f"thresholds_{l}", np.int32, (self.levels - 1, self.n_out))
        self.n_bytes = (
            self.signs.nbytes + self.thresholds.nbytes + (0 if self.mask is None else self.mask.nbytes)
        )

    def matrix(self) -> np.ndarray[Any, Any]:
        """The weights as whole numbers (n_out, n_in)."""
        bits = np.unpackbits(self.signs, axis=-1, count=self.n_in).astype(np.int32)
        found: np.ndarray[Any, Any] = ((2 * bits - 1) * (1 << np.arange(self.planes))[:, None, None]).sum(0)
        if self.mask is not None:
            found = found * np.unpackbits(self.mask, axis=-1, count=self.n_in)
        return found

    def sums(self, numbers: np.ndarray[Any, Any], planes: int) -> np.ndarray[Any, Any]:
        """``W q`` for inputs q = 2 * number - (2**planes - 1) by XOR and popcount, (N, n_out)."""
        mask = None if self.mask is None else _words(self.mask)
        kept = self.n_in if mask is None else _count(mask).sum(-1, dtype=np.int64)
        found = np.zeros((len(numbers), self.n_out), dtype=np.int64)
        for i in range(planes):
            rows = _words(np.packbits((numbers >> i) & 1, axis=1))
            for j in range(self.planes):
                found += self._agreement(rows, _words(self.signs[j]), mask, kept) << (i + j)
        return found

    def _agreement(self, rows: Any, weights: Any, mask: Any, kept: Any) -> np.ndarray[Any, Any]:
        found = np.empty((len(rows), self.n_out), dtype=np.int64)
        step = max(1, AT_ONCE // max(1, weights.size))
        for begin in range(0, len(rows), step):
            different = rows[begin : begin + step, None] ^ weights
            if mask is not None:
                different &= mask
            found[begin : begin + step] = kept - 2 * _count(different).sum(-1, dtype=np.int64)
        return found

    def reached(self, sums: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """How many thresholds every sum has reached, uint8 (N, n_out)."""
        found = np.zeros(sums.shape, dtype=np.uint8)
        for threshold in self.thresholds:
            found += sums >= threshold
        return found


def _words(packed: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Bytes as words of 64 bits, filled up with zeros."""
    missing = -packed.shape[-1] % 8
    whole = np.pad(packed, [(0, 0)] * (packed.ndim - 1) + [(0, missing)])
    return np.ascontiguousarray(whole).view(np.uint64)


def _count(words: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Bits that are set."""
    if hasattr(np, "bitwise_count"):
        found: np.ndarray[Any, Any] = np.bitwise_count(words)
        return found
    table = np.array([bin(i).count("1") for i in range(256)], dtype=np.uint8)
    each = table[np.ascontiguousarray(words).view(np.uint8)].reshape(*words.shape, 8)
    counted: np.ndarray[Any, Any] = each.sum(-1, dtype=np.uint8)
    return counted


def _array(file: Any, name: str, dtype: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    if name not in file.files:
        raise ValueError(f"the packed file lacks {name}.")
    found: np.ndarray[Any, Any] = file[name]
    if found.dtype != dtype or found.shape != shape:
        raise ValueError(
            f"{name} is {found.dtype} {found.shape} in the packed file, not {np.dtype(dtype)} {shape}."
        )
    return found


def _meta(file: Any) -> dict[str, Any]:
    """The description of the network, every number of it within bounds."""
    if "meta" not in file.files:
        raise ValueError("this is no packed network: it has no description.")
    try:
        meta: dict[str, Any] = json.loads(bytes(file["meta"]).decode("utf-8"))
        n_in, layers = meta["n_in"], meta["layers"]
        wrong = meta["format"] != FORMAT or not 1 <= len(layers) <= MOST_LAYERS
        for sizes in layers:
            numbers = [sizes[key] for key in ("n_in", "n_out", "planes", "levels")]
            wrong |= not all(type(n) is int and n >= 1 for n in numbers) or max(numbers) > MOST_UNITS
            wrong |= sizes["planes"] > MOST_PLANES or not 2 <= sizes["levels"] <= 256 or sizes["n_in"] != n_in
            wrong |= type(sizes["masked"]) is not bool
            n_in = sizes["n_out"]
        outputs, classes = meta["n_outputs"], meta["classes"]
        wrong |= (
            type(outputs) is not int or not 1 <= outputs <= MOST_UNITS or not 0 < float(meta["unit"]) < 1e9
        )
        wrong |= classes is not None and len(classes) != outputs
        wrong |= not np.isfinite(float(meta["scale"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"this is no packed network: {error!r}") from error
    if wrong:
        raise ValueError(
            "this is no packed network that this reader knows: its description is out of bounds."
        )
    return meta


def main() -> None:
    """Print the predictions for the rows of an npy file."""
    model, rows = sys.argv[1:]
    for prediction in PackedNetwork(model).predict(np.load(rows, allow_pickle=False)):
        print(prediction)


if __name__ == "__main__":
    main()
