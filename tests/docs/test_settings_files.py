"""Every settings file on the page is one that the command beside it takes."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pytest

from command_line import in_this_process

PAGE = Path(__file__).parents[2] / "docs" / "settings_files.md"
BLOCK = re.compile(r"^```toml\n# (\S+): dladmm (.*?)\n(.*?)^```", re.DOTALL | re.MULTILINE)
EXAMPLES = {found[1]: (shlex.split(found[2]), found[3]) for found in BLOCK.finditer(PAGE.read_text("utf-8"))}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The table that the page speaks of, and no pictures."""
    rng = np.random.default_rng(0)
    lines = [f"Street {k},{rng.uniform(40, 200):.1f},none,{2e5 + 1e3 * k:.0f}" for k in range(60)]
    (tmp_path / "houses.csv").write_text("address,area,remark,price\n" + "\n".join(lines))
    monkeypatch.setattr("dladmm.compare.comparison.write_figures", lambda *arguments, **options: [])
    monkeypatch.setattr("dladmm.training.run_folder.plot_curves", lambda *arguments: False)
    return tmp_path


def test_the_page_has_a_file_for_every_kind_of_run():
    assert PAGE.read_text("utf-8").count("```toml") == len(EXAMPLES) == 4


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_command_takes_the_file(name, folder):
    command, text = EXAMPLES[name]
    (folder / name).write_text(text)
    smaller = ["--max-iter", 2, "--hidden", 4, "--out", "done", "--json"]
    done = in_this_process(*command, *smaller, cwd=folder)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    wanted = tomllib.loads(text)
    if command[0] == "compare":
        assert list(told["methods"]) == wanted["methods"]
        assert told["seeds"] == wanted["seeds"]
        assert set(next(iter(told["methods"].values()))["reached"]) == {"0.50", "0.80", "best"}
        return
    settings = told["settings"]
    overridden = {"max_iter", "hidden", "out", *(["seed"] if "--seed" in command else [])}
    kept = {key: value for key, value in wanted.items() if key not in overridden}
    assert kept.items() <= {key: settings[key] for key in kept}.items()
    assert settings["max_iter"] == 2
    if "--seed" in command:
        assert settings["seed"] == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("methods = 'adam'", "methods must be a list such as"),
        ("levels = [95]", "levels must be a list of shares"),
        ("seeds = 'many'", "seeds must be a whole number"),
        ("speed = 1", "unknown setting speed"),
    ],
)
def test_a_wrong_file_is_refused_in_words(text, message, folder):
    (folder / "wrong.toml").write_text(f"dataset = 'digits'\n{text}\n")
    done = in_this_process("compare", "mlp", "--config", "wrong.toml", cwd=folder)
    assert done.returncode == 2
    assert message in done.stderr
