"""``train`` and ``train_graph`` with the paper's algorithm where a test names no mode: most tests are about it."""

from __future__ import annotations

import dladmm


def train(*arguments, **options):
    """:func:`dladmm.train` in convergent mode, unless a mode or another method is named."""
    return dladmm.train(*arguments, **_named(options))


def train_graph(*arguments, **options):
    """:func:`dladmm.train_graph` in convergent mode, unless a mode or another method is named."""
    return dladmm.train_graph(*arguments, **_named(options))


def _named(options):
    return options if options.get("method") is not None else {"mode": "convergent"} | options
