"""The README's table of recorded results."""

from __future__ import annotations

import re

from dladmm.report.tables import markdown_table
from pages.defaults import readme_rows as table_rows
from pages.records import Cell, accuracy_at, cells_of, command, final, values
from pages.streaming import readme_rows

MARKED = re.compile(r"(<!-- table: made by docs/render.py -->\n).*?(<!-- end of table -->)", re.DOTALL)


def with_table(readme: str) -> str:
    """The README with the table of the recorded results in its place."""
    return MARKED.sub(lambda found: found[1] + results_table() + "\n" + found[2], readme)


def results_table() -> str:
    """What was measured, what stands beside it, and the command that measures it."""
    rows = [*readme_rows(), _image_row("mnist", "MNIST"), _image_row("fashion_mnist", "Fashion-MNIST")]
    rows += [_graph_row(name, title) for name, title in (("cora", "Cora"), ("citeseer", "Citeseer"))]
    rows += [_graph_row("pubmed", "PubMed"), *table_rows(), *_small_rows(), _certified_row()]
    rows += [_sign_row("digits", "digits", 1437), _sign_row("mnist", "5,000 images of MNIST", 5000)]
    return "\n".join(markdown_table(("what", "dladmm", "beside it", "command"), rows))


def _image_row(dataset: str, title: str) -> tuple[str, ...]:
    ours = cells_of("mlp-accuracy", dataset=dataset, method="accelerated")
    adam = cells_of("mlp-accuracy", dataset=dataset, method="adam")
    beside = f"full-batch Adam {percent(accuracy_at(adam, 200))}"
    if paper := cells_of("convergent-mnist", dataset=dataset, method="paper"):
        beside += f", the paper's own settings {percent(accuracy_at(paper, 200))}"
    what = f"{title}, 784-1000-1000-10, 200 full-batch iterations, {len(ours)} seeds"
    made_by = f"`dladmm reproduce mlp-accuracy --only '{dataset}-accelerated-*'`"
    return what, f"**{percent(accuracy_at(ours, 200))}**", beside, made_by


def _graph_row(dataset: str, title: str) -> tuple[str, ...]:
    of = {
        name: cells_of("gcn-accuracy", dataset=dataset, method=name) for name in ("accelerated", "adam", "gd")
    }
    beside = f"Adam {_last(of['adam'])}, GD {_last(of['gd'])}"
    what = f"{title}, GCN with 128 hidden units, {len(of['accelerated'])} seeds"
    made_by = f"`dladmm reproduce gcn-accuracy --only '{dataset}-accelerated-*'`"
    return what, f"**{_last(of['accelerated'])}**", beside, made_by


def _small_rows() -> list[tuple[str, ...]]:
    found = []
    for cell in cells_of("tabular", method="auto"):
        dataset = cell["settings"]["dataset"]
        other = _last(cells_of("tabular", dataset=dataset, method="scikit-learn"))
        what = f"{dataset.replace('_', ' ')}, default estimators, inputs as they are, five folds"
        standardised = _last(cells_of("tabular", dataset=dataset, method="scikit-learn-standardised"))
        beside = f"scikit-learn's MLPClassifier {standardised} with X standardised, {other} as it is"
        found.append((what, f"**{_last([cell])}**", beside, f"`{command('tabular')}`"))
    return found


def _sign_row(dataset: str, title: str, samples: int) -> tuple[str, ...]:
    ours, adam = (
        [
            cell
            for cell in cells_of("networks-sign", dataset=dataset, method=method)
            if cell["samples"] == samples
        ]
        for method in ("accelerated", "adam")
    )
    last, seeds = max(values(ours, "iterations")), len(ours)
    what = f"{title}, 400 sign units, {last} iterations, {seeds} seed{'s' * (seeds > 1)}"
    shown = [percent(accuracy_at(each, last)) for each in (ours, adam)]
    ahead = (accuracy_at(ours, last) or 0.0) > (accuracy_at(adam, last) or 0.0)
    beside = f"straight-through estimator with Adam {shown[1] if ahead else f'**{shown[1]}**'}"
    only = f"{dataset}-accelerated-" + (f"samples-{samples}-*" if dataset == "mnist" else "*")
    return what, f"**{shown[0]}**" if ahead else shown[0], beside, f"`{command('networks-sign', only)}`"


def _certified_row() -> tuple[str, ...]:
    cells = cells_of("convergent-digits", method="relu")
    certified = sum(values(cells, "certified"))
    what = "digits, convergent mode, rho > 2H, 200 iterations"
    beside = f"{certified} of {len(cells)} runs certified, {sum(values(cells, 'rises'))} rises"
    made_by = command("convergent-digits", "digits-relu-*", cells[0]["device"])
    return what, _last(cells), beside, f"`{made_by}`"


def _last(cells: list[Cell]) -> str:
    found = final(cells)
    return percent(None if found is None else found.value)


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
