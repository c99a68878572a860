"""``docs/cli.md``: what ``--help`` says, command by command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CLI_HEAD = """# Command line

What `dladmm --help` says, command by command. This page is made from the program itself by `python docs/render.py`, and
a test compares it with what `--help` prints.

Every command but `demo` takes `--json`: one object on standard output and nothing else there, progress on standard
error. Exit codes: 0 done, 1 the run failed (diverged, not finite, a check that found something), 2 bad usage or input,
130 or 143 ended by a signal after a checkpoint was written. `dladmm --debug COMMAND` shows the traceback of an error.
"""


def cli_page() -> str:
    import typer

    from dladmm.cli.app import app

    parts = [CLI_HEAD]

    def walk(command: Any, path: str) -> None:
        said, _, example = (command.help or "").partition("Example:")
        depth = "##" if path.count(" ") < 2 else "###"
        lines = [f"{depth} {path}", "", " ".join(said.split()), ""]
        if example:
            lines += [f"    {' '.join(example.split())}", ""]
        rows = [row for parameter in command.params if (row := _parameter_row(parameter)) is not None]
        if rows:
            lines += ["| option | what it does |", "| --- | --- |", *rows, ""]
        parts.append("\n".join(lines))
        for name, inner in sorted(getattr(command, "commands", {}).items()):
            walk(inner, f"{path} {name}")

    walk(typer.main.get_command(app), "dladmm")
    return "\n".join(parts)


def _parameter_row(parameter: Any) -> str | None:
    if parameter.name in ("install_completion", "show_completion"):  # the shell's business
        return None
    names = [*parameter.opts, *parameter.secondary_opts]
    names = names if names[0].startswith("-") else [name.upper() for name in names]
    said = (parameter.help or "").replace("|", "\\|")
    default = parameter.default
    if isinstance(default, (str, int, float, Path)) and not isinstance(default, bool):
        said = f"{said.rstrip('.')} ({default})."
    return f"| {', '.join(f'`{name}`' for name in names)} | {said} |"
