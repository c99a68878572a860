"""``make mutants``: put every fault of the list into a copy of the library and see that its tests fail.

``make mutants ARGS="--share 12 --seed 0"`` tries twelve of them, ``ARGS="--only engine"`` an area, a file or a name.
Figures go to docs/results/mutants.json, where faults that were not tried keep the line they had; those of a share and
of other lists go nowhere unless ``--out`` says so.
The exit status is 1 when a fault survives that is not listed as a survivor, when a fault no longer applies, or when
named tests fail without any fault. Of the whole list at most 5 % are survivors (tests/mutants/test_mutants.py).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from mutants.faults import LISTS, ROOT, Fault, all_faults, chosen
from mutants.trying import Outcome, import_once, try_all

RESULTS = ROOT / "docs" / "results" / "mutants.json"


def summary(outcomes: Sequence[Outcome]) -> str:
    """A table by area."""
    rows = [("area", "faults", "caught", "survived", "explained")]
    known = [o for o in outcomes if o.fault is not None]
    areas = dict.fromkeys(o.fault.area for o in known if o.fault is not None)
    for area in (*sorted(areas), "all"):
        own = [o for o in known if o.fault is not None and area in (o.fault.area, "all")]
        survived = [o for o in own if o.verdict != "caught"]
        numbers = len(own), len(own) - len(survived), len(survived), sum(map(explained, survived))
        rows.append((area, *map(str, numbers)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        lines.append("  ".join([first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]))
    return "\n".join(lines)


def explained(outcome: Outcome) -> bool:
    """Whether the list says why the fault survives."""
    return outcome.verdict == "survived" and outcome.fault is not None and bool(outcome.fault.survives)


def failed(outcomes: Sequence[Outcome]) -> bool:
    """Whether a fault survived without an explanation, or could not be tried."""
    return any(outcome.verdict != "caught" and not explained(outcome) for outcome in outcomes)


def fails_without_a_fault(faults: Sequence[Fault]) -> bool:
    """Run all named tests on the library as it is: a test that fails anyway would catch everything."""
    tests = tuple(dict.fromkeys(test for fault in faults for test in fault.tests))
    (outcome,) = try_all([(None, tests)], workers=1)
    if outcome.verdict != "survived":
        print(outcome.output[-3000:], "\nthe named tests fail without a fault", file=sys.stderr)
    return outcome.verdict != "survived"


def say(outcome: Outcome, number: int, of: int) -> None:
    """One line of progress."""
    assert outcome.fault is not None
    said = "explained" if explained(outcome) else outcome.verdict
    by = f"  by {outcome.by}" if outcome.by else ""
    print(f"[{number:3}/{of}] {said:9} {outcome.seconds:5.1f} s  {outcome.fault.name}{by}", flush=True)


def conclude(outcomes: Sequence[Outcome]) -> None:
    """The table, and a word about everything that was not caught or was expected not to be."""
    print("\n" + summary(outcomes))
    for outcome in outcomes:
        assert outcome.fault is not None
        fault = outcome.fault
        if fault.survives:
            print(f"\n{outcome.verdict}, listed as a survivor: {fault.name}: {fault.survives}")
        elif outcome.verdict != "caught":
            print(f"\n{outcome.verdict}: {fault.name} ({fault.file}): {fault.wrong}")
            print(outcome.output[-2000:] if outcome.verdict == "wrong" else "")
    caught = sum(outcome.verdict == "caught" for outcome in outcomes)
    print(f"\n{caught} of {len(outcomes)} faults caught.")


def write_down(outcomes: Sequence[Outcome], path: Path, known: Sequence[Fault]) -> None:
    """Every fault's area, verdict and the test that noticed; what is no longer on the list is dropped."""
    before = json.loads(path.read_text(encoding="utf-8"))["faults"] if path.exists() else {}
    found = {
        outcome.fault.name: {
            "area": outcome.fault.area,
            "verdict": "explained" if explained(outcome) else outcome.verdict,
            "by": outcome.by,
        }
        for outcome in outcomes
        if outcome.fault is not None
    }
    listed = {fault.name for fault in known}
    kept = {name: line for name, line in sorted((before | found).items()) if name in listed}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({"command": "make mutants", "faults": kept}, indent=1) + "\n", encoding="utf-8"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="names, areas or files of faults"
    )
    parser.add_argument("--share", type=int, help="so many faults, drawn with --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--lists", type=Path, default=LISTS, help="a folder of other TOML files")
    parser.add_argument(
        "--no-baseline", action="store_true", help="do not run the tests without a fault first"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="where figures go (docs/results/mutants.json)",
    )
    given = parser.parse_args(arguments)
    known = all_faults(given.lists)
    out = given.out or (RESULTS if given.lists == LISTS and given.share is None else None)
    faults = chosen(known, given.only, given.share, given.seed)
    troubles = [trouble for fault in faults if (trouble := fault.trouble())]
    if troubles:
        print("\n".join(troubles), file=sys.stderr)
        return 1
    import_once()
    if not given.no_baseline and fails_without_a_fault(faults):
        return 1
    outcomes: list[Outcome] = []
    for outcome in try_all([(fault, fault.tests) for fault in faults], given.workers):
        outcomes.append(outcome)
        say(outcome, len(outcomes), len(faults))
        if out is not None:
            write_down(outcomes, out, known)
    conclude(outcomes)
    return int(failed(outcomes))


if __name__ == "__main__":
    sys.exit(main())
