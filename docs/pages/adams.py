"""Accelerated mode beside three Adams: as the paper has it, on the same objective, and as people use it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from dladmm.runs.evidence import Mean
from pages.records import RESULTS, Cell, cells_of, final, section, values

OURS, LABELS_ALONE = "accelerated", "accelerated-labels"
IMAGES = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST"}
GRAPHS = {
    "cora": "Cora",
    "citeseer": "Citeseer",
    "pubmed": "PubMed",
    "coauthor_cs": "Coauthor CS",
    "coauthor_physics": "Coauthor Physics",
}
ADAMS = {
    "mlp-accuracy": {
        "adam": "Adam as in the paper",
        "adam-same": "Adam on accelerated mode's objective",
        "adam-batches": "Adam with mini-batches of 128",
    },
    "gcn-accuracy": {
        "adam": "Adam as in the paper",
        "adam-same": "Adam on accelerated mode's objective",
        "adam-kipf": "Adam by Kipf's recipe",
    },
}
HEADINGS = [
    "data set",
    "method",
    "initialisations",
    "iterations",
    "s / iteration",
    "s in all",
    "test accuracy",
]
NOTES = {
    "mlp-accuracy": """
The same network, data and initial draws. "As in the paper": full batches, its rate, no penalty, inputs as they are.
"On accelerated mode's objective": full batches, with the penalty and the scale of the inputs that accelerated mode
has by default. "With mini-batches": as people use it, with a rate that falls to zero; an iteration is a pass.
Seconds are of runs that had one NVIDIA H200 to themselves, by the median of the iterations (`docs/performance.md` has
more of them). "Ahead", "level" and "behind" are by two standard errors of the difference to the best Adam. A dash:
not measured, or not yet by all initialisations.""",
    "gcn-accuracy": """
The same network, data and initial draws; both coauthor graphs on the paper's split. "As in the paper": its rate, no
penalty, features as they are. "On accelerated mode's objective": with the penalty and the scale of the features that
accelerated mode has by default. "By Kipf's recipe": as people use it (half of the entries of features and hidden layer
dropped, weight decay 5e-4, rows of features divided by their sums) with this network's 128 hidden units. Accelerated
mode ends when it has converged, after 200 iterations at most. Self-training comes after three first networks,
which suggest targets: they are not counted in iterations, but in the CPU seconds of the whole call with one thread
(`OMP_NUM_THREADS=1 python benchmarks/experiments/run.py gcn-seconds --device cpu`; other work was on the machine,
which CPU seconds do not count). The table of timings below has the seconds of an iteration on a GPU. "Ahead", "level"
and "behind" are by two standard errors of the difference to the best Adam. A dash: not measured, or not yet by all
initialisations.""",
}
CALL = "CPU s of the call, one thread"


def render(folder: Path) -> list[str]:
    """One table for images, one for graphs; none where nothing was measured."""
    parts = []
    if cells_of("mlp-accuracy", folder, method=OURS):
        ours = {OURS: "dladmm, accelerated mode"}
        parts.append(
            _table("Images: accelerated mode beside three Adams", "mlp-accuracy", IMAGES, ours, folder)
        )
    if cells_of("gcn-accuracy", folder, method=OURS):
        ours = {
            OURS: "dladmm, accelerated mode with self-training",
            LABELS_ALONE: "dladmm, accelerated mode from labels alone",
        }
        parts.append(
            _table("Graphs: accelerated mode beside three Adams", "gcn-accuracy", GRAPHS, ours, folder)
        )
    return parts


def _table(title: str, name: str, datasets: dict[str, str], ours: dict[str, str], folder: Path) -> str:
    rows, graphs = [], name == "gcn-accuracy"
    for dataset, shown in datasets.items():
        best = best_adam(name, dataset, folder)
        for method, told in (ours | ADAMS[name]).items():
            cells = cells_of(name, folder, dataset=dataset, method=method)
            row = [shown, told, *_row(cells), standing(final(cells), best) if method in ours else ""]
            if graphs:
                whole = call_seconds(dataset, method, folder)
                row.insert(-2, "-" if whole is None else f"{whole:.1f}")
            rows.append(row)
    commands = [f"dladmm reproduce {name} --only '*-{method}-*'" for method in ours | ADAMS[name]]
    told = [summary(name, datasets, method, shown, folder) for method, shown in ours.items()]
    headings = [*HEADINGS, "beside the best Adam"]
    if graphs:
        headings.insert(-2, CALL)
    told += [missing(name, datasets, ours, folder)]
    # Columns in which something was measured
    kept = [i for i in range(len(headings)) if any(row[i] != "-" for row in rows)]
    headings, rows = [headings[i] for i in kept], [[row[i] for i in kept] for row in rows]
    return section(
        title, commands, headings, rows, notes=[NOTES[name]], after=[" ".join(part for part in told if part)]
    )


def summary(name: str, datasets: dict[str, str], method: str, shown: str, folder: Path = RESULTS) -> str:
    """Where a method of ours is ahead of the best of the three Adams, level with it or behind: one sentence."""
    found = standings(name, datasets, method, folder)
    words = {"ahead": "ahead of", "level": "level with", "behind": "behind"}
    parts = [f"{told} {{}} on {listed(found[key])}" for key, told in words.items() if key in found]
    if not parts:
        return ""
    said = listed(parts)  # the best Adam is named once
    first, *rest = said.split("{}")
    return f"{shown} is {first}the best of the three Adams{'it'.join(rest)}."


def standings(
    name: str, datasets: dict[str, str], method: str, folder: Path = RESULTS
) -> dict[str, list[str]]:
    """Titles of the data sets by how a method stands on them; a dash where runs are missing."""
    found: dict[str, list[str]] = {}
    for dataset, title in datasets.items():
        ours = final(cells_of(name, folder, dataset=dataset, method=method))
        found.setdefault(standing(ours, best_adam(name, dataset, folder)), []).append(title)
    return found


def listed(names: list[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


READ_AS = (
    "as in the paper",
    "on the same objective",
    "as people use it (images: mini-batches; graphs: Kipf's recipe)",
)
README_HEADINGS = ("data", "dladmm, accelerated mode", *(f"Adam {how}" for how in READ_AS), "dladmm is")


def readme_rows() -> list[list[str]]:
    """Accelerated mode beside the three Adams: accuracy, iterations and seconds of each."""
    rows = []
    for name, datasets in (("mlp-accuracy", IMAGES), ("gcn-accuracy", GRAPHS)):
        for dataset, title in datasets.items():
            ours = cells_of(name, dataset=dataset, method=OURS)
            if not ours:
                continue
            best = best_adam(name, dataset)
            found = standing(final(ours), best)
            row = [_bold(_spelled(name, dataset, OURS), found == "ahead")]
            for method in ADAMS[name]:
                mine = final(cells_of(name, dataset=dataset, method=method))
                row.append(_bold(_spelled(name, dataset, method), found == "behind" and mine == best))
            labels = final(cells_of(name, dataset=dataset, method=LABELS_ALONE))
            if labels is not None and labels.count == len(ours):
                row[0] += f"; from the labels alone {percent(labels.value)}"
            said = found.replace("-", "not compared yet")
            rows.append([f"{title}, {len(ours)} seed{'s' * (len(ours) > 1)}", *row, said])
    return rows


def _bold(text: str, bold: bool) -> str:
    value, percent_sign, rest = text.partition(" %")
    return f"**{value}{percent_sign}**{rest}" if bold else text


def _spelled(name: str, dataset: str, method: str) -> str:
    """Accuracy, and in how many iterations and seconds, where they are known."""
    cells = cells_of(name, dataset=dataset, method=method)
    mean = final(cells)
    if mean is None:
        return "-"
    count = _iterations(cells)
    whole = call_seconds(dataset, method) if name == "gcn-accuracy" else device_seconds(cells)
    spent = f", {whole:.1f} s" if whole else ""
    return f"{percent(mean.value)} ({count}{spent})"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def readme_lines() -> str:
    """Who is ahead, in words, images and graphs, and what nobody has measured."""
    said = [
        summary("mlp-accuracy", IMAGES, OURS, "On images accelerated mode"),
        summary(
            "gcn-accuracy",
            GRAPHS,
            OURS,
            "On graphs it (with self-training, as `GCNClassifier(mode='accelerated')` has it)",
        ),
        summary("gcn-accuracy", GRAPHS, LABELS_ALONE, "Trained on the labels alone it"),
    ]
    said += [missing("gcn-accuracy", GRAPHS, (OURS, LABELS_ALONE), RESULTS)]
    return " ".join(part for part in said if part)


def missing(name: str, datasets: dict[str, str], methods: Iterable[str], folder: Path) -> str:
    """The data sets on which not all of the runs are there."""
    unknown = {
        title for method in methods for title in standings(name, datasets, method, folder).get("-", [])
    }
    named = [title for title in datasets.values() if title in unknown]
    return f"Not all of it is measured yet on {listed(named)}." if named else ""


def call_seconds(dataset: str, method: str, folder: Path = RESULTS) -> float | None:
    """CPU seconds of the whole call with one thread, where they were measured."""
    return next(
        iter(values(cells_of("gcn-seconds", folder, dataset=dataset, method=method), "fit_cpu_seconds")), None
    )


def _row(cells: list[Cell]) -> list[str]:
    if not cells:
        return ["0", "-", "-", "-", "-"]
    one, count, found = least_seconds(cells), _iterations(cells), final(cells)
    whole = device_seconds(cells)
    spent = ["-", "-"] if one is None or whole is None else [f"{one:.4f}", f"{whole:.1f}"]
    return [str(len(cells)), count, *spent, "-" if found is None else str(found)]


def _iterations(cells: list[Cell]) -> str:
    """The same for all, or from the fewest to the most."""
    counts = sorted({*values(cells, "iterations")})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def least_seconds(cells: list[Cell]) -> float | None:
    """Seconds an iteration of the quickest initialisation that ran on a GPU."""
    return min(values([cell for cell in cells if "cuda" in cell["device"]], "median_seconds"), default=None)


def device_seconds(cells: list[Cell]) -> float | None:
    """Seconds of the quickest call on a GPU; of its iterations alone where the call was not measured."""
    one = least_seconds(cells)
    if one is None:
        return None
    whole = values([cell for cell in cells if "cuda" in cell["device"]], "fit_seconds")
    return min(whole, default=one * max(values(cells, "iterations")))


def best_adam(name: str, dataset: str, folder: Path = RESULTS) -> Mean | None:
    """The best of the three; None where one is missing."""
    found = [final(cells_of(name, folder, dataset=dataset, method=method)) for method in ADAMS[name]]
    known = [mean for mean in found if mean is not None]
    return max(known, key=lambda mean: mean.value) if len(known) == len(found) else None


def standing(ours: Mean | None, best: Mean | None) -> str:
    """Ahead, level or behind, by two standard errors of the difference; a dash where runs are missing."""
    if ours is None or best is None or ours.count < max(2, best.count):
        return "-"
    error = math.sqrt(sum(m.deviation**2 / m.count for m in (ours, best)))
    gain = ours.value - best.value
    return "level" if abs(gain) <= 2 * error else "ahead" if gain > 0 else "behind"
