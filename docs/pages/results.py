"""``docs/results.md`` from the files in ``docs/results``: no figure on that page is typed by hand."""

from __future__ import annotations

from pathlib import Path

from dladmm.reproduce.pages import markdown as reproduction
from pages import accelerated, benchmarks, convergent, networks
from pages.records import RESULTS, read

HEAD = """# Results

This page is made from the files in `docs/results/` by `python docs/render.py`. The command that stands above a table
makes its cells; `--record` (for the paper's experiments: `python benchmarks/experiments/run.py ID --collect --record`)
puts them into `docs/results/`. Settings were chosen on validation splits of training data, test
sets are for reporting; `docs/graphs.md` says where the graphs' choice fell short of that. "Rises" counts iterations at
which the augmented Lagrangian rose beyond rounding; "certified" means rho > 2H and everything the theory promises was
seen (`docs/theory.md`). A deviation (±) is that of the sample.
"""


def render(folder: Path = RESULTS) -> str:
    """The whole page."""
    sections = [HEAD, *accelerated.render(folder), *networks.render(folder), *convergent.render(folder)]
    sections += benchmarks.render(folder)
    sections += [reproduction(read(path.stem, folder)) for path in sorted(folder.glob("reproduce-*.json"))]
    return "\n".join(sections)
