"""The container file: nothing is lost, damage of any bit is noticed, writing is atomic."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import pickle
import random
import struct
from pathlib import Path

import pytest
import torch

from dladmm import DataError, InputError, load_model
from dladmm.base import container
from dladmm.training.checkpoint import load, save

TENSORS = {
    "weights": torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3),
    "flags": torch.tensor([True, False, True]),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "none": torch.zeros(0, 4),
    "step": torch.tensor(7),
}
META = {"a": [1, None, 0.1], "text": 'ünïcode and "sha256":"' + "0" * 64 + '"'}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "run.dladmm"
    save(path, "training", TENSORS, META)
    return path


def same(first, second):
    return list(first) == list(second) and all(
        torch.equal(first[n], second[n]) and first[n].dtype == second[n].dtype for n in first
    )


# The file ------------------------------------------------------------------------------------------------------


def test_round_trip(file):
    tensors, meta = load(file, "training")
    assert same({n: tensors[n] for n in TENSORS}, TENSORS)
    assert meta == META


def test_any_safetensors_reader_opens_it(file):
    safetensors = pytest.importorskip("safetensors")
    with safetensors.safe_open(file, "pt") as opened:
        assert same({n: opened.get_tensor(n) for n in TENSORS}, TENSORS)
        assert json.loads(opened.metadata()["dladmm"])["meta"] == META


def test_equal_content_gives_equal_bytes(file, tmp_path):
    save(tmp_path / "again", "training", dict(reversed(TENSORS.items())), META)
    assert (tmp_path / "again").read_bytes() == file.read_bytes()


def test_views_and_transposes_are_saved_as_they_look(tmp_path):
    big = torch.arange(12.0).reshape(3, 4)
    views = {"t": big.T, "row": big[1], "every": big[:, ::2], "grad": big.clone().requires_grad_()}
    save(tmp_path / "f", "model", views, {})
    loaded, _ = load(tmp_path / "f", "model")
    assert all(torch.equal(loaded[n], views[n]) for n in views)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_tensors_on_a_gpu_come_back_on_the_cpu(tmp_path):
    save(tmp_path / "f", "model", {"x": torch.ones(3, device="cuda")}, {})
    assert load(tmp_path / "f", "model")[0]["x"].device.type == "cpu"


def test_cut_off_at_every_byte(file):
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"run\.dladmm .*(cut off|damaged)"):
            load(file, "training")
    file.write_bytes(whole + b"\0")
    with pytest.raises(DataError, match=f"has {len(whole) + 1:,} bytes and should have {len(whole):,}"):
        load(file, "training")


def test_every_flipped_bit_is_noticed(file):
    whole = bytearray(file.read_bytes())
    rng = random.Random(0)
    bits = [*range(64), *rng.sample(range(8 * len(whole)), 1000)]
    for bit in bits:
        whole[bit // 8] ^= 1 << bit % 8
        file.write_bytes(whole)
        with pytest.raises(DataError, match=r"run\.dladmm"):
            load(file, "training")
        whole[bit // 8] ^= 1 << bit % 8


def altered(path, change):
    """The file with another header or document, and the checksum that goes with it: not damaged but made."""
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + length])
    document = json.loads(header["__metadata__"]["dladmm"])
    change(header, document)
    header["__metadata__"]["dladmm"] = json.dumps(document)
    known = header["__metadata__"].pop("sha256", None)
    if known is not None:
        header["__metadata__"]["sha256"] = "0" * 64
    text = json.dumps(header, separators=(",", ":")).encode()
    made = struct.pack("<Q", len(text)) + text + raw[8 + length :]
    if known is not None:
        digest = hashlib.sha256(made).hexdigest()
        made = made.replace(b'"sha256":"' + b"0" * 64, f'"sha256":"{digest}'.encode(), 1)
    path.write_bytes(made)


def test_a_made_file_with_the_right_checksum_loads(file):
    """So that the refusals below are not all for a wrong checksum."""
    altered(file, lambda header, document: document["meta"].update(more=1))
    assert load(file, "training")[1] == META | {"more": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h, d: d.update(version=2), "format version 2.* reads versions up to 1. Upgrade dladmm"),
        (lambda h, d: d.update(version=True), "does not state the format"),
        (lambda h, d: d.update(version=0), "no format version 0"),
        (lambda h, d: d.update(format="other"), "does not state the format"),
        (lambda h, d: h["__metadata__"].pop("sha256"), "no checksum"),
        (lambda h, d: h["weights"].update(shape=[2, 2**40]), "table of tensors"),
        (lambda h, d: h["weights"].update(shape=[-2, -3]), "table of tensors"),
        (lambda h, d: h["weights"].update(dtype="C64"), "table of tensors"),
        (lambda h, d: h["weights"].update(data_offsets=[0, 48]), "table of tensors"),
        (
            lambda h, d: h["weights"].update(shape=[2**50, 3], data_offsets=[0, 24 * 2**50]),
            "table of tensors",
        ),
        (lambda h, d: h["none"].update(shape=[0, 2**61, 2**61]), "memory cannot hold"),
        (lambda h, d: h.update(weights=None), "table of tensors"),
        (lambda h, d: h.pop("step"), "table of tensors"),
        (lambda h, d: d.update(meta=[1]), "has no meta"),
        (lambda h, d: d.update(kind="recipe"), "holds something unknown, not the state of a training run"),
    ],
)
def test_altered_headers_are_refused(file, change, message):
    altered(file, change)
    with pytest.raises(DataError, match=message):
        load(file, "training")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a dladmm file"),
        (b"PK\x03\x04" + b"\0" * 100, "not a dladmm file"),
        (struct.pack("<Q", 2**63), "header would take"),
        (struct.pack("<Q", 10**8) + b"{}", "header would take"),
        (struct.pack("<Q", 10) + b"[1,2,3,4] ", "not a JSON object"),
        (struct.pack("<Q", 200_000) + b"[" * 200_000, "not a JSON object"),
        (struct.pack("<Q", 2) + b"{}", "another kind of safetensors file"),
        (pickle.dumps({"a": 1}), "not a dladmm file"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        load(path, "training")


def test_what_is_no_readable_file(tmp_path, file):
    with pytest.raises(DataError, match="No such file"):
        load(tmp_path / "missing", "training")
    with pytest.raises(DataError, match="folder or a device"):
        load(tmp_path, "training")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="folder or a device"):
        load(tmp_path / "pipe", "training")
    with pytest.raises(DataError, match="null byte"):
        load("a\0b", "training")
    with pytest.raises(DataError, match="holds the state of a training run, not a trained model"):
        load(file, "model")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads and writes everything")
def test_missing_permissions(tmp_path, file):
    file.chmod(0)
    with pytest.raises(DataError, match="Permission denied"):
        load(file, "training")
    tmp_path.chmod(0o500)
    with pytest.raises(DataError, match="Permission denied"):
        save(tmp_path / "new", "training", TENSORS, META)
    tmp_path.chmod(0o700)


@pytest.mark.parametrize(
    ("tensors", "meta", "message"),
    [
        ({"x": torch.zeros(2, dtype=torch.complex64)}, {}, "'x' of torch.complex64 cannot be saved"),
        ({"__metadata__": torch.zeros(2)}, {}, "cannot be saved"),
        ({}, {"x": float("nan")}, "what JSON can hold"),
        ({}, {"x": object()}, "what JSON can hold"),
    ],
)
def test_what_cannot_be_saved(tmp_path, tensors, meta, message):
    with pytest.raises(InputError, match=message):
        save(tmp_path / "f", "model", tensors, meta)
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_format_version_1_can_be_read_for_ever():
    tensors, meta = load(Path(__file__).parents[1] / "corpus" / "format-1.dladmm", "training")
    assert same({n: tensors[n] for n in TENSORS}, TENSORS)
    assert meta == META


# Writing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["replace", "fsync", "open"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_failed_write_leaves_the_old_file(file, monkeypatch, function, code):
    before = file.read_bytes()

    def fail(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(os, function, fail)
        with pytest.raises(DataError, match=rf"cannot write .*run\.dladmm: {os.strerror(code)}"):
            save(file, "training", {"x": torch.zeros(100)}, {})
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_in_the_middle_of_writing(file, monkeypatch):
    """/dev/full gives ENOSPC from the kernel, as a full disk does."""
    real = os.open

    def to_full(path, flags, *mode, **kwargs):
        return real("/dev/full" if str(path).endswith(".tmp") else path, os.O_WRONLY, *mode, **kwargs)

    before = file.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", to_full)
        with pytest.raises(DataError, match="No space left on device"):
            save(file, "training", {"x": torch.zeros(100_000)}, {})
    assert file.read_bytes() == before


def test_an_interrupted_write_leaves_the_old_file(file, monkeypatch):
    before = file.read_bytes()

    def interrupt(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(file, "training", {}, {})
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_a_path_that_cannot_be_written(tmp_path):
    for path, reason in (
        (tmp_path / "no" / "f", "No such file"),
        (tmp_path, "irectory"),
        ("a\0b", "null byte"),
    ):
        with pytest.raises(DataError, match=f"cannot write .*{reason}"):
            save(path, "model", {}, {})
    assert list(tmp_path.iterdir()) == []


def write_again_and_again(path, value):
    torch.set_num_threads(1)
    for k in range(40):
        save(path, "training", {"x": torch.full((20_000,), value)}, {"value": value, "k": k})


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_two_processes_writing_one_file(tmp_path):
    path = tmp_path / "f"
    save(path, "training", {"x": torch.full((20_000,), 1.0)}, {"value": 1.0})
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=write_again_and_again, args=(path, value)) for value in (1.0, 2.0)]
    for writer in writers:
        writer.start()
    loads = 0
    while any(writer.is_alive() for writer in writers):
        tensors, meta = load(path, "training")
        assert bool((tensors["x"] == meta["value"]).all())
        loads += 1
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert loads > 1
    assert list(tmp_path.iterdir()) == [path]


def test_a_changed_tensor_is_noticed(file):
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    with pytest.raises(DataError, match="checksum"):
        load(file, "training")
    raw[-1] ^= 1
    file.write_bytes(raw)
    with pytest.raises(DataError, match="holds the state of a training run, not a trained model"):
        load(file, "model")
    assert load(file, "training")[1] == META


def bare(header: dict, path: Path) -> Path:
    """A file of a header alone, with a right checksum."""
    document = {"format": "dladmm", "version": 1, "kind": "model", "library": "0", "meta": {}}
    whole = {"__metadata__": {"dladmm": json.dumps(document), "sha256": "0" * 64}, **header}
    raw = json.dumps(whole, separators=(",", ":")).encode()
    head = struct.pack("<Q", len(raw)) + raw
    digest = hashlib.sha256(head).hexdigest()
    path.write_bytes(head.replace(b'"sha256":"' + b"0" * 64, b'"sha256":"' + digest.encode()))
    return path


def test_a_tensor_of_a_hundred_thousand_axes_is_refused_before_it_is_made(tmp_path, monkeypatch):
    header = {"x": {"dtype": "F32", "shape": [0] + [1] * 100_000, "data_offsets": [0, 0]}}
    monkeypatch.setattr(torch, "empty", lambda *args, **kwargs: pytest.fail("it was made"))
    with pytest.raises(DataError, match="table of tensors is inconsistent"):
        load(bare(header, tmp_path / "file"), "model")


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ({"type": "activation", "f": {"name": "quantised", "levels": 10**7}}, "levels must be at most 65536"),
        (
            {
                "type": "recurrent",
                "class": "LSTM",
                "last": True,
                "arguments": {"input_size": 1, "hidden_size": 1, "bias": True, "num_layers": 20_000},
            },
            "LSTM must have the arguments input_size, hidden_size, bias",
        ),
        (
            {
                "type": "torch",
                "class": "GroupNorm",
                "arguments": {"num_groups": 0, "num_channels": 2, "eps": 1, "affine": True},
            },
            "num_groups of GroupNorm must be a whole number from 1",
        ),
        ({"type": "torch", "class": ["Conv2d"], "arguments": {}}, "the class of layer 0 must be a text"),
        ({"type": "linear", "n_in": 10**18, "n_out": 1, "bias": True}, "describes no network"),
        ("linear", "layer 0 must be an object"),
    ],
)
def test_layers_that_would_take_the_machine_are_refused(tmp_path, layer, words):
    save(
        tmp_path / "file",
        "model",
        {},
        {"layers": [layer], "network": "sequential", "loss": None, "extra": {}},
    )
    with pytest.raises(DataError, match=words):
        load_model(tmp_path / "file")


def test_a_large_header_is_parsed_only_if_the_file_has_its_checksum(tmp_path, monkeypatch):
    """Parsing takes some twenty times its size: 100 MB of brackets took 2.3 GB."""
    path = tmp_path / "file"
    save(path, "model", {"x": torch.arange(3.0)}, {"long": ["[]"] * 300_000})
    assert len(load(path, "model")[1]["long"]) == 300_000
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    monkeypatch.setattr(container.json, "loads", lambda text: pytest.fail("parsed"))
    with pytest.raises(DataError, match="do not have the checksum"):
        load(path, "model")
