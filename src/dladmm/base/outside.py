"""Where the user's code called the library: warnings name that line, whatever door it came through."""

from __future__ import annotations

import sys
from pathlib import Path

PACKAGE = str(Path(__file__).parents[1])


def outside() -> int:
    """``stacklevel`` for a warning of the caller of this function: that of the first frame not of this library."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        level, frame = level + 1, frame.f_back
    return level
