"""Experiments whose figures stand in ``docs/results.md``, each a module with a command of its own."""
