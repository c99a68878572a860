"""CUDA code of this folder, compiled where it runs by NVRTC, the compiler that comes with torch.

A file takes a few tenths of a second, without Python's lock, so several are compiled side by side while a run is set
up. What was compiled is kept by CUDA's own cache, if at all. Every argument of a kernel takes 8 bytes: a pointer, a
whole number or a float64 number.
"""

from __future__ import annotations

import ctypes
import struct
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

FOLDER = Path(__file__).parent
SHARED_AT_MOST = 48 << 10
"""Bytes of shared memory that a kernel has without asking."""

_PARAMETERS, _SIZE, _END = 1, 2, 0  # CU_LAUNCH_PARAM_*
_MOST_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

Argument = Tensor | int | float | None
"""Of a kernel: None is the address of nothing."""


class GpuError(RuntimeError):
    """What the driver or the compiler says is wrong."""


class Unit:
    """Files that are compiled together for such ``numbers``, the kernels in it by name, for each device."""

    def __init__(self, *files: str, **numbers: int) -> None:
        self.files, self.numbers = files, numbers
        self._modules: dict[int, ctypes.c_void_p] = {}
        self._lock = threading.Lock()

    def kernel(self, name: str, threads: int, shared: int = 0) -> Kernel:
        return Kernel(self, name, threads, shared)

    @property
    def defined(self) -> str:
        """The numbers, before the text of the files."""
        return "".join(f"#define {name} {number}\n" for name, number in self.numbers.items())

    def load(self, device: torch.device) -> ctypes.c_void_p:
        """Compiled at the first call; other threads that need it wait."""
        index = device.index or 0
        with self._lock:
            if index not in self._modules:
                module = ctypes.c_void_p()
                code = _compiled(self.defined + "".join(map(_text, self.files)), index)
                with _context(index):
                    _check(_libraries().driver.cuModuleLoadData(ctypes.byref(module), code))
                self._modules[index] = module
            return self._modules[index]


def _text(file: str) -> str:
    return (FOLDER / file).read_text("utf-8")


class Kernel:
    """One ``extern "C" __global__`` function: called with a grid and its arguments, on torch's current stream.

    Parameters
    ----------
    unit : Unit
    name : str
    threads : int
        Of a block.
    shared : int
        Bytes of shared memory of a block, besides those the code declares.
    """

    def __init__(self, unit: Unit, name: str, threads: int, shared: int = 0) -> None:
        self.unit, self.name, self.threads, self.shared = unit, name, threads, shared
        self._functions: dict[int, ctypes.c_void_p] = {}

    def __call__(self, grid: tuple[int, int], *arguments: Argument) -> None:
        """The first argument is a tensor, and all lie on its device; whole numbers of Python are int64 in the code."""
        first = arguments[0]
        assert isinstance(first, Tensor)
        if 0 in grid:  # a rank may have no rows, and the driver refuses to launch nothing
            return
        function = self._function(first.device)
        stream = torch.cuda.current_stream(first.device).cuda_stream
        packed = _packed(arguments)
        extra = (ctypes.c_void_p * 5)(
            _PARAMETERS, ctypes.addressof(packed), _SIZE, ctypes.addressof(_size_of(len(arguments))), _END
        )
        with _context(first.device.index or 0):
            launch = _libraries().driver.cuLaunchKernel
            _check(launch(function, *grid, 1, self.threads, 1, 1, self.shared, stream, None, extra))

    def _function(self, device: torch.device) -> ctypes.c_void_p:
        index = device.index or 0
        if index not in self._functions:
            module, function, driver = self.unit.load(device), ctypes.c_void_p(), _libraries().driver
            with _context(index):
                _check(driver.cuModuleGetFunction(ctypes.byref(function), module, self.name.encode()))
                if self.shared > SHARED_AT_MOST:
                    _check(driver.cuFuncSetAttribute(function, _MOST_SHARED, self.shared))
            self._functions[index] = function
        return self._functions[index]


def _packed(arguments: Sequence[Argument]) -> ctypes.Array[ctypes.c_char]:
    kinds = "".join("d" if isinstance(each, float) else "q" for each in arguments)
    values = [each.data_ptr() if isinstance(each, Tensor) else each or 0 for each in arguments]
    return ctypes.create_string_buffer(struct.pack(kinds, *values))


@cache
def _size_of(arguments: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(8 * arguments)


class Libraries(NamedTuple):
    """The driver and the compiler."""

    driver: ctypes.CDLL
    compiler: ctypes.CDLL


@cache
def available() -> bool:
    """Whether CUDA code can be compiled and run here."""
    try:
        return torch.version.cuda is not None and torch.cuda.is_available() and _libraries() is not None
    except OSError:
        return False


@cache
def _libraries() -> Libraries:
    windows, version = sys.platform == "win32", str(torch.version.cuda).split(".")[0]
    driver = ctypes.CDLL("nvcuda.dll" if windows else "libcuda.so.1")
    driver.cuLaunchKernel.argtypes = [
        ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
    ]  # fmt: skip
    return Libraries(driver, _compiler(f"nvrtc64_{version}0_0.dll" if windows else f"libnvrtc.so.{version}"))


def _compiler(name: str) -> ctypes.CDLL:
    """From where the system has it, or from the packages that torch was installed with."""
    torch_at = Path(torch.__file__).parent
    packaged = [*torch_at.glob(f"lib/{name}"), *torch_at.parent.glob(f"nvidia/*/*/{name}")]
    for with_builtins in (False, True):
        for folder in {place.parent for place in packaged if with_builtins}:
            for builtins in folder.glob("*nvrtc-builtins*"):
                with suppress(OSError):  # the compiler asks for them by name, and does not look beside itself
                    ctypes.CDLL(str(builtins))
        for place in (name, *map(str, packaged)):
            with suppress(OSError, GpuError):
                compiler = ctypes.CDLL(place)
                _made(compiler, "", [])
                return compiler
    raise OSError(f"{name} was not found")


_current = threading.local()


@contextmanager
def _context(index: int) -> Iterator[None]:
    """Within it the device's context, which torch has made, is the thread's own: the driver asks for one."""
    with torch.cuda.device(index):
        # Torch's runtime makes it current at the thread's first call
        if not getattr(_current, "known", False):
            torch.cuda.current_stream().synchronize()
            _current.known = True
        yield


def _compiled(source: str, index: int) -> bytes:
    """Machine code for this device."""
    major, minor = torch.cuda.get_device_capability(index)
    options = [f"--gpu-architecture=sm_{major}{minor}{'a' if major >= 9 else ''}", "--std=c++17"]
    return _made(_libraries().compiler, source, options)


def _made(compiler: ctypes.CDLL, source: str, options: list[str]) -> bytes:
    """What the compiler makes; nothing where the options name no GPU."""
    program = ctypes.c_void_p()
    given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    _check_compiler(
        compiler.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"dladmm.cu", 0, None, None)
    )
    try:
        failed = compiler.nvrtcCompileProgram(program, len(options), given)
        if failed:
            raise GpuError(_log(compiler, program))
        size = ctypes.c_size_t()
        _check_compiler(compiler.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        code = ctypes.create_string_buffer(max(1, size.value))
        if size.value:
            _check_compiler(compiler.nvrtcGetCUBIN(program, code))
        return code.raw
    finally:
        compiler.nvrtcDestroyProgram(ctypes.byref(program))


def _log(compiler: ctypes.CDLL, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    compiler.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(max(1, size.value))
    compiler.nvrtcGetProgramLog(program, log)
    return log.value.decode(errors="replace")


def _check_compiler(status: int) -> None:
    if status:
        raise GpuError(f"NVRTC returned error {status}")


def _check(status: int) -> None:
    if status:
        text = ctypes.c_char_p()
        _libraries().driver.cuGetErrorString(status, ctypes.byref(text))
        raise GpuError((text.value or b"unknown error").decode())
