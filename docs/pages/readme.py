"""The README's table of recorded results."""

from __future__ import annotations

import re

from dladmm.report.tables import markdown_table
from pages.adams import README_HEADINGS, percent, readme_lines
from pages.adams import readme_rows as adam_rows
from pages.defaults import readme_rows as table_rows
from pages.records import Cell, cells_of, command, final, values
from pages.signs import sign_rows
from pages.streaming import readme_rows

BESIDE_ADAM = """
Accelerated mode sees all samples in every iteration: {reached} on MNIST after 200 full-batch iterations, 95 % after
{first} of them (the paper's own settings: {paper}). Beside it three Adams: as the paper runs it, on accelerated
mode's own objective, and as people use it (mini-batches for images, Kipf's recipe for graphs). In brackets
iterations (with mini-batches: passes) and seconds where they were measured: images on one H200, graphs CPU seconds
of the whole call with one thread (with three first networks of `GCNClassifier`, whose iterations come on top).
`dladmm reproduce mlp-accuracy` and `dladmm reproduce gcn-accuracy` make the figures,
`python benchmarks/experiments/run.py gcn-seconds --device cpu` the seconds."""

MARKED = re.compile(r"(<!-- table: made by docs/render.py -->\n).*?(<!-- end of table -->)", re.DOTALL)


def with_table(readme: str) -> str:
    """The README with the table of the recorded results in its place."""
    beside = "\n".join(markdown_table(README_HEADINGS, adam_rows()))
    mnist = cells_of("mlp-accuracy", dataset="mnist", method="accelerated")
    paper = _last(cells_of("mlp-accuracy", dataset="mnist", method="dladmm-paper"))
    first = max(values(mnist, "first_at_95"))
    said = BESIDE_ADAM.strip().format(reached=_last(mnist), first=first, paper=paper)
    parts = [results_table(), said, beside, readme_lines()]
    return MARKED.sub(lambda found: found[1] + "\n\n".join(parts) + "\n" + found[2], readme)


def results_table() -> str:
    """What was measured, what stands beside it, and the command that measures it."""
    rows = [*readme_rows(), *table_rows(), *_small_rows(), *sign_rows(), _certified_row()]
    return "\n".join(markdown_table(("what", "dladmm", "beside it", "command"), rows))


def _small_rows() -> list[tuple[str, ...]]:
    found = []
    for cell in cells_of("tabular", method="auto"):
        dataset = cell["settings"]["dataset"]
        others = [
            final(cells_of("tabular", dataset=dataset, method=method))
            for method in ("scikit-learn-standardised", "scikit-learn")
        ]
        standardised, raw = (None if other is None else other.value for other in others)
        what = f"{dataset.replace('_', ' ')}, default estimators, inputs as they are, five folds"
        shown = {value: percent(value) for value in (standardised, raw)}
        ahead = cell["final"] >= max(value for value in (standardised, raw, 0.0) if value is not None)
        first = shown[standardised] if ahead else f"**{shown[standardised]}**"
        beside = f"scikit-learn's MLPClassifier {first} with X standardised, {shown[raw]} as it is"
        ours = f"**{_last([cell])}**" if ahead else _last([cell])
        found.append((what, ours, beside, f"`{command('tabular')}`"))
    return found


def _certified_row() -> tuple[str, ...]:
    cells = cells_of("convergent-digits", method="relu")
    certified = sum(values(cells, "certified"))
    what = "digits, convergent mode, rho > 2H, 200 iterations"
    linear = _last(cells_of("convergent-digits", method="logistic"))
    rises = sum(values(cells, "rises"))
    promised = f"{certified} of {len(cells)} runs certified, {rises} rises"
    beside = f"scikit-learn's logistic regression {linear}; {promised}"
    made_by = command("convergent-digits", "digits-relu-*", cells[0]["device"])
    return what, _last(cells), beside, f"`{made_by}`"


def _last(cells: list[Cell]) -> str:
    found = final(cells)
    return percent(None if found is None else found.value)
