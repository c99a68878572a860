"""``dladmm train mlp --csv``, ``predict`` and ``compare`` on a table with text, gaps and identifiers."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from dladmm.cli.app import app
from dladmm.cli.run_config import RunConfig
from dladmm.cli.run_data import load_rows
from dladmm.cli.run_table import rows_to_predict
from dladmm.training.checkpoint import load_model


def command(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def adult_like(path, n=400, separator=",", seed=0, target=True):
    """Rows as of the census: the outcome depends on a number, a category, and on where a value is missing."""
    rng = np.random.default_rng(seed)
    jobs, places = np.array(["Private", "State-gov", "Self-emp, inc"]), np.array(["Köln", "Rome", "=cmd()"])
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(["person", "name", "age", "job", "place", "gain"] + ["y"] * target)
        truth = []
        for k in range(n):
            age, job, place = rng.integers(18, 90), jobs[rng.integers(3)], places[rng.integers(3)]
            missing = rng.random() < 0.3
            score = (age - 50) / 15 + 2 * (job == "Private") - 1 + 2 * missing - 0.6
            truth.append(">50K" if score > 0 else "<=50K")
            row = [f"p{k}", f"Name {k}", age, "?" if rng.random() < 0.1 else job, place]
            row += ["" if missing else round(rng.normal(), 3)]
            writer.writerow(row + ([truth[-1]] if target else []))
    return truth


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adult")
    adult_like(folder / "adult.csv", separator=";")
    done = command(
        "train", "mlp", "--csv", folder / "adult.csv", "--target", "y", "--id", "person", "--hidden", "8",
        "--mode", "accelerated", "--max-iter", 40, "--out", folder / "run", "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    return folder, done


def test_text_gaps_and_identifiers_just_work(run):
    folder, done = run
    adult_like(folder / "new.csv", n=200, seed=1)  # other rows, with commas
    truth = adult_like(folder / "bare.csv", n=200, seed=1, target=False)
    done = command(
        "predict", folder / "run", "--csv", folder / "bare.csv", "--out", folder / "p.csv", "--json"
    )
    assert done.exit_code == 0, done.output
    with (folder / "p.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["person"] for row in rows] == [f"p{k}" for k in range(200)]
    right = np.mean([row["prediction"] == y for row, y in zip(rows, truth, strict=True)])
    assert right > 0.9  # without the category, or without the indicator of gaps: 0.84


def test_what_was_left_out_is_said(run, tmp_path):
    adult_like(tmp_path / "a.csv", n=120)
    done = command("train", "mlp", "--csv", tmp_path / "a.csv", "--target", "y", "--id", "person", "--hidden", "4",
                   "--max-iter", 2, "--out", tmp_path / "run")  # fmt: skip
    assert "column 'name' has 96 different texts in 96 rows and is left out" in done.output


def test_the_encoder_is_stored_and_learned_from_training_rows(run):
    folder, _ = run
    extra = load_model(folder / "run" / "model.safetensors").extra
    names = [column["name"] for column in extra["table"]["columns"]]
    assert names == ["name", "age", "job", "place", "gain"]
    assert extra["id"] == ["person"]
    assert json.dumps(extra["table"])  # plain JSON
    rows = rows_to_predict(extra, folder / "adult.csv")
    assert rows.x.shape == (400, 1 + 3 + 1 + 3 + 2)


def test_no_formula_in_predictions(tmp_path):
    with (tmp_path / "f.csv").open("w", encoding="utf-8") as file:
        file.write("id,a,kind\n" + "".join(f"=1+{k},{k % 2},{('=cmd()', '-3')[k % 2]}\n" for k in range(40)))
    done = command("train", "mlp", "--csv", tmp_path / "f.csv", "--target", "kind", "--id", "id", "--hidden", "3",
                   "--max-iter", 2, "--out", tmp_path / "r", "--json")  # fmt: skip
    assert done.exit_code == 0, done.output
    command("predict", tmp_path / "r", "--csv", tmp_path / "f.csv")
    with (tmp_path / "f.predictions.csv").open(encoding="utf-8", newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert "'=cmd()" in cells or "-3" in cells
    assert not any(cell.startswith(("=", "+", "@")) for cell in cells)


def test_rows_without_a_target_are_left_out(tmp_path):
    text = "a,y\n" + "".join(f"{k},{'' if k % 5 == 0 else k % 2}\n" for k in range(50))
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    done = command("train", "mlp", "--csv", tmp_path / "t.csv", "--target", "y", "--hidden", "3", "--max-iter", 2,
                   "--out", tmp_path / "r")  # fmt: skip
    assert "10 rows without a value of 'y' are left out" in done.output
    assert "32 training rows, 8 test rows" in done.output


def test_compare_reads_tables(run, tmp_path):
    folder, _ = run
    done = command(
        "compare", "mlp", "--csv", folder / "adult.csv", "--target", "y", "--drop", "person,name", "--hidden", "4",
        "--methods", "accelerated,gd", "--max-iter", 2, "--out", tmp_path / "c", "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1])["dataset"] == "adult"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--csv", "{}/adult.csv", "--target", "y", "--drop", "colour"), "drop 'colour' is not a column of"),
        (("--csv", "{}/adult.csv", "--target", "y", "--separator", "x"), "separator must be one of"),
        (("--dataset", "digits", "--drop", "a"), "--drop is about the columns of --csv"),
        (("--csv", "/dev/zero", "--target", "y"), "a device, not a file"),
    ],
)
def test_wrong_options(run, words, message):
    folder, _ = run
    done = command("train", "mlp", *(word.format(folder) for word in words))
    assert message in str(done.exception)


def test_models_of_earlier_versions_still_predict(run, tmp_path):
    (tmp_path / "n.csv").write_text("b,a\n1,2\n3,4\n", encoding="utf-8")
    rows = rows_to_predict({"features": ["a", "b"], "classes": None, "target": "y"}, tmp_path / "n.csv")
    assert rows.x.tolist() == [[2, 1], [4, 3]]


def test_fills_and_levels_come_from_training_rows_alone(tmp_path):
    """The median of the training rows fills gaps; levels that only test rows have are unknown ones."""
    values = [f"{k * k},{'often' if k % 2 else f'rare{k}'},{k % 2}" for k in range(50)]
    (tmp_path / "t.csv").write_text("a,c,y\n" + "\n".join(values) + "\n", encoding="utf-8")
    data = load_rows(RunConfig(csv=str(tmp_path / "t.csv"), target="y"))
    number, category = data.encoder.columns
    assert number.fill == np.median(data.x_train[:, 0])
    assert number.fill != np.median([k * k for k in range(50)])
    train = {round(v**0.5) for v in data.x_train[:, 0]}
    seen = {f"rare{k}" for k in train if k % 2 == 0} | {"often"}
    assert set(category.levels) == seen
    unknown = data.x_test[:, 1:].sum(1) == 0
    assert unknown.sum() == sum(round(v**0.5) % 2 == 0 for v in data.x_test[:, 0]) > 0
