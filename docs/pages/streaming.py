"""The tables of ``docs/streaming_notes.md`` and the README's rows of streaming mode, from the recorded runs."""

from __future__ import annotations

import json
import re
from statistics import mean
from typing import Any

from dladmm.report.tables import markdown_table
from pages.records import ROOT

MARKED = re.compile(r"(<!-- table (\w+): made by docs/render.py -->\n).*?(<!-- end of table -->)", re.DOTALL)
TITLES = {"mnist": "MNIST", "fashion": "Fashion-MNIST"}
OPTIMIZERS = ("AdamW", "Muon", "StreamingADMM")
COMMAND = "python benchmarks/time_to_accuracy.py --device cuda"


def with_tables(page: str) -> str:
    """The page with its tables made anew."""
    tables = {
        "settings": settings_table,
        "levels": levels_table,
        "levels_cpu": lambda: levels_table("time-to-accuracy-cpu"),
        "accuracies": accuracies_table,
        "steps": steps_table,
        "networks": networks_table,
        "networks_in_words": networks_in_words,
        "chains": chains_table,
        "cost": cost_table,
        "thirty": thirty_table,
        "graphs": graphs_table,
        "graph_modules": graph_modules_table,
    }
    return MARKED.sub(lambda found: found[1] + tables[found[2]]() + "\n" + found[3], page)


def settings_table() -> str:
    """What each constant is worth, one change at a time."""
    rows = [
        (
            ", ".join(f"{name} {value}" for name, value in row["change"].items()) or "none",
            f"{mean(row['mnist']):.4f}",
            f"{mean(row['fashion_mnist']):.4f}",
        )
        for row in record_of("streaming-validation")["rows"]
    ]
    return "\n".join(markdown_table(("change", "MNIST", "Fashion-MNIST"), rows))


def levels_table(record: str = "time-to-accuracy-h200") -> str:
    """Seconds to a level of test accuracy."""
    rows = [
        (
            _title(row),
            f"{100 * row['level']:g} %",
            row["name"],
            _number(row["seconds"], 3),
            _number(row["seconds_to_best"], 2),
            f"{row['seeds_that_reached_it']} of {row['seeds']}",
            _number(row["fresh"], 1),
        )
        for row in record_of(record)["levels"]
    ]
    heads = (
        "data",
        "level",
        "method",
        "seconds",
        "over the quickest other",
        "seeds that reached it",
        "seconds from the start of the process",
    )
    return "\n".join(markdown_table(heads, rows))


def accuracies_table() -> str:
    """Accuracy after all passes, and what they took."""
    rows = [
        (
            _title(r),
            r["name"],
            f"{r['mean']:.4f}",
            f"{r['least']:.4f}",
            f"{r['seconds']:.2f}",
            str(r["seeds"]),
        )
        for r in record_of("time-to-accuracy-h200")["accuracies"]
    ]
    return "\n".join(markdown_table(("data", "method", "mean", "lowest", "seconds", "seeds"), rows))


def steps_table() -> str:
    """Milliseconds of one step."""
    steps = record_of("time-to-accuracy-h200")["steps"]
    rows = [(name, f"{steps[name]:.3f}") for name in steps if not name.startswith("ratio")]
    return "\n".join(markdown_table(("step", "milliseconds"), rows))


# Small networks of many kinds -------------------------------------------------------------------------------------


def networks_table() -> str:
    """Test scores of the three optimizers, network by network."""
    record = record_of("small-networks")
    rows = []
    for network, found in _by_network(record["rows"]).items():
        own = [_score(record, found[method]) for method in OPTIMIZERS]
        margins = [
            f"{_margin(record, network, other):+.{_digits(record, network)}f}" for other in OPTIMIZERS[:2]
        ]
        rows.append((network, *own, *margins))
    rates = ("AdamW, tuned", "Muon, tuned", "StreamingADMM")
    heads = (
        "network",
        *(f"{each}: mean (worst seed)" for each in rates),
        "ahead of AdamW by",
        "ahead of Muon by",
    )
    return "\n".join(markdown_table(heads, rows))


def networks_in_words() -> str:
    """How often ours is ahead, and by how much it is behind at most, in accuracy."""
    record = record_of("small-networks")
    networks = list(_by_network(record["rows"]))
    said = []
    for other in OPTIMIZERS[:2]:
        margins = {network: _margin(record, network, other) for network in networks}
        ahead = [margin for margin in margins.values() if margin > 0]
        behind = min(margins.values())
        assert min(margins, key=lambda network: margins[network]) not in record["lower_is_better"]
        said.append(
            f"StreamingADMM is ahead of tuned {other} on {len(ahead)} of {len(networks)} networks and at most "
            f"{-behind:.4f} behind on the others."
        )
    return " ".join(said)


def chains_table() -> str:
    """Chains at the door ``train``, beside the spectral rule."""
    record = record_of("small-networks")
    spectral = _by_network(record["rows"])
    rows = [
        (row["network"], _score(record, row), _score(record, spectral[row["network"]]["StreamingADMM"]))
        for row in record["door"]
    ]
    heads = ("chain", "measured length, at `train`: mean (worst seed)", "spectral norm, StreamingADMM")
    return "\n".join(markdown_table(heads, rows))


def cost_table() -> str:
    """Milliseconds of a training step, and what they are to AdamW's."""
    found = record_of("optimizer-cost")["rows"]
    columns = ("eager", "recorded", "with observing")
    rows = []
    for row in found:
        base = next(each for each in found if each["network"] == row["network"])
        times = [f"{row[c]:.2f} ({row[c] / base[c]:.2f})" for c in columns]
        network = f"{row['network']}, {row['parameters'] / 1e6:.1f} M"
        rows.append((network, row["optimizer"], *times, _number(row.get("state"), 2)))
    heads = ("network", "optimizer", *(f"{c}, ms (ratio)" for c in columns), "state")
    return "\n".join(markdown_table(heads, rows))


def thirty_table() -> str:
    """How many networks of each package passed."""
    found = record_of("thirty-networks")["rows"]
    rows = []
    for package in dict.fromkeys(row["package"] for row in found):
        own = [row for row in found if row["package"] == package]
        passed = [row for row in own if row["passed"]]
        state = max(row["state"] for row in passed)
        rows.append(
            (
                package,
                f"{len(passed)} of {len(own)}",
                f"{state:.2f}",
                ", ".join(row["network"] for row in own),
            )
        )
    heads = ("package", "passed", "largest state over parameters", "networks")
    return "\n".join(markdown_table(heads, rows))


def graphs_table() -> str:
    """The default of graphs, by depth, with and without self-training."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in record_of("graph-networks")["rows"]:
        if row["network"].startswith("own"):
            cell = found.setdefault((row["dataset"], row["split"]), {})
            cell.setdefault(f"{row['network'][-1]} layers, {row['method']}", []).append(row["test"])
    columns = sorted({name for cell in found.values() for name in cell})
    rows = [
        (*key, *(f"{mean(cell[name]):.4f} ({len(cell[name])})" for name in columns))
        for key, cell in sorted(found.items())
    ]
    heads = ("graph", "split", *(name.replace("streaming", "default") for name in columns))
    return "\n".join(markdown_table(heads, rows))


def graph_modules_table() -> str:
    """Networks of PyG as they are, beside Adam as people use it and the best of its grid on validation nodes."""
    found: dict[tuple[str, str, str], dict[int, dict[str, dict[str, Any]]]] = {}
    for row in record_of("graph-networks")["rows"]:
        if not row["network"].startswith("own"):
            key = row["dataset"], row["split"], row["network"]
            found.setdefault(key, {}).setdefault(row["seed"], {})[row["method"]] = row
    rows = []
    for key, seeds in sorted(found.items()):
        whole = [cells for cells in seeds.values() if len(cells) == 4]
        if not whole:
            continue
        tuned = [
            max((c for name, c in cells.items() if name != "dladmm"), key=lambda c: c["val"])["test"]
            for cells in whole
        ]
        ours, plain = (mean(cells[name]["test"] for cells in whole) for name in ("dladmm", "Adam"))
        rows.append(
            (
                *key,
                str(len(whole)),
                f"{ours:.4f}",
                f"{plain:.4f}",
                f"{mean(tuned):.4f}",
                f"{ours - plain:+.4f}",
            )
        )
    heads = ("graph", "split", "network", "splits", "dladmm", "Adam", "best of three Adams", "dladmm - Adam")
    return "\n".join(markdown_table(heads, rows))


def _by_network(rows: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["network"], {})[row["method"]] = row
    return found


def _digits(record: dict[str, Any], network: str) -> int:
    return 3 if network in record["lower_is_better"] else 4


def _score(record: dict[str, Any], row: dict[str, Any]) -> str:
    """Mean over seeds, and the worst of them."""
    digits = _digits(record, row["network"])
    worst = max if row["network"] in record["lower_is_better"] else min
    return f"{mean(row['scores']):.{digits}f} ({worst(row['scores']):.{digits}f})"


def _margin(record: dict[str, Any], network: str, other: str) -> float:
    """By how much StreamingADMM's mean is better."""
    methods = _by_network(record["rows"])[network]
    difference = mean(methods["StreamingADMM"]["scores"]) - mean(methods[other]["scores"])
    return -difference if network in record["lower_is_better"] else difference


def _title(row: dict[str, Any]) -> str:
    """The data set, and the network where it is not the one of the text."""
    network = {"mlp": "", "cnn": ", CNN", "deep": ", 8 hidden layers of 256"}[row["network"]]
    return f"{TITLES[row['data']]}{network}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def readme_rows() -> list[tuple[str, ...]]:
    """Streaming mode after ten passes beside the best opponent after as many or fewer."""
    found = []
    accuracies = record_of("time-to-accuracy-h200")["accuracies"]
    for data, title in TITLES.items():
        own = [row for row in accuracies if row["data"] == data and row["network"] == "mlp"]
        ours = next(row for row in own if row["name"] == "streaming, 10 passes")
        best = {
            name: max((row for row in own if row["name"].startswith(name)), key=lambda row: row["mean"])
            for name in ("adam", "muon")
        }
        beside = ", ".join(
            f"{name.title()} at its best {100 * row['mean']:.1f} % in {row['seconds']:.1f} s"
            for name, row in best.items()
        )
        took = f"10 passes in {ours['seconds']:.1f} s from the first step, one H200"
        what = f"{title}, 784-1000-1000-10, streaming mode, {took}"
        found.append((what, f"**{100 * ours['mean']:.1f} %**", beside, f"`{COMMAND}`"))
    return found


def record_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (ROOT / "docs" / "results" / f"{name}.json").read_text(encoding="utf-8")
    )
    return found
