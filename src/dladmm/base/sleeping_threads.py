"""Threads of torch that wait for one another give their core to others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

SPINS = "1000"
"""How often a thread of torch looks for work before it sleeps: what libgomp takes itself where it knows that a process
has more threads than cores."""


@contextmanager
def threads_that_sleep() -> Iterator[None]:
    """Where torch is imported within it, its threads that wait for one another give their core to others at once.

    They would spin for milliseconds. On a machine with other work the thread that is waited for does not run meanwhile,
    and an iteration takes twice as long, one of many small operations up to thirty times (docs/faq.md). libgomp reads
    the variable once, when it is loaded, so the environment is as it was afterwards. Whoever sets one of them is left
    alone.
    """
    if "GOMP_SPINCOUNT" in os.environ or "OMP_WAIT_POLICY" in os.environ:
        yield
        return
    os.environ["GOMP_SPINCOUNT"] = SPINS
    try:
        yield
    finally:
        os.environ.pop("GOMP_SPINCOUNT", None)
