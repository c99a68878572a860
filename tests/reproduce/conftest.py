"""A quiet session in a folder of its own."""

from small_experiments import session  # noqa: F401
