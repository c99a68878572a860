"""Downloads from a server on this machine that lies, stalls, cuts and redirects."""

from __future__ import annotations

import hashlib
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest import mock

from chaos.ledger import Ledger, require
from dladmm import DataError, datasets
from dladmm.datasets import _download, _registry
from dladmm.datasets._checksums import File
from dladmm.datasets._registry import Dataset

CONTENT = bytes(range(256)) * 800
NAME = "some.npz"
Behaviour = Callable[["Handler", int], None]
SECONDS = 60.0


@dataclass
class Server:
    """What the next answers do, in turn; the last one stays."""

    behaviours: list[Behaviour] = field(default_factory=list)
    url: str = ""
    asked: int = 0


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        state: Server = self.server.state  # type: ignore[attr-defined]
        behaviour = state.behaviours[min(state.asked, len(state.behaviours) - 1)]
        state.asked += 1
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        try:
            behaviour(self, int(match[1]) if match else 0)
        except ConnectionError:
            return

    def begin(self, start: int, length: int) -> None:
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


def whole(handler: Handler, start: int) -> None:
    handler.begin(start, len(CONTENT) - start)
    handler.wfile.write(CONTENT[start:])


def wrong(handler: Handler, start: int) -> None:
    handler.begin(start, len(CONTENT) - start)
    handler.wfile.write(bytes(len(CONTENT) - start))


def cut(handler: Handler, start: int) -> None:
    handler.begin(start, len(CONTENT) - start)
    handler.wfile.write(CONTENT[start : start + 40_000])


def cut_at_once(handler: Handler, start: int) -> None:
    handler.begin(start, len(CONTENT) - start)


def endless(content: bytes) -> Behaviour:
    """No length is said and the same bytes come again and again; a file that begins as it should is taken."""

    def answer(handler: Handler, start: int) -> None:
        handler.send_response(200)
        handler.end_headers()
        for _ in range(1000):
            handler.wfile.write(content)

    return answer


def stalled(handler: Handler, start: int) -> None:
    handler.begin(start, len(CONTENT) - start)
    handler.wfile.write(CONTENT[start : start + 1000])
    time.sleep(1.5)


def dripping(handler: Handler, start: int) -> None:
    handler.begin(start, len(CONTENT) - start)
    for at in range(start, start + 60):
        handler.wfile.write(CONTENT[at : at + 1])
        handler.wfile.flush()
        time.sleep(0.05)


def ignores_ranges(handler: Handler, start: int) -> None:
    whole(handler, 0)


def lies_about_range(handler: Handler, start: int) -> None:
    """Says it continues, and sends the beginning."""
    handler.begin(start, len(CONTENT) - start)
    handler.wfile.write(CONTENT[: len(CONTENT) - start])


def error(code: int) -> Behaviour:
    return lambda handler, start: handler.send_error(code)


def redirect(to: str) -> Behaviour:
    def answer(handler: Handler, start: int) -> None:
        handler.send_response(302)
        handler.send_header("Location", to)
        handler.end_headers()

    return answer


def garbage(handler: Handler, start: int) -> None:
    handler.wfile.write(b"\x00\xff nonsense \r\n\r\n" * 50)


def huge_header(handler: Handler, start: int) -> None:
    handler.send_response(200)
    handler.send_header("X-Long", "x" * 200_000)
    handler.end_headers()


@contextmanager
def serving(state: Server) -> Iterator[None]:
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    http.state = state  # type: ignore[attr-defined]
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{http.server_port}"
    try:
        yield
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


COMES, RESUMES_LATER, REFUSED = "comes", "is resumed by the next call", "is refused"

# what the server does, what becomes of the file
CASES: dict[str, tuple[list[Behaviour], str]] = {
    "honest": ([whole], COMES),
    "cut twice": ([cut, cut, whole], COMES),
    "cut at once, then honest": ([cut_at_once, whole], RESUMES_LATER),
    "cut for ever": ([cut, cut, cut, cut_at_once], RESUMES_LATER),
    "wrong checksum": ([wrong], REFUSED),
    "wrong once, honest afterwards": ([cut, wrong, whole], COMES),
    "ignores ranges": ([cut, ignores_ranges], COMES),
    "lies about the range": ([cut, lies_about_range, whole], COMES),
    "endless": ([endless(CONTENT)], COMES),
    "endless and wrong": ([endless(bytes(len(CONTENT)))], REFUSED),
    "stalls": ([stalled], RESUMES_LATER),
    "drips": ([dripping], RESUMES_LATER),
    "404": ([error(404)], REFUSED),
    "500": ([error(500)], REFUSED),
    "500 in mid-file": ([cut, error(500)], RESUMES_LATER),
    "redirect to a file": ([redirect("file:///etc/passwd")], REFUSED),
    "redirect to ftp": ([redirect("ftp://127.0.0.1/some.npz")], REFUSED),
    "redirect to data": ([redirect("data:text/plain,hello")], REFUSED),
    "redirect to javascript": ([redirect("javascript:alert(1)")], REFUSED),
    "redirect in a circle": ([redirect("/a/some.npz")], REFUSED),
    "redirect to nowhere": ([redirect("http://127.0.0.1:9/x")], REFUSED),
    "redirect within the server": ([redirect("/b/some.npz"), whole], COMES),
    "not HTTP": ([garbage], REFUSED),
    "huge header": ([huge_header], REFUSED),
}


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def judge(behaviours: list[Behaviour], outcome: str, folder: Path) -> None:
    state = Server(behaviours)
    known = File(NAME, len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    with serving(state):
        entry = Dataset(
            "cora", "Cora", "graph", "none", files=(known,), folders=("planetoid",), addresses=(f"{state.url}/a/",)
        )  # fmt: skip
        with mock.patch.dict(_registry.DATASETS, {"cora": entry}):
            try:
                (path,) = datasets.fetch("cora", data_dir=folder)
                came = path.read_bytes() == CONTENT
                require(came, "a wrong file has the right name")
            except DataError as error:
                came = False
                require("could not be fetched" in str(error), f"the message: {error}")
            if outcome == COMES:
                require(came, "the file did not come")
                require(left(folder) == [NAME], f"left behind: {left(folder)}")
                return
            require(not came, "the file came")
            require(NAME not in left(folder), "a half-written file has the right name")
            if outcome == REFUSED:
                require(left(folder) == [], f"left behind: {left(folder)}")
                return
            sizes = [path.stat().st_size for path in folder.rglob("*.part")]
            require(sum(sizes) <= len(CONTENT), "more was written than the file has")
            state.behaviours, state.asked = [whole], 0
            (path,) = datasets.fetch("cora", data_dir=folder)
            require(path.read_bytes() == CONTENT, "the resumed file is wrong")
            require(left(folder) == [NAME], f"left behind: {left(folder)}")


def run(ledger: Ledger, count: int, seed: int) -> None:
    """Every case ``count`` times; waiting is shortened so that a stall takes a second, not a minute."""
    patience = mock.patch.multiple(_download, TIMEOUT=(2.0, 1.0), PATIENCE=0.5)
    for name, (behaviours, outcome) in CASES.items():
        for _ in range(count):
            with (
                ledger.attempt(name, SECONDS, by_clock=True),
                patience,
                tempfile.TemporaryDirectory() as folder,
            ):
                judge(list(behaviours), outcome, Path(folder))
