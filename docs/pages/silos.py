"""The figures of ``docs/silos.md``, from the recorded runs on one-class silos."""

from __future__ import annotations

import json
import re
from typing import Any

from dladmm.report.tables import markdown_table
from pages.records import ROOT

MARKED = re.compile(r"(<!-- (\w+) of silos: made by docs/render.py -->\n).*?(<!-- end of \2 -->)", re.DOTALL)


def with_silos_table(page: str) -> str:
    """The page with its tables and figures made anew."""
    record = json.loads((ROOT / "docs" / "results" / "silos.json").read_text(encoding="utf-8"))
    made = {"table": silos_table, "noise": noise_table, "same": same_words, "sweep": sweep_table}
    return MARKED.sub(lambda found: found[1] + made[found[2]](record) + "\n" + found[3], page)


def silos_table(record: dict[str, Any]) -> str:
    """Rounds and bytes of every method until the target, or where it stood at its end."""
    settings, target, methods = record["settings"], record["settings"]["target"], record["methods"]
    rows = []
    for name, found in methods.items():
        reached = accuracy = f"{100 * found['accuracy']:.1f} %"
        if not found["reached"]:
            reached = f"not reached: {accuracy} at the end"
        if "judged" in found:  # a method whose last run is a trial
            reached += f" (of the {found['judged']})"
        chosen = ""
        if "steps" in found:
            steps = f"{found['steps']} local step{'s' if found['steps'] > 1 else ''}"
            chosen = f", {steps} of {found['rate']:g} on {found['batch']} rows"
            chosen += f", rho {found['rho']:g}" if "rho" in found else ""
        rows.append((f"{name}{chosen}", f"{found['rounds']:,}", f"{found['bytes'] / 1e6:,.1f}", reached))
    heads = ("method", "rounds", "megabytes", f"{100 * target:.0f} % of the test rows")
    head = (
        f"All {record['n_rows']:,} training rows, one hidden layer of {settings['hidden']} units. A round is one "
        "message up and one down; those before the first iteration are counted."
    )
    own = methods["dladmm, float32"]
    times = [
        f"{name} {'' if found['reached'] else 'more than '}{found['rounds'] / own['rounds']:.1f} times the rounds and "
        f"{found['bytes'] / own['bytes']:.0f} times the bytes"
        for name, found in methods.items()
        if not name.startswith("dladmm")
    ]
    return "\n\n".join(
        [head, "\n".join(markdown_table(heads, rows)), f"Beside the first row: {'; '.join(times)}."]
    )


def noise_table(record: dict[str, Any]) -> str:
    """Accuracy after as many batches as without noise."""
    without = record["methods"]["dladmm, float32"]
    rows = [("0", f"{100 * without['accuracy']:.1f} %")]
    rows += [(name, f"{100 * found['accuracy']:.1f} %") for name, found in record["noise"].items()]
    return "\n".join(markdown_table(("`noise`", f"accuracy after {without['batches']} batches"), rows))


def same_words(record: dict[str, Any]) -> str:
    """How far the parameters of silos are from those of all rows together."""
    parts = [
        f"{found['away']:.0e} of their length in {name.replace(', ', ' mode and ')}, with "
        f"{100 * found['same_predictions']:.2f} % of the test rows predicted alike,"
        for name, found in record["same"].items()
    ]
    some = next(iter(record["same"].values()))
    return (
        f"On {some['rows']:,} rows of MNIST, one class a silo, parameters differ after {some['iterations']} iterations "
        f"by {' and by '.join(parts)[:-1]}."
    )


def sweep_table(record: dict[str, Any]) -> str:
    """The paper's sweep beside one that updates parameters on the way back alone."""
    rows = [
        (
            found["network"],
            found["sweep"],
            str(found["messages"]),
            f"{found['objective']:,.0f}",
            f"{100 * found['held']:.1f} %",
        )
        for found in record["sweep"]
    ]
    heads = ("network", "`sweep`", "messages an iteration", "objective", "held-out rows")
    return "\n".join(markdown_table(heads, rows))
