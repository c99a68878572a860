"""``make mutants``: put every fault of the list into a copy of the library and see that its tests fail.

``make mutants ARGS="--share 12 --seed 0"`` tries twelve of them, ``ARGS="--only engine"`` an area, a file or a name.
The exit status is 1 when a fault survives that is not listed as a survivor, when a fault no longer applies, when named
tests fail without any fault, or when fewer than 95 % are caught.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from mutants.faults import all_faults, chosen
from mutants.trying import Outcome, import_once, try_all

ENOUGH = 0.95


def summary(outcomes: Sequence[Outcome]) -> str:
    """A table by area."""
    rows = [("area", "faults", "caught", "survived", "explained")]
    known = [o for o in outcomes if o.fault is not None]
    areas = dict.fromkeys(o.fault.area for o in known if o.fault is not None)
    for area in (*sorted(areas), "all"):
        own = [o for o in known if o.fault is not None and area in (o.fault.area, "all")]
        survived = [o for o in own if o.verdict != "caught"]
        explained = sum(bool(o.fault and o.fault.survives) for o in survived)
        numbers = len(own), len(own) - len(survived), len(survived), explained
        rows.append((area, *map(str, numbers)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True)))
             for row in rows]  # fmt: skip
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="names, areas or files of faults")
    parser.add_argument("--share", type=int, help="so many faults, drawn with --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests without a fault first")
    given = parser.parse_args(arguments)
    faults = chosen(all_faults(), given.only, given.share, given.seed)
    troubles = [trouble for fault in faults if (trouble := fault.trouble())]
    if troubles:
        print("\n".join(troubles), file=sys.stderr)
        return 1
    import_once()
    outcomes: list[Outcome] = []
    bad: list[Outcome] = []
    if not given.no_baseline:
        print("the named tests without a fault ...", flush=True)
        tests = tuple(dict.fromkeys(test for fault in faults for test in fault.tests))
        (own,) = try_all([(None, tests)], workers=1)
        if own.verdict != "survived":
            print(own.output[-3000:], "\nthe named tests fail without a fault", file=sys.stderr)
            return 1
    for number, outcome in enumerate(try_all([(f, f.tests) for f in faults], given.workers), 1):
        fault = outcome.fault
        assert fault is not None
        outcomes.append(outcome)
        explained = outcome.verdict == "survived" and bool(fault.survives)
        said = "explained" if explained else outcome.verdict
        by = f"  by {outcome.by}" if outcome.by else ""
        print(f"[{number:3}/{len(faults)}] {said:9} {outcome.seconds:5.1f} s  {fault.name}{by}", flush=True)
        if outcome.verdict != "caught" and not explained:
            bad.append(outcome)
    print("\n" + summary(outcomes))
    for outcome in bad:
        assert outcome.fault is not None
        fault = outcome.fault
        print(f"\n{outcome.verdict}: {fault.name} ({fault.file}): {fault.wrong}")
        if outcome.verdict == "wrong":
            print(outcome.output[-2000:])
    for outcome in outcomes:
        if outcome.fault is not None and outcome.fault.survives:
            print(f"\n{outcome.verdict}, listed as a survivor: {outcome.fault.name}: {outcome.fault.survives}")
    caught = sum(outcome.verdict == "caught" for outcome in outcomes)
    print(f"\n{caught} of {len(outcomes)} faults caught.")
    return int(bool(bad) or caught < ENOUGH * len(outcomes))


if __name__ == "__main__":
    sys.exit(main())
