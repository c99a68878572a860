"""The exception classes. Every message names the argument, what was given, what is allowed and what to do."""

from __future__ import annotations


class DladmmError(Exception):
    """Base class of every error this library raises deliberately."""


class InputError(DladmmError, ValueError):
    """An argument has the wrong value, shape or content."""


class InputTypeError(DladmmError, TypeError):
    """An argument has the wrong type."""


class DataError(DladmmError, ValueError):
    """A data file is missing, damaged or not what it claims to be."""


class BatchError(InputError):
    """A batch of a stream cannot be used; what was learned from the batches before it is kept."""
