"""The lines of the table: what each tries, at which size ``make chaos`` and at which size ``make test`` runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module

from chaos.ledger import Ledger


@dataclass(frozen=True)
class Line:
    """One row. ``full`` and ``small`` are what the module's function takes as its size (a count, a stride, ...).

    At full size a long line is done in ``parts``, each with a seed of its own.
    """

    name: str
    title: str
    module: str
    function: str
    full: int
    small: int
    format: str | None = None
    parts: int = 1

    @property
    def counts(self) -> bool:
        """Whether the size is the number of attempts."""
        return self.full >= 60 and self.name != "endurance"

    def run(self, ledger: Ledger, size: int, seed: int) -> None:
        # imported here: a line must not pay for what the others need
        function: Callable[..., None] = getattr(import_module(f"chaos.{self.module}"), self.function)
        if self.format is not None:
            function = partial(function, name=self.format)
        function(ledger, size, seed)


FORMATS = {
    "idx": 1, "idx, gzip": 1, "planetoid": 4, "planetoid npz": 1, "coauthor npz": 1, "own npz": 1, "own csv": 1,
    "settings (toml)": 1, "checkpoint": 1, "checkpoint, right checksum": 1, "model, right checksum": 1, "run folder": 1,
}  # fmt: skip
"""The formats of files, and in how many parts the mutations of each are made."""

LINES = (
    Line("calls", "Malformed calls of train, train_graph and the estimators", "bad_input", "run_calls", 1, 1),
    Line("commands", "Malformed command lines, without a traceback", "bad_input", "run_commands", 1, 1),
    Line("files", "Files missing, damaged, unreadable; folders read-only; disk full", "bad_input", "run_files", 1, 1),
    Line("numerics", "Random training problems: finite, ended, never uphill", "numerics", "run", 1000, 6, parts=5),
    Line("honest", "Certificates of honest runs: accepted", "certificates", "run_honest", 200, 12, parts=2),
    Line("tampered", "Tampered certificates: rejected", "certificates", "run_tampered", 1000, 60, parts=2),
    Line("nan", "NaN or infinity put into the state at a random iteration", "faults", "run_nan", 500, 8),
    Line("singular", "Gram matrices without an inverse, or nearly none", "faults", "run_singular", 400, 8),
    Line("kills", "SIGKILL at random moments of training", "checkpoints", "run_kills", 200, 1),
    Line("cuts", "Checkpoint cut off at a byte, each in turn", "checkpoints", "run_cuts", 1, 37),
    Line("flips", "Checkpoint with flipped bits", "checkpoints", "run_flips", 10_000, 200),
    Line("calamities", "Full disk, read-only folder, two writers, old formats", "checkpoints", "run_calamities", 5, 1),
    *(
        Line(f"mutations: {name}", f"Mutated files: {name}", "loaders", "run", 100_000, 150, name, parts)
        for name, parts in FORMATS.items()
    ),
    Line(
        "structured", "Right checksum, fields of other types, sizes, names", "structured", "run", 5000, 100,
    ),
    Line("hostile", "Malicious pickles, bombs, paths and links out of their place", "hostile", "run", 1, 5),
    Line("control", "Control: the same pickles do run under Python's own loader", "hostile", "run_control", 1, 1),
    Line("downloads", "Downloads: lies, cuts, stalls, redirects (server on this machine)", "downloads", "run", 5, 1),
    Line("pages", "HTML reports of hostile names, markup and browser", "pages", "run", 1, 16),
    Line("determinism", "Same seed twice, and after resuming: bit-equal on CPU", "determinism", "run", 60, 2, parts=3),
    Line("endurance", "Long run on digits: memory and file handles flat", "endurance", "run", 2000, 80),
    Line("no pickle", "Reading and writing of files while unpickling raises", "supply_chain", "run_no_pickle", 1, 1),
    Line("source", "Source without unpickling, eval, shells; pinned versions", "supply_chain", "run_source", 1, 1),
)  # fmt: skip

BY_NAME = {line.name: line for line in LINES}
