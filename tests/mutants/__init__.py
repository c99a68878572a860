"""Faults put into the library on purpose, one at a time: does the suite notice? (``make mutants``, CONTRIBUTING.md)."""
