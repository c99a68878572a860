"""What the README and the site show and nobody should type: ``python docs/render.py`` writes it from ``docs/results``.

The page of results, the picture of accuracies and the drawing of the sweep (each for light and dark pages), the
README's table, and the page of the command line's options. The writers are in ``docs/pages``.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
# Last on the path: folders of tests have names that others have too.
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from pages.accuracy_picture import accuracy_picture
from pages.command_line import cli_page
from pages.defaults import with_tables as with_default_tables
from pages.graphs import with_splits_table
from pages.mutants import with_faults_table
from pages.performance import with_performance_tables
from pages.readme import with_table
from pages.records import ROOT
from pages.results import render as results_page
from pages.signs import with_sign_tables
from pages.silos import with_silos_table
from pages.streaming import with_tables
from pages.svg import PALETTES
from pages.sweep_picture import sweep_picture
from pages.tables import with_monotone_table

from chaos.page import with_table as with_chaos_table

DOCS = ROOT / "docs"


def rendered() -> dict[Path, str]:
    """Every file that is made, with its text."""
    files = {DOCS / "results.md": results_page(), DOCS / "cli.md": cli_page()}
    for theme, colours in PALETTES.items():
        files[DOCS / "_static" / f"accuracy-{theme}.svg"] = accuracy_picture(colours)
        files[DOCS / "_static" / f"sweep-{theme}.svg"] = sweep_picture(colours)
    readme, streaming = ROOT / "README.md", DOCS / "streaming_notes.md"
    files[streaming] = with_tables(streaming.read_text(encoding="utf-8"))
    defaults = DOCS / "defaults.md"
    files[defaults] = with_default_tables(defaults.read_text(encoding="utf-8"))
    graphs = DOCS / "graphs.md"
    files[graphs] = with_splits_table(graphs.read_text(encoding="utf-8"))
    tables = DOCS / "tables.md"
    files[tables] = with_monotone_table(tables.read_text(encoding="utf-8"))
    signs = DOCS / "signs.md"
    files[signs] = with_sign_tables(signs.read_text(encoding="utf-8"))
    silos = DOCS / "silos.md"
    files[silos] = with_silos_table(silos.read_text(encoding="utf-8"))
    reliability = DOCS / "reliability.md"
    files[reliability] = with_chaos_table(with_faults_table(reliability.read_text(encoding="utf-8")))
    performance = DOCS / "performance.md"
    files[performance] = with_performance_tables(performance.read_text(encoding="utf-8"))
    return files | {readme: with_table(readme.read_text(encoding="utf-8"))}


def main() -> None:
    for path, text in rendered().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
