"""How long ``import dladmm`` takes beside ``import torch`` alone: ``python benchmarks/import_time.py``.

Each import is made in a process of its own, the two in turn, and the medians are compared. The second ratio counts what
scikit-learn's estimators and numpy cost anybody who imports them beside torch.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

CODE = "import time; start = time.perf_counter(); {}; print(time.perf_counter() - start)"
CASES = {
    "torch": "import torch",
    "torch, numpy, scikit-learn": "import torch, numpy, sklearn.base, sklearn.model_selection",
    "dladmm": "import dladmm",
}


def seconds(statement: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(statement)], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    for statement in CASES.values():  # the first read of every file is the disk's
        seconds(statement)
    found: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(repeats):
        for name, statement in CASES.items():
            found[name].append(seconds(statement))
    medians = {name: statistics.median(times) for name, times in found.items()}
    for name, median in medians.items():
        print(f"{name:28s} {median:6.3f} s   {median / medians['torch']:.2f} x torch")
    print(f"import dladmm / import torch: {medians['dladmm'] / medians['torch']:.2f}")


if __name__ == "__main__":
    main()
