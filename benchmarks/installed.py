"""Processes that find torch as pip leaves it: with its modules compiled to bytecode.

An image may hold torch without, and forbid writing it (PYTHONDONTWRITEBYTECODE): every process then compiles 2 seconds'
worth of modules anew, which no installation of a user does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache


def environment() -> dict[str, str]:
    """This process' own, in which bytecode may be written."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@cache
def compile_packages() -> None:
    """What the measured processes import, once; nothing where bytecode was never forbidden, for then it is there."""
    if "PYTHONDONTWRITEBYTECODE" in os.environ:
        code = "import torch, torch.optim, sklearn.neural_network; torch.optim.Adam([torch.zeros(1)])"
        subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, check=False)
