"""`load`: loads any data set by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, overload

from dladmm.base.errors import InputError
from dladmm.datasets import coauthor, embedded, generated, idx, planetoid
from dladmm.datasets._download import fetch
from dladmm.datasets._locate import DataDir, read, roots
from dladmm.datasets._registry import Dataset, dataset
from dladmm.datasets._types import GraphData, ImageData

ImageName = Literal["mnist", "fashion_mnist", "digits", "moons", "spirals"]
GraphName = Literal["cora", "citeseer", "pubmed", "coauthor_cs", "coauthor_physics", "karate", "sbm"]
Files = dict[str, bytes]


@overload
def load(
    name: ImageName, *, data_dir: DataDir = ..., download: bool = ..., verify: bool = ..., **options: Any
) -> ImageData: ...
@overload
def load(
    name: GraphName, *, data_dir: DataDir = ..., download: bool = ..., verify: bool = ..., **options: Any
) -> GraphData: ...
@overload
def load(
    name: str, *, data_dir: DataDir = ..., download: bool = ..., verify: bool = ..., **options: Any
) -> ImageData | GraphData: ...
def load(
    name: str, *, data_dir: DataDir = None, download: bool = False, verify: bool = True, **options: Any
) -> ImageData | GraphData:
    """Load a data set by name.

    Parameters
    ----------
    name : str
        One of `names()`; case and hyphens do not matter.
    data_dir : str or path, optional
        A folder to look in before `$DLADMM_DATA` and the user's cache folder.
    download : bool, default False
        Download missing files. Without it the network is never used.
    verify : bool, default True
        Compare every file with its published sha256 before it is read.
    options
        Options of the data set: `full` (mnist, fashion_mnist); `split`, `seed`, `labels_per_class`, `n_test`,
        `n_val`, `counts` (coauthor, whose split is the paper's unless a seed or a number is given); the parameters
        of `karate`, `digits`, `moons`, `spirals`, `sbm`.

    Returns
    -------
    ImageData or GraphData
        Samples with labels, or a graph with labelled nodes.

    Raises
    ------
    InputError
        For a name, folder or option that does not exist.
    DataError
        For files that are missing, damaged or not the published ones.
    """
    entry = dataset(name)
    if entry.embedded:
        maker = _MAKERS[entry.name]
        _check_options(entry, maker, options)
        return maker(**options)
    reader = _READERS[entry.name]
    _check_options(entry, reader, options)
    if download:
        from dladmm.datasets._progress import reporter

        with reporter() as progress:
            fetch(entry.name, data_dir=data_dir, progress=progress)
    return reader(entry, read(entry, roots(data_dir), verify=verify), **options)


def _mnist(entry: Dataset, files: Files, *, full: bool = False) -> ImageData:
    return idx.parse_images(files, entry.name, full=full)


def _fashion_mnist(entry: Dataset, files: Files, *, full: bool = True) -> ImageData:
    return idx.parse_images(files, entry.name, full=full)


def _planetoid(entry: Dataset, files: Files) -> GraphData:
    if entry.copy is not None and entry.copy.name in files:
        return planetoid.parse_planetoid_npz(files[entry.copy.name], entry.name)
    return planetoid.parse_planetoid(
        {part: files[f"ind.{entry.name}.{part}"] for part in planetoid.PARTS}, entry.name
    )


def _coauthor(
    entry: Dataset,
    files: Files,
    *,
    counts: bool = False,
    split: str | None = None,
    labels_per_class: int = 100,
    n_test: int | None = 1000,
    n_val: int = 0,
    seed: int | None = None,
) -> GraphData:
    ((source, data),) = files.items()
    return coauthor.parse_coauthor(
        data,
        entry.name,
        source=source,
        counts=counts,
        split=split,
        labels_per_class=labels_per_class,
        n_test=n_test,
        n_val=n_val,
        seed=seed,
    )


_READERS: dict[str, Callable[..., ImageData | GraphData]] = {
    "mnist": _mnist,
    "fashion_mnist": _fashion_mnist,
    "cora": _planetoid,
    "citeseer": _planetoid,
    "pubmed": _planetoid,
    "coauthor_cs": _coauthor,
    "coauthor_physics": _coauthor,
}
_MAKERS: dict[str, Callable[..., ImageData | GraphData]] = {
    "digits": embedded.digits,
    "karate": embedded.karate,
    "moons": generated.moons,
    "spirals": generated.spirals,
    "sbm": generated.sbm,
}


def _check_options(entry: Dataset, function: Callable[..., Any], options: dict[str, Any]) -> None:
    parameters = inspect.signature(function).parameters.values()
    allowed = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    for option in options:
        if option not in allowed:
            known = ", ".join(allowed) or "none"
            raise InputError(f"load({entry.name!r}) has no option {option!r}; its options are: {known}")
