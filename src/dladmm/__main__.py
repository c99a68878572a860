"""``python -m dladmm``."""

import sys
from importlib.util import find_spec

if find_spec("typer") is None and sys.argv[1:2] == [
    "reproduce"
]:  # on machines where nothing can be installed
    from dladmm.reproduce.__main__ import main as reproduce

    sys.exit(reproduce(sys.argv[2:]))

from dladmm.cli.app import main

main()
