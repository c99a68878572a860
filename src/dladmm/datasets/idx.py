"""Reads the idx format of MNIST and Fashion-MNIST: a big-endian header, then unsigned bytes.

    0x00 0x00, type (0x08: unsigned byte), number of dimensions d, d sizes of 4 bytes, then the values

Files may be gzip-compressed, which the first two bytes show.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from dladmm.base.errors import DataError
from dladmm.datasets._bytes import inflate
from dladmm.datasets._types import ImageData

UNSIGNED_BYTE = 0x08
MAX_IMAGE_BYTES = 16 + 60_000 * 28 * 28  #: the largest idx file of either data set, decompressed
VALIDATION_ROWS = 5_000  #: as in TensorFlow's tutorial reader; 55,000 remain for training


def parse_idx(data: bytes, source: str, *, ndim: int, limit: int = MAX_IMAGE_BYTES) -> NDArray[np.uint8]:
    """The array of an idx file of unsigned bytes with `ndim` dimensions; the file has at most `limit` bytes."""
    if data[:2] == b"\x1f\x8b":
        data = inflate(data, limit, source)
    header = 4 + 4 * ndim
    if len(data) < header:
        raise DataError(
            f"{source}: {len(data)} bytes are too short for an idx header of {header}; fetch it again"
        )
    expected = bytes((0, 0, UNSIGNED_BYTE, ndim))
    if data[:4] != expected:
        raise DataError(
            f"{source}: starts with {data[:4].hex()}; an idx file of this kind starts with {expected.hex()}"
        )
    shape = tuple(int.from_bytes(data[at : at + 4], "big") for at in range(4, header, 4))
    declared = header + math.prod(shape)
    if declared != len(data) or declared == header:
        raise DataError(
            f"{source}: the header says {' x '.join(map(str, shape))} values, {declared:,} bytes in all, "
            f"but the file has {len(data):,}; fetch it again"
        )
    return np.frombuffer(data, dtype=np.uint8, offset=header).reshape(shape)


def parse_images(files: dict[str, bytes], name: str, *, n_classes: int = 10, full: bool = False) -> ImageData:
    """The four idx files of a data set, by file name without `.gz`, as one ImageData.

    With `full` all training rows are used for training; otherwise the first 5,000 are the validation rows.
    """
    x_train, y_train = _pair(files, "train", n_classes)
    x_test, y_test = _pair(files, "t10k", n_classes)
    if x_train.shape[1:] != x_test.shape[1:]:
        raise DataError(f"{name}: training images are {x_train.shape[1:]}, test images {x_test.shape[1:]}")
    first = 0 if full else VALIDATION_ROWS
    if len(x_train) < first:
        raise DataError(
            f"{name}: {len(x_train):,} training rows, fewer than the {first:,} kept for validation"
        )
    return ImageData(
        x_train=_pixels(x_train[first:]),
        y_train=_labels(y_train[first:]),
        x_test=_pixels(x_test),
        y_test=_labels(y_test),
        x_val=_pixels(x_train[:first]) if first else None,
        y_val=_labels(y_train[:first]) if first else None,
        n_classes=n_classes,
        image_shape=(x_train.shape[1], x_train.shape[2]),
        name=name,
    )


def _pair(files: dict[str, bytes], part: str, n_classes: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    images_name, labels_name = f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"
    images = parse_idx(files[images_name], images_name, ndim=3)
    labels = parse_idx(files[labels_name], labels_name, ndim=1)
    if len(images) != len(labels):
        raise DataError(
            f"{labels_name}: {len(labels):,} labels for the {len(images):,} images of {images_name}"
        )
    if len(labels) and int(labels.max()) >= n_classes:
        raise DataError(f"{labels_name}: holds label {int(labels.max())}; labels are 0..{n_classes - 1}")
    return images, labels


def _pixels(images: NDArray[np.uint8]) -> torch.Tensor:
    """Flattened images (n, height x width) in [0, 1]."""
    pixels = images.reshape(len(images), math.prod(images.shape[1:])).astype(np.float32)
    pixels /= 255.0
    return torch.from_numpy(pixels)


def _labels(labels: NDArray[np.uint8]) -> torch.Tensor:
    return torch.from_numpy(labels.astype(np.int64))
