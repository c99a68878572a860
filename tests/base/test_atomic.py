"""Files are replaced whole, where links lead, with the permissions they had; what is no file is never replaced."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
import torch

from dladmm import DataError
from dladmm.base import atomic
from dladmm.base.atomic import NotFlushed, _host, remove_orphans, replacing
from dladmm.base.container import load, save


def written(path, content=b"new"):
    with replacing(path) as file:
        file.write(content)


def test_a_link_is_followed_and_stays(tmp_path):
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    written(link)
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["far", "link", "target"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_permissions_are_kept(tmp_path, mode):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(mode)
    written(path)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert path.read_bytes() == b"new"


def test_a_new_file_has_those_of_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        written(tmp_path / "file")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


@pytest.mark.parametrize("name", ["pipe", "link to a pipe", "device"])
def test_what_is_no_file_is_never_replaced(tmp_path, name):
    path = Path("/dev/null") if name == "device" else tmp_path / name
    if name != "device":
        os.mkfifo(tmp_path / "pipe")
    if name.startswith("link"):
        path.symlink_to(tmp_path / "pipe")
    before = path.stat().st_mode
    with pytest.raises(DataError, match=r"cannot write .* a device or a pipe, which is never replaced"):
        save(path, "model", {"x": torch.zeros(2)}, {})
    assert path.stat().st_mode == before


def test_a_folder_that_cannot_be_flushed_is_said_and_the_file_is_there(tmp_path, monkeypatch):
    def fails(folder):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(atomic, "_sync_folder", fails)
    with pytest.raises(NotFlushed):
        written(tmp_path / "plain")
    with pytest.raises(
        DataError, match=r"was written, but its folder could not be flushed .*Input/output error"
    ) as found:
        save(tmp_path / "file", "model", {"x": torch.zeros(2)}, {})
    assert "Nothing was changed" not in str(found.value)
    assert torch.equal(load(tmp_path / "file", "model")[0]["x"], torch.zeros(2))


def test_temporary_files_of_other_machines_are_left_alone(tmp_path):
    """Whether their process still runs is not known here."""
    dead = 99_999_999
    own, other = (tmp_path / f".dladmm-{host}-{dead}-ab12.tmp" for host in (_host(), _host()[:-1] + "0x"))
    own.touch()
    other.touch()
    remove_orphans(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [other.name]
