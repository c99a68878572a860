"""Seconds from the start of a process to a test accuracy, with everything in it: the table a user sees.

    python benchmarks/end_to_end.py                                     # two CPU cores, a few minutes
    python benchmarks/end_to_end.py --device cuda --data carry          # MNIST, all rows, 150 s

Every run is a process of its own (fresh_process.py, installed.py): imports, reading the data, first launches and
compilation count, looks at the test accuracy do not. All modes of the library with their defaults;
``MLPClassifier()``, which is looked at when ``fit`` is over; mini-batch Adam as a plain torch loop, three settings that
were the best of a grid in docs/streaming_notes.md; ``torch.optim.Muon`` where torch has it; scikit-learn's
``MLPClassifier`` behind ``StandardScaler``, looked at after every pass. Full data modes are given up after --limit
seconds.

Progress goes to standard error. The JSON object is written to docs/results/end-to-end-{cpu,h200}.json after every row;
--from-log makes it of the progress lines of a run that was cut off.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # this checkout, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from compact_json import dumps, rounded
from installed import compile_packages, environment
from plain_torch import Setting
from time_to_accuracy import files_of

from dladmm.training.run_folder import describe

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "docs" / "results"
LEVELS = {"mnist": [0.9, 0.95, 0.97, 0.98], "digits": [0.9, 0.95, 0.965]}
SMALL_LEVELS = [0.85, 0.9, 0.93, 0.94]
"""Of MNIST with few rows."""
METHODS = (
    Setting("streaming", 10),
    Setting("accelerated", 200),
    Setting("MLPClassifier()", 1),
    Setting("adam", 5, 256, 2e-3),
    Setting("adam", 10, 128, 1e-3),
    Setting("muon", 5, 256, 2e-3),
    Setting("scikit-learn", 30),
    Setting("convergent", 200),
    Setting("quadratic", 200),
    Setting("adam", 5, 512, 2e-3),
)


def methods(only: Sequence[str] | None, scale: int) -> Iterator[Setting]:
    """What is run; passes over mini-batches are ``scale`` times as many where rows are few."""
    for setting in METHODS:
        if only is not None and setting.method not in only:
            continue
        if setting.method == "muon" and not hasattr(torch.optim, "Muon"):
            continue
        yield setting._replace(passes=scale * setting.passes) if setting.lr is not None else setting


def named(setting: Setting) -> str:
    """As the table says it."""
    if setting.lr is not None:
        return f"{setting.method}, batch {setting.batch}, rate {setting.lr:g}, {setting.passes} passes"
    return {
        "MLPClassifier()": "MLPClassifier(), all defaults",
        "scikit-learn": "scikit-learn's MLP behind StandardScaler",
        "quadratic": "convergent mode, majorised steps",
    }.get(setting.method, f"{setting.method} mode")


def one_run(
    settings: argparse.Namespace, file: Path, what: dict[str, Any], setting: Setting, seed: int
) -> dict[str, Any] | str:
    """What the process found, or what it said when it failed."""
    given = what | {
        "file": str(file), "device": settings.device, "threads": settings.threads, "kind": "mlp",
        "setting": setting._asdict(), "seed": seed, "looks": 20, "until": settings.until, "began": time.time(),
        "limit": settings.limit,
        "cpu_time": settings.cpu_time,
    }  # fmt: skip
    command = [sys.executable, str(HERE / "fresh_process.py"), json.dumps(given)]
    try:
        done = subprocess.run(
            command,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=max(1.0, settings.until - time.time()) + 60,
        )
    except subprocess.TimeoutExpired:
        return "took longer than its limit"
    if done.returncode:
        return done.stderr.strip()[-300:] or f"exit status {done.returncode}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(
    settings: argparse.Namespace, files: dict[str, Path], write: Callable[[list[dict[str, Any]]], None]
) -> None:
    """A row for every data set and method, written as soon as it is known."""
    rows: list[dict[str, Any]] = []
    for data, file in files.items():
        small = data == "digits" or settings.rows is not None
        levels = LEVELS["digits"] if data == "digits" else (SMALL_LEVELS if small else LEVELS["mnist"])
        what = {"rows": None if data == "digits" else settings.rows, "levels": levels}
        what["widths"] = [100, 100] if data == "digits" else settings.widths
        for setting in methods(settings.methods, 4 if small else 1):
            if time.time() > settings.until:
                print("the time is over", file=sys.stderr)
                return
            runs, failed = [], None
            for seed in range(settings.repeats):
                run = one_run(settings, file, what, setting, seed)
                if isinstance(run, str):
                    failed = run
                else:
                    runs.append(run)
            row = {"data": data, "method": setting.method, "name": named(setting), "runs": len(runs)}
            rows.append(row | _summary(runs, levels) | ({"failed": failed} if failed else {}))
            print(
                f"[{settings.until - time.time():4.0f} s left] {line(rows[-1])}", file=sys.stderr, flush=True
            )
            write(rows)


def _summary(runs: list[dict[str, Any]], levels: list[float]) -> dict[str, Any]:
    """Medians over the runs; a level counts as reached where every run reached it."""
    seconds: dict[str, float | None] = {}
    for level in map(str, levels):
        each = [run["seen"][level] for run in runs]
        seconds[level] = statistics.median(each) if each and None not in each else None
    return {
        "first_step": statistics.median(run["first_step"] for run in runs) if runs else None,
        "seconds": seconds,
        "best": statistics.fmean(run["best"] for run in runs) if runs else None,
        "passes": statistics.median(run["passes"] for run in runs) if runs else None,
    }


def line(row: dict[str, Any]) -> str:
    """A row for people."""
    if "failed" in row and not row["runs"]:
        return f"{row['data']:7} {row['name']}: {row['failed']}"
    times = "  ".join(f"{100 * float(level):g} %: {_shown(s)}" for level, s in row["seconds"].items())
    return f"{row['data']:7} {times}  best {row['best']:.4f}  first step {row['first_step']:.2f} s  {row['name']}"


def _shown(value: float | None) -> str:
    return "   -   " if value is None else f"{value:5.2f} s"


LINE = re.compile(r"(\w+) +(\S+ %:.*)  best ([\d.]+)  first step ([\d.]+) s  (.+)")


def rows_of_log(text: str) -> list[dict[str, Any]]:
    """What :func:`line` has written, read again."""
    rows = []
    for found in LINE.finditer(text):
        data, times, best, first_step, name = found.groups()
        pairs = (pair.split(" %:") for pair in re.split(r"  +(?=\S+ %:)", times))
        seconds = {
            str(round(float(level) / 100, 4)): None if "-" in took else float(took.removesuffix(" s"))
            for level, took in pairs
        }
        rows.append(
            {"data": data, "name": name, "runs": 1, "first_step": float(first_step), "seconds": seconds}
            | {"best": float(best)}
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    def several(text: str) -> list[str]:
        return [part for part in text.split(",") if part]

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--device", default="cpu")
    add("--data", type=Path, help="a folder with mnist.npz (X, y, Xt, yt); else $DLADMM_DATA")
    add("--sets", type=several, help="mnist,digits on a CPU, mnist on a GPU")
    add("--rows", type=int, help="of MNIST (6,000 on a CPU, all on a GPU)")
    add("--widths", type=lambda text: [int(part) for part in several(text)], help="300,300, or 1000,1000")
    add("--methods", type=several, help="some of them")
    add("--repeats", type=int, default=1)
    add("--limit", type=float, help="seconds of one process (20)", default=20.0)
    add("--budget-seconds", type=float, default=600.0)
    add("--threads", type=int)
    add(
        "--cpu-time", action="store_true", help="CPU seconds in one thread, for a machine that has other work"
    )
    add("--from-log", type=Path, help="the progress lines of a run that was cut off")
    add("--out", type=Path)
    settings = parser.parse_args(arguments)
    gpu = settings.device.startswith("cuda")
    settings.sets = settings.sets or (["mnist"] if gpu else ["mnist", "digits"])
    settings.widths = settings.widths or ([1000, 1000] if gpu else [300, 300])
    settings.rows = settings.rows if gpu or settings.rows is not None else 6000
    settings.until = time.time() + settings.budget_seconds
    settings.threads = 1 if settings.cpu_time else settings.threads
    if settings.threads:
        os.environ["OMP_NUM_THREADS"] = str(settings.threads)
    given = " ".join(sys.argv[1:] if arguments is None else arguments)
    out = settings.out or RESULTS / f"end-to-end-{'h200' if gpu else 'cpu'}.json"
    report: dict[str, Any] = {
        "command": f"python benchmarks/end_to_end.py {given}".strip(),
        "machine": {"device": settings.device} if settings.from_log else describe(settings.device),
        "settings": {
            key: getattr(settings, key)
            for key in ("rows", "widths", "limit", "repeats", "threads", "cpu_time")
        },
    }

    def write(rows: list[dict[str, Any]]) -> None:
        out.write_text(dumps(rounded(report | {"rows": rows})) + "\n", encoding="utf-8")

    if settings.from_log is not None:
        report["command"] = report["command"].split(" --from-log")[0]
        write(rows_of_log(settings.from_log.read_text(encoding="utf-8")))
        return
    compile_packages()
    with tempfile.TemporaryDirectory() as folder:
        measure(settings, dict(files_of(settings, Path(folder))), write)


if __name__ == "__main__":
    main()
