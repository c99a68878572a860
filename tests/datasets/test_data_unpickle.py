from __future__ import annotations

import builtins
import os
import pickle
import struct
import tracemalloc

import numpy as np
import pytest
from dataset_files import bomb_pickle, pickled_array, pickled_graph, pickled_rows
from scipy import sparse

from dladmm.base.errors import DataError
from dladmm.datasets.unpickle import load


def test_reads_arrays_rows_and_graphs():
    table = np.arange(6, dtype=np.int32).reshape(3, 2)
    assert np.array_equal(load(pickled_array(table), "f"), table)
    matrix = sparse.csr_array(np.array([[0, 1.5], [2, 0]], dtype=np.float32))
    state = load(pickled_rows(matrix), "f").state
    assert np.array_equal(state[b"data"], matrix.data)
    assert np.array_equal(state[b"indptr"], matrix.indptr)
    assert state[b"_shape"] == (2, 2)
    graph = {0: [1, 2, 300], 1: [0], 2: [], 70_000: [0, 0]}
    assert load(pickled_graph(graph), "f") == graph


def _command() -> bytes:
    return b"\x80\x02cos\nsystem\nU\x04true\x85R."


MALICIOUS = {
    "os.system": _command(),
    "builtin eval": b"\x80\x02c__builtin__\neval\nU\x011\x85R.",
    "exec, protocol 2": bomb_pickle(2),
    "exec, protocol 0": bomb_pickle(0),
    "exec, protocol 4": bomb_pickle(4),
    "numpy loader": b"\x80\x02cnumpy\nload\nU\x01f\x85R.",
    "dotted name": b"\x80\x02cnumpy\nndarray.__class__\n.",
    "inst": b"\x80\x02(U\x04trueios\nsystem\n.",
    "extension": b"\x80\x02\x82\x01.",
    "persistent id": b"\x80\x02U\x01aQ.",
    "stack global": b"\x80\x02\x8c\x02os\x8c\x06system\x93.",
}


@pytest.mark.parametrize("case", MALICIOUS)
def test_malicious_pickles_are_refused(case, monkeypatch):
    monkeypatch.setattr(os, "system", lambda command: pytest.fail("the pickle ran a command"))
    with pytest.raises(DataError, match=r"ind\.cora\.x: refused at byte"):
        load(MALICIOUS[case], "ind.cora.x")
    assert not hasattr(builtins, "dladmm_bomb")


def test_the_bomb_is_live():
    """The control: the standard unpickler does run it."""
    try:
        pickle.loads(bomb_pickle(2))
        assert builtins.dladmm_bomb
    finally:
        del builtins.dladmm_bomb


ARRAY = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
F8 = b"cnumpy\ndtype\nU\x02f8K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
MANY = struct.pack("<i", 2**31 - 1)
GREEDY = {
    "huge string": (b"T" + MANY + b"abc", "2,147,483,647 bytes wanted"),
    "negative string": (b"T" + struct.pack("<i", -1), "a string of -1 bytes"),
    "8-byte bytearray": (b"\x96" + struct.pack("<Q", 2**40), "opcode 0x96"),
    "huge integer": (b"\x8b" + MANY, "opcode 0x8b"),
    "frame": (b"\x95" + struct.pack("<Q", 2**40), "opcode 0x95"),
    "huge array": (ARRAY + b"(K\x01(J" + MANY + b"J" + MANY + b"t" + F8 + b"\x89U\x00tb.", "with 0 bytes"),
    "negative array": (
        ARRAY + b"(K\x01(J\xff\xff\xff\xfft" + F8 + b"\x89U\x00tb.",
        "damaged shape",
    ),
    "ndarray made directly": (b"cnumpy\nndarray\n(J" + MANY + b"t\x85R", "never make"),
    "reconstruct with a shape": (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nJ" + MANY + b"\x85U\x01b\x87R",
        "never make",
    ),
    "object array": (ARRAY + b"(K\x01(K\x01t" + F8.replace(b"f8", b"O8") + b"\x89]tb.", "little-endian"),
    "list of lists": (ARRAY + b"(K\x01(K\x01t" + F8 + b"\x89]tb.", "damaged shape"),
    "no content": (ARRAY + b".", "array without content"),
    "too many opcodes": (b"N" * 2_000_000, "more than 1,000,000 opcodes"),
    "deep tuples": (b"N" + b"\x85" * 100_000 + b"cnumpy\ndtype\nR", "never make"),
    "keys that hash for ever": (b"}(K\x01" + b"q\x01h\x01\x86" * 60 + b"Nu.", "dict with keys"),
    "empty memo": (b"h\x07", "memo slot 7 is empty"),
    "no mark": (b"t", "no mark"),
    "empty stack": (b"\x85", "too little on the stack"),
    "mark as value": (b"(\x85", "too little on the stack"),
    "mark in the memo": (b"(q\x01", "finds something else"),
    "append to a number": (b"K\x01K\x02a", "needs a list"),
    "left over": (b"NN.", "left over"),
    "bytes after the end": (b"N.N", "bytes follow"),
    "no end": (b"N", "truncated"),
    "endless name": (b"c" + b"x" * 1000, "name without an end"),
}


@pytest.mark.parametrize("case", GREEDY)
def test_greedy_and_broken_pickles_are_refused_cheaply(case):
    body, message = GREEDY[case]
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=message):
            load(b"\x80\x02" + body, "f")
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()


def test_a_memo_slot_far_away_costs_nothing():
    tracemalloc.start()
    try:
        assert load(b"\x80\x02Nr\xff\xff\xff\xff.", "f") is None
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()


def test_other_protocols_are_refused():
    with pytest.raises(DataError, match="protocol 2"):
        load(pickle.dumps({}, protocol=4), "f")
