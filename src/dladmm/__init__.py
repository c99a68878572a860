"""dladmm trains neural networks with ADMM instead of back-propagation."""

from __future__ import annotations

from dladmm._version import __version__

__all__ = ["__version__"]
