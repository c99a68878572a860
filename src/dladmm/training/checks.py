"""Checks of user input, made before training begins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dladmm.base.errors import InputError, InputTypeError
from dladmm.base.scipy_sparse import sparse
from dladmm.base.spec import is_several
from dladmm.blocks import Params
from dladmm.callbacks import Callback
from dladmm.compute.chunks import Source, reader, slices, viewed
from dladmm.compute.communicator import ALONE, Communicator
from dladmm.losses import Loss
from dladmm.network.chain import Chain
from dladmm.training.wording import no_numbers

PART = 1 << 16
"""Entries checked at once, which bounds the memory for temporaries."""

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def check_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """torch.float32 or torch.float64, from a name or a torch dtype."""
    if isinstance(dtype, str) and dtype in DTYPES:
        return DTYPES[dtype]
    if isinstance(dtype, torch.dtype) and dtype in DTYPES.values():
        return dtype
    raise InputError(f"dtype must be one of {sorted(DTYPES)}, got {dtype!r}.")


def check_device(device: str | torch.device) -> torch.device:
    """The torch device; ``"auto"`` is CUDA where available, else the CPU."""
    if isinstance(device, str) and device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"device must be 'auto', 'cpu' or 'cuda[:N]', got {device!r}.") from error
    if chosen.type not in ("cpu", "cuda"):
        raise InputError(f"device must be 'auto', 'cpu' or 'cuda[:N]', got {device!r}.")
    if chosen.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (chosen.index or 0) >= count:
            raise InputError(
                f"device {device!r} is not available: this machine has {count} CUDA devices; use 'cpu'."
            )
    return chosen


def check_features(
    X: Any,
    chain: Chain,
    *,
    name: str,
    dtype: torch.dtype,
    device: torch.device,
    may_be_empty: bool = False,
) -> Tensor:
    """X as a finite tensor (N, ...) of the run's dtype on the run's device; one rank of several may have no rows."""
    x = to_tensor(X, name)
    _check_shape(tuple(x.shape), x.is_complex(), chain, name, may_be_empty)
    for rows in slices(len(x), _part(x.shape)):
        _check_finite(x[rows], x[rows].to(dtype), name)
    return x.to(device=device, dtype=dtype)


def check_source(
    X: Any,
    chain: Chain,
    *,
    name: str,
    dtype: torch.dtype,
    device: torch.device,
    at_once: int,
    may_be_empty: bool = False,
) -> Source:
    """The same checks for rows that are read in chunks from memory or from a file (a memmap)."""
    stored = to_array(X, name)
    read, shape = reader(stored), tuple(stored.shape)
    is_complex = stored.is_complex() if isinstance(stored, Tensor) else stored.dtype.kind == "c"
    _check_shape(shape, is_complex, chain, name, may_be_empty)
    for rows in slices(len(stored), at_once):
        part = read(rows)
        _check_finite(part, part.to(dtype), name)
    return Source(read, shape, dtype, device)


def _check_shape(
    shape: tuple[int, ...], is_complex: bool, chain: Chain, name: str, may_be_empty: bool
) -> None:
    if is_complex:
        raise InputTypeError(f"{name} is complex; only real numbers are supported.")
    if len(shape) < 2:
        raise InputError(f"{name} must have rows (samples) and columns (features), got shape {shape}.")
    if 0 in (shape[1:] if may_be_empty else shape):
        raise InputError(f"{name} is empty (shape {shape}); at least one row and column are needed.")
    if chain.n_in is not None and shape[-1] != chain.n_in:
        raise InputError(
            f"{name} has {shape[-1]} features, but the network's first layer takes {chain.n_in}."
        )


def _check_finite(given: Tensor, cast: Tensor, name: str) -> None:
    """Raise unless the values are finite, both as given and in the run's dtype."""
    if not bool(torch.isfinite(given).all()):
        raise InputError(f"{name} contains NaN or infinite values; impute or remove them first.")
    if not bool(torch.isfinite(cast).all()):
        raise InputError(
            f"{name} has values too large for {cast.dtype}; scale the features or use dtype='float64'."
        )


def _part(shape: Sequence[int]) -> int:
    """Number of rows with about PART entries."""
    return max(1, PART // max(1, math.prod(shape[1:])))


@torch.no_grad()
def check_fits(
    chain: Chain, params: Sequence[Params], x: Tensor, n_outputs: int, name: str
) -> tuple[int, ...]:
    """Run two samples through the network, to report mismatched shapes before training begins.

    Returns the positions of a sample's output: (), or (T,) for a network with an output at each of T time steps.
    """
    v = x[:2]
    for block, block_params in zip(chain, params, strict=True):
        try:
            output = block.evaluate(block_params, v)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            raise InputError(
                f"{name} of shape {tuple(x.shape)} does not go through the network: {block!r} was given samples of "
                f"shape {tuple(v.shape[1:])} and raised: {error}"
            ) from error
        if not isinstance(output, Tensor) or len(output) != len(v):
            raise InputError(f"{block!r} must return a tensor with one row per sample.")
        v = output
    if v.shape[-1] != n_outputs:
        raise InputError(
            f"the network gives outputs of shape {tuple(v.shape[1:])}, {n_outputs} were expected."
        )
    return tuple(v.shape[1:-1])


def check_targets(
    y: Any,
    loss: Loss,
    n_rows: int,
    n_outputs: int,
    *,
    name: str,
    dtype: torch.dtype,
    device: torch.device,
    positions: tuple[int, ...] = (),
) -> Tensor:
    """Targets encoded for the loss, one row per sample, or per position of the network's output."""
    target = to_tensor(y, name)
    if target.is_complex():
        raise InputTypeError(f"{name} is complex; only real numbers are supported.")
    if target.ndim == 0 or len(target) != n_rows:
        n_targets = 0 if target.ndim == 0 else len(target)
        raise InputError(f"{name} has {n_targets} rows, but there are {n_rows} samples.")
    if target.is_floating_point() and not bool(torch.isfinite(target).all()):
        raise InputError(f"{name} contains NaN or infinite values.")
    if positions:
        if target.shape[1 : 1 + len(positions)] != positions:
            raise InputError(
                f"{name} has shape {tuple(target.shape)}, but the network has outputs at {positions} positions per "
                "sample."
            )
        target = target.flatten(0, len(positions))
    encoded = loss.encode(target.cpu(), n_outputs, dtype)
    if not bool(torch.isfinite(encoded).all()):
        raise InputError(
            f"{name} has values too large for {dtype}; scale the targets or use dtype='float64'."
        )
    return encoded.to(device)


def check_target_mask(
    mask: Any, n_rows: int, positions: tuple[int, ...], x: Tensor, name: str, may_be_empty: bool = False
) -> Tensor:
    """The mask of targets that count, as a column (N x positions, 1) of ones and zeros."""
    counts = to_tensor(mask, name)
    if counts.shape != (n_rows, *positions) or not bool(((counts == 0) | (counts == 1)).all()):
        raise InputError(
            f"{name} must hold True and False in the shape {(n_rows, *positions)}, got {tuple(counts.shape)}."
        )
    if not may_be_empty and not bool((counts == 1).any()):
        raise InputError(f"{name} excludes every target.")
    return counts.reshape(-1, 1).to(device=x.device, dtype=x.dtype)


def check_sample_weight(sample_weight: Any, x: Tensor) -> Tensor:
    """Sample weights as a column (N, 1), checked to be finite and positive."""
    weight = to_tensor(sample_weight, "sample_weight").to(device=x.device, dtype=x.dtype)
    if weight.shape not in ((len(x),), (len(x), 1)):
        raise InputError(
            f"sample_weight must have shape ({len(x)},), one per sample, got {tuple(weight.shape)}."
        )
    if not bool(torch.isfinite(weight).all()) or not bool((weight > 0).all()):
        raise InputError(
            "sample_weight must be finite and positive; leave out the rows that should not count."
        )
    return weight.reshape(-1, 1)


def check_several_classes(loss: Loss, target: Tensor, comm: Communicator = ALONE) -> None:
    """Raise unless the training labels of all ranks together have at least two classes (for classification)."""
    if comm.alone:
        one = len(target) > 0 and bool((target == target[:1]).all())
    else:
        lowest = target.new_full(target.shape[1:], -torch.inf)
        ends = (target.amax(0), -target.amin(0)) if len(target) else (lowest, lowest.clone())
        highest, negated = comm.largest(*ends)
        one = bool((highest == -negated).all())
        if not bool(torch.isfinite(highest).all()):
            raise InputError("no rank has a target that counts.")
    if loss.kind == "classification" and one:
        raise InputError("y holds one class only; at least two are needed to train a classifier.")


def check_seed(seed: Any) -> int:
    """The seed as an int that every random generator accepts."""
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not 0 <= int(seed) < 2**63:
        raise InputError(f"random_state must be a whole number from 0 to 2**63 - 1, got {seed!r}.")
    return int(seed)


def check_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """The callbacks as a tuple, each checked to be a :class:`~dladmm.Callback`."""
    several = is_several(callbacks) and not isinstance(callbacks, (str, bytes))
    found = tuple(callbacks) if several else (callbacks,)
    if not several or (others := [each for each in found if not isinstance(each, Callback)]):
        wrong = type((others if several else found)[0]).__name__
        raise InputTypeError(f"callbacks must be a list of dladmm.Callback objects, got {wrong}.")
    return found


def check_validation(validation: Any) -> tuple[Any, Any, Any]:
    """``validation`` as (X, y, target_mask), where the mask may be None."""
    if not isinstance(validation, (tuple, list)) or len(validation) not in (2, 3):
        raise InputError(
            f"validation must be (X, y) or (X, y, target_mask), got {type(validation).__name__}"
            f"{f' of {len(validation)}' if isinstance(validation, (tuple, list)) else ''}."
        )
    x, y, *mask = validation
    return x, y, mask[0] if mask else None


def to_tensor(value: Any, name: str) -> Tensor:
    """``value`` as a dense tensor, sharing memory where torch can."""
    array = to_array(value, name)
    return array if isinstance(array, Tensor) else viewed(array)


def to_array(value: Any, name: str) -> Tensor | np.ndarray[Any, Any]:
    """``value`` as a dense tensor or a numeric array; raises InputTypeError if it is neither."""
    return _dense_tensor(value, name) if isinstance(value, Tensor) else _numeric(value, name)


def _dense_tensor(tensor: Tensor, name: str) -> Tensor:
    """The tensor, detached; raises if it is sparse, quantised or without data."""
    wrong = {
        "sparse (use to_dense())": tensor.layout != torch.strided,
        "quantised (use dequantize())": tensor.is_quantized,
        "on the device 'meta' and holds no numbers": tensor.is_meta,
    }
    for what, holds in wrong.items():
        if holds:
            raise InputTypeError(f"{name} is a tensor that is {what}; a dense tensor of numbers is needed.")
    return tensor.detach()


def _numeric(value: Any, name: str) -> np.ndarray[Any, Any]:
    """``value`` as a numeric array with a byte order and width that torch supports."""
    if not (plain := type(value) is np.ndarray) and sparse.issparse(value):
        raise InputTypeError(f"{name} is a sparse matrix; pass {name}.toarray().")
    if not plain and np.ma.is_masked(value):
        raise InputError(
            f"{name} has masked entries, which would count like others; fill or remove them first."
        )
    try:
        array = np.asarray(value)
    except ValueError as error:  # rows of different lengths
        raise InputTypeError(f"{name} is not an array of numbers: {error}") from error
    if array.dtype.kind not in "biufc":
        raise InputTypeError(no_numbers(name, array))
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
