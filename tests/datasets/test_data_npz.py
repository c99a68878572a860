from __future__ import annotations

import builtins
import struct

import numpy as np
import pytest
from dataset_files import coauthor_arrays, npz

from dladmm.base.errors import DataError
from dladmm.datasets.npz import parse_npy, parse_npz

ARRAYS = {
    "i": np.arange(6, dtype=np.int32).reshape(2, 3),
    "f": np.asfortranarray(np.arange(6, dtype=np.float64).reshape(2, 3)),
    "scalar": np.array(7),
    "none": np.empty(0, dtype=np.float32),
    "bytes": np.arange(3, dtype=np.uint8),
}


@pytest.mark.parametrize("packed", [False, True])
def test_equals_numpy(packed):
    arrays = parse_npz(npz(ARRAYS, packed=packed), "f.npz", ARRAYS)
    for key, value in ARRAYS.items():
        assert arrays[key].dtype == value.dtype
        assert np.array_equal(arrays[key], value)


def test_object_arrays_are_never_opened():
    data = npz(coauthor_arrays())
    assert parse_npz(data, "f.npz", ["labels"])["labels"].shape == (12,)
    with pytest.raises(DataError, match=r"class_names.*other than plain numbers"):
        parse_npz(data, "f.npz", ["class_names"])
    assert not hasattr(builtins, "dladmm_bomb")


def _patched(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


STORED = npz({"i": ARRAYS["i"]})
PACKED = npz({"i": np.zeros(10**6, dtype=np.int8)}, packed=True)
ENTRY = STORED.rindex(b"PK\x01\x02")
END = len(STORED) - 22
BAD = {
    "empty": (b"", "too short"),
    "truncated": (STORED[:-1], "does not end like"),
    "oversized": (STORED + b"\0", "does not end like"),
    "not a zip": (b"x" * 100, "does not end like"),
    "too many entries": (_patched(STORED, END + 8, struct.pack("<HH", 65535, 65535)), "directory is damaged"),
    "fewer entries": (_patched(STORED, END + 8, struct.pack("<HH", 0, 0)), "longer than its 0 entries"),
    "more entries": (_patched(STORED, END + 8, struct.pack("<HH", 2, 2)), "cut short"),
    "directory elsewhere": (_patched(STORED, END + 16, struct.pack("<L", 5)), "directory is damaged"),
    "bad entry": (_patched(STORED, ENTRY, b"XX"), "damaged at byte"),
    "encrypted": (_patched(STORED, ENTRY + 8, b"\x01"), "encrypted, oddly compressed"),
    "bzip2": (_patched(STORED, ENTRY + 10, b"\x0c"), "encrypted, oddly compressed"),
    "huge": (_patched(STORED, ENTRY + 24, struct.pack("<L", 2**32 - 1)), "more than may be read"),
    "wrong size": (_patched(STORED, ENTRY + 24, struct.pack("<L", 9)), "are declared"),
    "runs past the end": (_patched(STORED, ENTRY + 20, struct.pack("<L", 2**30)), "runs past the end"),
    "wrong place": (_patched(STORED, ENTRY + 42, struct.pack("<L", 7)), "wrong place"),
    "place beyond": (_patched(STORED, ENTRY + 42, struct.pack("<L", 2**31)), "wrong place"),
    "flipped bit": (_patched(STORED, ENTRY - 1, b"\x7f"), "CRC-32"),
    "bomb": (
        _patched(PACKED, PACKED.rindex(b"PK\x01\x02") + 24, struct.pack("<L", 1000)),
        "more than the allowed 1,000",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_damage_is_named(case):
    data, message = BAD[case]
    with pytest.raises(DataError, match=rf"f\.npz: .*{message}"):
        parse_npz(data, "f.npz", ["i"])


def test_missing_arrays_and_repeated_names():
    with pytest.raises(DataError, match=r"no array 'j'; it holds i\.npy"):
        parse_npz(STORED, "f.npz", ["j"])
    twice = npz({"i": ARRAYS["i"], "j": ARRAYS["i"]}).replace(b"j.npy", b"i.npy")
    with pytest.raises(DataError, match="listed twice"):
        parse_npz(twice, "f.npz", ["i"])


def _npy(header: bytes, body: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + body


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n",
        b"{'descr': '>i4', 'fortran_order': False, 'shape': (1,), }\n",
        b"{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (1,), }\n",
        b"{'descr': '<i4', 'fortran_order': False, 'shape': (-1,), }\n",
        b"{'descr': '<i4', 'fortran_order': False, 'shape': (__import__('os').getpid(),), }\n",
        b"(" * 60_000,
        b"",
    ],
)
def test_odd_npy_headers_are_refused(header):
    with pytest.raises(DataError, match="npy header is damaged"):
        parse_npy(_npy(header, bytes(4)), "f")


def test_npy_that_declares_too_much():
    huge = b"{'descr': '<f8', 'fortran_order': False, 'shape': (999999999999, 999999999999), }\n"
    with pytest.raises(DataError, match="but 4 bytes follow"):
        parse_npy(_npy(huge, bytes(4)), "f")
    with pytest.raises(DataError, match="is not an npy file"):
        parse_npy(b"\x93NUMPY\x09\x00", "f")
