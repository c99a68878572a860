"""The variants of the kernel of products are changes of the kernel that there is."""

from __future__ import annotations

import product_kernel
import pytest

from dladmm.compute import product_kernels
from dladmm.compute.gpu.code import FOLDER

SOURCE = "".join((FOLDER / file).read_text("utf-8") for file in product_kernels.PRODUCT.files)


@pytest.mark.parametrize("name", product_kernel.EDITS)
def test_what_is_left_out_is_in_the_kernel(name):
    assert product_kernel.edited(SOURCE, (name,)) != SOURCE
    with pytest.raises(ValueError, match="any more"):
        product_kernel.edited("nothing of it", (name,))


def test_all_can_be_left_out_at_once():
    assert product_kernel.edited(SOURCE, ()) == SOURCE
    assert len(product_kernel.edited(SOURCE, tuple(product_kernel.EDITS))) < len(SOURCE)
