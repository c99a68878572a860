"""Seconds to a test accuracy: streaming mode beside mini-batch Adam and Muon, the table a user would make.

    python benchmarks/time_to_accuracy.py --device cuda --data carry --out time.json       # about four minutes
    python benchmarks/time_to_accuracy.py --small --data carry                             # two CPU cores, ten minutes
    python benchmarks/time_to_accuracy.py --data digits.npz --widths 30 --parts choose,test

--data is a folder with mnist.npz and fashion.npz (arrays X, y, Xt, yt; bytes or shares of 1), one such file, or the
folder of the library's own data sets ($DLADMM_DATA).

- *streaming*: `dladmm.train(mode="streaming")` with its defaults, 5 and 10 passes.
- *adam*: a plain torch loop, data on the device, fused on a GPU, the rate falling linearly to zero; the best of a grid
  of 9 (batch 128, 256, 512; rate 5e-4, 1e-3, 2e-3) over 5 passes and of its three best over 10.
- *muon*: `torch.optim.Muon` for the matrices, AdamW for the rest, where torch has it.

Settings of Adam and Muon are chosen on the last 5,000 training images, for every level and number of passes anew; then
all training images are used and the test images measured. Methods take one pass each in turn, in one process.
Accuracies are looked at --looks times a pass (20). Clock (a) runs from the first step and stands still while the
accuracy is looked at; what the first use in a process costs is spent before. Clock (b) runs from the start of a fresh
process: imports, reading the data, first launches, recording. Medians over seeds for seconds, means for accuracies.

--budget-seconds ends the run cleanly: what was measured until then is printed and written. --go-on adds parts to an
earlier run's file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # this checkout, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import torch
from compact_json import dumps, rounded
from installed import compile_packages, environment
from plain_torch import Images, Learner, PlainTorch, Setting, Timed, read_images
from step_cost import step_costs
from streamed import Streamed

from dladmm import datasets
from dladmm.training.run_folder import describe

LEVELS = {"mnist": [0.95, 0.97, 0.98, 0.983], "fashion": [0.85, 0.87, 0.88, 0.89]}
CNN_LEVELS = [0.985]
DEEP = [256] * 8
BATCHES, RATES, MUON_RATES = (128, 256, 512), (5e-4, 1e-3, 2e-3), (1e-3, 2e-3, 4e-3)
PARTS = ("choose", "test", "fresh", "step", "cnn", "deep")
HERE = Path(__file__).resolve().parent


class OverError(Exception):
    """The budget is spent."""


class Bench:
    """The settings of a run, its budget, and the runs that were made."""

    def __init__(self, settings: argparse.Namespace) -> None:
        self.settings, self.until = settings, time.time() + settings.budget_seconds
        self.runs: list[dict[str, Any]] = []
        self.fresh: list[dict[str, Any]] = []
        self.chosen: list[dict[str, Any]] = []
        self.steps: dict[str, Any] = {}
        self.ended = "complete"
        if settings.go_on is not None:
            before = json.loads(settings.go_on.read_text(encoding="utf-8"))
            self.runs, self.fresh, self.chosen = before["runs"], before["fresh"], before["chosen"]
            self.steps, settings.command = before["steps"], f"{before['command']}; {settings.command}"
            again = {"test": "mlp", "cnn": "cnn", "deep": "deep"}
            networks = {network for part, network in again.items() if part in settings.parts}
            self.runs = [run for run in self.runs if run["part"] != "test" or run["network"] not in networks]
            self.fresh = [] if "fresh" in settings.parts else self.fresh

    def say(self, line: str) -> None:
        print(f"[{self.until - time.time():5.0f} s left] {line}", file=sys.stderr, flush=True)

    def check(self) -> None:
        if time.time() > self.until:
            raise OverError

    # Runs --------------------------------------------------------------------------------------------------------

    def learner(self, images: Images, kind: str, widths: list[int], setting: Setting, seed: int) -> Learner:
        make: Any = Streamed if setting.method == "streaming" else PlainTorch
        found: Learner = make(images, kind, widths, setting, seed)
        return found

    def interleaved(
        self, images: Images, what: dict[str, Any], settings: Sequence[Setting], seed: int
    ) -> list[dict[str, Any]]:
        """The runs of these settings with one seed, a pass each in turn."""
        about = {key: what[key] for key in ("data", "network", "part")}
        runs = []
        for setting in dict.fromkeys(settings):
            learner = self.learner(images, what["kind"], what["widths"], setting, seed)
            runs.append((setting, Timed(learner, images, self.settings.looks, self.check)))
        try:
            for turn in range(max(setting.passes for setting, _ in runs)):
                for setting, run in runs:
                    if turn < setting.passes:
                        self.check()
                        run.one_pass()
        finally:
            found = [
                about | {"setting": setting._asdict(), "name": setting.name, "seed": seed, "passes": run.passes}
                | {"whole": run.passes == setting.passes, "seconds": run.seconds, "accuracy": run.accuracy}
                | {"reached": {str(level): run.reached(level) for level in what["levels"]}}
                for setting, run in runs
                if run.accuracy
            ]  # fmt: skip
            self.runs += found
        best = ", ".join(f"{run['name']} {run['accuracy'][-1]:.4f}" for run in found[:4])
        self.say(
            f"{what['data']} {what['network']} {what['part']} seed {seed}: {best}{' ...' * (len(found) > 4)}"
        )
        return found

    def warm_up(self, images: Images, what: dict[str, Any], settings: Sequence[Setting]) -> None:
        """First use of every kernel, by learners that are thrown away."""
        few = Images(images.x[:2048], images.y[:2048], images.x_test[:100], images.y_test[:100])
        if int(few.y.max()) < int(images.y.max()):
            return
        for setting in {s.method: s for s in settings}.values():
            learner = self.learner(few, what["kind"], what["widths"], setting._replace(passes=2), 0)
            Timed(learner, few, looks=1, check=self.check).one_pass()

    # Choosing ----------------------------------------------------------------------------------------------------

    def grid(self, passes: int) -> list[Setting]:
        s = self.settings
        found = [Setting("adam", passes, batch, lr) for batch in s.batches for lr in s.rates]
        if s.muon and hasattr(torch.optim, "Muon"):
            found += [Setting("muon", passes, s.batches[len(s.batches) // 2], lr) for lr in s.muon_rates]
        return found

    def choose(
        self, images: Images, what: dict[str, Any], short: int, long: int | None, grid: list[Setting]
    ) -> None:
        """Settings of Adam and Muon by held-out images: the soonest at each level, the best after so many passes."""
        if self.settings_for(what):  # an earlier run chose
            return
        held = images.holding_out(self.settings.held_out)
        what = what | {"part": "choose"}
        self.warm_up(held, what, grid)
        runs = self.interleaved(held, what, grid, 0)
        if long is not None:
            adams = [run for run in runs if run["setting"]["method"] == "adam"]
            best = sorted(adams, key=lambda run: -run["accuracy"][-1])[: self.settings.finalists]
            muon = [run for run in runs if run["setting"]["method"] == "muon"]
            best += sorted(muon, key=lambda run: -run["accuracy"][-1])[:1]
            longer = [Setting(**run["setting"])._replace(passes=long) for run in best]
            runs += self.interleaved(held, what, longer, 0)
        for method in dict.fromkeys(run["setting"]["method"] for run in runs):
            own = [run for run in runs if run["setting"]["method"] == method]
            for level in what["levels"]:
                there = [run for run in own if run["reached"][str(level)] is not None]
                if there:
                    first = min(there, key=lambda run: run["reached"][str(level)])
                else:  # none did: the one that came nearest
                    first = max(own, key=lambda run: max(run["accuracy"]))
                self._note(what, method, f"level {level}", first)
            for passes in dict.fromkeys(run["setting"]["passes"] for run in own):
                ended = [run for run in own if run["setting"]["passes"] == passes]
                self._note(what, method, f"passes {passes}", max(ended, key=lambda run: run["accuracy"][-1]))

    def _note(self, what: dict[str, Any], method: str, use: str, run: dict[str, Any]) -> None:
        about = {"data": what["data"], "network": what["network"], "method": method, "for": use}
        self.chosen.append(about | {"setting": run["setting"], "name": run["name"]})

    def settings_for(self, what: dict[str, Any]) -> list[Setting]:
        """All that were chosen for this problem."""
        own = [c for c in self.chosen if (c["data"], c["network"]) == (what["data"], what["network"])]
        return list(dict.fromkeys(Setting(**c["setting"]) for c in own))

    # Testing -----------------------------------------------------------------------------------------------------

    def test(self, images: Images, what: dict[str, Any], lengths: Sequence[int], seeds: int) -> None:
        """Streaming mode and what was chosen, on the test images; of streaming mode more seeds."""
        what = what | {"part": "test"}
        opponents = self.settings_for(what)
        streaming = [Setting("streaming", passes) for passes in lengths]
        self.warm_up(images, what, [*streaming, *opponents])
        for seed in range(seeds):
            some = opponents if seed < self.settings.opponent_seeds else []
            self.interleaved(images, what, [*streaming, *some], seed)

    def fresh_processes(self, file: Path, what: dict[str, Any], passes: int) -> None:
        """Clock (b): streaming mode, and every setting that was chosen for a level."""
        levels = {f"level {level}" for level in what["levels"]}
        own = [c for c in self.chosen if c["data"] == what["data"] and c["network"] == what["network"]]
        adams = [Setting(**c["setting"]) for c in own if c["for"] in levels and c["method"] == "adam"]
        for setting in [Setting("streaming", passes), *dict.fromkeys(adams)]:
            for seed in range(self.settings.fresh_repeats):
                self.check()
                s = self.settings
                given = {
                    "file": str(file), "device": s.device, "rows": s.rows, "threads": s.threads, "kind": what["kind"],
                    "widths": what["widths"], "setting": setting._asdict(), "seed": seed, "levels": what["levels"],
                    "looks": s.looks, "until": self.until, "began": time.time(),
                }  # fmt: skip
                command = [sys.executable, str(HERE / "fresh_process.py"), json.dumps(given)]
                compile_packages()
                done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
                if done.returncode:
                    self.say(f"fresh process of {setting.name} failed: {done.stderr[-400:]}")
                    continue
                about = {
                    "data": what["data"],
                    "setting": setting._asdict(),
                    "name": setting.name,
                    "seed": seed,
                }
                self.fresh.append(about | json.loads(done.stdout.splitlines()[-1]))
                self.say(f"{what['data']}, fresh process, {setting.name}: {self.fresh[-1]['seen']}")

    # All of it ---------------------------------------------------------------------------------------------------

    def measure(self, files: dict[str, Path]) -> None:
        s = self.settings
        loaded = {name: read_images(file, s.device, s.rows) for name, file in files.items()}
        mlps = {
            name: {"data": name, "network": "mlp", "kind": "mlp", "widths": s.widths, "levels": self.levels(name)}
            for name in files
        }  # fmt: skip
        if "choose" in s.parts:
            for name, images in loaded.items():
                self.choose(images, mlps[name], s.passes[0], s.passes[-1], self.grid(s.passes[0]))
        if "test" in s.parts:
            for name, images in loaded.items():
                self.test(images, mlps[name], s.passes, s.seeds)
        first = next(iter(files))
        if "step" in s.parts:
            self.check()
            self.steps = step_costs(loaded[first], s.widths)
            self.say(f"milliseconds per step: {self.steps}")
        if "fresh" in s.parts:
            for name, file in files.items():
                self.fresh_processes(file, mlps[name], s.passes[-1])
        if "cnn" in s.parts and loaded[first].x.shape[1] == 784:
            what = mlps[first] | {"network": "cnn", "kind": "cnn", "levels": CNN_LEVELS}
            adams = [x for x in self.grid(s.passes[0]) if x.method == "adam"]
            self.choose(loaded[first], what, s.passes[0], None, adams)
            self.test(loaded[first], what, s.passes[:1], min(3, s.seeds))
        if "deep" in s.parts:
            what = mlps[first] | {"network": "deep", "widths": DEEP, "levels": CNN_LEVELS[:0]}
            middle = s.batches[len(s.batches) // 2]
            adams = [Setting("adam", s.passes[-1], middle, lr) for lr in s.rates]
            self.choose(loaded[first], what, s.passes[-1], None, adams)
            self.test(loaded[first], what, s.passes[-1:], min(3, s.seeds))

    def levels(self, name: str) -> list[float]:
        if self.settings.levels is not None:
            return list(self.settings.levels)
        return LEVELS["fashion" if "fashion" in name else "mnist"]

    def report(self) -> dict[str, Any]:
        settings = {
            key: value
            for key, value in vars(self.settings).items()
            if key not in ("command", "data", "out", "go_on")
        }
        return rounded(
            {
                "command": self.settings.command,
                "machine": describe(self.settings.device),
                "settings": settings,
                "ended": self.ended,
                "chosen": self.chosen,
                "levels": level_rows(self),
                "accuracies": accuracy_rows(self.runs),
                "steps": self.steps,
                "fresh": self.fresh,
                "runs": self.runs,
            }
        )


# Tables ------------------------------------------------------------------------------------------------------------


def level_rows(bench: Bench) -> list[dict[str, Any]]:
    """Seconds to each level, by both clocks: streaming mode with most passes, and what was chosen for that level."""
    rows = []
    tested = [run for run in bench.runs if run["part"] == "test" and run["reached"]]
    for data, net in dict.fromkeys((run["data"], run["network"]) for run in tested):
        own = [run for run in tested if (run["data"], run["network"]) == (data, net)]
        streaming = [run["setting"] for run in own if run["setting"]["method"] == "streaming"]
        longest = max(streaming, key=lambda setting: setting["passes"]) if streaming else None
        for level in own[0]["reached"]:
            found = {"streaming": longest}
            for c in bench.chosen:
                if (c["data"], c["network"], c["for"]) == (data, net, f"level {level}"):
                    found[c["method"]] = c["setting"]
            at = [_at_level(bench, own, data, net, method, s, level) for method, s in found.items() if s]
            theirs = [
                row["seconds"] for row in at if row["method"] != "streaming" and row["seconds"] is not None
            ]
            fresh = [row["fresh"] for row in at if row["method"] != "streaming" and row["fresh"] is not None]
            for row in at:
                for key, others in (("seconds", theirs), ("fresh", fresh)):
                    ratio = row[key] / min(others) if row[key] is not None and others else None
                    row[f"{key}_to_best"] = ratio
            rows += at
    return rows


def _at_level(
    bench: Bench, runs: list[dict[str, Any]], data: str, net: str, method: str, setting: dict[str, Any], level: str
) -> dict[str, Any]:  # fmt: skip
    own = [run["reached"][level] for run in runs if run["setting"] == setting]
    there = [seconds for seconds in own if seconds is not None]
    same = [run for run in bench.fresh if run["data"] == data and run["setting"] == setting and net == "mlp"]
    fresh = [run["seen"][level] for run in same if run["seen"].get(level) is not None]
    return {
        "data": data,
        "network": net,
        "level": float(level),
        "method": method,
        "name": Setting(**setting).name,
        "seeds": len(own),
        "seeds_that_reached_it": len(there),
        "seconds": statistics.median(there) if there else None,
        "fresh": statistics.median(fresh) if fresh else None,
    }


def accuracy_rows(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Test accuracy after all planned passes: mean and least over seeds, and median seconds."""
    rows = []
    whole = [run for run in runs if run["part"] == "test" and run["whole"]]
    for key in dict.fromkeys((run["data"], run["network"], run["name"]) for run in whole):
        own = [run for run in whole if (run["data"], run["network"], run["name"]) == key]
        last = [run["accuracy"][-1] for run in own]
        rows.append(
            dict(zip(("data", "network", "name"), key, strict=True))
            | {"seeds": len(own), "mean": statistics.fmean(last), "least": min(last)}
            | {"seconds": statistics.median(run["seconds"][-1] for run in own)}
        )
    return rows


def table(report: dict[str, Any]) -> str:
    """The report for people."""
    where = report["machine"]
    lines = [f"{where['device']}, {where['cpu']}, torch {where['torch']}; {report['ended']}", ""]
    lines.append(f"{'level':>7} {'(a) s':>8} {'ratio':>6} {'(b) s':>8} {'ratio':>6} {'seeds':>6}  method")
    for data, net in dict.fromkeys((row["data"], row["network"]) for row in report["levels"]):
        lines.append(f"{data}, {net}")
        for row in report["levels"]:
            if (row["data"], row["network"]) == (data, net):
                counted = f"{row['seeds_that_reached_it']}/{row['seeds']}"
                numbers = [
                    f"{_shown(row[key], how):>{wide}}"
                    for key, how, wide in (
                        ("seconds", ".3f", 8), ("seconds_to_best", ".2f", 6),
                        ("fresh", ".2f", 8), ("fresh_to_best", ".2f", 6),
                    )
                ]  # fmt: skip
                level = f"{100 * row['level']:g} %"
                lines.append(f"{level:>7} {' '.join(numbers)} {counted:>6}  {row['name']}")
    lines += ["", f"{'accuracy':>8} {'least':>7} {'seconds':>8} {'seeds':>6}  after all passes"]
    for data, net in dict.fromkeys((row["data"], row["network"]) for row in report["accuracies"]):
        lines.append(f"{data}, {net}")
        lines += [
            f"{row['mean']:8.4f} {row['least']:7.4f} {row['seconds']:8.2f} {row['seeds']:6d}  {row['name']}"
            for row in report["accuracies"]
            if (row["data"], row["network"]) == (data, net)
        ]
    if report["steps"]:
        lines += ["", "milliseconds per step, batch 512"]
        lines += [f"{name:22} {_shown(value, '.3f')}" for name, value in report["steps"].items()]
    return "\n".join(lines)


def _shown(value: float | None, how: str) -> str:
    return "-" if value is None else format(value, how)


# The command -------------------------------------------------------------------------------------------------------


def files_of(settings: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Path]]:
    """The npz file of every data set; the library's own sets are written to ``folder`` as such files."""
    data = settings.data
    if data is not None and data.is_file():
        yield data.stem, data
        return
    for name in settings.sets:
        if data is not None and (data / f"{name}.npz").is_file():
            yield name, data / f"{name}.npz"
            continue
        found = datasets.load(
            "fashion_mnist" if name == "fashion" else name, data_dir=None if data is None else str(data)
        )
        file = folder / f"{name}.npz"
        parts = (found.x_train, found.y_train, found.x_test, found.y_test)
        np.savez(file, **dict(zip(("X", "y", "Xt", "yt"), (p.numpy() for p in parts), strict=True)))
        yield name, file


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    def several(read: Any) -> Any:
        return lambda text: [read(part) for part in text.split(",") if part]

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--data", type=Path, help="a folder or an npz file; else $DLADMM_DATA")
    add("--sets", type=several(str), help="mnist,fashion")
    add("--parts", type=several(str), help=",".join(PARTS))
    add("--rows", type=int, help="training rows (all)")
    add("--held-out", type=int, default=5000, help="training rows to choose settings by")
    add("--widths", type=several(int), default=[1000, 1000])
    add("--batches", type=several(int))
    add("--rates", type=several(float))
    add("--muon-rates", type=several(float), default=list(MUON_RATES))
    add("--no-muon", dest="muon", action="store_false")
    add("--passes", type=several(int), help="of the short and the long runs (5,10)")
    add("--levels", type=several(float), help="in place of those of the data set")
    add("--seeds", type=int, help="of streaming mode (5)")
    add("--opponent-seeds", type=int, help="of Adam and Muon (3)")
    add("--finalists", type=int, help="Adams of the short runs that are tried in long ones (3)")
    add("--looks", type=int, help="at the accuracy in one pass (20)")
    add("--fresh-repeats", type=int, default=1)
    add("--threads", type=int)
    add(
        "--small", action="store_true", help="for two CPU cores: MNIST, three Adams, 2 and 5 passes, one seed"
    )
    add("--budget-seconds", type=float)
    add("--go-on", type=Path, help="the JSON file of an earlier run, whose parts are kept")
    add("--out", type=Path, help="write the JSON object to this file")
    add("--json", action="store_true", help="JSON to standard output, the table to standard error")
    settings = parser.parse_args(arguments)
    defaults: dict[str, tuple[Any, Any]] = {  # whole, small
        "sets": (["mnist", "fashion"], ["mnist"]),
        "parts": (list(PARTS), ["choose", "test", "step", "fresh"]),
        "batches": (list(BATCHES), list(BATCHES)),
        "rates": (list(RATES), [1e-3]),
        "passes": ([5, 10], [2, 5]),
        "seeds": (5, 1),
        "opponent_seeds": (3, 1),
        "looks": (20, 8),
        "finalists": (3, 1),
        "budget_seconds": (235.0, 600.0),
    }
    for name, (whole, small) in defaults.items():
        if getattr(settings, name) is None:
            setattr(settings, name, small if settings.small else whole)
    settings.muon = settings.muon and not settings.small
    wrong = sorted(set(settings.parts) - set(PARTS))
    if wrong:
        parser.error(f"--parts knows {', '.join(PARTS)}, got {', '.join(wrong)}")
    given = " ".join(sys.argv[1:] if arguments is None else arguments)
    settings.command = f"python benchmarks/time_to_accuracy.py {given}".strip()
    return settings


def main(arguments: Sequence[str] | None = None) -> None:
    settings = parsed(arguments)
    if settings.threads:
        torch.set_num_threads(settings.threads)
        os.environ["OMP_NUM_THREADS"] = str(settings.threads)
    bench = Bench(settings)
    try:
        with tempfile.TemporaryDirectory() as folder:
            bench.measure(dict(files_of(settings, Path(folder))))
    except (OverError, KeyboardInterrupt):
        bench.ended = "ended before all was measured"
        bench.say("the time is over")
    report = bench.report()
    if settings.out is not None:
        settings.out.write_text(dumps(report) + "\n", encoding="utf-8")
    print(table(report), file=sys.stderr if settings.json else sys.stdout, flush=True)
    if settings.json:
        with suppress(BrokenPipeError):
            print(dumps(report))


if __name__ == "__main__":
    main()
