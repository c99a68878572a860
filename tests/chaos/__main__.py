"""``make chaos``: every line at its full size, two at a time, then one table; ``--only`` and ``--share`` for less.

Figures go to docs/results/chaos.json (lines that were not run keep the figures they had), from which
docs/reliability.md is made: ``python -m chaos.page``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from chaos.ledger import Ledger, surroundings
from chaos.plan import BY_NAME, LINES, Line

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "chaos.json"
WORKERS = 2


def size_of(line: Line, share: float) -> int:
    """Counts shrink with the share down to their small size; what runs once, or by strides, takes the small size."""
    if share >= 1:
        return line.full
    return line.small if line.full <= line.small else max(line.small, round(share * line.full))


def work(name: str, size: int, seed: int) -> None:
    """One line in this process; its figures are the last line of standard output."""
    import torch

    torch.set_num_threads(1)
    ledger = Ledger(name, size if BY_NAME[name].counts else 0, loud=True)
    BY_NAME[name].run(ledger, size, seed)
    print(json.dumps(ledger.closed().to_dict() | {"size": size, "seed": seed}))


def parts_of(line: Line, share: float, seed: int) -> list[tuple[int, int]]:
    """Size and seed of every part."""
    size = size_of(line, share)
    if line.parts == 1 or size < line.full:
        return [(size, seed)]
    return [(size // line.parts, line.parts * seed + part) for part in range(line.parts)]


def together(line: Line, found: list[dict[str, Any]]) -> dict[str, Any]:
    """The parts of a line as one."""
    first = found[0]
    if len(found) == 1:
        return first
    summed = {
        key: sum(part[key] for part in found) for key in ("tried", "survived", "lost", "seconds", "size")
    }
    names = dict.fromkeys(name for part in found for name in part["notes"])
    notes = {
        name: (max if name.startswith("slowest") else sum)(part["notes"].get(name, 0) for part in found)
        for name in names
    }
    return first | summed | {"notes": notes, "faults": [fault for part in found for fault in part["faults"]]}


def in_process(line: Line, size: int, seed: int) -> dict[str, Any]:
    """A part of a line in a process of its own: what it breaks, it breaks there."""
    print(f"{line.title} ...", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "chaos", "--work", line.name, "--size", str(size), "--seed", str(seed)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=surroundings())
    if done.returncode != 0:
        fault = f"the line itself ended with {done.returncode}"
        return {"name": line.name, "tried": 1, "survived": 0, "lost": 1, "seconds": 0.0, "notes": {}, "size": size,
                "seed": seed, "faults": [fault]}  # fmt: skip
    return dict(json.loads(done.stdout.splitlines()[-1]))


def table(results: dict[str, Any]) -> str:
    """Tried, survived, lost."""
    rows = [("", "tried", "survived", "lost")]
    known = [(line, results["lines"][line.name]) for line in LINES if line.name in results["lines"]]
    rows += [(line.title, *(f"{r[key]:,}" for key in ("tried", "survived", "lost"))) for line, r in known]
    totals = [sum(r[key] for _, r in known) for key in ("tried", "survived", "lost")]
    rows.append(("all", *(f"{total:,}" for total in totals)))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    shown = [
        "  ".join([row[0].ljust(widths[0]), *(row[i].rjust(widths[i]) for i in (1, 2, 3))]) for row in rows
    ]
    rule = "-" * len(shown[0])
    return "\n".join([shown[0], rule, *shown[1:-1], rule, shown[-1]])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=list(BY_NAME), help="a line by name; may be repeated"
    )
    parser.add_argument("--share", type=float, default=1.0, help="a share of the full size, as 0.01")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=WORKERS, help="processes at a time")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work is not None:
        work(given.work, given.size, given.seed)
        return 0
    chosen = [line for line in LINES if given.only is None or line.name in given.only]
    before = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {"lines": {}}
    from dladmm.training.run_folder import describe

    results: dict[str, Any] = before | {"command": "make chaos", "machine": describe("cpu")}
    with ThreadPoolExecutor(given.workers) as pool:
        running = {
            pool.submit(in_process, line, size, seed): line
            for line in chosen
            for size, seed in parts_of(line, given.share, given.seed)
        }
        found: dict[str, list[dict[str, Any]]] = {line.name: [] for line in chosen}
        for done in as_completed(running):
            line = running[done]
            found[line.name].append(done.result())
            if len(found[line.name]) < len(parts_of(line, given.share, given.seed)):
                continue
            results["lines"][line.name] = together(line, found[line.name])
            given.out.parent.mkdir(parents=True, exist_ok=True)
            given.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(table(results))
    lost = [fault for line in chosen for fault in results["lines"][line.name]["faults"]]
    print("\n".join(lost), file=sys.stderr)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
