"""Solvers of single subproblems, as functions of tensors."""
