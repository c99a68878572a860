"""A certificate as a file: what a run claims, as JSON, and the tensors behind the claims (docs/certificates.md).

The file is that of :mod:`dladmm.base.container`, of kind "certificate"; ``dladmm/verify.py`` reads it with numpy alone
and computes everything again. What the end of the run is said to be, ``end``, is computed here in float64 from the
tensors of the file, whatever the run was made in.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dladmm._version import __version__
from dladmm.base.atomic import replacing
from dladmm.base.container import save
from dladmm.base.errors import InputError
from dladmm.base.history import Status
from dladmm.base.scipy_sparse import sparse
from dladmm.base.spec import plain_values
from dladmm.compute.sparse import scipy_matrix
from dladmm.engine.certificate import Certificate
from dladmm.engine.double import in_double
from dladmm.engine.sweep import last_layer_rate
from dladmm.losses import LOSSES
from dladmm.regularizers import REGULARIZERS

if TYPE_CHECKING:
    from dladmm.training.trainer import Trainer

FORMAT = 1
HISTORY = (
    "iteration", "lagrangian", "objective", "risk", "penalty", "coupling", "dual", "primal_residual", "dual_optimality",
    "stationarity", "descent", "squared_steps", "c2", "rho", "nu", "loss",
)  # fmt: skip
"""What is recorded of every iteration."""
ROWS_AT_ONCE = 1024
_TYPES = {"edge_index": np.int64, "train_mask": np.uint8, "target_mask": np.uint8}


def writer_of(trainer: Trainer, status: Status) -> Callable[..., None] | None:
    """What :meth:`Certificate.save` calls; None for runs of which no file is written."""
    plain = trainer.options.mode == "convergent" and trainer.baseline is None and trainer.comm.alone
    return partial(save_certificate, trainer, status) if plain else None


def save_certificate(
    trainer: Trainer,
    status: Status,
    certificate: Certificate,
    path: str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
) -> None:
    """Write the certificate of a run that has just ended, and with ``data`` the arrays it is about as an npz file."""
    state = trainer.state
    tensors = {"u": state.u} | {f"outputs.{l}": v for l, v in enumerate(state.outputs)}
    for l, block in enumerate(state.params):
        tensors |= {f"params.{l}.{name}": p for name, p in block.items()}
    claims = _claims(trainer, status, certificate)
    claims["hashes"] = {
        "data": data_hashes(trainer.given or {}, str(state.u.dtype)[6:]),
        "tensors": {name: hash_of(name, t.detach().cpu().numpy()) for name, t in tensors.items()},
    }
    claims["digest"] = digest_of(claims)
    save(path, "certificate", tensors, {"claims": claims})
    if data is not None:
        given = {name: as_numpy(value) for name, value in (trainer.given or {}).items() if value is not None}
        whole = {name: value.toarray() if sparse.issparse(value) else value for name, value in given.items()}
        with replacing(Path(data)) as file:
            np.savez_compressed(file, **whole)


def digest_of(claims: dict[str, Any]) -> str:
    """The checksum of the claims as JSON with sorted keys, itself left out."""
    rest = {name: value for name, value in claims.items() if name != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def data_hashes(given: dict[str, Any], dtype: str) -> dict[str, str]:
    """The checksum of every array of data by name: X as training took it, the others in types of their own."""
    found = {}
    for name, value in given.items():
        if value is not None:
            found[name] = hash_of(
                name, np.dtype(_TYPES.get(name, dtype if name == "X" else np.float64)), value
            )
    return found


def hash_of(name: str, *what: Any) -> str:
    """sha256 of name, type, shape and the entries row by row, little-endian; of an array, or of a type and data."""
    dtype, value = (what[0].dtype, what[0]) if len(what) == 1 else what
    value = as_numpy(value)
    dtype = np.dtype(dtype).newbyteorder("<")
    shape = value.shape[:1] if name == "y" and value.shape[1:] == (1,) else value.shape
    made = hashlib.sha256(f"{name} {dtype.str} {list(shape)} ".encode())
    if value.ndim == 0:
        made.update(np.asarray(value, dtype=dtype).tobytes())
    for begin in range(0, value.shape[0] if value.ndim else 0, ROWS_AT_ONCE):
        part = value[begin : begin + ROWS_AT_ONCE]
        part = part.toarray() if sparse.issparse(part) else part
        made.update(np.ascontiguousarray(part, dtype=dtype).tobytes())
    return made.hexdigest()


def as_numpy(value: Any) -> Any:
    """Data as they were given as a numpy array or a scipy matrix."""
    if isinstance(value, Tensor):
        sparse_layout = value.layout != torch.strided
        return scipy_matrix(value) if sparse_layout else value.detach().cpu().numpy()
    return sparse.csr_array(value) if sparse.issparse(value) else np.asarray(value)


def _claims(trainer: Trainer, status: Status, certificate: Certificate) -> dict[str, Any]:
    engine, state, risk = trainer.engine, trainer.state, trainer.engine.risk
    unusual = {
        f"loss {risk.loss.name!r}": type(risk.loss) not in LOSSES.values(),
        f"penalty {engine.penalty.name!r}": type(engine.penalty) not in REGULARIZERS.values(),
        "scaled inputs or targets": trainer.scaling is not None or trainer.units is not None,
        "links of different weights": state.stiffness != 1.0 or bool(state.links),
        "variables with more than two axes": any(v.ndim != 2 for v in state.outputs),
        "rows that are held": any(block.counted_rows is not None for block in engine.chain),
        "constraints on single weights": any(block.constraint is not None for block in engine.chain),
    }
    double = in_double(engine, state)
    unusual["other blocks than affine layers, activations and graph convolutions"] = double is None
    wrong = [name for name, holds in unusual.items() if holds]
    if wrong or double is None:
        raise InputError(f"a certificate cannot be written of a run with {', '.join(wrong)}.")
    if trainer.history.n_iter == 0:
        raise InputError("a certificate cannot be written of a run without iterations.")
    network = [block.certified_as() for block in engine.chain]
    history = trainer.history.to_dict()
    return {
        "format": FORMAT,
        "library": __version__,
        "mode": trainer.options.mode,
        "status": status.name,
        "dtype": str(state.u.dtype)[6:],
        "network": network,
        "graph": any(block is not None and block["type"] == "graph" for block in network),
        "loss": risk.loss.to_spec(),
        "penalty": engine.penalty.to_spec(),
        "H": risk.H,
        "H_from": "the loss and the largest weight of a row",
        "rho": state.rho,
        "nu": state.nu,
        "C1": last_layer_rate(state.rho, risk.H),
        "start": trainer.start,
        "exempt": list(trainer.exempt),
        "options": plain_values(asdict(trainer.options)),
        "history": {name: history[name] for name in HISTORY},
        "moves": list(trainer.history.moves),
        "end": _end(*double),
        "verdict": certificate.to_dict(),
    }


def _end(engine: Any, state: Any) -> dict[str, float | None]:
    """The last iterate in float64: pieces of the Lagrangian, residuals, and the network's own predictions."""
    from dladmm.training.diagnostics import evaluate

    energy = engine.energy(state)
    measured = evaluate(engine, state, None)
    output = engine.chain.predict(state.params, engine.x)
    values = {
        "risk": float(energy.risk),
        "penalty": float(energy.penalty),
        "coupling": float(energy.coupling),
        "dual": float(energy.dual),
        "objective": float(energy.objective),
        "lagrangian": float(energy.lagrangian),
        "primal_residual": math.sqrt(float(energy.residual_squared)),
        "dual_optimality": math.sqrt(float(engine.dual_optimality(state))),
        "stationarity": math.sqrt(float(engine.stationarity(state))),
        "output_norm": float(torch.linalg.vector_norm(output)),
        "loss": measured["loss"],
        "accuracy": measured["train_accuracy"],
    }
    if not engine.chain.continuous:  # the ends of a jump function's steps depend on the type of z
        values["stationarity"] = None
    return {name: value if value is None or math.isfinite(value) else None for name, value in values.items()}
