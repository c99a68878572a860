"""How long ``from dladmm import train`` takes beside ``import torch`` alone: ``python benchmarks/import_time.py``.

Each import is made in a process of its own, the two in turn, and the medians are compared. The second ratio counts what
scikit-learn's estimators and numpy cost anybody who imports them beside torch. (``import dladmm`` imports nothing until
a name is asked for.) Bytecode is there, as after an installation: the first import of each, which does not count,
writes it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys

CODE = "import time; start = time.{0}(); {1}; print(time.{0}() - start)"
CASES = {
    "torch": "import torch",
    "torch, numpy, scikit-learn": "import torch, numpy, sklearn.base, sklearn.model_selection",
    "dladmm": "import dladmm",
    "dladmm, train": "from dladmm import train",
    "dladmm, MLPClassifier": "from dladmm import MLPClassifier",
}


def seconds(statement: str, clock: str) -> float:
    command = [sys.executable, "-c", CODE.format(clock, statement)]
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=own)
    return float(done.stdout)


def medians(repeats: int, clock: str = "perf_counter") -> dict[str, float]:
    """Seconds of each import, the median of so many processes; of the wall, or ``process_time``."""
    for statement in CASES.values():  # the first read of every file is the disk's
        seconds(statement, clock)
    found: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(repeats):
        for name, statement in CASES.items():
            found[name].append(seconds(statement, clock))
    return {name: statistics.median(times) for name, times in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--cpu-time", action="store_true", help="of the process, where others work")
    settings = parser.parse_args()
    found = medians(settings.repeats, "process_time" if settings.cpu_time else "perf_counter")
    for name, median in found.items():
        print(f"{name:28s} {median:6.3f} s   {median / found['torch']:.2f} x torch")
    print(f"from dladmm import train / import torch: {found['dladmm, train'] / found['torch']:.2f}")


if __name__ == "__main__":
    main()
