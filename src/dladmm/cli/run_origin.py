"""Where the data of a run came from: paths and a fingerprint, written at its start and compared when it is resumed."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from dladmm.base.atomic import replacing
from dladmm.base.errors import DataError, InputError
from dladmm.cli.run_config import RunConfig

FILE = "data.json"
PATHS = ("csv", "npz", "data_dir")


def write_origin(config: RunConfig, folder: Path, arrays: dict[str, Any]) -> None:
    """Write the paths of the data, absolute and relative to the run's folder, and what they held."""
    paths = {}
    for name in PATHS:
        given = getattr(config, name)
        if given is not None:
            absolute = Path(given).absolute()
            paths[name] = {
                "absolute": str(absolute),
                "relative": os.path.relpath(absolute, folder.absolute()),
            }
    with replacing(folder / FILE) as file:
        file.write((json.dumps({"paths": paths, "arrays": arrays}, indent=2) + "\n").encode())


def read_origin(folder: Path) -> dict[str, Any]:
    """What :func:`write_origin` wrote; empty for a run of an earlier version."""
    path = folder / FILE
    if not path.exists():
        return {"paths": {}, "arrays": {}}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {"paths": dict(found["paths"]), "arrays": dict(found["arrays"])}
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def with_paths(config: RunConfig, folder: Path, origin: dict[str, Any]) -> RunConfig:
    """The settings with paths that exist: where the data lay, else beside the run as before, else as it was given."""
    found: dict[str, Any] = {}
    for name, known in origin["paths"].items():
        if name not in PATHS or not isinstance(known, dict) or getattr(config, name) is None:
            continue
        places = [Path(str(known.get("absolute"))), folder / str(known.get("relative"))]
        found[name] = str(next((place for place in places if place.exists()), getattr(config, name)))
    return replace(config, **found)


def check_same_data(before: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    """Raise if a run would go on with other data; the difference is named."""
    differ = [name for name, known in before.items() if name in now and known != now[name]]
    if not differ:
        return
    name = differ[0]
    was, present = before[name].get("shape"), now[name]["shape"]
    what = f"shape {was} then, {present} now" if was != present else "the same shape, other values"
    others = f" ({', '.join(differ[1:])} too)" if differ[1:] else ""
    raise InputError(
        f"the data are not those that the run in {folder} began with: {name} differs{others}, {what}. Bring the data "
        "back, or begin a new run with another --out."
    )
