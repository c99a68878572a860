"""What the README and the site show and nobody should type: ``python docs/render.py`` writes it from ``docs/results``.

The picture of accuracies and the drawing of the sweep, each for light and dark pages, the README's table, and the page
of the command line's options.
"""

from __future__ import annotations

import json
import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
STATIC = ROOT / "docs" / "_static"
RESULTS = ROOT / "docs" / "results"
MARKED = re.compile(r"(<!-- table: made by docs/render.py -->\n).*?(<!-- end of table -->)", re.DOTALL)

PALETTES = {
    "light": {
        "text": "#1f2328",
        "soft": "#59636e",
        "grid": "#d9dee3",
        "a": "#0b5cad",
        "b": "#b35900",
        "c": "#6b7680",
        "fill": "#e8f1fa",
        "warm": "#fbeee0",
        "page": "#ffffff",
    },
    "dark": {
        "text": "#e6edf3",
        "soft": "#9aa6b2",
        "grid": "#3a424b",
        "a": "#6cb6ff",
        "b": "#f0a35e",
        "c": "#9aa6b2",
        "fill": "#1c2f45",
        "warm": "#3d2c1a",
        "page": "#131416",
    },
}
FONT = "font-family='system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif'"
SHOWN = (1, 2, 5, 10, 20, 50, 100, 200)


def main() -> None:
    for theme, colours in PALETTES.items():
        (STATIC / f"accuracy-{theme}.svg").write_text(accuracy_picture(colours), encoding="utf-8")
        (STATIC / f"sweep-{theme}.svg").write_text(sweep_picture(colours), encoding="utf-8")
    (ROOT / "docs" / "cli.md").write_text(cli_page(), encoding="utf-8")
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    readme.write_text(with_table(text), encoding="utf-8")


def with_table(readme: str) -> str:
    """The README with the table of the recorded results in its place."""
    return MARKED.sub(lambda found: found[1] + results_table() + "\n" + found[2], readme)


# The README's table ------------------------------------------------------------------------------------------------


def results_table() -> str:
    rows = [_image_row("mnist", "MNIST"), _image_row("fashion_mnist", "Fashion-MNIST")]
    rows += [_graph_row(name, title) for name, title in (("cora", "Cora"), ("citeseer", "Citeseer"))]
    rows += [_graph_row("pubmed", "PubMed"), *_small_rows(), _certified_row()]
    rows += [_sign_row("digits", "digits"), _sign_row("mnist-5000", "5,000 images of MNIST")]
    heads = ("what", "dladmm", "beside it", "command")
    lines = ["| " + " | ".join(heads) + " |", "| --- " * len(heads) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def _image_row(name: str, title: str) -> tuple[str, ...]:
    methods = read(f"accelerated-{name}")["methods"]
    ours, adam = methods["accelerated"], methods["adam"]
    beside = f"Adam {percent(adam['mean']['200'])}"
    if name == "mnist":
        paper = _paper_curve()
        beside += f", the paper's own settings {percent(paper[200])}"
    what = f"{title}, 784-1000-1000-10, 200 full-batch iterations, {len(ours['runs'])} seeds"
    return what, f"**{percent(ours['mean']['200'])}**", beside, f"`{ours['command']}`"


def _graph_row(name: str, title: str) -> tuple[str, ...]:
    methods = read(f"accelerated-{name}")["methods"]
    ours = methods["accelerated"]
    others = {"adam": "Adam", "gd": "GD"}
    beside = ", ".join(f"{label} {percent(methods[key]['final_mean'])}" for key, label in others.items())
    what = f"{title}, GCN with 128 hidden units, {len(ours['runs'])} seeds"
    return what, f"**{percent(ours['final_mean'])}**", beside, f"`{ours['command']}`"


def _small_rows() -> list[tuple[str, ...]]:
    report = read("tabular")
    return [
        (
            f"{row['data'].replace('_', ' ')}, default estimators, inputs as they are, five folds",
            f"**{percent(row['accelerated'])}**",
            f"scikit-learn's MLPClassifier {percent(row['scikit_learn'])}",
            f"`{report['command']}`",
        )
        for row in report["results"]
    ]


def _sign_row(name: str, title: str) -> tuple[str, ...]:
    methods = read(f"networks-{name}-sign")["methods"]
    ours, adam = methods["accelerated"], methods["adam"]
    last = max(ours["mean"], key=int)
    seeds = len(ours["runs"])
    what = f"{title}, 400 sign units, {last} iterations, {seeds} seed{'s' * (seeds > 1)}"
    shown = [percent(each["mean"][last]) for each in (ours, adam)]
    ahead = ours["mean"][last] > adam["mean"][last]
    beside = f"straight-through estimator with Adam {shown[1] if ahead else f'**{shown[1]}**'}"
    return what, f"**{shown[0]}**" if ahead else shown[0], beside, f"`{ours['command']}`"


def _certified_row() -> tuple[str, ...]:
    report = read("digits")
    runs = report["runs"]
    certified = sum(run["certified"] for run in runs)
    what = "digits, convergent mode, rho > 2H, 200 iterations"
    beside = f"{certified} of {len(runs)} runs certified, {sum(run['rises'] for run in runs)} rises"
    return what, percent(report["test_accuracy_mean"]), beside, f"`{report['command']}`"


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


# The command line ---------------------------------------------------------------------------------------------------

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


# Accuracy against iterations ---------------------------------------------------------------------------------------


def _paper_curve() -> dict[int, float]:
    """Mean test accuracy of the runs with the paper's own settings, at the iterations that were recorded."""
    runs = [run["test_accuracy"] for run in read("mnist-paper")["runs"]]
    return {int(k): sum(run[k] for run in runs) / len(runs) for k in runs[0]}


def curves() -> list[tuple[str, str, dict[int, float]]]:
    methods = read("accelerated-mnist")["methods"]
    found = {name: {int(k): v for k, v in methods[name]["mean"].items()} for name in ("accelerated", "adam")}
    return [
        ("dladmm, accelerated mode", "a", found["accelerated"]),
        ("Adam", "b", found["adam"]),
        ("dladmm with the paper's settings", "c", _paper_curve()),
    ]


def accuracy_picture(colours: dict[str, str]) -> str:
    width, height, left, right, top, bottom = 720, 330, 52, 16, 40, 44
    low, high = 0.80, 1.0

    def x(k: float) -> float:
        return left + (width - left - right) * math.log(k) / math.log(200)

    def y(value: float) -> float:
        return top + (height - top - bottom) * (high - value) / (high - low)

    parts = [_open(width, height, "Test accuracy on MNIST against iterations")]
    parts.append(
        f"<text x='{left}' y='20' {FONT} font-size='15' font-weight='600' fill='{colours['text']}'>"
        "MNIST, 784-1000-1000-10, full batch: test accuracy</text>"
    )
    for value in (0.80, 0.85, 0.90, 0.95, 1.0):
        parts.append(_line((left, y(value)), (width - right, y(value)), colours["grid"], 1))
        parts.append(_text(left - 8, y(value) + 4, f"{100 * value:.0f} %", colours["soft"], "end"))
    parts += [_text(x(k), height - bottom + 20, str(k), colours["soft"], "middle") for k in SHOWN]
    middle = (left + width - right) / 2
    parts.append(_text(middle, height - 6, "iterations (logarithmic)", colours["soft"], "middle"))
    places = {"a": (1.2, 0.974, "start"), "b": (13, 0.925, "end"), "c": (200, 0.872, "end")}
    for label, key, points in curves():
        shown = [(x(k), y(max(v, low - 0.05))) for k, v in sorted(points.items())]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in _from(shown, y(low)))
        dashes = " stroke-dasharray='6 4'" if key == "c" else ""
        parts.append(
            f"<polyline points='{path}' fill='none' stroke='{colours[key]}' stroke-width='2.5' "
            f"stroke-linejoin='round'{dashes}/>"
        )
        k, value, anchor = places[key]
        said = f"{label}: {percent(points[200])}"
        parts.append(_text(x(k), y(value), said, colours[key], anchor, 14))
    return "\n".join([*parts, "</svg>", ""])


def _from(points: list[tuple[float, float]], floor: float) -> list[tuple[float, float]]:
    """The curve from where it enters the picture."""
    for i, (here, there) in enumerate(pairwise(points)):
        if here[1] > floor >= there[1]:
            share = (here[1] - floor) / (here[1] - there[1])
            return [(here[0] + share * (there[0] - here[0]), floor), *points[i + 1 :]]
    return points


# The sweep ---------------------------------------------------------------------------------------------------------


def sweep_picture(colours: dict[str, str]) -> str:
    """A chain of an MLP with one hidden layer, the order of a sweep above and below it."""
    width, height, y = 760, 350, 190
    variables = [("x", "data"), ("z₁", "soft, ν"), ("a₁", "soft, ν"), ("z₂", "hard, ρ and u")]
    blocks = ["W₁, b₁", "f", "W₂, b₂"]
    xs = [60 + 200 * i for i in range(4)]
    parts = [_open(width, height, "The chain of blocks, and the order of a backward and a forward sweep")]
    for i, name in enumerate(blocks):
        at = (xs[i] + xs[i + 1]) / 2
        parts.append(_line((xs[i] + 26, y), (xs[i + 1] - 26, y), colours["soft"], 1.5))
        parts.append(
            f"<rect x='{at - 42}' y='{y - 22}' width='84' height='44' rx='8' fill='{colours['warm']}' "
            f"stroke='{colours['b']}' stroke-width='1.5'/>"
        )
        parts.append(_text(at, y + 5, name, colours["text"], "middle", 16))
    for at, (name, tie) in zip(xs, variables, strict=True):
        parts.append(
            f"<circle cx='{at}' cy='{y}' r='26' fill='{colours['fill']}' stroke='{colours['a']}' stroke-width='1.5'/>"
        )
        parts.append(_text(at, y + 6, name, colours["text"], "middle", 17))
        parts.append(_text(at, y + 46, tie, colours["soft"], "middle", 12))
    parts.append(_text(xs[3] + 34, y + 5, "loss R", colours["text"], "start", 14))
    backward = [(xs[3], "1 z₂"), (560, "2 b₂, W₂"), (xs[2], "3 a₁"), (xs[1], "4 z₁"), (160, "5 b₁, W₁")]
    forward = [(160, "6 W₁, b₁"), (xs[1], "7 z₁"), (xs[2], "8 a₁"), (560, "9 W₂, b₂"), (xs[3], "10 z₂")]
    for title, steps, row, colour, sign in (
        ("backward sweep", backward, 112, colours["a"], -1),
        ("forward sweep", forward, 272, colours["b"], 1),
    ):
        start, end = (xs[3] + 40, 110) if sign < 0 else (110, xs[3] + 40)
        parts.append(_arrow(start, end, row, colour))
        for at, label in steps:
            parts.append(f"<circle cx='{at}' cy='{row}' r='4' fill='{colour}'/>")
            parts.append(_text(at, row - 12 if sign < 0 else row + 24, label, colours["text"], "middle", 14))
        parts.append(_text(60, row - 44 if sign < 0 else row + 56, title, colour, "start", 15))
    said = "11  u ← u + ρ (z₂ − W₂a₁ − b₂)"
    parts.append(_text(xs[3] + 60, 328, said, colours["text"], "end", 14))
    return "\n".join([*parts, "</svg>", ""])


def _open(width: int, height: int, title: str) -> str:
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' role='img' "
        f"aria-label='{title}'>\n<title>{title}</title>"
    )


def _line(start: tuple[float, float], end: tuple[float, float], colour: str, width: float) -> str:
    return (
        f"<line x1='{start[0]:.1f}' y1='{start[1]:.1f}' x2='{end[0]:.1f}' y2='{end[1]:.1f}' "
        f"stroke='{colour}' stroke-width='{width}'/>"
    )


def _arrow(start: float, end: float, y: float, colour: str) -> str:
    sign = 1 if end > start else -1
    head = f"{end},{y} {end - 10 * sign},{y - 5} {end - 10 * sign},{y + 5}"
    return _line((start, y), (end - 8 * sign, y), colour, 2) + f"\n<polygon points='{head}' fill='{colour}'/>"


def _text(x: float, y: float, text: str, colour: str, anchor: str, size: int = 13) -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' {FONT} font-size='{size}' text-anchor='{anchor}' "
        f"fill='{colour}'>{text}</text>"
    )


if __name__ == "__main__":
    main()
