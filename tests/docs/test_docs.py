"""The pages keep up with the code: command line, API reference, README, pictures, links."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest
import typer
from pages.readme import MARKED
from pages.records import accuracy_at, cells_of
from render import rendered
from typer.testing import CliRunner

import dladmm
from dladmm.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "tutorials").glob("*.md"), ROOT / "README.md"]
)
MADE_BY_THE_SHELL = {"--install-completion", "--show-completion", "--help"}


def commands() -> dict[str, set[str]]:
    """The options that ``--help`` lists, command by command."""
    found: dict[str, set[str]] = {}

    def walk(command: object, path: list[str]) -> None:
        shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "200"}).output
        body = shown.partition("Options")[2]
        found[" ".join(["dladmm", *path])] = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", _first_columns(body)))
        for name, inner in getattr(command, "commands", {}).items():
            walk(inner, [*path, name])

    walk(typer.main.get_command(app), [])
    return found


def _first_columns(body: str) -> str:
    """The names of the options, without the sentences beside them, which may name other options."""
    starts = [re.match(r"│ \*?\s{0,5}(--[\w-]+(?:,? +--[\w-]+)*)", line) for line in body.splitlines()]
    return "\n".join(found[1] for found in starts if found)


@pytest.fixture(scope="module")
def options() -> dict[str, set[str]]:
    return commands()


def test_help_and_the_page_list_the_same_options(options):
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^##+ (dladmm[ a-z]*)\n(.*?)(?=^##|\Z)", page, re.DOTALL | re.MULTILINE))
    assert sections.keys() == options.keys()
    for command, listed in options.items():
        names = set(
            re.findall(r"`(--[\w-]+)`", "\n".join(re.findall(r"^\| (`.*?) \|", sections[command], re.M)))
        )
        assert names == listed - MADE_BY_THE_SHELL, f"{command}: run python docs/render.py"


def test_commands_shown_on_the_pages_have_the_options_they_use(options):
    shown = 0
    for page in PAGES:
        for line in re.findall(r"^    (dladmm .*)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            words = shlex.split(line, comments=True)
            command = max((c for c in options if words[: len(c.split())] == c.split()), key=len)
            used = {word.partition("=")[0] for word in words if word.startswith("--")}
            assert used <= options[command] | {"--version", "--help"}, f"{page.name}: {line}"
            shown += 1
    assert shown > 20


def test_pages_pictures_and_tables_are_made_from_what_is_recorded():
    assert MARKED.search((ROOT / "README.md").read_text(encoding="utf-8"))
    for path, text in rendered().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run python docs/render.py"


def test_readme_quotes_the_recorded_figures():
    cells = cells_of("mlp-accuracy", dataset="mnist", method="accelerated")
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    reached, first = 100 * accuracy_at(cells, 200), max(cell["first_at_95"] for cell in cells)
    assert f"{reached:.1f} % on MNIST after 200 full-batch iterations, 95 % after {first} " in readme


API = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "api").glob("*.md"))
DOCUMENTED = set(re.findall(r"\.\. (?:auto\w+|py:data):: ([\w.]+)", API))
PACKAGES = ("activations", "losses", "blocks", "baselines", "callbacks", "datasets", "report", "reproduce")


@pytest.mark.parametrize("package", ["", *PACKAGES])
def test_every_public_name_is_in_the_reference_and_says_what_it_is(package):
    module = importlib.import_module(f"dladmm.{package}".rstrip("."))
    by_last_name = {name.rsplit(".", 1)[1] for name in DOCUMENTED}
    for name in module.__all__:
        found = getattr(module, name)
        if name == "__version__" or getattr(found, "__name__", "").startswith("dladmm."):
            continue  # the version, and packages with pages of their own
        assert name in by_last_name, f"{module.__name__}.{name} is on no page of docs/api"
        if callable(found):
            assert (found.__doc__ or "").strip(), f"{module.__name__}.{name} has no docstring"


def test_the_reference_names_what_exists():
    for name in DOCUMENTED:
        parts = name.split(".")
        found: object = dladmm
        for i, part in enumerate(parts[1:], start=2):
            try:
                found = getattr(found, part)
            except AttributeError:
                found = importlib.import_module(".".join(parts[:i]))


def test_solvers_open_with_their_argmin():
    """Each activation, loss and penalty of the library says in its first line what it solves."""
    from dladmm import regularizers
    from dladmm.activations import ACTIVATIONS
    from dladmm.losses import LOSSES

    penalties = [v for v in vars(regularizers).values() if isinstance(v, type)]
    penalties = [v for v in penalties if issubclass(v, regularizers.Regularizer) and "name" in vars(v)]
    for solver in (*ACTIVATIONS.values(), *LOSSES.values(), *penalties):
        assert (solver.__doc__ or "").startswith("argmin"), solver


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        for target in re.findall(r"\]\(((?!https?:|#)[^)]+)\)", text):
            assert (page.parent / target.partition("#")[0]).exists(), f"{page.name}: {target}"
        for name in re.findall(r"`docs/([\w/]+\.md)`", text):
            assert (ROOT / "docs" / name).exists(), f"{page.name}: docs/{name}"
