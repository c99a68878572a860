"""Once: the results of the former programs in the one format of records, numbers as they were.

python benchmarks/experiments/convert_results.py OLD docs/results
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
sys.path.insert(0, str(ROOT / "src"))

from dladmm.runs.plan import cells
from dladmm.runs.record import shown_settings
from experiments.catalogue import experiment
from experiments.estimators import logistic

H200 = "cuda (NVIDIA H200, CUDA 13.0)"
GRADIENT = ("accelerated", "adam", "gd", "adagrad", "adadelta")
old: Path
used: set[str] = set()


def read(name: str) -> dict[str, Any]:
    used.add(name)
    return json.loads((old / f"{name}.json").read_text(encoding="utf-8"))


def device_of(command: str) -> str:
    return "cuda" if "--device cuda" in command else "cpu"


def write(name: str, found: dict[str, dict[str, Any]], folder: Path) -> None:
    """Cells in the order of the plan; every one must be in it."""
    e = experiment(name)
    planned = {cell.name: cell for cell in cells(e, "cpu")}
    assert set(found) <= set(planned), (name, set(found) - set(planned))
    made = []
    for key, cell in planned.items():
        if key in found:
            values = {
                k: v
                for k, v in found[key].items()
                if k not in ("name", "settings") and (v is not None or k == "first_at_95")
            }
            made.append({"name": key, "settings": shown_settings(cell)} | values)
    record = {"experiment": name, "command": e.command, "cells": made}
    (folder / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(name, len(made), "of", len(planned))


def methods(report: dict[str, Any], device: str | None) -> dict[tuple[str, int], dict[str, Any]]:
    """The runs of a file of the former programs ``accelerated`` and ``networks``."""
    found = {}
    for method, about in report["methods"].items():
        for k, mean in about["mean"].items():
            values = [run["test_accuracy"][k] for run in about["runs"] if k in run["test_accuracy"]]
            assert round(statistics.fmean(values), 5) == mean
        if "final_mean" in about:
            finals = [run["final"] for run in about["runs"]]
            assert round(statistics.fmean(finals), 5) == about["final_mean"]
            assert round(statistics.pstdev(finals), 4) == about["final_deviation"]
        for seed, run in enumerate(about["runs"]):
            where = about.get("device") or device or "cpu"
            found[method, seed] = {"device": where} | run | {"made_by": about["command"]}
            if "samples" in report:
                found[method, seed]["samples"] = report["samples"]
    return found


def convergent(name: str) -> dict[int, dict[str, Any]]:
    report = read(name)
    found = {}
    for seed, run in enumerate(report["runs"]):
        loss, lagrangian = run.pop("train_loss"), run.pop("lagrangian")
        accuracy = run.pop("test_accuracy")
        iterations = max(map(int, accuracy))
        found[seed] = {
            "device": device_of(report["command"]), "status": run.pop("status"), "iterations": iterations,
            "test_accuracy": accuracy, "train_loss_at": loss, "lagrangian_at": lagrangian,
            "final": accuracy[str(iterations)], "train_loss": loss[str(iterations)],
        } | run | {"made_by": report["command"]}  # fmt: skip
    last = [run["final"] for run in found.values()]
    assert statistics.mean(last) == report["test_accuracy_mean"]
    return found


def check(name: str, method: str, given: dict[str, Any], dataset: str) -> None:
    """The settings that the old file names are those of the new one."""
    cell = next(
        c for c in cells(experiment(name), "cpu") if c.settings["method"] == method and c.dataset == dataset
    )
    told = shown_settings(cell)
    for key, value in given.items():
        assert told[key] == value, (name, method, key, value, told[key])


def main() -> None:
    global old
    old, new = map(Path, sys.argv[1:])
    for name, data in (("mlp-accuracy", ("mnist", "fashion_mnist")), ("gcn-accuracy", ("cora", "pubmed", "citeseer", "coauthor-cs", "coauthor-physics"))):  # fmt: skip
        found = {}
        for dataset in data:
            for (method, seed), run in methods(read(f"accelerated-{dataset}"), H200).items():
                found[f"{dataset.replace('-', '_')}-{method}-{seed}"] = run
        write(name, found, new)
    bare = methods(read("accelerated-mnist-no-penalty"), "cuda")
    write(
        "accelerated", {f"mnist-accelerated-no-penalty-{seed}": run for (_, seed), run in bare.items()}, new
    )

    found = {}
    for method, name in (
        ("relu", "digits"),
        ("sign", "digits-sign"),
        ("step", "digits-step"),
        ("quantised", "digits-quantised"),
    ):
        found |= {f"digits-{method}-{seed}": run for seed, run in convergent(name).items()}
        check("convergent-digits", method, read(name)["settings"], "digits")
    linear = {
        c.name: logistic(c) for c in cells(experiment("convergent-digits"), "cpu") if c.trainer == "logistic"
    }
    assert (
        statistics.mean(linear.values())
        == read("digits")["linear_model"]
        == read("digits-sign")["linear_model"]
    )
    found |= {
        name: {"device": "cpu", "status": "MEASURED", "final": value, "made_by": read("digits")["command"]}
        for name, value in linear.items()
    }
    write("convergent-digits", found, new)

    found = {}
    for method in ("exact", "paper", "fista"):
        found |= {
            f"mnist-{method}-{seed}": run
            for seed, run in convergent({"fista": "mnist-paper-fista"}.get(method, f"mnist-{method}")).items()
        }
        check(
            "convergent-mnist",
            method,
            read({"fista": "mnist-paper-fista"}.get(method, f"mnist-{method}"))["settings"],
            "mnist",
        )
    write("convergent-mnist", found, new)

    found = {}
    for dataset in ("cora", "citeseer", "pubmed", "coauthor-cs", "coauthor-physics", "karate"):
        report, name = read(f"gcn-{dataset}"), dataset.replace("-", "_")
        check("gcn-convergent", "dladmm", report["settings"], name)
        for seed, run in enumerate(report["runs"]):
            final = run.pop("test_accuracy")
            found[f"{name}-dladmm-{seed}"] = (
                {"device": device_of(report["command"]), "status": run.pop("status"), "final": final}
                | run
                | {"made_by": report["command"]}
            )
    write("gcn-convergent", found, new)

    report, found = read("gcn-theory"), {}
    by = {
        (1.0, 0.01): "rho-1",
        (1.01, 0.01): "rho-1-01",
        (1e-3, 1e-3): "rho-0-001",
        (1.01, 1e-3): "l2-rho-1-01",
        (0.1, 1e-3): "l2-rho-0-1",
    }
    for run in report["runs"]:
        setting = dict(run["setting"])
        dataset, method = setting.pop("dataset"), by[setting["rho"], setting["mu"]]
        method = "paper" if "start" in setting else method
        if "strength" in setting:
            setting["regularizer"] = {"name": setting["regularizer"], "strength": setting.pop("strength")}
        check("gcn-theory", method, setting, dataset)
        found[f"{dataset}-{method}-0"] = {
            "final": run["test_accuracy"], "rises": len(run["rises"]), "rises_at": run["rises"],
            "residual": run["residual"], "certified": run["certified"], "made_by": report["command"],
        }  # fmt: skip
    assert len(found) == len(report["runs"])
    write("gcn-theory", found, new)

    for network in ("cnn", "elman", "gru", "sign"):
        found = {}
        for path in sorted(old.glob(f"networks-*-{network}.json")):
            report = read(path.stem)
            for (method, seed), run in methods(report, None).items():
                size = f"-samples-{report['samples']}" if report["data"] == "mnist" else ""
                found[f"{report['data']}-{method}{size}-{seed}"] = run
        write(f"networks-{network}", found, new)

    report, found = read("accelerated-sizes"), {}
    for row in report["results"]:
        tail = f"samples-{row['samples']}-neurons-{row['width']}-0"
        shared = {"iterations": report["iterations"], "samples": row["samples"], "made_by": report["command"]}
        found[f"mnist-accelerated-{tail}"] = {
            "final": row["held_out"],
            "train_loss": row["train_loss"],
            "refused": row["refused"],
        } | shared
        found[f"mnist-adam-{tail}"] = {
            "final": row["adam_held_out"],
            "train_loss": row["adam_train_loss"],
        } | shared
    write("sizes", found, new)

    report, found = read("tabular"), {}
    for row in report["results"]:
        for key, method in (
            ("accelerated", "accelerated"),
            ("times_100", "times-100"),
            ("standardised", "standardised"),
            ("scikit_learn", "scikit-learn"),
        ):
            found[f"{row['data']}-{method}-0"] = {
                "device": "cpu",
                "status": "MEASURED",
                "final": row[key],
                "made_by": report["command"],
            }
    write("tabular", found, new)

    print("read:", sorted(used))
    for name in used - {"gcn-theory", "tabular"}:
        (new / f"{name}.json").unlink()


if __name__ == "__main__":
    main()
