"""Masks under which sums travel, so that the server learns their total and no addend: pairwise, as in SecAgg.

    masked_k = fixed(x_k) + sum_{j > k} PRG(s_kj) - sum_{j < k} PRG(s_kj)   modulo 2^128
    sum_k masked_k = fixed(sum_k x_k)

(Bonawitz et al. 2017, without the shares for silos that drop out: a round that one of them misses is given up, and all
begin again with new keys.) Every pair of silos agrees on s_kj through the server by Flower's own key agreement, and the
masks are the stream of ChaCha20. Numbers are fixed-point, 64 bits before the point and 64 after it, so that no range
has to be agreed on and an addend is exact to 2^-64.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dladmm.base.errors import InputError
from dladmm.silos.wire import Message, Part, half_of, whole_of

Words = np.ndarray[Any, np.dtype[np.uint64]]
"""Numbers of 128 bits, shape (n, 2): the low words and the high ones."""

BROKEN = "NaN, infinity or a number beyond the range of masked sums"
"""The text of a message whose numbers cannot be masked; zeros travel in their place."""

LARGEST = 2.0**62


def fixed(x: np.ndarray[Any, np.dtype[np.float64]]) -> Words:
    """``x 2^64`` as whole numbers of 128 bits, shape (n, 2); x is (n,), finite and below 2^62."""
    magnitude = np.abs(x)
    whole = np.floor(magnitude)
    found = np.empty((len(x), 2), dtype=np.uint64)
    found[:, 0], found[:, 1] = np.ldexp(magnitude - whole, 64).astype(np.uint64), whole.astype(np.uint64)
    return np.where((x < 0)[:, None], negated(found), found)


def floating(words: Words) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The numbers that these words are, in float64."""
    below = words[:, 1] >> np.uint64(63) == 1
    positive = np.where(below[:, None], negated(words), words)
    found = positive[:, 1].astype(np.float64) + np.ldexp(positive[:, 0].astype(np.float64), -64)
    return np.where(below, -found, found)


def added(first: Words, second: Words) -> Words:
    """The sum modulo 2^128."""
    low = first[:, 0] + second[:, 0]
    return np.stack([low, first[:, 1] + second[:, 1] + (low < first[:, 0])], axis=1)


def negated(words: Words) -> Words:
    """The number that gives 0 together with this one, modulo 2^128."""
    low = ~words[:, 0] + np.uint64(1)
    return np.stack([low, ~words[:, 1] + (low == 0)], axis=1)


def unmasked_total(parts: Sequence[Tensor], part: Part) -> Tensor:
    """The total of one part of all silos' messages, in which the masks cancel."""
    total = parts[0].numpy().view(np.uint64)
    for more in parts[1:]:
        total = added(total, more.numpy().view(np.uint64))
    flat = torch.from_numpy(floating(total))
    return whole_of(flat, part.shape) if part.half else flat.reshape(part.shape)


def key_agreement() -> tuple[Any, Any]:
    """Flower's function that makes a shared key, and its module of key pairs; raises InputError without Flower."""
    try:
        from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
        from flwr.supercore.primitives import asymmetric
    except ImportError as error:
        raise InputError("secure=True needs Flower's key agreement: pip install 'dladmm[flower]'.") from error
    return generate_shared_key, asymmetric


class Masks:
    """The masks of one silo among those that agreed on keys, until the set of silos changes."""

    def __init__(self, rank: int, size: int, exchange: Callable[[str], Sequence[str]]) -> None:
        if size < 2:
            raise InputError("secure sums need at least two silos: the total of one is its own sum.")
        generate_shared_key, asymmetric = key_agreement()
        self.rank = rank
        private, public = asymmetric.generate_key_pairs()
        told = exchange(json.dumps({"key": asymmetric.public_key_to_bytes(public).decode()}))
        keys = [asymmetric.bytes_to_public_key(json.loads(text)["key"].encode()) for text in told]
        self._secrets = {
            k: base64.urlsafe_b64decode(generate_shared_key(private, key))
            for k, key in enumerate(keys)
            if k != rank
        }
        self._largest = LARGEST / size

    def hide(self, message: Message) -> Message:
        """The message with its addends masked; what is asked for the largest of travels as it is."""
        parts, tensors, at, broken = [], [], 0, ""
        for tensor, part in zip(message.tensors, message.parts, strict=True):
            if part.largest:
                parts.append(part)
                tensors.append(tensor)
                continue
            flat = (half_of(tensor) if part.half else tensor.reshape(-1)).double().numpy()
            if not (np.abs(flat) < self._largest).all():  # NaN is not
                flat, broken = np.zeros_like(flat), BROKEN
            words = added(fixed(flat), self._mask(message.number, at, len(flat)))
            at += len(flat)
            parts.append(replace(part, masked=True))
            tensors.append(torch.from_numpy(words.view(np.int64)))
        return replace(message, text=broken, parts=tuple(parts), tensors=tuple(tensors))

    def _mask(self, number: int, at: int, n: int) -> Words:
        """The mask of n numbers behind the first ``at`` of this message; no message has the number of another."""
        total = np.zeros((n, 2), dtype=np.uint64)
        for k, secret in self._secrets.items():
            stream = np.frombuffer(_stream(secret, number, at, n), dtype=np.uint64).reshape(n, 2)
            total = added(total, stream if self.rank < k else negated(stream))
        return total


def _stream(secret: bytes, number: int, at: int, n: int) -> bytes:
    """Bytes of n numbers from the stream of this pair; a part of a message has a stream of its own."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    # 4 bytes count blocks of 64 bytes
    nonce = b"\0" * 4 + number.to_bytes(6, "little") + at.to_bytes(6, "little")
    return Cipher(algorithms.ChaCha20(secret, nonce), mode=None).encryptor().update(bytes(16 * n))
