"""The tables of ``docs/performance.md``, from the recorded runs of ``benchmarks/``."""

from __future__ import annotations

import json
import re
from typing import Any

from dladmm.report.tables import markdown_table
from pages.records import ROOT

MARKED = re.compile(r"(<!-- table (\w+): made by docs/render.py -->\n).*?(<!-- end of table -->)", re.DOTALL)
TITLES = {"mnist": "MNIST", "digits": "digits"}


def with_performance_tables(page: str) -> str:
    """The page with its tables made anew."""
    tables = {
        "end_to_end_h200": lambda: end_to_end_table("h200"),
        "end_to_end_cpu": lambda: end_to_end_table("cpu"),
        "small_problems": small_problems_table,
        "recurrent": recurrent_tables,
        "sequences": sequences_table,
        "edges_cpu": edges_table,
        "targets": targets_table,
    }
    return MARKED.sub(lambda found: found[1] + tables[found[2]]() + "\n" + found[3], page)


def _record(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (ROOT / "docs" / "results" / f"{name}.json").read_text(encoding="utf-8")
    )
    return found


def end_to_end_table(where: str) -> str:
    """Seconds to each level, a table for every data set."""
    rows = [row for row in _record(f"end-to-end-{where}")["rows"] if row["runs"]]
    made = []
    for data in dict.fromkeys(row["data"] for row in rows):
        own = [row for row in rows if row["data"] == data]
        levels = list(own[0]["seconds"])
        heads = (TITLES[data], "first step", *(f"{100 * float(level):g} %" for level in levels), "best")
        cells = [
            (
                row["name"],
                f"{row['first_step']:.2f}",
                *(_seconds(row["seconds"][level]) for level in levels),
                f"{row['best']:.4f}",
            )
            for row in own
        ]
        made.append("\n".join(markdown_table(heads, cells)))
    return "\n\n".join(made)


def targets_table() -> str:
    """What was asked for and what was measured, read from the programs' output and records."""
    gpu, graph = (
        (ROOT / "docs" / "results" / f"performance-{name}.txt").read_text(encoding="utf-8")
        for name in ("h200-auto", "large-graph-cuda")
    )
    processes = {
        name: (float(seconds), int(n), float(ms), float(memory))
        for name, seconds, n, ms, memory in re.findall(
            r"^(\S+) +([\d.]+) s for +(\d+) iterations, +([\d.]+) ms each +([\d.]+) GB", gpu, re.MULTILINE
        )
    }
    took = {
        what: (float(ms), float(epochs))
        for what, ms, epochs in re.findall(
            r"^(.+?): ([\d.]+) ms, Adam epoch [\d.]+ ms, ([\d.]+) epochs", gpu, re.MULTILINE
        )
    }
    graphs = max(epochs for what, (_, epochs) in took.items() if " units" in what)
    quadratic = next(ms for what, (ms, _) in took.items() if what.startswith("mlp convergent"))
    alone = float(re.findall(r"^torch-alone +([\d.]+) s", gpu, re.MULTILINE)[0])
    again, fresh, tf32 = (processes[f"mlp-{name}"] for name in ("float32-again", "float32", "tf32"))
    ms, gigabytes = re.findall(r"^accelerated +([\d.]+) ms, ([\d.]+) GB", graph, re.MULTILINE)[0]
    small, recurrent = _record("small-problems"), _record("recurrent")
    cells = {row["layer"]: row for row in recurrent["digits"]}
    grown = _record("performance-growth-edges-cpu")["exponents"]
    edges = [of["exponent"] for of in grown if of["mode"] != "bare product"]
    rows = [
        ("H200, 200 accelerated iterations from the start of a fresh process", "10 s",
         f"{fresh[0]:.1f} s; TF32 {tf32[0]:.1f} s"),
        ("the same from the second process on, over the steady time", "1.15",
         f"{again[0] / (again[1] * again[2] / 1e3):.2f}; "
         f"{again[0] / (alone + again[1] * again[2] / 1e3):.2f} with what a process of torch alone takes added to it"),
        ("accelerated iteration, strict float32", "50 ms", f"{took['mlp accelerated {}'][0]:.1f} ms"),
        ("quadratic iteration, TF32", "9 ms", f"{quadratic:.1f} ms"),
        ("graphs, accelerated: Adam epochs, the most of five graphs and 16 to 256 units", "4", f"{graphs:.1f}"),
        ("CNN, accelerated, MNIST and Fashion-MNIST: Adam epochs", "8", f"{took['cnn accelerated {}'][1]:.1f}, "
         f"{took['cnn on Fashion-MNIST accelerated {}'][1]:.1f}"),
        ("CNN: memory over Adam's", "3", f"{processes['cnn-float32'][3] / processes['cnn-adam'][3]:.1f}"),
        *(
            (f"{layer}: Adam epochs", f"{row['target']:g}", f"{row['accelerated/adam']:.0f}; "
             f"streaming {row['streaming/adam']:.1f}")
            for layer, row in cells.items()
        ),
        ("GRU on digits after 50 iterations", ".965", f"{cells['GRU']['accelerated_test_accuracy']:.3f}; "
         f"streaming {cells['GRU']['streaming_test_accuracy']:.3f}"),
        ("100 steps, the first symbol", "learned", f"{recurrent['sequences'][0]['test_accuracy']:.3f}"),
        ("small problem over its bare operations, the most of four modes", "3",
         f"{max(of['iteration/bare'] for of in small['modes'].values()):.1f}"),
        ("overhead of `fit`, the most of four modes", "20 ms",
         f"{max(of['overhead_ms'] for of in small['modes'].values()):.0f} ms"),
        ("import over that of torch", "1.2", f"{small['import/torch']:.2f}"),
        ("graph of 1.2 x 10^8 edges, accelerated", "1 s, 33 GB", f"{float(ms) / 1e3:.2f} s, {gigabytes} GB"),
        ("edges on a CPU: exponent", "1.05", f"{max(edges):.2f}"),
    ]  # fmt: skip
    return "\n".join(markdown_table(("", "asked", "measured"), rows))


def edges_table() -> str:
    """Milliseconds per iteration by the number of edges, and the fitted exponents."""
    record = _record("performance-growth-edges-cpu")
    modes = [of["mode"] for of in record["exponents"]]
    took = {(row["mode"], row["size"]): 1e3 * row["seconds"] for row in record["rows"]}
    sizes = list(dict.fromkeys(row["size"] for row in record["rows"]))
    rows = [(f"{size:,}", *(f"{took[mode, size]:.0f}" for mode in modes)) for size in sizes]
    rows.append(("exponent", *(f"{of['exponent']:.2f} +- {of['error']:.2f}" for of in record["exponents"])))
    rows.append(("exponent of the last two", *(f"{of['top']:.2f}" for of in record["exponents"])))
    return "\n".join(markdown_table(("edges", *modes), rows))


def small_problems_table() -> str:
    """Ratios to the bare operations, overhead, calls; then the import."""
    record = _record("small-problems")
    heads = ("mode", "iteration, ms", "bare, ms", "ratio", "overhead of fit, ms", "calls", "bare calls")
    rows = [
        (
            mode,
            f"{of['iteration_ms']:.1f}",
            f"{of['bare_ms']:.1f}",
            f"{of['iteration/bare']:.2f}",
            f"{of['overhead_ms']:.0f}",
            str(of["calls"]),
            str(of["bare_calls"]),
        )
        for mode, of in record["modes"].items()
    ]
    share = record["import/torch"]
    said = f"`from dladmm import train` takes {share:.2f} times as long as `import torch`."
    return "\n".join(markdown_table(heads, rows)) + f"\n\n{said}"


def recurrent_tables() -> str:
    """Adam epochs of an iteration and of a pass, and what 50 of each reach; then the long sequences."""
    record = _record("recurrent")
    passes, iterations = (record["digits"][0][name] for name in ("passes", "iterations"))
    reached = f"accuracy after {iterations} iterations", f"after {passes} passes"
    heads = ("layer", "asked", "accelerated iteration", "streaming pass", *reached)
    rows = [
        (
            row["layer"],
            f"{row['target']:g} epochs",
            f"{row['accelerated/adam']:.0f}",
            f"{row['streaming/adam']:.1f}",
            f"{row['accelerated_test_accuracy']:.4f}",
            f"{row['streaming_test_accuracy']:.4f}",
        )
        for row in record["digits"]
    ]
    lines = "\n".join(markdown_table(heads, rows)) + "\n\n" + _held_out(record["held_out"])
    lines += "\n\n" + _in_units(record["units"])
    for of in record["sequences"]:
        lines += (
            f"\n\nThe first of {of['steps']} symbols behind noise, {of['layer']} of {of['hidden']} units, "
            f"{of['rows']:,} sequences, {of['passes']} passes ({of['seconds']:.0f} s): test accuracy "
            f"{of['test_accuracy']:.3f} (chance .25); Adam in as many seconds, batch {of['adam_batch']} and the best "
            f"of three rates on these very rows ({of['adam_rate']:g}): {of['adam_test_accuracy']:.3f}."
        )
    return lines


def sequences_table() -> str:
    """Recorded sequences beside Adam in as many seconds, those that settings were looked at on first."""
    record = _record("sequences")
    layers = list(dict.fromkeys(row["layer"] for row in record["rows"]))
    heads = (
        "sequences",
        "rows, steps, features",
        *(f"{layer}: {who}" for layer in layers for who in ("streaming", "Adam")),
    )
    cells = {(row["set"], row["layer"]): row for row in record["rows"]}
    lines = []
    for row in sorted(record["rows"], key=lambda row: not row["looked_at"]):
        own = [cells[row["set"], layer] for layer in layers]
        pairs = (
            text
            for of in own
            for text in (f"{of['accuracy']:.3f} ({of['seconds']:.1f} s)", f"{of['adam_accuracy']:.3f}")
        )
        name = row["set"] + (" (looked at)" if row["looked_at"] else "")
        lines.append((name, f"{row['rows']}, {row['steps']}, {row['features']}", *pairs))
    return "\n".join(markdown_table(heads, list(dict.fromkeys(lines))))


def _held_out(rows: list[dict[str, Any]]) -> str:
    """What every layer reaches of images held out, and CPU seconds of a run."""
    runs = list(dict.fromkeys((row["mode"], row["iterations"]) for row in rows))
    cells = {(row["layer"], row["mode"], row["iterations"]): row for row in rows}
    named = {
        "accelerated": "accelerated, {} iterations",
        "streaming": "streaming, {} passes",
        "adam": "Adam, as long as {} passes",
    }
    heads = (named[mode].format(n) for mode, n in runs)
    table = markdown_table(
        ("layer", *heads),
        [
            (
                layer,
                *(
                    f"{cells[layer, *run]['accuracy']:.3f} ({cells[layer, *run]['seconds']:.1f} s)"
                    for run in runs
                ),
            )
            for layer in dict.fromkeys(row["layer"] for row in rows)
        ],
    )
    first = rows[0]
    rates = sorted({row["rate"] for row in rows if "rate" in row})
    return (
        f"Training images held out, {first['folds']} parts in turn, {first['seeds']} seeds, CPU seconds of a run; Adam "
        f"with mini-batches, from torch's own start and with its best rate on these very rows "
        f"({', '.join(f'{rate:g}' for rate in rates)}):\n\n" + "\n".join(table)
    )


def _in_units(rows: list[dict[str, Any]]) -> str:
    """The same pixels in other units, scaled and as they are."""
    units = list(dict.fromkeys(row["unit"] for row in rows))
    cells = {(row["layer"], row["unit"], row["scaled"]): row["accuracy"] for row in rows}
    heads = [f"`{unit}`{'' if scaled else ', as it is'}" for unit in units for scaled in (True, False)]
    table = markdown_table(
        ("layer", *heads),
        [
            (layer, *(f"{cells[layer, unit, scaled]:.3f}" for unit in units for scaled in (True, False)))
            for layer in dict.fromkeys(row["layer"] for row in rows)
        ],
    )
    return (
        "The same images in other units (pixels x lie between 0 and 1), scaled by the run, and as they are with "
        f"`scale_inputs=False`; {rows[0]['passes']} passes of streaming mode:\n\n" + "\n".join(table)
    )


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
