"""CUDA code is compiled by what comes with torch, and for the GPUs it is for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from dladmm.compute.gpu import code
from dladmm.compute.gpu.code import FOLDER, GpuError, _packed
from emulation import all_kernels

UNITS = sorted({kernel.unit for kernel in all_kernels()}, key=lambda unit: unit.files)
NVCC = shutil.which("nvcc")


def test_the_compiler_of_torchs_packages_finds_its_other_half(monkeypatch, tmp_path):
    """It asks for its builtins by name: they are loaded where it does not work without."""
    folder = tmp_path / "nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True)
    compiler, builtins = folder / "libnvrtc.so.13", folder / "libnvrtc-builtins.so.13.0"
    for file in (compiler, builtins):
        file.touch()
    loaded = []

    def load(place):
        if not Path(place).exists():
            raise OSError("the system has none")
        loaded.append(place)
        return place

    def made(place, source, options):
        if str(builtins) not in loaded:
            raise GpuError("failed to open libnvrtc-builtins.so.13.0")

    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    monkeypatch.setattr(code.ctypes, "CDLL", load)
    monkeypatch.setattr(code, "_made", made)
    assert code._compiler("libnvrtc.so.13") == str(compiler)
    assert loaded == [str(compiler), str(builtins), str(compiler)]
    with pytest.raises(OSError, match=r"libnvrtc\.so\.12 was not found"):
        code._compiler("libnvrtc.so.12")


def test_arguments_take_eight_bytes_each():
    x = torch.zeros(3)
    assert _packed((x, None, 7, True, 1.5)).raw[:40] == (
        x.data_ptr().to_bytes(8, "little")
        + bytes(8)
        + (7).to_bytes(8, "little")
        + (1).to_bytes(8, "little")
        + bytes([0, 0, 0, 0, 0, 0, 0xF8, 0x3F])
    )


def test_no_gpu_no_kernels(monkeypatch):
    code.available.cache_clear()
    monkeypatch.setattr(torch.version, "cuda", None)
    assert not code.available()
    code.available.cache_clear()


def test_nothing_is_launched_on_nothing(monkeypatch):
    """A rank may have no rows: the driver would refuse the launch, and the kernel be given up for the whole run."""
    monkeypatch.setattr(code, "_libraries", lambda: 1 / 0)
    kernel = code.Unit("sums.cu", "softmax.cu", DOUBLE=0).kernel("softmax_prox", 256)
    kernel((0, 1), torch.zeros(0, 3), 0)
    kernel((3, 0), torch.zeros(0, 3), 0)


def test_what_the_driver_says_is_an_error(monkeypatch):
    class Driver:
        def cuGetErrorString(self, status, text):
            text._obj.value = b"out of luck"

    monkeypatch.setattr(code, "_libraries", lambda: code.Libraries(Driver(), None))
    code._check(0)
    with pytest.raises(GpuError, match="out of luck"):
        code._check(7)


@pytest.mark.skipif(NVCC is None, reason="needs CUDA's compiler")
@pytest.mark.parametrize("unit", UNITS, ids=[unit.files[-1] for unit in UNITS])
def test_code_for_hopper_gpus_keeps_its_registers(tmp_path, unit):
    """The emulation compiles the same files as C++, where another compiler reads them, without the tensor cores'."""
    source = tmp_path / "unit.cu"
    source.write_text(
        unit.defined + "".join((FOLDER / file).read_text("utf-8") for file in unit.files), "utf-8"
    )
    given = ["-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-Xptxas", "-v", "-cubin"]
    done = subprocess.run(
        [NVCC, *given, "-o", str(tmp_path / "unit.cubin"), str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[:3000]
    lines = [line for line in done.stderr.splitlines() if "spill" in line]
    assert lines
    assert all("0 bytes spill stores, 0 bytes spill loads" in line for line in lines)
    assert "serialized" not in done.stderr, "multiplications would wait for each other"
