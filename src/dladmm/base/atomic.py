"""Atomic file writes: temporary file, fsync, rename, fsync of the folder."""

from __future__ import annotations

import errno
import os
import re
import secrets
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_TEMPORARY = re.compile(r"\.dladmm-(?P<host>[0-9a-z]*)-(?P<pid>[0-9]+)-[0-9a-f]+\.tmp")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Context manager that yields a temporary binary file and renames it to ``path`` when the block ends.

    After an error or a crash ``path`` holds either its old content or all of the new one, never a part. A link is
    followed, a file that is replaced keeps its permissions, and what is no file (a device, a pipe) is never replaced.
    """
    path = Path(os.path.realpath(path))
    kept = _permissions(path)
    temporary = path.parent / f".dladmm-{_host()}-{os.getpid()}-{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        with os.fdopen(os.open(temporary, flags, 0o666), "wb") as file:
            yield file
            if kept is not None and hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), kept)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    try:
        _sync_folder(path.parent)
    except OSError as error:
        raise NotFlushed(error.errno, error.strerror) from error


class NotFlushed(OSError):
    """The file is in its place, but its folder could not be flushed: after a power cut the old one may be back."""


def _permissions(path: Path) -> int | None:
    """Those of the file that is there, None if there is none; raises OSError if it is no file."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a device or a pipe, which is never replaced by a file")
    return stat.S_IMODE(mode)


def remove_orphans(folder: Path) -> None:
    """Remove temporary files of processes on this machine that no longer run."""
    for path in folder.glob(".dladmm-*.tmp"):
        match = _TEMPORARY.fullmatch(path.name)
        if match and match["host"] == _host() and not _alive(int(match["pid"])):
            with suppress(OSError):
                path.unlink()


def _sync_folder(folder: Path) -> None:
    if not hasattr(os, "O_DIRECTORY"):  # Windows cannot open a folder, and does not need to
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _host() -> str:
    return re.sub(r"[^0-9a-z]", "", socket.gethostname().lower())[:32]


def _alive(pid: int) -> bool:
    if os.name != "posix":  # on Windows os.kill would end the process
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
