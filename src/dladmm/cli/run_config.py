"""The settings of a command-line run: read from a TOML file and flags, written to the run folder."""

from __future__ import annotations

import math
import os
import re
import tomllib
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from dladmm.api.choosing import CROSS_FITTED
from dladmm.base.errors import DataError, InputError
from dladmm.base.table_file import regular_file
from dladmm.engine.options import make_options
from dladmm.training.checks import check_device, check_dtype

RESUMABLE = {"max_iter", "device", "out", "max_memory"}
"""Settings that may change when a run is resumed."""

KINDS: dict[str, tuple[type, ...]] = {
    "batch_size": (int,),
    "max_iter": (int,),
    "seed": (int,),
    "rho": (int, float),
    "nu": (int, float),
    "test_fraction": (int, float),
    "max_memory": (int, str),
    "hidden": (tuple,),
    "drop": (tuple,),
    "id": (tuple,),
}
"""Types of the settings; those not listed are strings."""


BY_MODE, ITERATIONS = -1, 200
"""``max_iter`` that nobody gave: 200 iterations, and in modes with mini-batches passes by the number of rows."""

MODES = ("auto", CROSS_FITTED, "convergent", "accelerated", "streaming")
TASKS = ("auto", "classification", "regression")


@dataclass(frozen=True)
class RunConfig:
    """The settings that determine a run's result; ``None`` uses the library's default."""

    network: str = "mlp"
    dataset: str | None = None
    csv: str | None = None
    target: str | None = None
    drop: tuple[str, ...] | None = None
    id: tuple[str, ...] | None = None
    separator: str | None = None
    npz: str | None = None
    data_dir: str | None = None
    test_fraction: float = 0.2
    hidden: tuple[int, ...] | None = None
    activation: str = "relu"
    weights: str | None = None
    task: str = "auto"
    loss: str | None = None
    regularizer: str | None = None
    mode: str = "auto"
    preset: str = "default"
    rows: str | None = None
    rho: float | None = None
    nu: float | None = None
    batch_size: int | None = None
    max_iter: int = BY_MODE
    seed: int = 0
    device: str = "auto"
    dtype: str = "auto"
    max_memory: int | str | None = None
    out: str | None = None

    def __post_init__(self) -> None:
        for name, known in (("mode", MODES), ("task", TASKS)):
            if getattr(self, name) not in known:
                raise InputError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}.")
        if self.network == "gcn" and self.mode == CROSS_FITTED:
            raise InputError(f"--mode {CROSS_FITTED} is for tables; leave it out, or take accelerated.")
        if self.network not in ("mlp", "gcn"):
            raise InputError(f"network must be mlp or gcn, got {self.network!r}.")
        if self.network == "mlp" and self.preset == "authors":
            raise InputError("--preset authors is for graphs (dladmm train gcn); MLPs have --preset paper.")
        sources = [name for name in ("dataset", "csv", "npz") if getattr(self, name) is not None]
        if len(sources) != 1:
            given = " and ".join(f"--{name}" for name in sources) or "none"
            raise InputError(f"exactly one of --dataset, --csv and --npz must be given; got {given}.")
        if self.csv is not None and self.target is None:
            raise InputError("--csv needs --target: the name of the column to predict.")
        own = [f"--{name}" for name in ("drop", "id", "separator") if getattr(self, name) is not None]
        if own and self.csv is None:
            raise InputError(f"{' and '.join(own)} is about the columns of --csv, which was not given.")
        if self.weights is not None and self.network == "gcn":
            raise InputError("--weights is for dladmm train mlp; leave it out.")
        if self.weights is not None and self.mode not in ("auto", "streaming"):
            raise InputError(f"--weights is trained with --mode streaming, not {self.mode}.")
        if not 0 < self.test_fraction < 1:
            raise InputError(f"test_fraction must lie between 0 and 1, got {self.test_fraction}.")

    @property
    def iterations(self) -> int:
        """``max_iter``, or 200 where nobody gave it."""
        return ITERATIONS if self.max_iter == BY_MODE else self.max_iter

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the hidden layers."""
        if self.hidden is not None:
            return self.hidden
        return (128,) if self.network == "gcn" else (100, 100)

    @property
    def weight_sets(self) -> Any:
        """The weights argument of ``train``, from text such as ``binary``, ``2``, ``real:20`` or ``binary,real``."""
        if self.weights is None:
            return None
        words: list[Any] = [int(word) if word.isdecimal() else word for word in self.weights.split(",")]
        return words if len(words) > 1 else words[0]

    def penalty(self) -> dict[str, Any] | str | None:
        """The regularizer argument for ``train``, from text such as ``l2:0.1``."""
        if self.regularizer is None:
            return "auto"
        if self.regularizer == "none":
            return None
        name, _, strength = self.regularizer.partition(":")
        if not strength:
            return name
        try:
            return {"name": name, "strength": float(strength)}
        except ValueError as error:
            message = f"regularizer must look like l2 or l2:0.1, got {self.regularizer!r}."
            raise InputError(message) from error

    def options(self) -> dict[str, Any]:
        """The options for ``train``; the mode has been decided."""
        mode = "streaming" if self.mode == CROSS_FITTED else self.mode
        chosen: dict[str, Any] = {"preset": self.preset, "mode": mode}
        if self.max_iter != BY_MODE or (mode != "streaming" and self.network != "gcn"):
            chosen["max_iter"] = self.iterations
        chosen |= {
            name: getattr(self, name)
            for name in ("rho", "nu", "max_memory", "batch_size")
            if getattr(self, name) is not None
        }
        return chosen

    def check(self) -> None:
        """Raise for settings that no run could have; the mode has been decided."""
        make_options(**self.options()).penalty(self.penalty())
        check_dtype("float32" if self.dtype == "auto" else self.dtype)
        check_device(self.device)

    def to_toml(self) -> str:
        """The settings as TOML text, without those that are None."""
        given = {key: value for key, value in asdict(self).items() if value is not None}
        if self.max_iter == BY_MODE:
            del given["max_iter"]
        lines = [f"{key} = {_toml(value)}" for key, value in given.items()]
        return "\n".join(lines) + "\n"


def check_memory(needed: int, n_columns: int) -> None:
    """Raise where a run would take more bytes than the machine has."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else math.inf
    if needed > there:
        raise InputError(
            f"the run would take about {needed / 1e9:,.0f} GB of memory, and this machine has {there / 1e9:,.0f}: "
            f"leave some of the {n_columns:,} columns out (--drop), or take narrower layers."
        )


def merged(file: Path | None, flags: dict[str, Any]) -> RunConfig:
    """Settings of a TOML file, overridden by the flags that were given."""
    settings = {} if file is None else read_toml(file)
    settings |= {name: value for name, value in flags.items() if value is not None}
    return _checked(settings)


def resumed(folder: Path, flags: dict[str, Any]) -> RunConfig:
    """The settings of an earlier run; flags may only change those in RESUMABLE."""
    given = {name: value for name, value in flags.items() if value is not None and name != "network"}
    changed = sorted(set(given) - RESUMABLE)
    if changed:
        names = ", ".join("--" + name.replace("_", "-") for name in changed)
        raise InputError(
            f"--resume takes the settings from {folder}; {names} cannot be changed when resuming."
        )
    before = stored(folder)
    if flags.get("network") not in (None, before.network):
        raise InputError(
            f"{folder} holds a {before.network} run; use: dladmm train {before.network} --resume {folder}"
        )
    if "max_iter" in given:
        _check_more(before, folder, given["max_iter"])
    return replace(before, **(given | {"out": str(folder)}))


def _check_more(before: RunConfig, folder: Path, max_iter: int) -> None:
    """Raise if a run has made more iterations than it is now told to make."""
    from dladmm.training.checkpoint import checkpoints, iteration_of

    if before.mode == CROSS_FITTED:
        raise InputError(
            f"{folder} is a cross-fitted run, which ends when rows that were held out say so, and looks at them by a "
            "plan for its number of passes: --max-iter cannot be changed when resuming; begin a new run."
        )
    found = checkpoints(folder / "checkpoints")
    done = iteration_of(found[0]) if found else 0
    if max_iter < done:
        raise InputError(
            f"{folder} has made {done} iterations already, more than --max-iter {max_iter}. Give more than {done}, or "
            "leave --max-iter out; a shorter run is a new one with another --out."
        )


def stored(folder: Path) -> RunConfig:
    """The settings of the run in a folder."""
    return _checked(read_toml(folder / "config.toml"))


MOST_BYTES, MOST_DOTS = 2**18, 16
"""Of a file of settings, and of a name in it: a name of 50,000 parts takes gigabytes to be understood."""
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'')
_COMMENT = re.compile(r"#[^\n]*")
_NO_KEY = re.compile(r"[^\w.\- \t]")


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file; raises DataError if it cannot be read, before much of it is."""
    size = regular_file(path).st_size
    if size > MOST_BYTES:
        raise DataError(f"{path} has {size:,} bytes; a file of settings has at most {MOST_BYTES:,}.")
    try:
        text = path.read_bytes().decode("utf-8")
        if any(
            part.count(".") > MOST_DOTS for part in _NO_KEY.split(_COMMENT.sub("", _QUOTED.sub("_", text)))
        ):
            raise DataError(f"{path} is no file of settings: a name in it has more than {MOST_DOTS} dots.")
        return tomllib.loads(text.replace("\r\n", "\n"))
    except DataError:
        raise
    # ValueError: bad TOML, bad UTF-8, a number of 5,000 digits
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is not a TOML file: {error}") from error


def _checked(settings: dict[str, Any]) -> RunConfig:
    known = {field.name for field in fields(RunConfig)}
    unknown = sorted(set(settings) - known)
    if unknown:
        raise InputError(f"unknown setting {', '.join(unknown)}; known are {', '.join(sorted(known))}.")
    for name in ("hidden", "drop", "id"):
        if isinstance(settings.get(name), list):
            settings[name] = tuple(settings[name])
    for name, value in settings.items():
        kinds = KINDS.get(name, (str,))
        if not isinstance(value, kinds) or isinstance(value, bool):
            words = " or ".join(kind.__name__ for kind in kinds)
            raise InputError(f"setting {name} has the wrong type: {value!r}; it must be {words}.")
    if settings.get("max_iter", 1) < 1:
        raise InputError(f"max_iter must be a whole number >= 1, got {settings['max_iter']!r}.")
    return RunConfig(**settings)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c >= " " else f"\\u{ord(c):04x}" for c in escaped) + '"'
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return repr(value)
