"""``dladmm`` and ``python -m dladmm``."""

import sys
from importlib.util import find_spec


def main() -> None:
    """Run the command line; an interrupt while modules are being imported ends it without a traceback too."""
    try:
        # On machines where nothing can be installed
        if find_spec("typer") is None and sys.argv[1:2] == ["reproduce"]:
            from dladmm.reproduce.__main__ import main as reproduce

            sys.exit(reproduce(sys.argv[2:]))
        from dladmm.base.sleeping_threads import threads_that_sleep
        from dladmm.cli.app import main as run

        with threads_that_sleep():
            run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
