"""Passes as kernels made by ``torch.compile``."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

SHAPES = 64
"""A pass is compiled for at most this many different shapes."""


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    # Kernels for the very shapes: those for shapes in general are up to ten times slower (docs/performance.md). A
    # function meets a handful of shapes, and torch's own limit would leave the later ones uncompiled.
    config = torch._dynamo.config
    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    setattr(config, limit, max(SHAPES, getattr(config, limit)))
    return torch.compile(function, dynamic=False)
