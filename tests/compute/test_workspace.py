"""Cached quantities: a stale one cannot be taken, whatever was done to its sources or to itself."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from convergent import train
from dladmm.blocks import Affine, Term, Work
from dladmm.compute.execution import Execution
from dladmm.compute.workspace import KEPT, Workspace
from dladmm.engine.accelerated import Accelerated
from dladmm.engine.sweep import Engine
from dladmm.losses import Risk, get_loss
from dladmm.network.chain import mlp
from dladmm.regularizers import NoPenalty
from dladmm.solvers.factor import full_precision_gram
from dladmm.solvers.subproblems import SubproblemOptions
from dladmm.training.diagnostics import vital_signs


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Kept:
    """A workspace with one entry made from two tensors and a number."""

    def __init__(self):
        self.workspace, self.first, self.second = Workspace(), drawn(6, 4), drawn(6, 4, seed=1)
        self.value = self.workspace.keep("key", self.first + self.second, (self.first, self.second), 0.5)

    def found(self, numbers=0.5):
        return self.workspace.find("key", (self.first, self.second), numbers)


def test_an_entry_is_found_while_nothing_changes():
    kept = Kept()
    assert kept.found() is kept.value
    assert kept.workspace.find("key", (kept.first.view(6, 4), kept.second), 0.5) is kept.value
    assert kept.workspace.find("other key", (kept.first, kept.second), 0.5) is None
    assert kept.workspace.find("key", (kept.second, kept.first), 0.5) is None
    assert kept.workspace.find("key", (kept.first,), 0.5) is None


CHANGES = {
    "a source": lambda kept: kept.first.add_(1.0),
    "the other source": lambda kept: kept.second.zero_(),
    "one entry of a source": lambda kept: kept.first.__setitem__((0, 0), 1.0),
    "a view of a source": lambda kept: kept.first[2:4].mul_(2.0),
    "a view of a view": lambda kept: kept.second.T[1].view(-1).zero_(),
    "a source as out": lambda kept: torch.add(drawn(6, 4), 1.0, out=kept.first),
    "the value": lambda kept: kept.value.add_(1.0),
    "a view of the value": lambda kept: kept.value[:1].zero_(),
    "the value as out": lambda kept: torch.mm(drawn(6, 3), drawn(3, 4), out=kept.value),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_write_makes_it_stale(change):
    kept = Kept()
    CHANGES[change](kept)
    assert kept.found() is None


def test_another_tensor_is_another_source():
    kept = Kept()
    kept.first = kept.first.clone()
    assert kept.found() is None
    kept = Kept()
    part = kept.first[:3]
    assert kept.workspace.find("key", (part, kept.second), 0.5) is None
    assert kept.workspace.find("key", (kept.first.T, kept.second), 0.5) is None


def test_memory_that_is_used_again_is_no_old_source():
    """The entry keeps its sources alive, so that no new tensor gets their address."""
    workspace = Workspace()
    for seed in range(20):
        source = drawn(500, seed=seed)
        assert workspace.find("key", (source,)) is None
        workspace.keep("key", source.sum(), (source,))
        del source


def test_a_rank_without_rows_finds_and_misses_what_the_others_do():
    """Empty tensors have no address: another one must not be taken for the source, and a view of it is the same."""
    for rows in (0, 3):
        workspace, first, other = Workspace(), torch.zeros(rows, 4), torch.zeros(rows, 4)
        workspace.keep("gram", first.sum(), (first,))
        assert workspace.find("gram", (first,)) is not None
        assert workspace.find("gram", (first.view(rows, 4),)) is not None
        assert workspace.find("gram", (other,)) is None
        first.add_(1.0)
        assert workspace.find("gram", (first,)) is None


def test_tensors_whose_writes_are_not_counted_are_never_found():
    with torch.inference_mode():
        x = torch.zeros(3)
    workspace = Workspace()
    workspace.keep("key", torch.ones(1), (x,))
    assert workspace.find("key", (x,)) is None


@pytest.mark.parametrize("mode", ["convergent", "accelerated"])
def test_training_under_inference_mode_is_training(mode):
    x, y = drawn(40, 5), torch.arange(40) % 3
    settings = {"max_iter": 4, "mode": mode, "dtype": "float64"}
    expected = train(mlp([5, 6, 4, 3]), x, y, **settings)
    with torch.inference_mode():
        found = train(mlp([5, 6, 4, 3]), x.clone(), y, **settings)
    for mine, theirs in zip(found.state.W, expected.state.W, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


def test_other_numbers_are_another_quantity():
    kept = Kept()
    assert kept.found(0.25) is None
    made = []
    workspace, x = Workspace(), drawn(3)
    for number in (0.5, 0.5, 0.25, 0.25):
        workspace.cached("key", (x,), lambda number=number: made.append(number) or x * number, number)
    assert made == [0.5, 0.25]


def test_what_is_made_of_several_tensors_is_stale_when_one_is():
    workspace, x = Workspace(), drawn(3)
    value = workspace.keep("key", (x + 1, x + 2, True), (x,))
    assert workspace.find("key", (x,)) is value
    value[1].zero_()
    assert workspace.find("key", (x,)) is None


def test_nothing_is_cached_without_shortcuts():
    x, made = drawn(3), []
    for shortcuts, expected in ((True, 1), (False, 3)):
        made.clear()
        work = Work(SubproblemOptions(), how=Execution(shortcuts=shortcuts))
        for _ in range(3):
            work.cached("key", (x,), lambda: made.append(1) or x.sum())
        assert len(made) == expected
        work.keep("moved", x, (x,))
        assert (work.find("moved", (x,)) is x) == shortcuts


def test_a_buffer_taken_for_something_else_is_no_longer_the_entry():
    workspace, x = Workspace(), drawn(4, 3)
    lent = workspace.buffer("difference", (4, 3), x)
    torch.sub(x, 1.0, out=lent)
    workspace.keep("key", lent, (x,))
    assert workspace.find("key", (x,)) is lent
    assert workspace.buffer("difference", (4, 3), x) is lent
    assert workspace.find("key", (x,)) is lent  # handed out, but nothing is written there yet
    torch.sub(x, 2.0, out=workspace.buffer("difference", (4, 3), x))
    assert workspace.find("key", (x,)) is None


def test_a_stale_entry_gives_its_memory_to_the_one_that_replaces_it():
    kept = Kept()
    other, sources = drawn(6, 4, seed=2), (kept.first, kept.second)
    kept.workspace.keep("key", other + 1, (other,), 0.5)
    kept.first.add_(1)

    def memory(sources, shape=(6, 4), like=kept.first):
        return kept.workspace.memory("key", sources, shape, like)

    assert memory(sources) is kept.value
    for another in (
        memory((kept.second,)),
        memory(sources, (5, 4)),
        memory(sources, like=kept.first.float()),
    ):
        assert another.untyped_storage().data_ptr() != kept.value.untyped_storage().data_ptr()
    memory(sources).zero_()
    assert kept.found() is None
    assert torch.equal(kept.workspace.find("key", (other,), 0.5), other + 1)


def test_two_of_a_name_are_kept_and_the_oldest_goes():
    workspace, inputs = Workspace(), drawn(4)
    workspace.keep("gram", inputs * 2, (inputs,))
    for seed in range(3):
        dropped = drawn(4, seed=seed + 1)
        workspace.keep("gram", dropped * 2, (dropped,))
        torch.testing.assert_close(workspace.find("gram", (dropped,)), dropped * 2)
        if seed < KEPT - 1:
            assert workspace.find("gram", (inputs,)) is not None
    assert workspace.find("gram", (inputs,)) is None


def engine_of(n=50, options=None):
    chain, loss = mlp([5, 6, 3]), get_loss("cross_entropy")
    y = torch.arange(n) % 3
    options = SubproblemOptions(damping=1.0, last_damping=0.5) if options is None else options
    engine = Engine(chain, drawn(n, 5), Risk(loss, loss.encode(y, 3, torch.float64)), NoPenalty(), options)
    generator = torch.Generator().manual_seed(0)
    params = chain.initial_parameters(generator, 1.0, dtype=torch.float64, device=torch.device("cpu"))
    return engine, engine.feasible_state(params, 1.5, 1.0)


def test_the_gram_of_the_inputs_survives_inputs_with_dropout(monkeypatch):
    """Entries are dropped anew in every attempt; attempts without dropping find the Gram matrix of x as it was."""
    engine, state = engine_of()
    method, formed = Accelerated(engine, state, dropout=0.2), []
    rows = len(engine.x)

    def counted(a, counts=None):
        if a.shape == engine.x.shape:
            formed.append(a.data_ptr() == engine.x.data_ptr())
        assert len(a) != rows or counts is None
        return full_precision_gram(a, counts)

    monkeypatch.setattr("dladmm.blocks.affine_rows.full_precision_gram", counted)
    objective = engine.objective
    answers = iter([torch.inf, -torch.inf] * 5)  # with dropping: refused; without: accepted
    known = float(objective(state))
    monkeypatch.setattr(engine, "objective", lambda candidate: torch.tensor(next(answers)))
    for _ in range(5):
        method._known = state, known
        assert method.iterate(state, partial(vital_signs, engine)) is not None
    assert method.refused == 5
    assert formed.count(True) == 1
    assert formed.count(False) == 5
    key = next(key for key in engine.workspace._entries if key == (0, "gram"))
    assert len(engine.workspace._entries[key]) == KEPT


def test_changing_the_counts_is_noticed():
    block, v, target = Affine(4, 3), drawn(30, 4), drawn(30, 3, seed=1)
    params = block.initial_parameters(torch.Generator().manual_seed(0), 1.0)
    workspace, options = Workspace(), SubproblemOptions(w_solver="exact", damping=0.0)
    for counts in (None, torch.full((30, 1), 2.0, dtype=torch.float64), drawn(30, 1).abs() + 0.1):
        found = []
        for shared in (workspace, Workspace()):
            mine = {name: p.clone() for name, p in params.items()}
            term = Term(1.3, target, block.forward(mine, v))
            work = Work(options, order=(False, True), counts=counts, workspace=shared)
            block.update_parameters(mine, v, term, NoPenalty(), work)
            found.append(mine["W"])
        assert torch.equal(*found)


# For recorded launches ---------------------------------------------------------------------------------------------


def test_what_a_recorded_call_leaves_lies_where_it_lay():
    workspace, x = Workspace(), drawn(3)
    kept, key = torch.zeros(3), (0.5, torch.zeros(2))
    workspace.keep("gram", kept, (x,))
    workspace.keep("factor", key, (x,))
    workspace.keep("number", 1.0, (x,))
    before, addresses = workspace.mark(), workspace.addresses()
    x.add_(1.0)
    workspace.keep("gram", torch.ones(3), (x,))
    workspace.keep("factor", (0.25, torch.ones(2)), (x,))
    workspace.keep("number", 2.0, (x,))
    workspace.keep("new", torch.ones(1), (x,))
    workspace.settle(before)
    gram, factor = workspace.find("gram", (x,)), workspace.find("factor", (x,))
    assert gram is kept
    assert factor[0] == 0.25
    assert factor[1] is key[1]
    assert bool((kept == 1).all())
    assert bool((key[1] == 1).all())
    assert workspace.find("number", (x,)) == 2.0
    assert workspace.find("new", (x,)) is not None
    assert workspace.addresses()[:2] == addresses


def test_settling_makes_nothing_valid_that_was_stale():
    """Two entries in one buffer: the second took it, so the first is stale before and after."""
    workspace, x, y = Workspace(), drawn(3), drawn(3, seed=1)
    buffer = workspace.buffer("offset", (3,), x)
    for round_ in range(2):
        before = workspace.mark()
        for key, source in (("first", x), ("second", y)):
            torch.add(source, round_, out=buffer)
            workspace.keep(key, buffer, (source,))
        assert workspace.find("first", (x,)) is None
        workspace.settle(before)
        assert workspace.find("first", (x,)) is None
        assert workspace.find("second", (y,)) is buffer
        torch.testing.assert_close(buffer, y + round_)


def test_settling_never_leaves_one_sources_value_at_anothers():
    """An entry of other memory comes to lie where the newest one lay, which is then gone."""
    workspace, x, other = Workspace(), drawn(3), drawn(3, seed=1)
    oldest = drawn(3, seed=2)
    workspace.keep("gram", oldest * 2, (oldest,))
    workspace.keep("gram", x * 2, (x,))
    before = workspace.mark()
    workspace.keep("gram", other * 2, (other,))
    workspace.settle(before)
    for source in (x, other, oldest):
        found = workspace.find("gram", (source,))
        assert found is None or torch.equal(found, source * 2)
    assert workspace.find("gram", (other,)) is before["gram"][0].value


def test_released_memory_is_gone():
    kept = Kept()
    lent = kept.workspace.buffer("some", (2, 2), kept.first)
    kept.workspace.release()
    assert kept.found() is None
    assert kept.workspace.addresses() == ()
    assert kept.workspace.buffer("some", (2, 2), kept.first) is not lent
