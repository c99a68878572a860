"""The Gram matrix of patches from products of rows of pixels is that of the patches themselves."""

from __future__ import annotations

import pytest
import torch

from dladmm.blocks import patch_gram
from dladmm.blocks.convolution import Convolution

# channels, groups, kernel, stride, padding, dilation, image
CASES = [
    (2, 1, (3, 3), (1, 1), (1, 1), (1, 1), (7, 6)),
    (4, 2, (5, 3), (2, 1), (2, 0), (1, 2), (9, 11)),
    (3, 1, (3, 3), (2, 2), (0, 0), (2, 1), (9, 8)),
    (2, 1, (5, 5), (1, 1), (4, 4), (1, 1), (3, 3)),  # every patch reaches beyond the image
    (2, 1, (5, 5), (4, 4), (4, 4), (1, 1), (2, 2)),  # some rows of a patch never lie in it
    (1, 1, (2, 2), (3, 3), (0, 0), (1, 1), (8, 8)),  # patches that leave pixels out
    (3, 3, (4,), (2,), (1,), (1,), (9,)),
    (3, 1, (3,), (1,), (0,), (2,), (9,)),
]


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_against_the_patches(case, counted, monkeypatch):
    channels, groups, kernel, stride, padding, dilation, image = case
    block = Convolution(
        channels, 2 * groups, kernel, stride=stride, padding=padding, dilation=dilation, groups=groups
    )
    v = torch.randn(37, channels, *image, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    counts = torch.arange(37, dtype=torch.float64)[:, None] if counted else None
    patches = block.patches(v)
    repeated = torch.ones(1, 1) if counts is None else counts.repeat_interleave(patches.shape[1] // 37, 0)
    wanted = patches.mT @ (patches * repeated)
    monkeypatch.setattr(patch_gram, "PIXELS", {"cpu": 10 * v[0].numel()})  # four parts, the last one short
    images, shape = block._as_image(v)
    torch.testing.assert_close(patch_gram.patch_gram(images, counts, shape), wanted, rtol=1e-12, atol=1e-10)
    torch.testing.assert_close(block.gram(v, counts), wanted, rtol=1e-12, atol=1e-10)


def test_samples_side_by_side_and_a_rest(monkeypatch):
    block = Convolution(2, 3, (3, 3), padding=(1, 1))
    v = torch.randn(23, 2, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    images, shape = block._as_image(v)
    wanted = patch_gram.patch_gram(images, None, shape)
    monkeypatch.setattr(patch_gram, "on_gpu", lambda tensor: True)
    monkeypatch.setattr(patch_gram, "TOGETHER", 4)
    torch.testing.assert_close(patch_gram.patch_gram(images, None, shape), wanted, rtol=1e-12, atol=1e-10)


def test_patches_are_formed_only_where_that_is_cheaper(monkeypatch):
    def fail(*_):
        raise AssertionError("patches were formed")

    monkeypatch.setattr(Convolution, "_patches_by_sample", fail)
    block = Convolution(8, 16, (5, 5), padding=(2, 2))
    assert block.gram(torch.ones(2, 8, 14, 14), None).shape == (1, 200, 200)
    with pytest.raises(AssertionError, match="patches were formed"):
        Convolution(8, 16, (1, 1)).gram(torch.ones(2, 8, 14, 14), None)
