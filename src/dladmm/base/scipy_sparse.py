"""``scipy.sparse``, imported when it is needed: it takes longer to import than this library, and most data are dense.

Type checkers see scipy's own module. What is not in ``sys.modules`` has made no matrix: asking whether something is
sparse imports nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scipy import sparse
else:

    class _Deferred:
        """All of scipy.sparse by its own names."""

        def issparse(self, x: Any) -> bool:
            loaded = sys.modules.get("scipy.sparse")
            return loaded is not None and loaded.issparse(x)

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module("scipy.sparse"), name)

    sparse = _Deferred()

__all__ = ["sparse"]
