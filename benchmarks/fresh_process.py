"""One run in a process of its own: when each test accuracy was first seen, in seconds since the process was started.

    python benchmarks/fresh_process.py '{"file": "mnist.npz", "device": "cuda", "began": 1.7e9, ...}'

Started by time_to_accuracy.py and end_to_end.py. Imports, reading the file, first launches and recordings count; looks
at the test accuracy do not. Adam's process imports torch and numpy alone, scikit-learn's no torch.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))


def main() -> None:
    given = json.loads(sys.argv[1])
    if given["setting"]["method"] in ("scikit-learn", "MLPClassifier()"):
        from fresh_estimators import estimated

        print(json.dumps(estimated(given)))
        return
    import torch
    from plain_torch import WHOLE_DATA, Learner, PlainTorch, Setting, Timed, read_images

    if given["threads"]:
        torch.set_num_threads(given["threads"])
    images = read_images(given["file"], given["device"], given["rows"])
    setting = Setting(**given["setting"])
    learner: Learner
    if setting.method == "streaming":
        from streamed import Streamed

        learner = Streamed(images, given["kind"], given["widths"], setting, given["seed"])
    elif setting.method in WHOLE_DATA:
        from streamed import Iterated

        learner = Iterated(images, given["kind"], given["widths"], setting, given["seed"])
    else:
        learner = PlainTorch(images, given["kind"], given["widths"], setting, given["seed"])
    cpu = given.get("cpu_time", False)  # of this process, from its start
    run = Timed(learner, images, given["looks"], clock=time.process_time if cpu else time.perf_counter)
    first_step = time.process_time() if cpu else time.time() - given["began"]
    for _ in range(setting.passes):
        run.one_pass()
        spent = first_step + run.seconds[-1]
        late = spent > given.get("limit", spent) or time.time() > given["until"]
        if max(run.accuracy) >= max(given["levels"]) or late:
            break
    found = {str(level): run.reached(level) for level in given["levels"]}
    seen = {level: None if seconds is None else first_step + seconds for level, seconds in found.items()}
    found = {"first_step": first_step, "seen": seen, "best": max(run.accuracy), "passes": run.passes}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
