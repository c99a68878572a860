from __future__ import annotations

import gzip
import hashlib
import socket
import sys
from pathlib import Path

import pytest
from dataset_files import image_files, npz, planetoid_arrays, planetoid_files

from dladmm import datasets
from dladmm.base.errors import DataError, InputError
from dladmm.datasets import _locate, _registry
from dladmm.datasets._checksums import File
from dladmm.datasets._registry import Dataset


def _file(name: str, data: bytes) -> File:
    plain = None
    if name.endswith(".gz"):
        inner = gzip.decompress(data)
        plain = len(inner), hashlib.sha256(inner).hexdigest()
    return File(name, len(data), hashlib.sha256(data).hexdigest(), plain)


IMAGES = {
    name: {f"{k}.gz": v for k, v in image_files(seed=s).items()}
    for s, name in enumerate(("mnist", "fashion_mnist"))
}
CORA = {f"ind.cora.{part}": data for part, data in planetoid_files().items()}
COPY = npz(planetoid_arrays())


@pytest.fixture(autouse=True)
def tiny_registry(monkeypatch):
    """The registry with small files in place of the published ones."""
    tiny = {
        name: Dataset(
            name,
            name,
            "images",
            "none",
            files=tuple(_file(*item) for item in IMAGES[name].items()),
            folders=(name, f"{name.upper()}/raw"),
            addresses=("http://127.0.0.1:9/",),
        )
        for name in IMAGES
    }
    tiny["cora"] = Dataset(
        "cora",
        "Cora",
        "graph",
        "none",
        files=tuple(_file(*item) for item in CORA.items()),
        folders=("planetoid",),
        addresses=("http://127.0.0.1:9/a/", "http://127.0.0.1:9/b/"),
        copy=_file("cora.npz", COPY),
    )
    for name, entry in tiny.items():
        monkeypatch.setitem(_registry.DATASETS, name, entry)


def _write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize("layout", ["", "fashion_mnist", "FASHION_MNIST/raw"])
def test_flat_and_folder_layouts(tmp_path, layout):
    _write(tmp_path / layout, IMAGES["fashion_mnist"])
    assert len(datasets.load("fashion_mnist", data_dir=tmp_path).y_train) == 30


def test_unpacked_files_will_do(tmp_path):
    _write(
        tmp_path, {name.removesuffix(".gz"): gzip.decompress(data) for name, data in IMAGES["mnist"].items()}
    )
    assert len(datasets.load("mnist", data_dir=tmp_path, full=True).y_train) == 30


@pytest.mark.parametrize("unpack", [False, True])
def test_loose_files_of_the_other_set_with_the_same_names_are_not_taken(tmp_path, unpack):
    files = IMAGES["fashion_mnist"]
    if unpack:
        files = {name.removesuffix(".gz"): gzip.decompress(data) for name, data in files.items()}
    _write(tmp_path, files)
    with pytest.raises(DataError, match="mnist: 4 of 4 files missing"):
        datasets.load("mnist", data_dir=tmp_path, full=True)
    _write(tmp_path / "mnist", IMAGES["mnist"])
    mnist, fashion = (datasets.load(name, data_dir=tmp_path, full=True) for name in IMAGES)
    assert not mnist.x_train.equal(fashion.x_train)


def test_order_of_the_folders(tmp_path, monkeypatch, own_folders):
    damaged = {name: data + b"x" for name, data in CORA.items()}
    explicit, environment = tmp_path / "explicit", tmp_path / "environment"
    _write(own_folders, CORA)
    assert datasets.load("cora").n_nodes == 611
    monkeypatch.setenv("DLADMM_DATA", str(environment))
    assert datasets.load("cora").n_nodes == 611, "a folder that does not exist is passed over"
    _write(environment, damaged)
    with pytest.raises(DataError, match="environment"):
        datasets.load("cora")
    _write(explicit / "planetoid", CORA)
    assert datasets.load("cora", data_dir=explicit).n_nodes == 611
    (explicit / "planetoid" / "ind.cora.x").unlink()
    with pytest.raises(DataError, match=r"environment.*ind\.cora\.x"):
        datasets.load("cora", data_dir=str(explicit))


def test_the_converted_copy_serves_when_originals_are_incomplete(tmp_path):
    _write(tmp_path / "planetoid", {"cora.npz": COPY})
    assert datasets.load("cora", data_dir=tmp_path).n_nodes == 12
    _write(tmp_path / "planetoid", CORA)
    assert datasets.load("cora", data_dir=tmp_path).n_nodes == 611


def test_a_changed_file_is_named(tmp_path):
    _write(tmp_path, CORA)
    path = tmp_path / "ind.cora.ty"
    good = path.read_bytes()
    path.write_bytes(good[:-3] + b"\1" + good[-2:])
    with pytest.raises(DataError, match=r"ind\.cora\.ty: its sha256 is .* delete it and fetch it again"):
        datasets.load("cora", data_dir=tmp_path)
    path.write_bytes(good[:-1])
    with pytest.raises(DataError, match=r"ind\.cora\.ty: it has .* bytes where the published file has"):
        datasets.load("cora", data_dir=tmp_path)
    path.write_bytes(good + bytes(10 * len(good)))
    for verify in (True, False):
        with pytest.raises(DataError, match=r"ind\.cora\.ty: longer than"):
            datasets.load("cora", data_dir=tmp_path, verify=verify)


def test_verify_false_reads_a_changed_but_sound_file(tmp_path):
    _write(tmp_path, CORA | {"ind.cora.test.index": CORA["ind.cora.test.index"] + b"\n"})
    with pytest.raises(DataError, match="longer than"):
        datasets.load("cora", data_dir=tmp_path)
    assert datasets.load("cora", data_dir=tmp_path, verify=False).n_nodes == 611


def test_missing_files_name_themselves_and_nothing_calls_the_network(tmp_path, monkeypatch):
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("somebody called the network"))
    _write(tmp_path, {name: data for name, data in CORA.items() if name != "ind.cora.allx"})
    with pytest.raises(DataError) as caught:
        datasets.load("cora", data_dir=tmp_path)
    message = str(caught.value)
    assert "1 of 8 files missing: ind.cora.allx; looked in" in message
    assert str(tmp_path / "planetoid") in message
    assert "http://127.0.0.1:9/a/ or http://127.0.0.1:9/b/" in message
    assert "dladmm datasets fetch cora" in message
    assert len(message.splitlines()) == 2


@pytest.mark.parametrize("data_dir", [3, "", "no/such/folder"])
def test_wrong_data_dir(data_dir):
    with pytest.raises(InputError, match="data_dir is"):
        datasets.load("cora", data_dir=data_dir)


def test_an_unreadable_file_is_named(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        _locate.read_bounded(tmp_path, 10)
    with pytest.raises(DataError, match="cannot be read"):
        _locate.sha256_of(tmp_path)


@pytest.mark.parametrize(
    ("platform", "variable", "expected"),
    [
        ("linux", "XDG_CACHE_HOME", "root/dladmm"),
        ("win32", "LOCALAPPDATA", "root/dladmm/Cache"),
        ("darwin", "IGNORED", "home/Library/Caches/dladmm"),
    ],
)
def test_cache_folder_by_platform(platform, variable, expected, monkeypatch, tmp_path):
    monkeypatch.undo()  # the fixture replaced the function under test
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", platform)
        patch.setattr(Path, "home", lambda: tmp_path / "home")
        patch.setenv(variable, str(tmp_path / "root"))
        assert _locate.cache_folder() == tmp_path / expected


def test_verify_and_overview(tmp_path):
    _write(tmp_path / "planetoid", CORA | {"ind.cora.y": b"short"})
    states = {report.file: report.state for report in datasets.verify("cora", data_dir=tmp_path)}
    assert states.pop("ind.cora.y") == "damaged"
    assert set(states.values()) == {"ok"}
    assert {report.state for report in datasets.verify("mnist", data_dir=tmp_path)} == {"missing"}
    _write(tmp_path / "only-copy", {"cora.npz": COPY})
    (report,) = datasets.verify("cora", data_dir=tmp_path / "only-copy")
    assert (report.file, report.state) == ("cora.npz", "ok")
    assert len(datasets.verify(data_dir=tmp_path)) >= 8 + 4 + 4
