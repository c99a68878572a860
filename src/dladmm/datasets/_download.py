"""Downloads the published files, on request only: resumable, verified, with fallback addresses.

Bytes go to `FILE.part`, which survives an interrupted connection and is continued by the next attempt. Only a complete
file with the right sha256 gets its real name, by a rename. pooch keeps the registry and does the last check and the
rename; `ResumingDownloader` adds what pooch lacks.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dladmm.base.errors import DataError, DladmmError, InputError
from dladmm.datasets._bytes import sha256_of
from dladmm.datasets._checksums import File
from dladmm.datasets._locate import DataDir, find, roots
from dladmm.datasets._registry import Dataset, dataset

Progress = Callable[[str, int, int], None]  #: file name, bytes so far, bytes in all
ATTEMPTS = 5  #: per address, as long as each attempt receives some bytes
TIMEOUT = (10.0, 60.0)  #: seconds to connect, and between two packets
PATIENCE, SLOWEST = 60.0, 2000.0  #: after so many seconds, the minimum average bytes per second
CHUNK = 1 << 16


def fetch(name: str, *, data_dir: DataDir = None, progress: Progress | None = None) -> list[Path]:
    """Download the missing or damaged files of a data set.

    Parameters
    ----------
    name : str
        One of `names()`.
    data_dir : str or path, optional
        Where to put the files; else `$DLADMM_DATA`, else the user's cache folder. A file with the right checksum in any
        of them is kept.
    progress : callable, optional
        Called with file name, bytes so far and total bytes.

    Returns
    -------
    list of Path
        The paths of all files of the data set.
    """
    entry = dataset(name)
    if entry.embedded:
        raise InputError(f"name is {entry.name!r}, which is embedded or generated: there is nothing to fetch")
    folders = roots(data_dir, must_exist=False)
    return [_fetch_file(entry, file, folders, progress or _silent) for file in entry.files]


def _silent(name: str, done: int, total: int) -> None: ...


def _fetch_file(entry: Dataset, file: File, folders: list[Path], progress: Progress) -> Path:
    present = find(entry, file, folders)
    if present and sha256_of(present.path) == present.sha256:
        progress(file.name, present.size, present.size)
        return present.path
    return _download(entry, file, folders[0] / entry.folders[0], progress)


def _download(entry: Dataset, file: File, folder: Path, progress: Progress) -> Path:
    try:
        import pooch
    except ModuleNotFoundError as error:
        raise DladmmError("fetching data needs pooch, which is not installed; pip install pooch") from error
    registry = {file.name: f"sha256:{file.sha256}"}
    keeper = pooch.create(path=folder, base_url=entry.addresses[0], registry=registry)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _quiet(pooch.get_logger()):
            return Path(
                keeper.fetch(file.name, downloader=ResumingDownloader(file, entry.addresses, progress))
            )
    except OSError as error:
        raise DataError(
            f"{folder / file.name}: cannot be written ({error.strerror or error}); "
            "choose a folder you may write to with data_dir"
        ) from error


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """Silence pooch's messages, which duplicate the progress display."""
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


class _Failed(Exception):
    """A download from one address failed."""


class ResumingDownloader:
    """A pooch downloader for one file that continues FILE.part and tries the next address on failure."""

    def __init__(self, file: File, addresses: tuple[str, ...], progress: Progress = _silent) -> None:
        self.file, self.addresses, self.progress = file, addresses, progress

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        part = Path(output_file).parent / f"{self.file.name}.part"
        problems = []
        for address in self.addresses:
            try:
                self._from_address(address + self.file.name, part)
            except _Failed as failure:
                problems.append(f"{address} {failure}")
            else:
                os.replace(part, output_file)
                return
        raise DataError(
            f"{self.file.name}: could not be fetched: {'; '.join(problems)}. "
            "Try again later: a partial file is continued"
        )

    def _from_address(self, url: str, part: Path) -> None:
        """Leave the complete, checked file in `part`, or raise _Failed."""
        continued = _size(part) > 0
        pieces = self._complete(url, part)
        if self._checked(part):
            return
        if continued or pieces > 1:  # the partial file was not the beginning of this one: start again
            self._complete(url, part)
            if self._checked(part):
                return
        raise _Failed("sent a file with the wrong sha256")

    def _checked(self, part: Path) -> bool:
        if sha256_of(part) == self.file.sha256:
            return True
        part.unlink()
        return False

    def _complete(self, url: str, part: Path) -> int:
        """Complete `part` in as many pieces as needed; returns their number."""
        for attempt in range(1, ATTEMPTS + 1):
            before = _size(part)
            try:
                self._continue(url, part)
            except _Failed:
                if attempt == ATTEMPTS or _size(part) <= before:
                    raise
            else:
                return attempt
        raise AssertionError("the last attempt returns or raises")

    def _continue(self, url: str, part: Path) -> None:
        """Request the missing bytes of `part` and append them."""
        import requests
        from urllib3.exceptions import HTTPError

        total = self.file.size
        have = _size(part)
        if have >= total:  # complete, or too long to be a beginning: the checksum decides
            return
        # identity: the .gz files are the data, not a transfer encoding
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        try:
            with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
                if response.status_code >= 400:
                    raise _Failed(f"answered {response.status_code} {response.reason}")
                if not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
                    have = 0  # the server sends the file from its beginning
                self._append(response.raw, part, have)
        except (requests.RequestException, HTTPError) as error:
            raise _Failed(f"failed ({type(error).__name__})") from error
        if _size(part) < total:
            raise _Failed(f"stopped after {_size(part):,} of {total:,} bytes")

    def _append(self, stream: Any, part: Path, have: int) -> None:
        began, before = time.monotonic(), have
        with part.open("ab" if have else "wb") as file:
            self.progress(self.file.name, have, self.file.size)
            while have < self.file.size:
                # Never a byte beyond the file: where packets end must not decide whether an answer is taken.
                chunk = stream.read1(min(CHUNK, self.file.size - have), decode_content=False)
                if not chunk:
                    return
                have += len(chunk)
                seconds = time.monotonic() - began
                if seconds > PATIENCE and have - before < SLOWEST * seconds:
                    raise _Failed(f"is too slow: {have - before:,} bytes in {seconds:.0f} s")
                file.write(chunk)
                self.progress(self.file.name, have, self.file.size)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
