"""Malformed command lines and files: exit code 2, these words on standard error, no traceback."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from chaos.commands import run
from chaos.ledger import Ledger, require

SHORT = ("--max-iter", "2", "--hidden", "3")
LONG_NAME = "x" * 5000


def mlp(*arguments: str) -> tuple[str, ...]:
    return "train", "mlp", *arguments, *SHORT


def gcn(*arguments: str) -> tuple[str, ...]:
    return "train", "gcn", *arguments, *SHORT


def csv(name: str, target: str = "k") -> tuple[str, ...]:
    return mlp("--csv", name, "--target", target)


DIGITS = ("train", "mlp", "--dataset", "digits")

# fmt: off
COMMANDS: list[tuple[tuple[str, ...], str]] = [
    (csv("empty.csv"), "empty.csv holds no data"),
    (csv("header.csv"), "header.csv holds no data"),
    (csv("nan.csv"), "has no column to learn from"),
    (csv("huge.csv"), "has no column to learn from"),
    (csv("text.csv"), "has no column to learn from"),
    (csv("short.csv"), "row 2: 1 fields, but the header has 2"),
    (csv("one.csv"), "the target holds one class only (x)"),
    (csv("oneclass.csv"), "the target holds one class only (x)"),
    (csv("onlytarget.csv"), "cannot be split into training and test rows"),
    (csv("binary.csv"), "is not a text file"),
    (csv("utf16.csv"), "the target holds one class only"),
    (csv("null.csv"), "is not a text file"),
    (csv("long.csv"), "the target holds one class only"),
    (csv("."), "is a folder, a pipe or a device"),
    (csv("absent.csv"), "absent.csv does not exist"),
    (csv(LONG_NAME), "File name too long"),
    (csv("own.csv", "colour"), "its columns are a, b, k"),
    (csv("own.csv", ""), "target '' is not a column"),
    (("train", "mlp", "--csv", "own.csv"), "--csv needs --target"),
    (mlp("--npz", "noy.npz"), "lacks the arrays y"),
    (mlp("--npz", "rows.npz"), "x must have one row per sample"),
    (mlp("--npz", "nan.npz"), "X contains NaN or infinite"),
    (mlp("--npz", "text.npz"), "X holds text"),
    (mlp("--npz", "complex.npz"), "X is complex"),
    (mlp("--npz", "flat.npz"), "x must have one row per sample"),
    (mlp("--npz", "no-rows.npz"), "the target must hold one label per row, got shape (0,)"),
    (mlp("--npz", "objects.npz"), "without pickles"),
    (mlp("--npz", "scalar.npz"), "y one entry per row; got shapes (30, 2) and ()"),
    (mlp("--npz", "columns.npz", "--task", "classification"), "the target must hold one label per row, got shape (30"),
    (mlp("--npz", "widths.npz"), "X of validation has 1 features"),
    (mlp("--npz", "lengths.npz"), "y of validation has 30 rows"),
    (mlp("--npz", "cut.npz"), "File is not a zip file"),
    (mlp("--npz", "empty.npz"), "File is not a zip file"),
    (mlp("--npz", "single.npz"), "File is not a zip file"),
    (mlp("--npz", "bomb.npz"), "more than the 1,073,741,824 that a file of its size may hold"),
    (mlp("--npz", "."), "is a folder, a pipe or a device"),
    (mlp("--npz", "absent.npz"), "absent.npz does not exist"),
    (mlp("--npz", "own.npz", "--loss", "entropy"), "unknown loss 'entropy'"),
    (mlp("--npz", "own.npz", "--test-fraction", "2"), "test_fraction must lie between 0 and 1"),
    (mlp("--npz", "own.npz", "--test-fraction", "nan"), "test_fraction must lie between 0 and 1"),
    (mlp("--npz", "own.npz", "--test-fraction", "0.001"), "cannot be split"),
    (mlp("--npz", "own.npz", "--out", "plain"), "Not a directory"),
    (mlp("--npz", "own.npz", "--out", "plain/below"), "Not a directory"),
    (mlp("--npz", "own.npz", "--out", LONG_NAME), "File name too long"),
    (gcn("--npz", "own.npz"), "lacks the arrays edge_index, train_mask"),
    (gcn("--npz", "g-mask.npz"), "train_mask is torch.bool (2,)"),
    (gcn("--npz", "g-edges.npz"), "edge_index is in 100..102"),
    (gcn("--npz", "g-fraction.npz"), "edge_index must hold whole numbers"),
    (gcn("--npz", "g-negative.npz"), "y is in -2..0"),
    (gcn("--npz", "g-text.npz"), "y must hold whole numbers"),
    (gcn("--npz", "g-nan.npz"), "x contains NaN or infinite"),
    (gcn("--npz", "g-huge.npz"), "y must hold one class per node"),
    (gcn("--npz", "g-empty.npz"), "y must hold one class per node"),
    (gcn("--npz", "g.npz", "--rows", "some"), "rows must be one of"),
    (gcn("--dataset", "karate", "--mu", "-1"), "nu must be a positive finite number"),
    (gcn("--dataset", "digits"), "use: dladmm train mlp"),
    (("train", "mlp"), "exactly one of --dataset, --csv and --npz"),
    (mlp("--dataset", "digits", "--npz", "own.npz"), "exactly one of"),
    (mlp("--dataset", "karate"), "use: dladmm train gcn"),
    (mlp("--dataset", ""), "name is ''; it must be one of"),
    (mlp("--dataset", "../../etc/passwd"), "it must be one of"),
    (mlp("--dataset", "mnist", "--data-dir", "absent"), "which is not a folder"),
    (mlp("--dataset", "mnist", "--data-dir", "plain"), "which is not a folder"),
    ((*DIGITS, "--max-iter", "0"), "max_iter must be a whole number >= 1"),
    ((*DIGITS, "--max-iter", "many"), "Invalid value for '--max-iter'"),
    ((*DIGITS, "--seed", "-1"), "random_state must be a whole number"),
    ((*DIGITS, "--seed", str(2**70)), "random_state must be a whole number"),
    ((*DIGITS, "--rho", "nan"), "rho must be a positive finite number"),
    ((*DIGITS, "--rho", "1e300"), "rho must lie between"),
    ((*DIGITS, "--dtype", "half"), "dtype must be one of"),
    ((*DIGITS, "--device", "abacus"), "device must be"),
    ((*DIGITS, "--mode", "fast"), "mode must be one of"),
    ((*DIGITS, "--preset", "editors"), "preset must be one of"),
    ((*DIGITS, "--activation", "swish"), "unknown activation 'swish'"),
    ((*DIGITS, "--regularizer", "l2:much"), "regularizer must look like"),
    ((*DIGITS, "--regularizer", "l3"), "unknown regularizer 'l3'"),
    ((*DIGITS, "--max-memory", "lots"), "max_memory must be a number of bytes"),
    ((*DIGITS, "--max-memory", "1KB"), "max_memory is 0.001 MB"),
    ((*DIGITS, "--hidden", "0"), "widths must be whole numbers >= 1"),
    ((*DIGITS, "--hidden", "-3"), "widths must be whole numbers >= 1"),
    ((*DIGITS, "--hidden", "3,x"), "--hidden must be whole numbers"),
    ((*DIGITS, "--hidden", "99999999999"), "do not fit into memory"),
    ((*DIGITS, "--nope"), "No such option: --nope"),
    (("train", "mlp", "--config", "broken.toml"), "is not a TOML file"),
    (("train", "mlp", "--config", "deep.toml"), "is not a TOML file"),
    (("train", "mlp", "--config", "digits.toml"), "is not a TOML file"),
    (("train", "mlp", "--config", "binary.csv"), "is not a TOML file"),
    (("train", "mlp", "--config", "."), "is a folder, a pipe or a device"),
    (("train", "mlp", "--config", "absent"), "absent does not exist"),
    (("train", "mlp", "--config", "unknown.toml"), "unknown setting learning_rate"),
    *((("train", "mlp", "--config", f"type-{name}.toml"), f"setting {name} has the wrong type")
      for name in ("max_iter", "rho", "hidden", "test_fraction", "regularizer", "preset", "out", "target", "seed")),
    (("train", "mlp", "--resume", "absent"), "config.toml does not exist"),
    (("train", "mlp", "--resume", "plain"), "Not a directory"),
    (("train", "mlp", "--resume", "run", "--seed", "9"), "--seed cannot be changed"),
    (("train", "gcn", "--resume", "run"), "use: dladmm train mlp --resume run"),
    (("train", "mlp", "--resume", "run", "--config", "unknown.toml"), "leave --config out"),
    (mlp("--npz", "own.npz", "--out", "run"), "--resume run"),
    (("predict", "run", "--csv", "own.csv"), "own.csv has 3 columns, but the network takes 2"),
    (("predict", "run", "--csv", "absent.csv"), "absent.csv does not exist"),
    (("predict", "run", "--csv", "features.csv", "--out", "."), "could not be written"),
    (("predict", "run", "--csv", "features.csv", "--out", "absent/p.csv"), "could not be written"),
    (("predict", "plain", "--csv", "own.csv"), "cannot read plain"),
    (("predict", "damaged", "--csv", "features.csv"), "is damaged"),
    (("report", "absent"), "absent is not a folder"),
    (("report", "plain"), "plain is not a folder"),
    (("report", "hollow"), "holds no run"),
    (("report", "run", "--out", "hollow"), "could not be written"),
    (("compare", "cnn", "--dataset", "digits"), "network must be mlp or gcn"),
    (("compare", "mlp"), "exactly one of"),
    (("compare", "mlp", "--dataset", "digits", "--methods", "magic"), "unknown method magic"),
    (("compare", "mlp", "--dataset", "digits", "--methods", ""), "no method was given"),
    (("compare", "mlp", "--dataset", "digits", "--lr", "adam"), "--lr must look like adam=0.01"),
    (("compare", "mlp", "--dataset", "digits", "--methods", "adam", "--lr", "adam=-1"), "lr must be a finite number"),
    (("compare", "mlp", "--dataset", "digits", "--seeds", "0"), "seeds must be a whole number >= 1"),
    (("datasets", "fetch", "digits"), "there is nothing to fetch"),
    (("datasets", "fetch", "nope"), "it must be one of"),
    (("datasets", "verify", "nope"), "it must be one of"),
    (("datasets", "list", "--data-dir", "absent"), "which is not a folder"),
    (("reproduce", "nope"), "unknown experiment 'nope'"),
    (("reproduce", "all", "--scale", "huge"), "scale must be full or quick"),
    (("fly",), "No such command 'fly'"),
    (("train", "cnn"), "No such command 'cnn'"),
]
# fmt: on


def make_files(folder: Path) -> None:
    """The files that the commands name."""
    rng = np.random.default_rng(0)
    y = np.arange(30) % 3
    x = rng.normal(size=(30, 2)) + y[:, None]
    table = "\n".join(f"{a},{b},{k}" for (a, b), k in zip(x, y, strict=True))
    texts = {
        "own.csv": f"a,b,k\n{table}", "features.csv": "a,b\n1,2\n", "empty.csv": "", "header.csv": "a,b,k\n",
        "nan.csv": "a,k\nnan,1\n2,2\n", "huge.csv": "a,k\n1e400,x\n2,y\n", "text.csv": "a,k\n1,x\noops,y\n",
        "short.csv": "a,k\n1\n", "one.csv": "a,k\n1,x\n", "oneclass.csv": "a,k\n1,x\n2,x\n",
        "onlytarget.csv": "k\nx\ny\nx\ny\n", "null.csv": "a,k\n1\0,x\n", "long.csv": f"a,k\n{'1' * 200_000},x\n",
        "plain": "a file", "broken.toml": "dataset = \n", "deep.toml": f"dataset = {'[' * 100_000}",
        "digits.toml": f"max_iter = {'9' * 100_000}", "unknown.toml": 'dataset = "digits"\nlearning_rate = 1\n',
        **{f"type-{name}.toml": f"{name} = {value}\n" for name, value in (
            ("max_iter", '"many"'), ("rho", '"a"'), ("hidden", '"abc"'), ("test_fraction", '"a"'), ("regularizer", 3),
            ("preset", "[1]"), ("out", 3), ("target", 3), ("seed", "true"),
        )},
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "binary.csv").write_bytes(bytes(range(256)) * 10)
    (folder / "utf16.csv").write_bytes("a,k\n1,x\n".encode("utf-16"))
    edges, mask = np.array([[0, 1], [1, 2]]), np.ones(30, dtype=bool)
    graph = {"x": x, "y": y, "edge_index": edges, "train_mask": mask}
    arrays: dict[str, dict[str, object]] = {
        "own": {"x": x, "y": y}, "noy": {"x": x}, "rows": {"x": x, "y": y[:5]}, "nan": {"x": x * np.nan, "y": y},
        "text": {"x": x.astype(str), "y": y}, "complex": {"x": x + 1j, "y": y}, "flat": {"x": x[:, 0], "y": y},
        "no-rows": {"x": x[:0], "y": y[:0]}, "objects": {"x": np.array([{}]), "y": y}, "scalar": {"x": x, "y": 3},
        "columns": {"x": x, "y": np.eye(3)[y]},
        "widths": {"x_train": x, "y_train": y, "x_test": x[:, :1], "y_test": y},
        "lengths": {"x_train": x, "y_train": y, "x_test": x[:2], "y_test": y},
        "g": graph, "g-mask": graph | {"train_mask": np.array([1, 2])}, "g-edges": graph | {"edge_index": edges + 100},
        "g-fraction": graph | {"edge_index": edges + 0.5}, "g-negative": graph | {"y": -y},
        "g-text": graph | {"y": np.array(["a"] * 30)}, "g-nan": graph | {"x": x * np.nan},
        "g-huge": graph | {"y": y + 10**12},
        "g-empty": {"x": x[:0], "y": y[:0], "edge_index": edges[:, :0], "train_mask": mask[:0]},
    }  # fmt: skip
    for name, content in arrays.items():
        np.savez(folder / f"{name}.npz", **content)
    whole = (folder / "own.npz").read_bytes()
    (folder / "cut.npz").write_bytes(whole[:-30])
    (folder / "empty.npz").write_bytes(b"")
    np.save(folder / "single.npy", x)
    (folder / "single.npy").rename(folder / "single.npz")
    write_bomb(folder / "bomb.npz")
    (folder / "hollow").mkdir()


def write_bomb(path: Path, megabytes: int = 1500) -> None:
    """An npz file whose x unpacks to far more than the file: an npy header, and zeros."""
    import zipfile

    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({megabytes * 2**20}, 1), }}"
    start = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + header.ljust(117).encode() + b"\n"
    zeros = bytes(2**20)
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x.npy", "w", force_zip64=True) as member,
    ):
        member.write(start)
        for _ in range(megabytes):
            member.write(zeros)


def judge_commands(ledger: Ledger, folder: Path) -> None:
    make_files(folder)
    done = run(*mlp("--npz", "own.npz", "--out", "run"), cwd=folder)
    require(done.code == 0, done.err)
    (folder / "damaged").mkdir()
    model = (folder / "run" / "model.safetensors").read_bytes()
    (folder / "damaged" / "model.safetensors").write_bytes(model[:-1] + bytes([model[-1] ^ 1]))
    for arguments, words in COMMANDS:
        with ledger.attempt(f"dladmm {' '.join(arguments)[:80]}"):
            done = run(*arguments, cwd=folder)
            require("Traceback" not in done.err, f"a traceback: {done.err[-300:]}")
            require(done.code == 2, f"exit code {done.code}: {done.err[-300:]}")
            plain = " ".join(done.err.replace("│", " ").split())
            require(words in plain, f"standard error lacks {words!r}: {plain[-300:]}")
