"""What happens under load, faults and bad input: one module a line of docs/reliability.md, run by ``make chaos``."""
