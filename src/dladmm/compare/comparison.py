"""``dladmm compare``: methods side by side on one data set, each seed of each method a run folder of its own.

    OUT/cells/adam-0/       history.csv, metrics.json, certificate.txt, curves.png, as of any run
    OUT/figures/            accuracy against iterations and against seconds, objective and more, PNG and SVG
    OUT/comparison.json     the table, see :func:`dladmm.compare.table.summary`

A cell is written as soon as it is done and skipped when the same comparison is run again, so that one that was
interrupted, or is given more methods or seeds, goes on from there. ``settings`` in a cell's metrics.json name method,
network, data set, seed and everything else that makes the run what it is. The seed draws the initial weights; data and
split are the same for all.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dladmm.activations import get_activation
from dladmm.api.choosing import CROSS_FITTED
from dladmm.api.cross_fit import PASSES as COPIES_PASSES
from dladmm.base.errors import InputError
from dladmm.cli.run_config import RunConfig
from dladmm.compare.contender import METHODS, USUAL, Contender, passes_for
from dladmm.report import read_report, write_figures
from dladmm.report.data import Run
from dladmm.runs.chosen import chosen_settings
from dladmm.runs.plan import Cell, defaults, plain
from dladmm.runs.problem import Problem
from dladmm.runs.running import Session, run_cells
from dladmm.runs.store import CELLS
from dladmm.training.checks import check_device


@dataclass(frozen=True)
class Comparison:
    """What is compared: the problem, the methods, how many seeds.

    ``methods`` are names with settings of their own, as ``adam:batch=256`` (:mod:`dladmm.compare.contender`);
    ``changes`` are further options by name. Methods with mini-batches make ``passes`` passes, ``max_iter`` at most;
    None decides by the number of rows. Whether classes or numbers are predicted is decided as by ``dladmm train``. For
    numbers every method sees targets at the same scale, and for data of one's own inputs at the same scale.
    """

    config: RunConfig
    methods: tuple[str, ...]
    seeds: int = 1
    changes: dict[str, dict[str, Any]] = field(default_factory=dict)
    passes: int | None = None

    def __post_init__(self) -> None:
        if not self.methods:
            raise InputError(f"no method was given; known are {', '.join(METHODS)}.")
        labels = [contender.label for contender in self.contenders]
        if len(set(labels)) < len(labels):
            raise InputError(f"a method is named twice: {', '.join(labels)}.")
        for name in self.changes:
            Contender.parse(name)
        if self.config.network not in ("mlp", "gcn"):
            raise InputError(f"network must be mlp or gcn, got {self.config.network!r}.")
        dtype = "float32" if self.config.dtype == "auto" else self.config.dtype
        object.__setattr__(self, "config", replace(self.config, max_iter=self.config.iterations, dtype=dtype))
        self._check_copies()
        if self.config.network == "gcn":
            self._check_graph()
        passes = 1 if self.passes is None else self.passes
        numbers = (("seeds", self.seeds), ("max_iter", self.config.max_iter), ("passes", passes))
        for name, value in numbers:
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name} must be a whole number >= 1, got {value!r}.")

    @property
    def source(self) -> str:
        """The data set, or the name of the user's own file without its place."""
        return self.config.dataset or Path(str(self.config.csv or self.config.npz)).stem

    @cached_property
    def problem(self) -> Problem:
        """The data, read once for all methods."""
        return Problem.load(self.config)

    @property
    def regression(self) -> bool:
        """Whether numbers are predicted."""
        return self.problem.task.kind == "regression"

    def _check_copies(self) -> None:
        if self.config.regularizer is not None and any(c.method == CROSS_FITTED for c in self.contenders):
            raise InputError(f"{CROSS_FITTED} has no penalty on the weights; leave it or --regularizer out.")

    def _check_graph(self) -> None:
        if self.config.task == "regression":
            raise InputError("the nodes of a graph are classified; leave --task regression out.")
        for contender in self.contenders:
            if contender.method == "admm":
                raise InputError("admm (Taylor et al.) trains MLPs only; leave it out for graphs.")
            if contender.counts_passes:
                raise InputError(f"{contender.label} has mini-batches of rows; leave it out for graphs.")

    @property
    def contenders(self) -> list[Contender]:
        """The methods, read."""
        return [Contender.parse(text) for text in self.methods]

    def cells(self) -> list[Cell]:
        """Every method with every seed."""
        return [self.cell(each.label, seed) for each in self.contenders for seed in range(self.seeds)]

    def cell(self, method: str, seed: int) -> Cell:
        """One run."""
        c, contender = self.config, Contender.parse(method)
        return Cell(
            name=f"{contender.folder}-{seed}",
            network=c.network,
            dataset=self.source,
            trainer=contender.method,
            seed=seed,
            hidden=c.widths,
            max_iter=self.iterations(contender),
            options=self.options(method),
            settings=self.settings(method, seed),
            activation=c.activation,
            loss=self.problem.task.loss,
            dtype=c.dtype,
            diagnostics_every=1,  # measuring is not timed, and says when an accuracy was reached
        )

    def iterations(self, contender: Contender) -> int:
        """Iterations at most; with mini-batches these are passes over the data."""
        most = self.config.max_iter
        if contender.counts_passes:
            passes = self.passes
            if passes is None:
                own = contender.method == CROSS_FITTED  # it ends when rows that were held out say so
                passes = COPIES_PASSES if own else passes_for(self.problem.samples or 0)
            most = min(passes, most)
        return int(contender.options.get("max_iter", most))

    def options(self, method: str) -> dict[str, Any]:
        """What the method is told besides the problem; for graphs dlADMM has the settings of ``docs/graphs.md``."""
        contender = Contender.parse(method)
        chosen: dict[str, Any] = {}
        if contender.method in ("accelerated", "streaming"):
            chosen = {"mode": contender.method}
        elif contender.method == "dladmm" and self.config.network == "gcn":
            known = chosen_settings(str(self.config.dataset))
            chosen = {key: value for key, value in known.items() if key not in ("hidden", "max_iter")}
        if self.config.regularizer is not None:
            chosen["regularizer"] = self.config.penalty()
        if self.config.network == "mlp" and self.config.dataset is None and contender.method != CROSS_FITTED:
            chosen["scale_inputs"] = (
                True  # columns of a user's own table have any unit; copies always scale them
            )
        if "objective" in contender.options:  # it says what is minimised
            chosen = {
                key: value for key, value in chosen.items() if key not in ("regularizer", "scale_inputs")
            }
        own = {key: value for key, value in contender.options.items() if key != "max_iter"}
        return chosen | self.changes.get(contender.method, {}) | own

    def settings(self, method: str, seed: int) -> dict[str, Any]:
        """Everything that makes the cell what it is, as its metrics.json has it; JSON's own types only."""
        c, contender = self.config, Contender.parse(method)
        settings = {
            "method": contender.label,
            "network": c.network,
            "dataset": self.source,
            "seed": seed,
            "hidden": list(c.widths),
            "activation": c.activation,
            "loss": self.problem.task.loss,
            "max_iter": self.iterations(contender),
            "dtype": c.dtype,
            **defaults(contender.method, c.network, batches="batch_size" in contender.options),
            **self.options(method),
        }
        if self.regression:
            settings |= {"task": "regression", "scale_targets": True}
        return plain(settings)


def usual_methods(config: RunConfig) -> tuple[str, ...]:
    """What is compared where nobody says it: all that can train this network."""
    one_network = config.regularizer is not None or get_activation(config.activation).n_levels > 0

    def fits(contender: Contender) -> bool:
        if config.network == "gcn":
            return not (contender.counts_passes or contender.method == "admm")
        return not (contender.method == CROSS_FITTED and one_network)

    return tuple(name for name in USUAL if fits(Contender.parse(name)))


def run_comparison(comparison: Comparison, out: Path, *, progress: bool = True) -> tuple[Run, ...] | None:
    """Run the cells that are not there yet, draw the figures; all runs in order, None where the user interrupts."""
    cells = comparison.cells()
    session = Session(
        out,
        str(check_device(comparison.config.device)),
        say=lambda line: None,
        hint="choose another --out",
        load=lambda cell: comparison.problem,
        bars=progress,
        curves=True,
        tested=True,
    )
    if not run_cells(cells, out, session):
        return None
    read = read_report(out / CELLS)
    if find_spec("matplotlib") is not None:
        write_figures(read, out / "figures", seconds=True)
    found = {run.name: run for run in read.runs}
    return tuple(found[cell.name] for cell in cells)
