"""The sections of ``docs/results.md`` on accelerated mode: images, graphs, small data sets, sizes."""

from __future__ import annotations

from pathlib import Path

from experiments.catalogue import experiment

from pages.records import Cell, accuracy_at, cells_of, command, final, seconds, section, shown, values

METHODS = ("accelerated", "adam", "gd", "adagrad", "adadelta")
IMAGES = {
    "mnist": ("MNIST", {20: 0.960, 50: 0.972, 100: 0.978, 200: 0.981}),
    "fashion_mnist": ("Fashion-MNIST", {20: 0.870, 50: 0.880, 100: 0.887, 200: 0.890}),
}
GRAPHS = {
    "cora": ("Cora", 0.8130, 0.820),
    "pubmed": ("PubMed", 0.7631, 0.780),
    "citeseer": ("Citeseer", 0.6986, 0.705),
    "coauthor_cs": ("Coauthor CS", 0.9261, 0.928),
    "coauthor_physics": ("Coauthor Physics", 0.9376, 0.940),
}
"""The paper's best figure of any method, and what was to reach."""

COLUMNS = (5, 10, 20, 50, 100, 200)


def render(folder: Path) -> list[str]:
    """The sections whose records are there."""
    parts = [_images(name, folder) for name in IMAGES if cells_of("mlp-accuracy", folder, dataset=name)]
    parts += [_graphs(folder)] if cells_of("gcn-accuracy", folder) else []
    parts += [_tabular(folder)] if cells_of("tabular", folder) else []
    return parts + ([_sizes(folder)] if cells_of("sizes", folder) else [])


def _images(dataset: str, folder: Path) -> str:
    title, asked = IMAGES[dataset]
    commands, rows = [], []
    for method in METHODS:
        if cells := cells_of("mlp-accuracy", folder, dataset=dataset, method=method):
            commands.append(f"dladmm reproduce mlp-accuracy --only '{dataset}-{method}-*'")
            rows.append(_image_row(method, cells, promises=method == "accelerated"))
    if cells := cells_of("accelerated", folder, dataset=dataset):
        commands.append(command("accelerated", device=cells[0]["device"]))
        rows.append(_image_row("accelerated, no penalty", cells, promises=True))
    rows.append(["to reach", "", *(shown(asked[k], 3) if k in asked else "" for k in COLUMNS), *[""] * 4])
    headings = ["method", "seeds", *(f"k={k}" for k in COLUMNS)]
    headings += ["0.95 first at k", "train accuracy", "rises", "s / iteration"]
    heading = f"{title} 784-1000-1000-10, accelerated mode from its default: test accuracy"
    return section(heading, commands, headings, rows)


def _image_row(method: str, cells: list[Cell], *, promises: bool) -> list[str]:
    firsts = sorted({str(cell["first_at_95"] or "-") for cell in cells})
    return [
        method,
        str(len(cells)),
        *(shown(accuracy_at(cells, k)) for k in COLUMNS),
        ", ".join(firsts),
        shown(min(values(cells, "train_accuracy")), 5),
        str(sum(values(cells, "rises"))) if promises else "-",
        shown(seconds(cells), 3),
    ]


def _graphs(folder: Path) -> str:
    rows = []
    for dataset, (title, paper, asked) in GRAPHS.items():
        of = {method: cells_of("gcn-accuracy", folder, dataset=dataset, method=method) for method in METHODS}
        if not of["accelerated"]:
            continue
        row = [title]
        for method, cells in of.items():
            found = final(cells)
            bold = "**" if method == "accelerated" else ""
            row.append("-" if found is None else f"{bold}{found.value:.4f}{bold} ± {found.deviation:.4f}")
        counts = values(of["accelerated"], "iterations")
        row += [
            str(len(counts)),
            f"{min(counts)} to {max(counts)}",
            str(sum(values(of["accelerated"], "rises"))),
        ]
        rows.append([*row, f"{paper:.4f}", f"{asked:.3f}"])
    return section(
        "Graphs, accelerated mode from its default: test accuracy",
        [f"dladmm reproduce gcn-accuracy --only 'NAME-{method}-*'" for method in sorted(METHODS)],
        ["data set", *METHODS, "inits", "iterations", "rises", "paper's best", "to reach"],
        rows,
        notes=[
            "The paper's network (128 hidden units), mean and sample deviation of the initialisations; accelerated\n"
            "mode at most 200 iterations, the others 500 epochs at the paper's learning rates; the paper's best is\n"
            "the best of any method in its table. A dash: not run yet."
        ],
    )


def _tabular(folder: Path) -> str:
    e = experiment("tabular")
    rows = []
    for dataset in e.datasets:
        found = [final(cells_of("tabular", folder, dataset=dataset, method=method)) for method in e.methods]
        rows.append([dataset, *(shown(None if mean is None else mean.value) for mean in found)])
    headings = ["data set", "MLPClassifier of dladmm, X as it is", "100 X", "X standardised"]
    headings += ["MLPClassifier of scikit-learn", "the same, X standardised"]
    return section(e.title, [command("tabular")], headings, rows, notes=[e.note])


def _sizes(folder: Path) -> str:
    e = experiment("sizes")
    rows = []
    for ours in cells_of("sizes", folder, method="accelerated"):
        same = {key: ours["settings"][key] for key in ("train_rows", "hidden")}
        row = [
            same["train_rows"],
            same["hidden"][0],
            ours["refused"],
            shown(ours["train_loss"]),
            shown(ours["final"]),
        ]
        (adam,) = cells_of("sizes", folder, method="adam", **same)
        rows.append([*row, shown(adam["train_loss"]), shown(adam["final"])])
    headings = ["images", "width", "attempts refused", "training loss", "held-out accuracy"]
    headings += ["Adam's loss", "Adam's accuracy"]
    return section(e.title, [command("sizes")], headings, rows, notes=[e.note])
