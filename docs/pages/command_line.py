"""``docs/cli.md``: what ``--help`` says, command by command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CLI_HEAD = """# Command line

What `dladmm --help` says, command by command. This page is made from the program itself by `python docs/render.py`, and
a test compares it with what `--help` prints.

Every command but `demo` takes `--json`: one object on standard output and nothing else there, progress on standard
error. Exit codes: 0 done, 1 the run failed (diverged, not finite, a check that found something), 2 bad usage or input,
130 or 143 ended by a signal after a checkpoint was written. A network that is no better than a constant answer is a
result, of data without a signal the right one: its status says so, with a warning, and the exit code is 0.
`dladmm --debug COMMAND` shows the traceback of an error.

**What a run decides by itself, and says.** The mode is that of the estimators (docs/defaults.md): cross-fitted copies
on tables, one network in streaming mode where copies cannot be, accelerated mode on graphs; `--mode convergent` is
the paper's algorithm, and `--rho` and `--nu` are its settings. Inputs are scaled inside, and so are the targets of a
regression, whatever the loss: Huber's bend is in units of the scaled residual. A target of words, or of at most 20
different whole numbers (or 0, 1, 2, ... without a gap, ten rows each), is classified; numbers with a fraction, or
more different ones, are regression; `--task` overrides.

**What a run says of its network** comes in this order: accuracy or R^2 on the test rows beside always answering the
most frequent class (the mean) and a linear model, with a warning if the network is no better (of a linear model
nothing is said without test rows: training rows would flatter the network); the iterations; then the certificate,
which is about the optimisation and says nothing of predictions.

**Going on.** `--resume DIR` takes up an interrupted run from any folder: `data.json` in it has the paths of the data,
absolute and relative, and a fingerprint of X and y. If the data have changed it says what differs, and refuses; so it
does with a `--max-iter` below what was made. Under torchrun: `torchrun ... -m -- dladmm train ...`
(docs/distributed.md).
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
