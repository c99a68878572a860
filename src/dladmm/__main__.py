"""``python -m dladmm``."""

from dladmm.cli import main

main()
