"""What the launcher says of this process, without torch: ``dladmm --help`` does not wait for it."""

from __future__ import annotations

import os

from dladmm.base.errors import InputError


def rank_of_environment() -> int:
    """This process's rank as set by the launcher; 0 without one."""
    return int(os.environ.get("RANK", "0"))


def check_command(name: str | None) -> None:
    """Raise for commands other than ``train`` on several ranks: each would do the same work."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and name != "train":
        raise InputError(f"dladmm {name} runs in one process; leave torchrun out.")
