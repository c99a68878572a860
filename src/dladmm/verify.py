"""Check a certificate of dladmm without dladmm: this one file, Python and numpy are all it takes.

    python verify.py run.certificate --data data.npz [--checkpoint FILES]

It reads the file (JSON header and raw tensors), takes the data from you, and computes again in float64, with its own
formulas, what is claimed of the end of the run, and of checkpoints that you give: the network's predictions, F, the
augmented Lagrangian, the primal residual, Lemma 2, the distance to a stationary point. Along the recorded run it checks
(sufficient) descent, Property 2 with C_2, and that no two numbers contradict each other. It says what it cannot check.

Exit status: 0 accepted, 1 rejected, 2 the file or the data cannot be read.
"""

# fmt: off
# (one file below 500 lines, to be copied and read as a whole: set by hand, lines up to 120)
from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import struct
import sys
from typing import Any

import numpy as np

Array = Any
FORMAT, FREE = 1, ("risk", "penalty", "dual_optimality")  # at the end: a graph's rounding is not in them
LATER, JUMPS = ("stationarity", "loss"), ("sign", "step", "quantised")  # measured now and then; activations
TYPES = {"F64": "<f8", "F32": "<f4"}
DATA = ("X", "y", "sample_weight", "target_mask", "edge_index", "edge_weight", "train_mask")
OF_DATA = {"edge_index": "<i8", "train_mask": "|u1", "target_mask": "|u1"}
UNKNOWN = """the path itself is recorded, its end (and what checkpoints were given) recomputed. That these iterates were
visited is the word of whoever wrote the file; their numbers were compared. Options of solvers were not checked."""

class Unreadable(Exception):
    """The file or the data are not what they should be."""

class Report:
    """What was checked: lines of words, and whether everything held."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.failures: list[str] = []

    def check(self, holds: Any, words: str) -> bool:
        """One statement: it holds, or the certificate is rejected."""
        self.lines.append(("  holds   " if holds else "  FAILS   ") + words)
        self.failures += [] if holds else [words]
        return bool(holds)

    def near(self, claimed: Any, found: float, tolerance: float, words: str, scale: float = 0.0) -> None:
        """A claimed number equals the one that was found."""
        good = is_number(claimed) and abs(claimed - found) <= tolerance * max(abs(claimed), abs(found), scale)
        self.check(good, f"{words}: claimed {claimed!r}, found {found:.12g}")

    @property
    def accepted(self) -> bool:
        return not self.failures

def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)

def regular(path: str) -> str:
    """The path of a file; a pipe or a device would be read for ever."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise Unreadable(f"{path} is a folder, a pipe or a device, not a file")
    return path

def read(path: str, kind: str = "certificate") -> tuple[dict[str, Array], dict[str, Any]]:
    """Tensors by name and claims (of a checkpoint: its run), parsed only if the file has the checksum it states."""
    try:
        with open(regular(path), "rb") as file:
            raw = file.read()
        size = struct.unpack("<Q", raw[:8])[0]
        at = raw.find(b'"sha256":"', 8, 8 + size) + 10
        if hashlib.sha256(raw[:at] + b"0" * 64 + raw[at + 64 :]).hexdigest().encode() != raw[at : at + 64]:
            raise Unreadable(f"{path} is no certificate, or damaged: it does not have the checksum it states")
        header = json.loads(raw[8 : 8 + size])
        document = json.loads(header.pop("__metadata__")["dladmm"])
        if document["kind"] != kind or document["meta"].get("claims", {"format": FORMAT})["format"] != FORMAT:
            raise Unreadable(f"{path} is no {kind} of format {FORMAT}")
        tensors, body = {}, memoryview(raw)[8 + size :]
        for name, entry in header.items():
            if kind == "certificate" or name.startswith(("u", "outputs.", "params.")):
                flat = np.frombuffer(body[slice(*entry["data_offsets"])], dtype=TYPES[entry["dtype"]])
                tensors[name] = flat.reshape(entry["shape"])
        return tensors, document["meta"]["claims" if kind == "certificate" else "run"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error, RecursionError) as error:
        raise Unreadable(f"{path} cannot be read as a {kind}: {type(error).__name__}: {error}") from error

def read_data(paths: list[str]) -> dict[str, Array]:
    """Arrays by name: of npz files, of NAME=file.npy, or of a CSV file whose last column is y."""
    data: dict[str, Array] = {}
    try:
        for path in paths:
            name, _, rest = path.partition("=")
            if name in DATA and rest:
                data[name] = np.load(regular(rest), allow_pickle=False)
            elif path.endswith(".npz"):
                with np.load(regular(path), allow_pickle=False) as found:
                    data |= {"X" if each == "x" else each: found[each] for each in found.files}
            else:
                table = np.genfromtxt(regular(path), delimiter=",", dtype=np.float64)
                table = table[1:] if np.isnan(table[0]).all() else table
                data |= {"X": table[:, :-1], "y": table[:, -1]}
    except (OSError, ValueError, IndexError) as error:
        raise Unreadable(f"the data cannot be read: {error}") from error
    return {name: value for name, value in data.items() if name in DATA}

def hash_of(name: str, dtype: str, value: Array) -> str:
    """sha256 of name, type, shape and the entries, little-endian; a y with one column counts as one without."""
    kind = np.dtype(dtype).newbyteorder("<")
    shape = value.shape[:1] if name == "y" and value.shape[1:] == (1,) else value.shape
    start = f"{name} {kind.str} {list(shape)} ".encode()
    return hashlib.sha256(start + np.ascontiguousarray(value, dtype=kind).tobytes()).hexdigest()

def digest_of(claims: dict[str, Any]) -> str:
    rest = {name: value for name, value in claims.items() if name != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode("utf-8")).hexdigest()

# Activations: value, derivative, and distance of 0 to the subdifferential of (z-m)^2/2 + (w/2)(a-f(z))^2
def sigmoid(z: Array) -> Array:
    e = np.exp(-np.abs(z))
    return np.where(z >= 0, 1 / (1 + e), e / (1 + e))

def softplus(z: Array) -> Array:
    return np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z)))

def pieces(f: dict[str, Any]) -> list[tuple[float, float, float]] | None:
    """Start, slope and intercept of the pieces of a function made of straight ones; None for others."""
    name, inf = f["name"], math.inf
    if name == "quantised":
        low, high, n = float(f["low"]), float(f["high"]), int(f["levels"])
        h = (high - low) / (n - 1)
        return [(low + (i - 0.5) * h if i else -inf, 0.0, low + i * h) for i in range(n)]
    return {
        "identity": [(-inf, 1.0, 0.0)], "relu": [(-inf, 0.0, 0.0), (0.0, 1.0, 0.0)],
        "leaky_relu": [(-inf, float(f.get("slope", 0)), 0.0), (0.0, 1.0, 0.0)],
        "hard_tanh": [(-inf, 0.0, -1.0), (-1.0, 1.0, 0.0), (1.0, 0.0, 1.0)],
        "sign": [(-inf, 0.0, -1.0), (0.0, 0.0, 1.0)], "step": [(-inf, 0.0, 0.0), (0.0, 0.0, 1.0)],
    }.get(name)

def activation(f: dict[str, Any], z: Array) -> tuple[Array, Array]:
    """f(z) and f'(z)."""
    parts = pieces(f)
    if parts is not None:
        slope, value = np.full_like(z, parts[0][1]), np.full_like(z, parts[0][2])
        for start, s, t in parts[1:]:
            beyond = z >= start if f["name"] in JUMPS or s == 0 else z > start  # as torch: flat sides win
            slope, value = np.where(beyond, s, slope), np.where(beyond, t, value)
        return slope * z + value, slope
    if f["name"] in ("sigmoid", "tanh"):
        k = 1 if f["name"] == "sigmoid" else 2  # tanh(z) = 2 sigmoid(2z) - 1
        return (sigmoid(z) if k == 1 else np.tanh(z)), k**2 * sigmoid(k * z) * sigmoid(-k * z)
    if f["name"] == "softplus":
        return softplus(z), sigmoid(z)
    if f["name"] == "gelu":
        share = 0.5 * np.array([math.erfc(-each / math.sqrt(2)) for each in z.ravel()]).reshape(z.shape)
        return z * share, share + z * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    if f["name"] == "elu":
        alpha, low = float(f["alpha"]), np.minimum(z, 0)
        return np.where(z > 0, z, alpha * np.expm1(low)), np.where(z > 0, 1.0, alpha * np.exp(low))
    raise Unreadable(f"unknown activation {f['name']!r}")

def at_kink(left: Array, right: Array) -> Array:
    return np.where(left <= right, np.maximum(np.maximum(left, -right), 0), np.minimum(np.abs(left), np.abs(right)))

def distance(f: dict[str, Any], z: Array, m: Array, a: Array, weight: float) -> Array:
    value, slope = activation(f, z)
    gap = weight * (a - value)
    found = np.abs(z - m - gap * slope)
    parts = pieces(f) or ([(-math.inf, float(f["alpha"]), 0.0), (0.0, 1.0, 0.0)] if f["name"] == "elu" else [])
    for (_, s, _), (start, t, _) in zip(parts, parts[1:], strict=False):  # noqa: RUF007
        found = np.where(z == start, at_kink(z - m - gap * s, z - m - gap * t), found)
    return found

def target_of(loss: dict[str, Any], y: Array, n_outputs: int, dtype: str) -> Array:
    """Targets as the loss works on them, (N, n_outputs), rounded to the type of the run."""
    classes = loss["name"] in ("binary_logistic", "squared_hinge") and n_outputs > 1
    if (y.ndim == 1 or y.shape[1:] == (1,)) and (loss["name"] == "cross_entropy" or classes):
        whole = y.reshape(-1).astype(np.int64)
        if (whole < 0).any() or (whole >= n_outputs).any():
            raise Unreadable("y holds labels the network has no outputs for")
        target = np.eye(n_outputs)[whole]
    else:
        target = y.reshape(len(y), -1).astype(dtype).astype(np.float64)
        if target.shape[1] != n_outputs:
            raise Unreadable(f"y has {target.shape[1]} columns, the network {n_outputs} outputs")
    return 2 * target - 1 if loss["name"] == "squared_hinge" else target

def loss_of(loss: dict[str, Any], z: Array, y: Array) -> tuple[Array, Array, float]:
    """The loss of every row (N,), its gradient (N, n_outputs), and the Lipschitz constant H of that gradient."""
    name, e = loss["name"], z - y
    if name == "cross_entropy":
        share, weight = float(loss.get("label_smoothing", 0.0)), loss.get("class_weight")
        t = y * (1 - share) + share / y.shape[1]
        t = t if weight is None else t * np.asarray(weight, dtype=np.float64)
        top = z.max(axis=1, keepdims=True)
        logs = z - top - np.log(np.exp(z - top).sum(axis=1, keepdims=True))
        return -(t * logs).sum(axis=1), np.exp(logs) * t.sum(axis=1, keepdims=True) - t, 0.5 * max(weight or [1.0])
    if name in ("binary_logistic", "multilabel"):
        yes = np.asarray(loss.get("pos_weight") or [1.0], dtype=np.float64)
        rows = (yes * y * softplus(-z) + (1 - y) * softplus(z)).sum(axis=1)
        return rows, sigmoid(z) * (yes * y + 1 - y) - yes * y, 0.25 * max(1.0, float(yes.max()))
    if name == "squared_hinge":
        short = np.maximum(1 - y * z, 0)
        return (short**2).sum(axis=1), -2 * y * short, 2.0
    if name == "squared":
        return (e**2).sum(axis=1) / 2, e, 1.0
    if name == "huber":
        inside = np.minimum(np.abs(e), delta := float(loss["delta"]))
        return (inside**2 / 2 + delta * (np.abs(e) - inside)).sum(axis=1), np.clip(e, -delta, delta), 1.0
    if name in ("absolute", "quantile"):
        width, q = float(loss["width"]), loss.get("q")
        w = np.ones_like(e) if q is None else np.where(e > 0, 1 - q, q)
        tip = np.minimum(np.abs(e), width) ** 2 / (2 * width) + np.maximum(np.abs(e) - width, 0)
        return ((w * tip).sum(axis=1), w * np.clip(e / width, -1, 1), (1 if q is None else max(q, 1 - q)) / width)
    if name == "poisson":
        cap, bend = float(loss["cap"]), math.log(float(loss["cap"]))
        low, over = np.minimum(z, bend), np.maximum(z - bend, 0)
        above, y_low = np.maximum(y - cap, 0) / cap, np.minimum(y, cap)
        least = y_low - y_low * np.log(np.where(y_low > 0, y_low, 1))
        least = np.where(above > 0, cap * (1 + above + above**2 / 2) - y * (bend + above), least)
        rows = (np.exp(low) + cap * (over + over**2 / 2) - y * z - least).sum(axis=1)
        return rows, np.exp(low) + cap * over - y, cap
    raise Unreadable(f"unknown loss {name!r}")

def hits(loss: dict[str, Any], z: Array, y: Array) -> Array | None:
    """Whether rows are told rightly, (N,); None for regression."""
    if loss["name"] == "multilabel":
        return ((z > 0) == (y > 0)).all(axis=1)
    if loss["name"] not in ("cross_entropy", "binary_logistic", "squared_hinge"):
        return None
    return (z > 0)[:, 0] == (y > 0)[:, 0] if z.shape[1] == 1 else z.argmax(axis=1) == y.argmax(axis=1)

def penalty_of(penalty: dict[str, Any], W: Array, g: Array) -> tuple[float, Array]:
    """Omega(W), and entry by entry min |g + s| over s in dOmega(W)."""
    name = penalty["name"]
    if name == "non_negative":
        normal = np.where(W == 0, np.maximum(-g, 0), np.abs(g))
        return (math.inf if (W < 0).any() else 0.0), np.where(W < 0, math.inf, normal)
    if name == "l4":
        strength, norm = float(penalty["strength"]), math.sqrt(float((W**4).sum()))
        return strength / 2 * norm, np.abs(g + (strength / norm * W**3 if norm > 0 else 0.0))
    if name not in ("none", "l1", "l2", "elastic_net"):
        raise Unreadable(f"unknown penalty {name!r}")
    l1, l2 = (float(penalty.get(own, penalty["strength"] if name == own else 0.0)) for own in ("l1", "l2"))
    smooth = g + l2 * W
    found = np.where(W == 0, np.maximum(np.abs(smooth) - l1, 0), np.abs(smooth + l1 * np.sign(W)))
    return l1 * float(np.abs(W).sum()) + l2 / 2 * float((W**2).sum()), found

class Adjacency:
    """``A~ = (D + I)^-1/2 (A + I) (D + I)^-1/2`` of an undirected graph, as lists of entries."""

    def __init__(self, data: dict[str, Array], n: int, dtype: str) -> None:
        row, column = np.asarray(data["edge_index"]).astype(np.int64)
        weight = np.asarray(data.get("edge_weight", np.ones(len(row))), dtype=np.float64).reshape(-1)
        loops, own = np.ones(n), row == column
        if "edge_weight" in data:
            loops[row[own]] = weight[own]
        kept = ~own & (weight > 0)
        low, high = np.minimum(row, column)[kept], np.maximum(row, column)[kept]
        keys, first = np.unique(low * n + high, return_index=True)
        low, high, weight = keys // n, keys % n, weight[kept][first]
        self.n, each = n, np.arange(n)
        self.rows, self.columns = np.concatenate([low, high, each]), np.concatenate([high, low, each])
        values = np.concatenate([weight, weight, loops])
        scale = 1 / np.sqrt(np.bincount(self.rows, values, n))
        self.exact = values * scale[self.rows] * scale[self.columns]
        self.values = self.exact.astype(dtype).astype(np.float64)

    def times(self, V: Array, exact: bool = False) -> Array:
        entries = (self.exact if exact else self.values)[:, None] * V[self.columns]
        return np.stack([np.bincount(self.rows, column, self.n) for column in entries.T], axis=1)

class Problem:
    """Data, network, loss and penalty, with the last iterate; everything in float64."""

    def __init__(self, tensors: dict[str, Array], claims: dict[str, Any], data: dict[str, Array]) -> None:
        self.dtype, self.loss, self.penalty = claims["dtype"], claims["loss"], claims["penalty"]
        biases = claims.get("options", {}).get("subproblems", {}).get("penalise_bias")  # files of before it lack it
        self.bias_penalty = self.penalty if biases else {"name": "none"}
        self.network, self.rho, self.nu = claims["network"], float(claims["rho"]), float(claims["nu"])
        places = [str(l) for l in range(len(self.network))]
        own = {tuple(name.split(".")): t.astype(np.float64) for name, t in tensors.items()}
        self.params = [{key[2]: t for key, t in own.items() if key[:2] == ("params", l)} for l in places]
        self.V = [tensors[f"outputs.{l}"].astype(np.float64) for l in places]
        self.u = tensors["u"].astype(np.float64)
        x, y = np.asarray(data["X"]).astype(np.float64), np.asarray(data["y"])
        self.graph = Adjacency(data, len(x), self.dtype) if claims["graph"] else None
        name = "target_mask" if self.graph is None else "train_mask"
        mask = np.asarray(data[name]).astype(bool).reshape(-1) if name in data else np.ones(len(x), dtype=bool)
        y, self.weights = np.where(mask.reshape(-1, *[1] * (y.ndim - 1)), y, y[mask][0]), mask[:, None].astype(float)
        often = np.asarray(data.get("sample_weight", np.ones(len(x)))).reshape(-1, 1).astype(self.dtype).astype(float)
        self.counts = often if self.graph is None else np.ones((len(x), 1))
        self.weights = self.weights if self.graph is None else self.weights * np.where(mask[:, None], often, 1.0)
        if self.graph is not None and self.network[0]["propagated"]:
            x = self.graph.times(x, exact=True)
        self.x = x.astype(self.dtype).astype(np.float64)
        self.y = target_of(self.loss, y, self.u.shape[1], self.dtype)
        if self.x.shape[0] != self.V[0].shape[0]:
            raise Unreadable(f"the data have {len(self.x)} rows, the certificate speaks of {len(self.V[0])}")

    def link(self, l: int, v: Array) -> tuple[Array, Array | None, Array | None]:
        """``g_l(B_l, v)``; for a graph convolution also f' at, and A~ v inside, its activation."""
        block, p = self.network[l], self.params[l]
        if block["type"] == "activation":
            return activation(block["f"], v)[0], None, None
        if block["type"] == "affine":
            return v @ p["W"].T + p.get("b", 0.0), None, None
        if block["type"] != "graph" or self.graph is None:
            raise Unreadable(f"unknown block {block['type']!r}")
        inner = v if block["propagated"] else self.graph.times(v)
        value, slope = activation(block["f"], inner @ p["W"].T)
        return value, slope, inner

    def norm2(self, x: Array) -> float:
        return float((self.counts * x**2).sum())

    def end(self) -> dict[str, float | None]:
        """Everything that is claimed of the last iterate, computed again."""
        inputs = [self.x, *self.V[:-1]]
        made = [self.link(l, v) for l, v in enumerate(inputs)]
        predicted, last = [value for value, _, _ in made], len(made) - 1
        r = self.V[-1] - predicted[-1]
        rows, slope, _ = loss_of(self.loss, self.V[-1], self.y)
        gradient = slope * self.weights
        risk = float((self.counts[:, 0] * self.weights[:, 0] * rows).sum())
        coupling = sum(self.nu / 2 * self.norm2(self.V[l] - predicted[l]) for l in range(last))
        dual, residual2, omega = float((self.counts * self.u * r).sum()), self.norm2(r), 0.0
        total = self.norm2(gradient + self.u + self.rho * r) + residual2
        for l, v in enumerate(inputs):
            block, p, weight = self.network[l], self.params[l], self.rho if l == last else self.nu
            G = weight * (predicted[l] - self.V[l]) - (self.u if l == last else 0.0)
            _, f1, inner = made[l]
            G = G * (1.0 if f1 is None else f1)
            for name, penalty in (("W", self.penalty), ("b", self.bias_penalty)):
                if name in p:
                    by = (v if inner is None else inner) if name == "W" else np.ones(len(v))
                    value, parts = penalty_of(penalty, p[name], (self.counts * G).T @ by)
                    omega, total = omega + value, total + float((parts**2).sum())
            if l == 0:
                continue
            if block["type"] == "activation":
                a = self.V[l] + (self.u / self.rho if l == last else 0.0)
                total += self.nu**2 * self.norm2(distance(block["f"], v, predicted[l - 1], a, weight / self.nu))
            else:
                back = G @ p["W"]
                back = self.graph.times(back) if self.graph is not None and not block["propagated"] else back
                total += self.norm2(back + self.nu * (v - predicted[l - 1]))
        output = self.x
        for l in range(len(self.network)):
            output = self.link(l, output)[0]
        own, _, _ = loss_of(self.loss, output, self.y)
        told, count = hits(self.loss, output, self.y), self.counts[:, 0] * self.weights[:, 0]
        objective = risk + omega + coupling
        jumping = any(block["f"]["name"] in JUMPS for block in self.network if "f" in block)
        return {
            "risk": risk, "penalty": omega, "coupling": coupling, "dual": dual, "objective": objective,
            "lagrangian": objective + dual + self.rho / 2 * residual2, "primal_residual": math.sqrt(residual2),
            "dual_optimality": math.sqrt(self.norm2(gradient + self.u)),
            "stationarity": None if jumping else math.sqrt(total),
            "output_norm": float(np.sqrt((output**2).sum())), "loss": float(own @ count / count.sum()),
            "accuracy": None if told is None else float(told @ count / count.sum()),
        }

def check_row(report: Report, claims: dict[str, Any], k: int, end: dict[str, float | None], words: str) -> None:
    """What the history has of iteration k equals what was computed of its variables, to the rounding of the run."""
    h, exact = claims["history"], claims["dtype"] == "float64"
    tolerance, size = (1e-6, 1.0) if exact else (1e-3, 1.0 + abs(h["lagrangian"][k - 1]))
    for name in [each for each in end if each in h]:
        if end[name] is not None and h[name][k - 1] is not None:
            report.near(h[name][k - 1], float(end[name] or 0.0), tolerance, f"{words} {name}", size)

def check_checkpoint(report: Report, claims: dict[str, Any], data: dict[str, Array], path: str) -> None:
    """A checkpoint is one of this run, and its variables give the numbers recorded of its iteration."""
    (tensors, run), h = read(path, "training"), claims["history"]
    name, before, k = os.path.basename(path), run["history"], len(run["history"]["iteration"])
    own = k <= len(h["iteration"]) and all(before[c] == h[c][:k] for c in h if c not in LATER)
    if report.check(own, f"{name} is a checkpoint of this run, after iteration {k}"):
        there = claims | {weight: h[weight][max(k, 1) - 1] for weight in ("rho", "nu")}
        rows = claims | {"history": h if k else {"lagrangian": [claims["start"]]}}
        check_row(report, rows, max(k, 1), Problem(tensors, there, data).end(), name + ":")

def check_run(report: Report, claims: dict[str, Any], H: float, end: dict[str, float | None]) -> bool:
    """The recorded run: consistent with itself and with its end; whether all that the theory promises was seen."""
    h, n, eps = claims["history"], len(claims["history"]["iteration"]), float(np.finfo(claims["dtype"]).eps)
    whole = all(len(c) == n for c in h.values()) and all(is_number(v) for c in h if c not in LATER for v in h[c])
    if not report.check(n > 0 and whole and h["iteration"] == [*range(1, n + 1)], f"{n} whole iterations"):
        return False
    L, exempt = [claims["start"], *h["lagrangian"]], claims["exempt"]
    paper = claims["options"].get("start") == "paper"
    free = [k for k in exempt if not (k == 1 and paper) and not (1 < k <= n and h["rho"][k - 1] != h["rho"][k - 2])]
    report.check(not free, f"only starts without Lemma 2 and changes of rho are exempt ({exempt})")
    steady = all(h["rho"][k - 1] == h["rho"][k - 2] or k in exempt for k in range(2, n + 1))
    same = h["rho"][-1] == claims["rho"] and steady and set(h["nu"]) == {claims["nu"]} and claims["nu"] > 0
    same = same and claims["options"].get("nu") in (None, claims["nu"])
    report.check(same, "rho and nu are the same in the options, in the run and at its end")
    sums, falls, bound, known, rises, short = True, True, True, 0, [], []
    for k in range(1, n + 1):
        row = {name: column[k - 1] for name, column in h.items()}
        F, omega = row["objective"], (row["risk"], row["penalty"], row["coupling"])
        parts = [F, row["dual"], row["rho"] / 2 * row["primal_residual"] ** 2]
        sums &= abs(sum(parts) - L[k]) <= 1e-12 * sum(map(abs, parts)) and min(omega) >= 0
        sums &= abs(sum(omega) - F) <= 1e-12 * sum(omega)
        falls &= abs(row["descent"] - (L[k - 1] - L[k])) <= 1e-14 * (abs(L[k - 1]) + abs(L[k]))
        moves = claims["moves"][k - 1]
        if moves is not None:  # a run that was resumed does not have them of its first iterations
            squared, rates = moves[: len(moves) // 2], moves[len(moves) // 2 :]
            c2 = min((rate for s, rate in zip(squared, rates, strict=True) if s > 0), default=0.0)
            C1 = row["rho"] / 2 - 2 * H**2 / row["rho"]
            outer = [s for s, rate in zip(squared, rates, strict=True) if abs(rate - C1) <= 1e-6 * abs(C1)]
            steps = sum(squared)
            known += abs(steps - row["squared_steps"]) <= 1e-12 * steps and c2 == row["c2"] and min(squared) >= 0
            lemma = row["dual_optimality"] + (h["dual_optimality"][k - 2] if k > 1 else 0.0)
            reach = H * sum(map(math.sqrt, outer)) + lemma + 1e3 * eps * (1 + abs(L[k - 1]))
            bound &= k in exempt or (len(outer) > 0 and row["rho"] * row["primal_residual"] <= 1.001 * reach)
        slack = 200 * eps * (abs(L[k - 1]) + abs(L[k]))
        fall, promised = L[k - 1] - L[k], row["c2"] * row["squared_steps"]
        rises += [k] if k not in exempt and not fall >= -slack else []
        short += [k] if k not in exempt and not fall >= promised - slack else []
    made = sum(moves is not None for moves in claims["moves"])
    report.check(known == made and len(claims["moves"]) == n, f"steps and C2 are those of the moves, known of {made}")
    report.check(sums, "every iteration's Lagrangian is the sum of its recorded pieces")
    report.check(falls, "every recorded descent is the difference of two Lagrangians")
    report.check(bound, "every residual is one that the recorded steps allow (Lemma 2: ||du|| <= H ||dz||)")
    check_row(report, claims, n, end, "last recorded")
    verdict, steps = claims["verdict"], h["squared_steps"]
    said = {
        "iterations": n, "exempt": exempt, "descent_violations": rises, "sufficient_descent_violations": short,
        "smallest_c2": min(h["c2"]), "c_k": min(steps), "k_c_k": min(steps) * n, "rho": claims["rho"],
        "nu": claims["nu"], "H": claims["H"], "monotone": not rises, "sufficient_descent": not short,
    }
    wrong = [name for name, value in said.items() if verdict.get(name) != value]
    report.check(not wrong, "the verdict repeats what was recorded" + (f"; not {', '.join(wrong)}" if wrong else ""))
    covered = all(rho > 2 * H for rho in h["rho"]) and claims["penalty"]["name"] != "non_negative"
    report.lines.append(f"  rho > 2H = {2 * H:g}: {covered}; rises: {rises or 'none'}; short of C2: {short or 'none'}")
    return covered and not rises and not short

@np.errstate(all="ignore")  # numbers that are not finite are reported, and some processors warn of their products
def verify(tensors: dict[str, Array], claims: dict[str, Any], data: dict[str, Array], kept: Any = ()) -> Report:
    """All checks of one certificate against the data it is said to be of, and of checkpoints ``kept`` of its run."""
    report = Report()
    try:
        report.check(claims.get("digest") == digest_of(claims), "the claims have the checksum they state")
        stated, dtype = claims["hashes"], claims["dtype"]
        same = stated["tensors"] == {name: hash_of(name, t.dtype.str, t) for name, t in tensors.items()}
        report.check(same, "parameters and variables have the checksums stated")
        good = all(t.dtype == dtype and np.isfinite(t).all() for t in tensors.values())
        report.check(good, f"all are finite {dtype}")
        kinds = {name: OF_DATA.get(name, dtype if name == "X" else "<f8") for name in data}
        if wrong := [name for name in stated["data"] if name not in data]:
            raise Unreadable(f"the certificate is also of {', '.join(wrong)}: give them too")
        found = {name: hash_of(name, kinds[name], np.asarray(data[name])) for name in stated["data"]}
        report.check(found == stated["data"], f"the data ({', '.join(found)}) have the checksums stated")
        data = {name: data[name] for name in stated["data"]}
        problem = Problem(tensors, claims, data)
        H = loss_of(problem.loss, problem.V[-1], problem.y)[2] * float(problem.weights.max())
        report.near(claims["H"], H, 1e-12, "H, the Lipschitz constant of the loss's gradient")
        report.near(claims["C1"], problem.rho / 2 - 2 * H**2 / problem.rho, 1e-12, "C1 = rho/2 - 2 H^2/rho", H)
        end = problem.end()
        near = (1e-6 if problem.graph is not None and dtype == "float32" else 1e-11, 1e-11)
        size = 1.0 + abs(end["lagrangian"] or 0.0) + float(np.abs(problem.V[-1]).max())
        for name, value in end.items():
            if value is None:
                report.check(claims["end"][name] is None, f"nothing is claimed of {name} at the end")
            else:
                report.near(claims["end"][name], value, near[name in FREE], f"{name} at the end", size / 10)
        sizes = 1 + np.linalg.norm(problem.u) + problem.rho * np.linalg.norm(problem.V[-1])
        solved = (end["dual_optimality"] or 0.0) <= 1e3 * float(np.finfo(dtype).eps) * float(sizes)
        report.lines.append(f"  Lemma 2, grad R(z_L) + u = 0: {'holds' if solved else 'does not hold'} to rounding")
        seen = check_run(report, claims, H, end)
        for path in kept:
            check_checkpoint(report, claims, data, path)
        if claims["verdict"]["certified"]:
            seen = seen and solved and claims["status"] != "NON_FINITE"
            report.check(seen, "what is certified was seen: rho > 2H, descent, C2, Lemma 2")
        else:
            report.lines.append("  The run is not said to be certified: nothing is promised of it.")
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, ZeroDivisionError) as error:
        report.check(False, f"the claims make a problem ({type(error).__name__}: {error})")
    return report

def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("certificate")
    parser.add_argument("--data", action="append", required=True, help="data.npz, data.csv (last column y), X=X.npy")
    parser.add_argument("--checkpoint", action="extend", nargs="+", default=[], help="checkpoints of the run")
    given = parser.parse_args(arguments)
    try:
        report = verify(*read(given.certificate), read_data(given.data), given.checkpoint)
    except (Unreadable, MemoryError) as error:
        print(f"Cannot be checked: {error}.", file=sys.stderr)
        return 2
    print("\n".join([*report.lines, f"Not checked: {UNKNOWN}", "ACCEPTED" if report.accepted else "REJECTED"]))
    return 0 if report.accepted else 1

if __name__ == "__main__":
    sys.exit(main())
