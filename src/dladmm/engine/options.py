"""Everything a run can be told, checked before any work is done, and the method and execution that this asks for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from dladmm.base.errors import InputError, InputTypeError
from dladmm.base.spec import check_setting
from dladmm.compute.execution import Execution, Precision
from dladmm.engine.accelerated import Accelerated
from dladmm.engine.batches import Batches
from dladmm.engine.memory_limit import bytes_of
from dladmm.engine.method import Method, Plain
from dladmm.engine.problem import State
from dladmm.engine.schedule import Sweep
from dladmm.engine.streaming import Streaming
from dladmm.engine.streaming_options import StreamingOptions
from dladmm.engine.sweep import Engine
from dladmm.network.scaling import Scaling
from dladmm.regularizers import L2, NoPenalty, Regularizer, get_regularizer
from dladmm.solvers.subproblems import SubproblemOptions

ACCELERATED_PENALTY = 0.3
"""lambda of accelerated mode's own penalty (lambda/2)||W||^2, for scaled inputs and a summed loss."""

ENOUGH_LABELS = 60
"""With fewer labelled rows the loss is a smaller sum, and the penalty shrinks with it: it would drown four labels."""

LARGEST_WEIGHT = 1e15
"""Of rho and nu, and one over it the smallest: their ratio is still a float32."""

Start = Literal["feasible", "paper", "forward"]
RhoRule = Literal["authors", "tenfold"]
InitialRule = Literal["he", "glorot"]
Mode = Literal["convergent", "accelerated", "streaming"]
AutoMode = Literal["auto", "convergent", "accelerated", "streaming"]
"""Of the estimators: "auto" chooses by the data and the settings (:mod:`dladmm.api.choosing`)."""


@dataclass(frozen=True)
class TrainOptions:
    """Settings of one run of the convergent algorithm.

    ``mode``
        ``"convergent"`` is the paper's algorithm; ``"accelerated"`` resynchronises and extrapolates under a safeguard
        (:mod:`dladmm.engine.accelerated`); ``"streaming"`` makes a sweep per mini-batch
        (:mod:`dladmm.engine.streaming`).
    ``rho``
        Weight of the hard constraint; ``None`` is ``3H``, inside the certified region ``rho > 2H``, and ``H/5`` in
        accelerated mode.
    ``nu``
        Weight of the relaxed constraints (mu for graphs, 2 Psi in Algorithm 1); ``None`` is 1, and ``rho/10`` in
        accelerated mode.
    ``batch_size``, ``streaming``
        Streaming mode: rows of a mini-batch (None: by the number of rows), and its constants
        (:class:`~dladmm.engine.streaming_options.StreamingOptions`). ``max_iter`` counts passes over the data there.
    ``max_iter``, ``eps_abs``, ``eps_rel``
        Stop after ``max_iter`` iterations, or when primal residual and stationarity are below
        ``eps_abs * sqrt(size) + eps_rel * scale``, as in Boyd et al. (2011), Section 3.3; in accelerated mode also when
        ten iterations together lower the objective by less than ``eps_rel`` of it.
    ``dropout``
        The share of the entries of X that a sweep does not see. Accelerated mode: 0.2, and 0 for graphs and CNNs.
        Streaming mode: 0.1 for rows of features, from the second pass on, 0 for images.
    ``sweep``
        Accelerated mode: "backward" updates parameters once an iteration, not on the way forth too (docs/silos.md).
    ``scale_inputs``
        Train on inputs brought to a common scale (:mod:`dladmm.network.scaling`); the trained network takes X as it is.
    ``init_rule``, ``init_scale``, ``init_std``
        Initial W: He's deviation times ``init_scale``, b zero; with ``init_rule="glorot"`` uniform within Glorot's
        bound times ``init_scale``; or W and b normal with deviation ``init_std``.
    ``start``
        ``"feasible"``: z and a from the forward pass, u = -grad R. ``"forward"``: the same with u = 0. ``"paper"``: z_L
        at +1/-1 and u = 0.
    ``rho_rule``
        ``"authors"``: rho, nu and both backtracking starts times 10 when the training loss has risen three times
        running, rho at most 0.1, as in the authors' published code for MLPs. ``"tenfold"``: rho and nu times 10 after
        every 50 iterations, rho at most 1, as in their code for GCNs. ``None``: rho and nu stay.
    ``diagnostics_every``
        Iterations between evaluations of the network and of the stationarity, which cost products of their own;
        ``None`` chooses 1 for small problems and 10 for large ones. The last iteration is always measured.
    ``compile``
        On a GPU. ``"auto"``: launches recorded and replayed, which needs no compiling. ``True``: elementwise work also
        compiled by torch, which takes the first iterations 5 to 40 seconds. ``False``: launched one by one.
    ``precision``
        ``"float32"``: as exact as torch's, on Hopper GPUs by a kernel. ``"tf32"``: on a GPU, large float32 products
        round their factors to TF32. ``"bfloat16"``: those that give a direction to go round theirs to bfloat16, the
        others on a GPU to TF32. Gram matrices stay in float32.
    ``max_memory``
        Bytes that the run's tensors may take above X and y as given, or text as ``"2GB"``. Beyond, rows are worked on
        in chunks, X is read where it lies (a memmap), and results are the same to rounding (docs/memory.md). For MLPs.
    """

    mode: Mode = "convergent"
    rho: float | None = None
    nu: float | None = None
    subproblems: SubproblemOptions = field(default_factory=SubproblemOptions)
    max_iter: int = 200
    eps_abs: float = 1e-6
    eps_rel: float = 1e-4
    batch_size: int | None = None
    streaming: StreamingOptions = field(default_factory=StreamingOptions)
    dropout: float = 0.0
    sweep: Sweep = "both"
    scale_inputs: bool = False
    init_rule: InitialRule = "he"
    init_scale: float = 0.2
    init_std: float | None = None
    start: Start = "feasible"
    rho_rule: RhoRule | None = None
    diagnostics_every: int | None = None
    compile: bool | Literal["auto"] = "auto"
    precision: Precision = "float32"
    max_memory: int | str | None = None

    def starting_rho(self, H: float) -> float:
        """rho itself, or the default for a loss with this Lipschitz constant."""
        if self.rho is not None:
            return self.rho
        return 3 * H if self.mode == "convergent" else H / 5

    def starting_nu(self, rho: float) -> float:
        """nu itself, or the default beside this rho."""
        if self.nu is not None:
            return self.nu
        return 1.0 if self.mode == "convergent" else rho / 10

    def penalty(
        self, spec: str | dict[str, Any] | Regularizer | None, labelled: float = ENOUGH_LABELS
    ) -> Regularizer:
        """The penalty that ``spec`` stands for; ``"auto"`` is the mode's own for so many labelled rows."""
        if isinstance(spec, str) and spec == "auto":
            share = min(1.0, labelled / ENOUGH_LABELS)
            return L2(share * ACCELERATED_PENALTY) if self.mode == "accelerated" else NoPenalty()
        return get_regularizer(spec)

    def __post_init__(self) -> None:
        for name in ("rho", "nu", "init_std"):
            check_setting(self, name, float, "a positive finite number", lambda v: v > 0, optional=True)
        for name in ("rho", "nu"):
            value = getattr(self, name)
            if value is not None and not 1 / LARGEST_WEIGHT <= value <= LARGEST_WEIGHT:
                raise InputError(
                    f"{name} must lie between {1 / LARGEST_WEIGHT:g} and {LARGEST_WEIGHT:g}, got {value!r}: beyond, "
                    "its products with the variables leave the numbers."
                )
        for name in ("eps_abs", "eps_rel", "init_scale"):
            check_setting(self, name, float, "a finite number >= 0", lambda v: v >= 0)
        check_setting(self, "max_iter", int, "a whole number >= 1", lambda v: v >= 1)
        check_setting(self, "diagnostics_every", int, "a whole number >= 1", lambda v: v >= 1, optional=True)
        check_setting(self, "dropout", float, "a number from 0 to below 1", lambda v: 0 <= v < 1)
        check_setting(self, "scale_inputs", bool, "True or False")
        if self.compile != "auto":
            check_setting(self, "compile", bool, "True, False or 'auto'")
        if not isinstance(self.streaming, StreamingOptions):
            raise InputTypeError(f"streaming must be StreamingOptions(...), got {self.streaming!r}.")
        if self.max_memory is not None:
            bytes_of(self.max_memory)
        kinds = Precision, Mode, InitialRule, Start, Sweep
        for name, allowed in zip(("precision", "mode", "init_rule", "start", "sweep"), kinds, strict=True):
            if (own := getattr(self, name)) not in get_args(allowed):
                raise InputError(f"{name} must be one of {get_args(allowed)}, got {own!r}.")
        if self.mode != "convergent" and (self.start != "feasible" or self.rho_rule is not None):
            raise InputError(
                f"mode={self.mode!r} starts feasible and sets rho itself: leave start and rho_rule out."
            )
        if self.mode == "streaming":
            self._refuse_in_streaming()
        check_setting(
            self, "batch_size", int, "a whole number >= 1, or None", lambda v: v >= 1, optional=True
        )
        if self.batch_size is not None and self.mode != "streaming":
            raise InputError("batch_size is a setting of mode='streaming'.")
        if self.mode == "accelerated" and self.subproblems.penalise_bias:
            raise InputError("penalise_bias is a setting of mode='convergent'.")
        plain, once = self.mode == "convergent", self.sweep != "both" and self.mode != "accelerated"
        own_ones = ("sweep", once), ("dropout", plain and self.dropout > 0)
        for name, used in (*own_ones, ("ramps", plain and self.subproblems.ramps)):
            if used:
                raise InputError(f"{name} is a setting of mode='accelerated'.")
        if self.rho_rule not in (None, *get_args(RhoRule)):
            raise InputError(f"rho_rule must be None or one of {get_args(RhoRule)}, got {self.rho_rule!r}.")

    def _refuse_in_streaming(self) -> None:
        if self.rho is not None or self.nu is not None:
            raise InputError(
                "rho and nu (mu of graphs) weigh the constraints of mode='convergent', the paper's algorithm, and of "
                "mode='accelerated': name the mode, or leave them out. mode='streaming', the default, sets rho itself."
            )
        if self.compile is True:
            raise InputError("mode='streaming', the default, records its launches itself: leave compile out.")
        defaults = SubproblemOptions()
        names = SubproblemOptions.__dataclass_fields__
        changed = [n for n in names if getattr(self.subproblems, n) != getattr(defaults, n)]
        if changed:
            raise InputError(
                f"{', '.join(changed)}: settings of mode='convergent', the paper's algorithm, and mode='accelerated': "
                "name the mode, or leave them out. mode='streaming', the default, solves its subproblems in one way; "
                "its own constants are those of streaming=StreamingOptions(...)."
            )


PAPER = TrainOptions(
    rho=1e-6,
    nu=1e-6,
    subproblems=SubproblemOptions(w_solver="quadratic", a_solver="quadratic", alpha0=1.0, t0=1.0, growth=2.0),
    init_std=0.1,
    start="paper",
    rho_rule="authors",
)
"""The settings of the paper's MLP experiment, with what its published code adds."""

AUTHORS = TrainOptions(
    rho=1e-3,
    nu=1e-3,
    subproblems=SubproblemOptions(
        w_solver="quadratic", a_solver="quadratic", alpha0=1.0, last_alpha0=1e-2, t0=1e-3, max_backtracks=33,
        w_penalty="gradient",
    ),
    max_iter=500,
    init_rule="glorot",
    init_scale=1.0,
    start="forward",
    rho_rule="tenfold",
)  # fmt: skip
"""The settings of the authors' published GCN script, beside :func:`dladmm.train_graph`'s ``rows="fixed"``."""

ACCELERATED = TrainOptions(
    mode="accelerated",
    subproblems=SubproblemOptions(damping=1.0, last_damping=0.5, map_damping=2.0, ramps=True),
    dropout=0.2,
    scale_inputs=True,
    init_scale=0.41,
)
"""Where accelerated mode starts from; single settings can be changed as always."""

STREAMING = TrainOptions(
    mode="streaming", dropout=0.1, scale_inputs=True, init_scale=1.0, max_iter=10, precision="tf32"
)
"""Where streaming mode starts from."""

PRESETS: dict[str, TrainOptions] = {"default": TrainOptions(), "paper": PAPER, "authors": AUTHORS}


def make_options(preset: str = "default", **changes: Any) -> TrainOptions:
    """A preset with single settings changed; names of :class:`SubproblemOptions` are understood too."""
    if preset not in PRESETS:
        raise InputError(f"preset must be one of {sorted(PRESETS)}, got {preset!r}.")
    if preset != "default" and changes.get("mode") == "streaming":
        raise InputError(f"preset={preset!r} is not for mode='streaming'; leave preset out.")
    modes = {"accelerated": ACCELERATED, "streaming": STREAMING}
    base = modes.get(str(changes.get("mode")), PRESETS[preset]) if preset == "default" else PRESETS[preset]
    inner = {k: changes.pop(k) for k in list(changes) if k in SubproblemOptions.__dataclass_fields__}
    subproblems = changes.pop("subproblems", base.subproblems)
    if not isinstance(subproblems, SubproblemOptions):
        raise InputError(f"subproblems must be SubproblemOptions, got {subproblems!r}.")
    unknown = sorted(set(changes) - set(TrainOptions.__dataclass_fields__))
    if unknown:
        known = sorted({*TrainOptions.__dataclass_fields__, *SubproblemOptions.__dataclass_fields__})
        raise InputError(f"unknown option {', '.join(unknown)}; known are {', '.join(known)}.")
    return replace(base, subproblems=replace(subproblems, **inner), **changes)


def given(**settings: Any) -> dict[str, Any]:
    """The settings that are not None, which leave the mode's defaults alone."""
    return {name: value for name, value in settings.items() if value is not None}


def own_method(
    engine: Engine,
    state: State,
    options: TrainOptions,
    batches: Batches | None,
    seed: int,
    scaling: Scaling | None,
) -> Method:
    """dlADMM's method for the mode; streaming mode needs batches."""
    if options.mode == "convergent":
        return Plain(engine)
    if options.mode == "accelerated":
        return Accelerated(engine, state, options.dropout, seed)
    assert batches is not None
    passes, dropout = options.max_iter, options.dropout
    return Streaming(engine, state, batches, passes, options.streaming, dropout, seed, scaling)


def refuse_own_settings(options: TrainOptions) -> None:
    """Another method starts feasible and brings the engine it is measured with."""
    if options.mode != "convergent" or options.start != "feasible" or options.rho_rule is not None:
        raise InputError("mode, start and rho_rule are settings of dlADMM; leave them out beside method.")


def execution_of(options: TrainOptions, method: Method, engine: Engine, state: State) -> Execution:
    """Passes compiled where that was asked for; launches recorded where the paper's sweep waits for nothing."""
    on_gpu, own = engine.x.is_cuda and engine.comm.alone, isinstance(method, (Plain, Accelerated))
    asks = engine.foresees and not engine.worth_recording(state)
    recorded = options.compile is not False and on_gpu and own and engine.recordable and not asks
    rounded = options.precision == "bfloat16"
    return Execution(compiled=options.compile is True, recorded=recorded, rounded_directions=rounded)
