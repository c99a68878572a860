"""Updates compute, and only their Work writes: with one that applies nothing, every tensor stays as it was."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import dladmm.blocks
from dladmm import Recurrent
from dladmm.blocks import (
    Affine,
    Anchor,
    BatchNorm,
    Block,
    Composed,
    Convolution,
    Dropout,
    Elementwise,
    Embedding,
    FiniteAffine,
    Frozen,
    Generic,
    GraphConv,
    GroupedAffine,
    LinearMap,
    MaxPool,
    Positionwise,
    RecurrentStates,
    Support,
    Term,
    Work,
)
from dladmm.blocks.base import Draw
from dladmm.blocks.recurrent_parts import StateSelection
from dladmm.blocks.whole import Whole
from dladmm.compute.sparse import SparseMatrix
from dladmm.network.graph import normalised_adjacency
from dladmm.regularizers import L1, L2, WeightSet
from dladmm.solvers.subproblems import SubproblemOptions
from own_gain import Gain

F64 = torch.float64
N = 24
SOURCE = Path(dladmm.blocks.__file__).parents[1]


# A work that applies nothing ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recording(Work):
    """Notes what updates hand over, in the place of applying it."""

    handed: list = field(default_factory=list)

    def apply(self):
        """All of it, by an ordinary work."""
        for name, work, args, constants in self.handed:
            getattr(Work, name)(work, *args, **constants)


def noting(name):
    def note(self, *args, **constants):
        self.handed.append((name, self, args, constants))

    return note


for applying in ("move", "move_along", "assign", "advance", "descend", "solve_entries", "solve_rows"):
    setattr(Recording, applying, noting(applying))


# Every kind of block --------------------------------------------------------------------------------------------


class Gated(nn.Module):
    """Not linear in its parameters, and unknown to the library."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.a, self.b = nn.Linear(n_in, n_out), nn.Linear(n_in, n_out)

    def forward(self, v):
        return torch.tanh(self.a(v)) * torch.sigmoid(self.b(v))


def graph():
    pairs = np.random.default_rng(0).integers(0, N, (2 * N, 2))
    return SparseMatrix.of(normalised_adjacency(pairs.T, N), F64, torch.device("cpu"), symmetric=True)


SOME_ROWS = torch.arange(0, N, 3)


def drawn(block):
    """The block as a sweep sees it."""
    block.draw(Draw(7))
    return block


BLOCKS = {
    "affine": (lambda: Affine(4, 3), (4,)),
    "affine, wide": (lambda: Affine(3, 7, bias=False), (3,)),
    "relu": (lambda: Elementwise("relu"), (4,)),
    "tanh": (lambda: Elementwise("tanh"), (4,)),
    "identity": (lambda: Elementwise("identity"), (4,)),
    "sign": (lambda: Elementwise("sign"), (4,)),
    "convolution": (lambda: Convolution(2, 4, (3, 3), padding=(1, 1)), (2, 6, 6)),
    "convolution, groups": (lambda: Convolution(2, 4, (2, 2), groups=2, bias=False), (2, 5, 5)),
    "convolution, one dimension": (lambda: Convolution(2, 3, (3,), stride=(2,)), (2, 9)),
    "max pool": (lambda: MaxPool((2, 2)), (2, 5, 6)),
    "max pool, one dimension": (lambda: MaxPool((3,)), (2, 9)),
    "flatten": (lambda: LinearMap(nn.Flatten()), (2, 3)),
    "average pool": (lambda: LinearMap(nn.AvgPool2d(2)), (2, 6, 6)),
    "average pool, overlapping": (lambda: LinearMap(nn.AvgPool2d(3, 1)), (2, 6, 6)),
    "last states": (lambda: StateSelection(3, last=True), (5, 6)),
    "flatten, affine": (lambda: Composed([LinearMap(nn.Flatten())], Affine(6, 3)), (2, 3)),
    "pool, convolution": (lambda: Composed([LinearMap(nn.AvgPool2d(2))], Convolution(2, 3, (2, 2))), (2, 6, 6)),
    "pool, flatten, affine": (
        lambda: Composed([LinearMap(nn.AvgPool2d(2)), LinearMap(nn.Flatten())], Affine(8, 3)),
        (2, 4, 4),
    ),
    "finite": (lambda: FiniteAffine(4, 3, WeightSet(2)), (4,)),
    "frozen": (lambda: Frozen(Affine(4, 3), Affine(4, 3).initial_parameters(None, 1.0)), (4,)),
    "dropout": (lambda: Dropout("relu", nn.Dropout(0.4)), (4,)),
    "dropout, drawn": (lambda: drawn(Dropout("tanh", nn.Dropout(0.4))), (4,)),
    "embedding": (lambda: Embedding(6, 3), (4,)),
    "generic": (lambda: Generic(Gated(4, 3)), (4,)),
    "generic, linear": (lambda: Generic(nn.Linear(4, 3)), (4,)),
    "generic, with statistics": (lambda: Generic(nn.BatchNorm1d(4)), (4,)),
    "batch norm": (lambda: BatchNorm(nn.BatchNorm1d(4)), (4,)),
    "graph": (lambda: GraphConv(4, 3, "relu", graph()), (4,)),
    "graph, widening": (lambda: GraphConv(3, 5, "tanh", graph()), (3,)),
    "graph, linear": (lambda: GraphConv(4, 3, "identity", graph()), (4,)),
    "graph, propagated": (lambda: GraphConv(4, 3, "relu"), (4,)),
    "graph, some rows": (lambda: GraphConv(4, 3, "relu", graph(), SOME_ROWS), (4,)),
    "graph, linear, some rows": (lambda: GraphConv(4, 3, "identity", graph(), SOME_ROWS), (4,)),
    "grouped": (lambda: GroupedAffine(2, 2, 3), (4,)),
    "positions": (lambda: Positionwise(Affine(4, 3)), (5, 4)),
    "rnn": (lambda: RecurrentStates(Recurrent(nn.RNN(3, 4, batch_first=True))), (5, 3)),
    "gru": (lambda: RecurrentStates(Recurrent(nn.GRU(3, 4, batch_first=True))), (5, 3)),
    "lstm": (lambda: RecurrentStates(Recurrent(nn.LSTM(3, 4, batch_first=True))), (5, 3)),
    "a user's own": (lambda: Gain(4), (4,)),
}  # fmt: skip

OPTIONS = {
    "exact": SubproblemOptions(w_solver="exact", a_solver="exact"),
    "quadratic": SubproblemOptions(w_solver="quadratic", a_solver="quadratic"),
    "per sample": SubproblemOptions(
        w_solver="quadratic", a_solver="quadratic", alpha0=0.9, t0=1.1, tau_per_sample=True, ramps=True
    ),
}
PENALTIES = {"l2": L2(0.1), "l1": L1(0.05)}
KINDS = {"input": None, "backward": (False,), "forward": (True,), "joined": (True, False)}


class Problem:
    """One block between two variables, all of which an update is given."""

    def __init__(self, name, *, make=None):
        torch.manual_seed(0)
        made, shape = BLOCKS[name]
        self.block = (make or made)()
        generator = torch.Generator().manual_seed(1)

        def randn(*shape):
            return torch.randn(shape, generator=generator, dtype=F64)

        self.params = self.block.initial_parameters(generator, 1.0)
        self.v = randn(N, *shape)
        if name == "embedding":
            self.v = self.v.abs().floor()  # tokens
        with torch.no_grad():
            prediction = self.block.forward(self.params, self.v)
        self.term = Term(1.3, prediction + randn(*prediction.shape), prediction)
        self.anchor = Anchor(0.7, self.v + randn(*self.v.shape))

    @torch.no_grad()
    def update(self, kind, penalty, work):
        if kind == "input":
            return self.block.update_input(self.params, self.v, self.anchor, self.term, work)
        work = replace(work, order=KINDS[kind])
        return self.block.update_parameters(self.params, self.v, self.term, penalty, work)

    def given(self, work):
        """What an update is given, and what is carried along with the state."""
        found = {
            **self.params, "v": self.v, "value": self.anchor.value, "target": self.term.target,
            "prediction": self.term.prediction,
        }  # fmt: skip
        sources = (self.v, *self.params.values())
        kept = {name: work.workspace.find((work.owner, name), sources) for name in self.block.carried}
        return found | {name: tensor for name, tensor in kept.items() if tensor is not None}

    def has(self, kind):
        joins = self.block.joins_updates or kind != "joined"
        moves = not isinstance(self.block, Embedding)  # whose inputs are data
        return joins and (moves if kind == "input" else bool(self.params))


def settings(block, options):
    """The ways in which this block's updates can be executed."""
    counts = torch.arange(N, dtype=F64)[:, None] % 3 + 1
    yield {"options": options}
    if Support.COUNTS in block.support:
        yield {"options": options, "counts": counts}
    if Support.CHUNKS in block.support:
        yield {"options": options, "chunk_rows": 7}


def written(problem, kind, penalty, work):
    """The names of what an update writes that it was given: by torch's counters, and by its values."""
    given = problem.given(work)
    before = {name: (tensor._version, tensor.clone()) for name, tensor in given.items()}
    problem.update(kind, penalty, work)
    return [
        name
        for name, tensor in given.items()
        if tensor._version != before[name][0] or not torch.equal(tensor, before[name][1])
    ]


CASES = [(name, kind) for name, kind in product(BLOCKS, KINDS) if Problem(name).has(kind)]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_an_update_writes_nothing_it_is_given(name, kind, options):
    ways = settings(Problem(name).block, OPTIONS[options])
    for penalty, how, warm in product(PENALTIES.values(), ways, (False, True)):
        problem, work = Problem(name), Recording(**how)
        if warm:  # with what the block keeps in the workspace
            problem.update(kind, penalty, Work(**how, workspace=work.workspace))
            assert problem.given(work).keys() >= set(problem.block.carried)
        assert written(problem, kind, penalty, work) == []
        assert work.handed


# Updates made of several, each of which reads what the one before has become
SEQUENCES = {"rnn", "gru", "lstm", "graph, some rows", "graph, linear, some rows", "flatten, affine"}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(("name", "kind"), [c for c in CASES if c[0] not in SEQUENCES and c[1] != "joined"])
def test_what_was_handed_over_is_all_that_the_update_does(name, kind, options):
    for penalty in PENALTIES.values():
        mine, theirs = Problem(name), Problem(name)
        noted = Recording(OPTIONS[options])
        mine.update(kind, penalty, noted)
        noted.apply()
        moved = written(theirs, kind, penalty, Work(OPTIONS[options]))
        assert moved
        assert not {"target", "value"} & set(moved)
        for key, tensor in theirs.given(noted).items():
            assert torch.equal(tensor, mine.given(noted)[key]), key


def test_two_steps_of_W_on_the_gram_matrix_are_handed_over_as_well():
    mine, theirs, noted = Problem("affine"), Problem("affine"), Recording(OPTIONS["exact"])
    mine.update("joined", L2(0.1), noted)
    names = [name for name, *_ in noted.handed]
    assert names == ["move", "move", "advance", "assign"]  # b twice, the prediction once, W once
    noted.apply()
    theirs.update("joined", L2(0.1), Work(OPTIONS["exact"]))
    for key, tensor in theirs.given(noted).items():
        assert torch.equal(tensor, mine.given(noted)[key]), key


def test_every_block_of_the_library_is_here():
    tested = {type(make()) for make, _ in BLOCKS.values()}

    def kinds(parent):
        for child in parent.__subclasses__():
            yield child
            yield from kinds(child)

    whole = {Whole, *kinds(Whole)}  # trained as they are, without updates of their own
    assert {kind for kind in kinds(Block) if kind.__module__.startswith("dladmm.")} - whole <= tested


# Faults that this must find -------------------------------------------------------------------------------------


class WritesBias(Affine):
    def update_parameters(self, params, v, term, penalty, work):
        params["b"] += 1e-3
        return super().update_parameters(params, v, term, penalty, work)


class WritesPrediction(Affine):
    def update_parameters(self, params, v, term, penalty, work):
        term.prediction.view(-1).mul_(1.0)  # the same values, but written
        return super().update_parameters(params, v, term, penalty, work)


class WritesInput(Affine):
    def update_input(self, params, v, anchor, term, work):
        v[3].copy_(anchor.value[3])
        return super().update_input(params, v, anchor, term, work)


class WritesBehindTorch(Affine):
    def update_input(self, params, v, anchor, term, work):
        v.numpy()[3] = 0.0  # as a compiled kernel: torch's counter stays
        return super().update_input(params, v, anchor, term, work)


@pytest.mark.parametrize(
    ("fault", "kind", "found"),
    [
        (WritesBias, "backward", ["b"]),
        (WritesPrediction, "forward", ["prediction"]),
        (WritesInput, "input", ["v"]),
        (WritesBehindTorch, "input", ["v"]),
    ],
)
def test_a_block_that_writes_by_itself_is_found(fault, kind, found):
    problem, work = Problem("affine", make=lambda: fault(4, 3)), Recording(OPTIONS["exact"])
    assert written(problem, kind, L2(0.1), work) == found


# The same, read off the source: also of blocks and branches that no test runs --------------------------------------

GIVEN = {"params", "v", "a", "z", "W", "b", "term", "anchor", "prediction"}
"""What the functions of blocks and solvers call a parameter, a variable or what holds them."""

HELD = {"prediction", "target", "value", "H_all"}
VIEWS = {"view", "reshape", "flatten", "narrow", "unfold", "unbind", "T", "mT", "values"}


def is_given(node, names):
    """Whether an expression is, or is a view of, what the function was given; ``names`` are those of such things."""
    while True:
        if isinstance(node, ast.Name):
            return node.id in names
        if isinstance(node, ast.IfExp):
            return is_given(node.body, names) or is_given(node.orelse, names)
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if name not in VIEWS:
                return name == "find"  # work.find: what is carried along with the state
            node = node.func.value
        elif isinstance(node, ast.Attribute):
            if node.attr in HELD:
                return True
            node = node.value
        elif isinstance(node, ast.Subscript):
            node = node.value
        else:
            return False


def given_names(function, outer):
    """Of arguments, of what a function around this one was given, and of local names for any of it."""
    own = function.args
    arguments = {each.arg for each in (*own.posonlyargs, *own.args, *own.kwonlyargs)}
    found = outer - arguments | (arguments & GIVEN)
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            several = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            pairs = zip(target.elts, node.value.elts, strict=True) if several else [(target, node.value)]
            found |= {
                name.id for name, value in pairs if isinstance(name, ast.Name) and is_given(value, found)
            }
    return found


def targets(node):
    """What a statement or call writes: ``x.add_()``, ``f(out=x)``, ``x += ...``, ``x[...] = ...``."""
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if name.endswith("_") and not name.startswith("_"):
            yield node.func.value
        yield from (keyword.value for keyword in node.keywords if keyword.arg == "out")
    elif isinstance(node, ast.AugAssign):
        yield node.target
    elif isinstance(node, ast.Assign):
        yield from (target for target in node.targets if isinstance(target, ast.Subscript))


def writes(tree, names=frozenset()):
    """The lines that write what their function, or one around it, was given."""
    for node in ast.iter_child_nodes(tree):
        inner = given_names(node, names) if isinstance(node, ast.FunctionDef | ast.Lambda) else names
        yield from (node.lineno for target in targets(node) if is_given(target, names))
        yield from writes(node, inner)


def test_the_source_of_blocks_and_solvers_writes_nothing_it_is_given():
    files = sorted([*(SOURCE / "blocks").glob("*.py"), *(SOURCE / "solvers").glob("*.py")])
    assert len(files) > 20
    found = [
        f"{path.parent.name}/{path.name}:{line}"
        for path in files
        for line in writes(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("params['W'].add_(move)", True),
        ("params['b'] += shift", True),
        ("params['b'][0] = 0", True),
        ("v.reshape(-1).copy_(new)", True),
        ("term.prediction.sub_(moved)", True),
        ("self.term.prediction.mul_(2)", True),
        ("torch.add(x, y, out=term.prediction)", True),
        ("W.T.zero_()", True),
        ("b, s = params['b'], term.prediction; s.copy_(new)", True),
        ("H = None if work is None else work.find('H', (v, W)); H.add_(change)", True),
        ("(lambda new: v.copy_(new))(d)", True),
        ("(v - anchor.value).add_(d)", False),
        ("torch.zeros_like(v).index_copy_(0, rows, d)", False),
        ("work.move(params['W'], move.mul_(2))", False),
        ("d.add_(W)", False),
        ("new = W.clone(); new.add_(d)", False),
        ("alpha *= 2", False),
    ],
)
def test_faults_in_the_source_are_found(line, found):
    text = f"def update(self, params, v, W, anchor, term, work, alpha):\n    {line}\n"
    assert bool(list(writes(ast.parse(text)))) == found
