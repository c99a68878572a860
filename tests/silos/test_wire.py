"""Messages as bytes and back, and bytes that are none."""

from __future__ import annotations

import json
import struct

import pytest
import torch

from dladmm.base.errors import InputError
from dladmm.silos import Message, MessageError
from dladmm.silos.wire import check_precision


def some():
    gram = torch.tensor([[4.0, 1.5], [1.5, 3.0]], dtype=torch.float64)
    return [gram, torch.arange(6.0).reshape(2, 3), torch.tensor(7, dtype=torch.int64), torch.zeros(0)]


@pytest.mark.parametrize("precision", ["exact", "float32", "bfloat16"])
def test_there_and_back(precision):
    message = Message.of("sum", 3, some(), halves=[0], precision=precision)
    again = Message.from_bytes(message.to_bytes())
    assert (again.kind, again.number, again.parts) == ("sum", 3, message.parts)
    for sent, came in zip(some(), again.back(some()), strict=True):
        assert came.dtype == sent.dtype
        assert torch.equal(came, sent)  # these numbers are exact in bfloat16 too


def test_only_a_half_of_a_symmetric_matrix_and_only_matrices_rounded():
    whole, half = (
        Message.of("sum", 0, [torch.ones(50, 50, dtype=torch.float64)], h).to_bytes() for h in ((), (0,))
    )
    assert len(whole) - len(half) == pytest.approx(8 * (2500 - 1275), abs=8)
    vector = torch.full((3,), 0.1, dtype=torch.float64)
    (came,) = Message.from_bytes(Message.of("sum", 0, [vector], precision="bfloat16").to_bytes()).tensors
    assert torch.equal(came, vector)
    (coarse,) = Message.of("sum", 0, [vector[None]], precision="float32").tensors
    assert coarse.dtype == torch.float32


@pytest.mark.parametrize("raw", [
    b"", b"abc", struct.pack("<I", 2**31) + b"{}", struct.pack("<I", 2) + b"{}", struct.pack("<I", 2) + b"[]",
    Message.of("sum", 0, [torch.ones(3)]).to_bytes()[:-1], Message.of("sum", 0, [torch.ones(3)]).to_bytes() + b"x",
])  # fmt: skip
def test_what_is_no_message_is_refused(raw):
    with pytest.raises(MessageError, match="not a message of a silo"):
        Message.from_bytes(raw)


@pytest.mark.parametrize(("change", "reason"), [
    ({"format": 2}, "format 2"),
    ({"parts": [[[-1], "float32", "float32", False, False]]}, "shape"),
    ({"parts": [[[1], "object", "float32", False, False]]}, "object"),
    ({"parts": [[[2, 3], "float32", "float32", True, False]]}, "half"),
])  # fmt: skip
def test_a_header_that_lies_is_refused(change, reason):
    header = {"format": 1, "kind": "sum", "number": 0, "text": "", "parts": []} | change
    raw = json.dumps(header).encode()
    with pytest.raises(MessageError, match=reason):
        Message.from_bytes(struct.pack("<I", len(raw)) + raw)


def test_precisions_and_dtypes_that_do_not_exist():
    with pytest.raises(InputError, match="one of exact, float32, bfloat16"):
        check_precision("int8")
    with pytest.raises(InputError, match="complex64 cannot be sent"):
        Message.of("sum", 0, [torch.zeros(1, dtype=torch.complex64)])
