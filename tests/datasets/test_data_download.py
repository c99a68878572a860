"""Downloads, against a server on this machine that misbehaves on request."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from dladmm import datasets
from dladmm.base.errors import DataError
from dladmm.datasets import _registry
from dladmm.datasets._checksums import File
from dladmm.datasets._registry import Dataset

CONTENT = np.random.default_rng(0).bytes(300_000)
NAME = "some.npz"


@dataclass
class Server:
    """What the two addresses /a/ and /b/ do, and what they were asked."""

    url: str = ""
    contents: dict[str, bytes] = field(default_factory=lambda: {"a": CONTENT, "b": CONTENT})
    ranges: bool = True
    cut_after: list[int] = field(default_factory=list)  #: bytes until each of the next answers is cut
    asked: list[tuple[str, str]] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            where = self.path.split("/")[1]
            asked = self.headers.get("Range", "")
            state.asked.append((where, asked))
            body = state.contents.get(where)
            if body is None:
                self.send_error(404)
                return
            match = re.fullmatch(r"bytes=(\d+)-", asked)
            start = int(match[1]) if match and state.ranges else 0
            if start >= len(body):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            cut = state.cut_after.pop(0) if state.cut_after else None
            self.wfile.write(body[start:][:cut])

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        state.url = f"http://127.0.0.1:{http.server_port}"
        yield state
        http.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def registered(server, monkeypatch) -> Dataset:
    entry = Dataset(
        "cora",
        "Cora",
        "graph",
        "none",
        files=(File(NAME, len(CONTENT), hashlib.sha256(CONTENT).hexdigest()),),
        folders=("planetoid",),
        addresses=(f"{server.url}/a/", f"{server.url}/b/"),
    )
    monkeypatch.setitem(_registry.DATASETS, "cora", entry)
    return entry


def _left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_fetches_once(tmp_path, server):
    seen = []
    (path,) = datasets.fetch("cora", data_dir=tmp_path / "new", progress=lambda *what: seen.append(what))
    assert path == tmp_path / "new" / "planetoid" / NAME
    assert path.read_bytes() == CONTENT
    assert _left(tmp_path / "new") == [NAME]
    assert seen[0] == (NAME, 0, len(CONTENT))
    assert seen[-1] == (NAME, len(CONTENT), len(CONTENT))
    assert datasets.fetch("cora", data_dir=tmp_path / "new") == [path]
    assert server.asked == [("a", "")], "the second fetch finds the file"


def test_goes_to_the_environment_folder_or_the_cache(tmp_path, monkeypatch, own_folders):
    assert datasets.fetch("cora")[0].parent == own_folders / "planetoid"
    (own_folders / "planetoid" / NAME).unlink()
    monkeypatch.setenv("DLADMM_DATA", str(tmp_path / "environment"))
    assert datasets.fetch("cora")[0].parent == tmp_path / "environment" / "planetoid"


def test_a_cut_connection_is_resumed(tmp_path, server):
    server.cut_after = [100_000, 50_000]
    (path,) = datasets.fetch("cora", data_dir=tmp_path)
    assert path.read_bytes() == CONTENT
    assert [where for where, _ in server.asked] == ["a", "a", "a"]
    assert re.fullmatch(r"bytes=\d+-", server.asked[1][1])


def test_a_partial_file_of_an_earlier_run_is_resumed(tmp_path, server):
    folder = tmp_path / "planetoid"
    folder.mkdir()
    (folder / f"{NAME}.part").write_bytes(CONTENT[:123_456])
    (path,) = datasets.fetch("cora", data_dir=tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.asked == [("a", "bytes=123456-")]
    assert _left(tmp_path) == [NAME]


@pytest.mark.parametrize("junk", [b"x" * 1000, b"x" * len(CONTENT), b"x" * (len(CONTENT) + 5)])
def test_a_partial_file_that_is_no_beginning_is_thrown_away(tmp_path, junk):
    (tmp_path / "planetoid").mkdir()
    (tmp_path / "planetoid" / f"{NAME}.part").write_bytes(junk)
    (path,) = datasets.fetch("cora", data_dir=tmp_path)
    assert path.read_bytes() == CONTENT
    assert _left(tmp_path) == [NAME]


def test_a_server_without_ranges_starts_over(tmp_path, server):
    server.ranges, server.cut_after = False, [100_000]
    (path,) = datasets.fetch("cora", data_dir=tmp_path)
    assert path.read_bytes() == CONTENT


def test_the_second_address_serves_when_the_first_is_gone(tmp_path, server):
    del server.contents["a"]
    (path,) = datasets.fetch("cora", data_dir=tmp_path)
    assert path.read_bytes() == CONTENT
    assert [where for where, _ in server.asked] == ["a", "b"]


def test_the_second_address_serves_when_the_first_is_down(tmp_path, server, registered, monkeypatch):
    addresses = ("http://127.0.0.1:9/", f"{server.url}/b/")
    monkeypatch.setitem(_registry.DATASETS, "cora", Dataset(**vars(registered) | {"addresses": addresses}))
    assert datasets.fetch("cora", data_dir=tmp_path)[0].read_bytes() == CONTENT


@pytest.mark.parametrize("wrong", [CONTENT[:-1] + b"!", CONTENT + b"!"], ids=["changed", "longer"])
def test_a_wrong_file_at_the_first_address_is_not_taken(tmp_path, server, wrong):
    server.contents["a"] = wrong
    (path,) = datasets.fetch("cora", data_dir=tmp_path)
    assert path.read_bytes() == CONTENT
    assert _left(tmp_path) == [NAME]


def test_wrong_files_everywhere_leave_nothing(tmp_path, server):
    server.contents = {"a": CONTENT[::-1], "b": CONTENT[::-1]}
    with pytest.raises(
        DataError, match=r"some\.npz: could not be fetched: .*/a/ sent a file with the wrong sha256"
    ):
        datasets.fetch("cora", data_dir=tmp_path)
    assert _left(tmp_path) == []


def test_a_download_that_stops_leaves_only_the_part_and_goes_on_later(tmp_path, server):
    server.contents = {"a": CONTENT}
    server.cut_after = [10_000] * 5
    with pytest.raises(DataError, match=r"Try again later: a partial file is continued"):
        datasets.fetch("cora", data_dir=tmp_path)
    assert _left(tmp_path) == [f"{NAME}.part"]
    assert (tmp_path / "planetoid" / f"{NAME}.part").read_bytes() == CONTENT[:50_000]
    (path,) = datasets.fetch("cora", data_dir=tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.asked[-1] == ("a", "bytes=50000-")


def test_a_damaged_file_is_replaced(tmp_path):
    (tmp_path / "planetoid").mkdir()
    (tmp_path / "planetoid" / NAME).write_bytes(b"damaged")
    (path,) = datasets.fetch("cora", data_dir=tmp_path)
    assert path.read_bytes() == CONTENT


def test_nothing_listens(tmp_path, registered, monkeypatch):
    addresses = ("http://127.0.0.1:9/",)
    monkeypatch.setitem(_registry.DATASETS, "cora", Dataset(**vars(registered) | {"addresses": addresses}))
    with pytest.raises(
        DataError, match=r"could not be fetched: http://127.0.0.1:9/ failed \(ConnectionError\)"
    ):
        datasets.fetch("cora", data_dir=tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="a file in the folder's place is another error there")
def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "planetoid").write_text("a file where the folder should be")
    with pytest.raises(DataError, match=r"cannot be written .* choose a folder"):
        datasets.fetch("cora", data_dir=tmp_path)


def test_load_downloads_only_when_asked(tmp_path, server, capsys):
    with pytest.raises(DataError, match=r"1 of 1 files missing: some\.npz"):
        datasets.load("cora", data_dir=tmp_path)
    assert server.asked == []
    with pytest.raises(KeyError):  # the file is no Planetoid file, but it has come
        datasets.load("cora", data_dir=tmp_path, download=True)
    assert server.asked == [("a", "")]
    assert capsys.readouterr().err == f"{NAME}: 300,000 bytes\n"
