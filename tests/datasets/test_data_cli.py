"""`dladmm datasets`: what it prints, where, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dladmm.cli.datasets import app
from dladmm.datasets import _registry
from dladmm.datasets._checksums import File
from dladmm.datasets._registry import Dataset

HELLO = File("hello.npz", 5, "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824")


@pytest.fixture(autouse=True)
def only_two(monkeypatch):
    """A registry of one data set with a file, and one without."""
    monkeypatch.setattr("dladmm.datasets._registry.DATASETS", {})
    entry = Dataset(
        "hello",
        "Hello",
        "graph",
        "MIT",
        files=(HELLO,),
        folders=("greetings",),
        addresses=("http://127.0.0.1:9/",),
    )
    entries = {"hello": entry, "karate": Dataset("karate", "Karate", "graph", "none stated")}
    for module in ("_registry", "_check", "_locate"):
        monkeypatch.setattr(f"dladmm.datasets.{module}.DATASETS", entries)
    monkeypatch.setattr("dladmm.cli.datasets.DATASETS", entries)
    assert _registry.names() == ("hello", "karate")


def _run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "greetings").mkdir()
    (tmp_path / "greetings" / "hello.npz").write_bytes(b"hello")
    return tmp_path


def test_list(folder, tmp_path):
    lines = _run("list", "--data-dir", folder).stdout.splitlines()
    assert [line.split() for line in lines] == [
        ["name", "kind", "size", "licence", "present"],
        ["hello", "graph", "0.0", "MB", "MIT", "yes"],
        ["karate", "graph", "-", "none", "stated", "embedded"],
    ]
    absent = _run("list", "--data-dir", folder / "greetings" / "..")
    assert absent.exit_code == 0
    empty = _run("list")
    assert empty.stdout.splitlines()[1].split()[-1] == "no"
    assert empty.stderr == "Fetch one with: dladmm datasets fetch NAME\n"


def test_list_as_json(folder):
    result = _run("list", "--json", "--data-dir", folder)
    first, second = json.loads(result.stdout)["datasets"]
    assert (first["name"], first["bytes"], first["present"], first["embedded"]) == ("hello", 5, True, False)
    assert first["folder"] == str(folder / "greetings")
    assert (second["name"], second["present"], second["embedded"]) == ("karate", True, True)
    assert result.stderr == ""


def test_verify(folder):
    whole = _run("verify", "--data-dir", folder)
    assert (whole.exit_code, whole.stdout.split()) == (0, ["hello", "ok", "1", "file"])
    absent = _run("verify")
    assert (absent.exit_code, absent.stdout.split()) == (0, ["hello", "missing", "1", "file"])
    named = _run("verify", "hello")
    assert named.exit_code == 2
    (folder / "greetings" / "hello.npz").write_bytes(b"hellO")
    damaged = _run("verify", "--data-dir", folder)
    assert damaged.exit_code == 2
    assert "damaged  hello.npz its sha256 is" in damaged.stdout
    assert (
        damaged.stderr == "dladmm: 1 of 1 file damaged or missing; mend with: dladmm datasets fetch hello\n"
    )


def test_verify_as_json(folder):
    assert json.loads(_run("verify", "hello", "--json", "--data-dir", folder).stdout) == {
        "ok": True,
        "files": [
            {
                "dataset": "hello",
                "file": "hello.npz",
                "state": "ok",
                "path": str(folder / "greetings" / "hello.npz"),
                "problem": "",
            }
        ],
    }
    missing = _run("verify", "hello", "--json")
    assert missing.exit_code == 2
    assert json.loads(missing.stdout)["ok"] is False


def test_fetch_of_what_is_there(folder):
    result = _run("fetch", "hello", "--data-dir", folder)
    assert (result.exit_code, result.stdout) == (0, f"hello: 1 file in {folder / 'greetings'}\n")
    assert result.stderr == "hello.npz: 5 bytes\n"
    as_json = _run("fetch", "Hello", "--json", "--data-dir", folder)
    expected = {"dataset": "hello", "files": [str(folder / "greetings" / "hello.npz")]}
    assert json.loads(as_json.stdout) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fetch", "helo"], "name is 'helo' (did you mean 'hello'?)"),
        (["fetch", "karate"], "name is 'karate', which is embedded or generated: there is nothing to fetch"),
        (["fetch", "hello"], "hello.npz: could not be fetched: http://127.0.0.1:9/ failed"),
        (["verify", "nothing"], "name is 'nothing'"),
        (["verify", "karate"], "it has no files to verify"),
        (["verify", "--data-dir", "no/such"], "data_dir is 'no/such', which is not a folder"),
        (["list", "--data-dir", "no/such"], "data_dir is 'no/such', which is not a folder"),
    ],
)
def test_errors_are_a_line_and_exit_code_2(arguments, message):
    result = _run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert len(result.stderr.splitlines()) <= 2
    as_json = _run(*arguments, "--json")
    assert as_json.exit_code == 2
    assert message in json.loads(as_json.stdout)["error"]


@pytest.mark.parametrize("command", ["list", "fetch", "verify"])
def test_help_has_an_example(command):
    result = _run(command, "--help")
    assert result.exit_code == 0
    assert f"Example: dladmm datasets {command}" in result.stdout
