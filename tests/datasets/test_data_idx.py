from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
import torch
from dataset_files import idx, image_files

from dladmm.base.errors import DataError
from dladmm.datasets.idx import parse_idx, parse_images

GOOD = idx(np.arange(12).reshape(3, 2, 2))


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_reads_packed_and_unpacked(pack):
    assert np.array_equal(parse_idx(pack(GOOD), "f", ndim=3), np.arange(12).reshape(3, 2, 2))


def test_images_become_rows_in_the_unit_interval():
    files = image_files(packed=False)
    data = parse_images(files, "tiny", full=True)
    pixels = np.frombuffer(files["train-images-idx3-ubyte"][16:], np.uint8).reshape(30, 16)
    assert torch.equal(data.x_train, torch.from_numpy(pixels.astype(np.float32) / 255))
    assert data.y_train.tolist() == list(files["train-labels-idx1-ubyte"][8:])
    assert data.x_train.dtype == torch.float32
    assert data.y_train.dtype == torch.int64
    assert (data.x_val, data.image_shape, len(data.x_test)) == (None, (4, 4), 10)


def test_without_full_the_first_5000_rows_validate():
    files = image_files(train=5_010, packed=False)
    data, full = parse_images(files, "tiny"), parse_images(files, "tiny", full=True)
    assert torch.equal(data.x_val, full.x_train[:5_000])
    assert torch.equal(data.x_train, full.x_train[5_000:])
    assert torch.equal(data.y_val, full.y_train[:5_000])
    assert torch.equal(data.y_train, full.y_train[5_000:])


BOMB = gzip.compress(GOOD[:16] + bytes(50_000_000))
BAD = {
    "empty": (b"", "too short"),
    "short header": (GOOD[:10], "too short"),
    "wrong magic": (b"\x00\x00\x0d" + GOOD[3:], "starts with 00000d03"),
    "wrong dimensions": (idx(np.zeros(5)), "too short"),
    "labels for images": (idx(np.zeros(50)), "starts with 00000801"),
    "truncated": (GOOD[:-1], "but the file has 27"),
    "oversized": (GOOD + b"\0", "but the file has 29"),
    "huge header": (GOOD[:4] + struct.pack(">III", 2**32 - 1, 2**32 - 1, 2**32 - 1), "the header says"),
    "no rows": (idx(np.zeros((0, 2, 2))), "the header says 0 x 2 x 2"),
    "truncated gzip": (gzip.compress(GOOD)[:-9], "end too early"),
    "bytes after gzip": (gzip.compress(GOOD) + b"x", "follow the compressed data"),
    "gzip bomb": (BOMB, "decompresses to more than the allowed"),
}


@pytest.mark.parametrize("case", BAD)
def test_damage_is_named(case):
    data, message = BAD[case]
    with pytest.raises(DataError, match=rf"some-file: .*{message}"):
        parse_idx(data, "some-file", ndim=3)


def test_a_flipped_bit_in_gzip_is_found():
    packed = bytearray(gzip.compress(GOOD))
    packed[-6] ^= 1  # in the checksum
    with pytest.raises(DataError, match="damaged"):
        parse_idx(bytes(packed), "f", ndim=3)


def test_files_that_do_not_fit_together():
    files = image_files()
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte: 30 labels for the 10 images"):
        parse_images(files | {"t10k-labels-idx1-ubyte": files["train-labels-idx1-ubyte"]}, "tiny", full=True)
    with pytest.raises(DataError, match="holds label 200"):
        parse_images(files | {"t10k-labels-idx1-ubyte": idx(np.full(10, 200))}, "tiny", full=True)
    with pytest.raises(DataError, match="test images"):
        parse_images(files | {"t10k-images-idx3-ubyte": idx(np.zeros((10, 3, 3)))}, "tiny", full=True)
    with pytest.raises(DataError, match="fewer than the 5,000"):
        parse_images(files, "tiny")


@pytest.mark.parametrize("part", ["train", "t10k"])
def test_the_label_after_the_last_is_refused(part):
    files = image_files(packed=False)
    name = f"{part}-labels-idx1-ubyte"
    files[name] = files[name][:-1] + bytes([9])
    parse_images(files, "tiny", full=True)
    files[name] = files[name][:-1] + bytes([10])
    with pytest.raises(DataError, match=r"holds label 10; labels are 0\.\.9"):
        parse_images(files, "tiny", full=True)
