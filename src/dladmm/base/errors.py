"""The errors a user can meet. Every message names the argument, what came, what is allowed, what to do."""

from __future__ import annotations


class DladmmError(Exception):
    """Base of every error raised on purpose by this library."""


class InputError(DladmmError, ValueError):
    """An argument has the wrong value, shape or content."""


class InputTypeError(DladmmError, TypeError):
    """An argument has the wrong type."""


class DataError(DladmmError, ValueError):
    """A data file is missing, damaged or not what it claims to be."""
