"""The same run on one to four real processes (gloo): same parameters, history, certificate and status."""

from __future__ import annotations

import random
import shutil
import time
from contextlib import contextmanager

import numpy as np
import pytest

import distributed_tasks as tasks
from distributed_pool import PATIENCE, Pool
from dladmm.training.checkpoint import checkpoints

WORLDS = (2, 3, 4)

CASES = {
    "quadratic": ({"w_solver": "quadratic", "a_solver": "quadratic"}, {}),
    "exact": ({}, {}),
    "accelerated": ({"mode": "accelerated"}, {}),
    "fewer rows than ranks": ({"mode": "accelerated", "max_iter": 3}, {"n_rows": 3}),
}
"""Run with every world size."""

MORE = {
    "paper": ({"preset": "paper"}, {}),
    "a file, read in chunks": ({"mapped": True, "max_memory": "2MB"}, {"n_rows": 150}),
    "weights": ({"weighted": True, "mode": "accelerated"}, {}),
    "weights, quadratic": ({"weighted": True, "w_solver": "quadratic", "a_solver": "quadratic"}, {}),
    "mask": ({"masked": True, "rho": 2.0}, {}),
    "tau by sample": ({"tau_per_sample": True, "a_solver": "quadratic"}, {}),
    "l1": ({"regularizer": {"name": "l1", "strength": 0.05}}, {}),
    "l1, quadratic": ({"regularizer": "l1", "w_solver": "quadratic"}, {}),
    "non-negative, accelerated": ({"regularizer": "non_negative", "mode": "accelerated"}, {}),
    "l2, accelerated quadratic": (
        {"mode": "accelerated", "w_solver": "quadratic", "a_solver": "quadratic"},
        {},
    ),
    "fista": ({"prox": "fista"}, {}),
    "squared loss, tanh": ({"loss": "squared", "activation": "tanh"}, {}),
    "squared hinge, hard tanh": ({"loss": "squared_hinge", "activation": "hard_tanh", "rho": 6.0}, {}),
    "one layer": ({}, {"hidden": ()}),
    "few rows for the width": ({"w_solver": "quadratic"}, {"n_rows": 11, "hidden": (9,)}),
}
"""Run with three ranks."""


@pytest.fixture(scope="module")
def pool():
    made = Pool()
    yield made
    made.close()


@pytest.fixture(scope="module")
def alone(pool):
    return pool.run(tasks.trained_many, 1, CASES | MORE)[0]


@contextmanager
def naming(case):
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{case}: {error}") from error


def joined(answers, key):
    return [np.concatenate(parts) for parts in zip(*(answer[key] for answer in answers), strict=True)]


def close(found, expected, tolerance):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * (1 + np.abs(b).max(initial=0)))


def check_same_on_all_ranks(answers):
    """Bit for bit."""
    first = answers[0]
    for other in answers[1:]:
        for key in ("params", "module"):
            assert all(np.array_equal(a, b) for a, b in zip(first[key], other[key], strict=True)), key
        for key in ("history", "certificate", "status"):
            assert first[key] == other[key], key


def check_agreement(answers, expected, tolerance=1e-10):
    check_same_on_all_ranks(answers)
    first = answers[0]
    close(first["params"], expected["params"], tolerance)
    close(joined(answers, "rows"), expected["rows"], tolerance)
    assert first["status"] == expected["status"]
    for column, values in expected["history"].items():
        if column not in ("seconds", "descent", "stationarity", "dual_optimality", "primal_residual"):
            close([np.array(first["history"][column], float)], [np.array(values, float)], tolerance)
    for name in ("covered", "certified", "monotone", "sufficient_descent", "agrees", "H", "exempt"):
        assert first["certificate"][name] == expected["certificate"][name], name
    close([first["certificate"]["largest_norm"]], [expected["certificate"]["largest_norm"]], tolerance)


@pytest.mark.parametrize("world", WORLDS)
def test_any_number_of_ranks_agrees_with_one(pool, alone, world):
    """In one test, so that tests spread over two processes do not run everything twice."""
    cases = CASES | (MORE if world == 3 else {})
    answers = pool.run(tasks.trained_many, world, cases)
    for name in cases:
        # Compares values, which rounding can turn (docs/memory.md)
        search = "l1" in name or "non-negative" in name
        with naming(name):
            check_agreement([answer[name] for answer in answers], alone[name], 1e-6 if search else 1e-10)


def test_float32_agrees_to_its_rounding(pool):
    cases = {
        name: ({**CASES[name][0], "dtype": "float32", "max_iter": 3}, {})
        for name in ("quadratic", "exact", "accelerated")
    }
    expected = pool.run(tasks.trained_many, 1, cases)[0]
    answers = pool.run(tasks.trained_many, 4, cases)
    for name in cases:
        check_same_on_all_ranks([answer[name] for answer in answers])
        close(answers[0][name]["params"], expected[name]["params"], 1e-3)


@pytest.mark.parametrize("cuts", [(1, 20, 45), (0, 30, 30), (10, 61, 61)])
def test_each_rank_brings_its_own_rows(pool, cuts):
    """Uneven shards and empty ones, from a function of rank and world."""
    expected = pool.run(tasks.trained_on_own_rows, 1, ())[0]
    check_agreement(pool.run(tasks.trained_on_own_rows, 4, cuts), expected)


def test_an_initialised_process_group_is_picked_up(pool):
    answers = pool.run(tasks.trained_on_the_default_group, 4)
    check_same_on_all_ranks(answers)
    assert [len(answer["rows"][0]) for answer in answers] == [16, 15, 15, 15]


def test_estimators_pick_up_the_process_group(pool):
    answers = pool.run(tasks.estimators_fitted, 4)
    for answer in answers[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(answers[0], answer, strict=True))


def test_ranks_with_different_arrays_are_refused(pool):
    for _, error in pool.outcomes(tasks.given_other_arrays, 3):
        assert error.startswith("InputError: X, y must be the same whole arrays on all 3 ranks")


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("rho", "rho must be the same on all 3 ranks; rank 0 has its default, rank 2 has 7.0."),
        ("loss", "loss must be the same on all 3 ranks; rank 0 has cross_entropy, rank 2 has squared_hinge."),
        ("activation", "model must be the same on all 3 ranks; rank 0 has Chain(Affine(5, 4)"),
        ("widths", "model must be the same on all 3 ranks; rank 0 has Chain(Affine(5, 4)"),
        ("max_iter", "max_iter must be the same on all 3 ranks; rank 0 has 2, rank 2 has 4."),
        ("regularizer", "regularizer must be the same on all 3 ranks; rank 0 has "),
        ("mode", "mode must be the same on all 3 ranks; rank 0 has convergent, rank 2 has accelerated."),
        ("version", "the version of dladmm must be the same on all 3 ranks; rank 0 has "),
    ],
)
def test_ranks_that_are_told_different_things_are_refused_by_name(pool, what, words):
    for _, error in pool.outcomes(tasks.told_differently, 3, what):
        assert error is not None
        assert error.startswith(f"InputError: {words}")


def test_a_setting_left_out_is_the_same_as_none(pool):
    assert pool.run(tasks.told_differently, 2, "nothing") == ["MAX_ITER", "MAX_ITER"]


def test_graphs_are_told_the_same_on_all_ranks(pool):
    for _, error in pool.outcomes(tasks.told_differently_of_a_graph, 2):
        assert error.startswith(
            "InputError: hidden must be the same on all 2 ranks; rank 0 has (4,), rank 1 has (6,)."
        )


def test_what_one_rank_refuses_all_refuse(pool):
    errors = [error for _, error in pool.outcomes(tasks.refused_by_one, 3)]
    assert errors[1].startswith("InputError: X contains NaN")
    for error in (errors[0], errors[2]):
        assert error.startswith("DistributedError: rank 1 of 3 refused: InputError: X contains NaN")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("own loss", "InputError: H of a loss is estimated in one process only"),
        ("baseline", "InputError: the baselines run in one process"),
        ("one class", "InputError: y holds one class only"),
        ("no rows", "InputError: "),
    ],
)
def test_what_ranks_cannot_do_is_refused_before_work_begins(pool, what, message):
    for _, error in pool.outcomes(tasks.refused, 2, what):
        assert error.startswith(message)


def test_a_rank_that_turns_non_finite_stops_all(pool):
    answers = pool.run(tasks.trained_with, 3, tasks.SpoilsOneRank)
    check_same_on_all_ranks(answers)
    assert answers[0]["status"] == "NON_FINITE"
    assert len(answers[0]["history"]["iteration"]) == 2


def test_parameters_that_rounding_set_apart_are_brought_together(pool):
    answers = pool.run(tasks.trained_with, 3, tasks.RoundsOtherwise)
    for key in ("history", "status"):
        assert answers[0][key] == answers[1][key] == answers[2][key]
    assert all("rounded the parameters differently" in " ".join(answer["warnings"]) for answer in answers)


def test_one_rank_asked_to_stop_stops_all(pool):
    answers = pool.run(tasks.trained_with, 4, tasks.StopsOneRank)
    check_same_on_all_ranks(answers)
    assert answers[0]["status"] == "INTERRUPTED"
    assert len(answers[0]["history"]["iteration"]) == 3


@pytest.mark.parametrize("mode", ["convergent", "accelerated"])
def test_a_snapshot_of_all_ranks_is_taken_up_by_any_number(pool, tmp_path, mode):
    """Bit for bit by as many ranks as wrote it, to rounding by others; and one written by one process by several."""
    whole = pool.run(tasks.checkpointed, 3, tmp_path / "whole", mode)
    files = pool.run(tasks.checkpointed, 3, tmp_path / "cut", mode, 5)[0]
    assert [name for name in files if name.count(".") == 1] == [
        "checkpoint-000002.dladmm",
        "checkpoint-000004.dladmm",
    ]
    assert len(files) == 2 + 2 * 3
    for world in (1, 2, 4):
        copy = shutil.copytree(tmp_path / "cut", tmp_path / f"for {world}")
        answers = pool.run(tasks.checkpointed, world, copy, mode, None, True)
        assert answers[0]["resumed"].endswith("checkpoint-000004.dladmm")
        check_agreement(answers, whole[0] | {"rows": joined(whole, "rows")})
    again = pool.run(tasks.checkpointed, 3, tmp_path / "cut", mode, None, True)
    for answer, expected in zip(again, whole, strict=True):
        for key in ("params", "rows"):
            assert all(np.array_equal(a, b) for a, b in zip(answer[key], expected[key], strict=True))
        assert answer["history"]["lagrangian"] == expected["history"]["lagrangian"]
    pool.run(tasks.checkpointed, 1, tmp_path / "alone", mode, 5)
    answers = pool.run(tasks.checkpointed, 3, tmp_path / "alone", mode, None, True)
    check_agreement(answers, whole[0] | {"rows": joined(whole, "rows")})


def test_a_damaged_shard_is_passed_over_by_all_ranks(pool, tmp_path):
    files = pool.run(tasks.checkpointed, 3, tmp_path, "convergent", 5)[0]
    newest = [name for name in files if name.startswith("checkpoint-000004.") and "00001-of" in name]
    (tmp_path / newest[0]).write_bytes(b"not a checkpoint")
    answers = pool.run(tasks.checkpointed, 3, tmp_path, "convergent", None, True)
    assert all(answer["resumed"].endswith("checkpoint-000002.dladmm") for answer in answers)


def test_a_snapshot_of_other_data_is_refused(pool, tmp_path):
    pool.run(tasks.checkpointed, 2, tmp_path, "convergent", 3)
    for _, error in pool.outcomes(tasks.checkpointed, 3, tmp_path, "accelerated", None, True):
        assert "the snapshot is of a run with dladmm convergent" in error


@pytest.mark.parametrize(
    "settings",
    [
        {"w_solver": "quadratic", "a_solver": "quadratic"},
        {"w_solver": "quadratic", "a_solver": "quadratic", "dtype": "float64", "regularizer": "l2"},
        {"w_solver": "quadratic", "a_solver": "quadratic", "tau_per_sample": True},
        {},
        {"dtype": "float64"},
        {"mode": "accelerated", "dropout": 0.0},
        {"mode": "accelerated"},
        {"mode": "accelerated", "regularizer": None, "dropout": 0.0, "w_solver": "quadratic"},
    ],
)
def test_what_is_told_is_what_the_formula_says_whatever_the_number_of_samples(pool, settings):
    seen = set()
    for n_rows, world in ((61, 2), (240, 3)):
        for told, formula, attempts in pool.run(tasks.counted, world, settings, n_rows):
            # The first tells of the data, the last measures
            ordinary = [k for k in range(1, 5) if attempts[k] == 1]
            assert [told[k] for k in ordinary] == [formula[k] for k in ordinary]
            assert ordinary
            seen |= {told[k] for k in ordinary}
    assert len(seen) == 1


def test_few_samples_for_the_width_tell_what_the_formula_says(pool):
    told, formula, _ = pool.run(tasks.counted, 2, {"w_solver": "quadratic"}, 17)[0]
    assert told[1:5] == formula[1:5]


@pytest.mark.parametrize(("how", "limit"), [("dies", 2.0), ("hangs", 2.0)])
def test_a_rank_that_dies_or_hangs_ends_the_others_within_the_timeout(how, limit):
    few = Pool(3, seconds=limit)
    try:
        for pipe in few.pipes:
            pipe.send((tasks.failing, 3, (how,)))
        for rank in (0, 2):
            assert few.pipes[rank].poll(PATIENCE)  # its process may have to import torch first
            _, error = few.pipes[rank].recv()
            assert error.startswith(f"DistributedError: rank {rank} of 3 waited in vain for the others")
    finally:
        few.kill()


@pytest.mark.parametrize("mode", ["convergent", "accelerated"])
def test_a_run_whose_rank_was_killed_goes_on_bit_for_bit(pool, tmp_path, mode):
    """At a moment of chance; a new set of processes takes up the last snapshot. Twenty times: killing_ranks.py."""
    arguments = (mode, None, True, 60)
    whole = pool.run(tasks.checkpointed, 2, tmp_path / "whole", *arguments)
    few = Pool(2, seconds=5)
    try:
        for pipe in few.pipes:
            pipe.send((tasks.checkpointed, 2, (tmp_path / "broken", *arguments)))
        while len(checkpoints(tmp_path / "broken")) < 2:
            time.sleep(0.005)
        time.sleep(random.Random(mode).uniform(0, 0.1))
        few.processes[1].kill()
        assert few.pipes[0].poll(20)
        assert "waited in vain" in few.pipes[0].recv()[1]
    finally:
        few.kill()
    again = pool.run(tasks.checkpointed, 2, tmp_path / "broken", *arguments)
    for answer, expected in zip(again, whole, strict=True):
        assert answer["resumed"] != "None"
        for key in ("params", "rows"):
            assert all(np.array_equal(a, b) for a, b in zip(answer[key], expected[key], strict=True))
        assert answer["history"]["lagrangian"] == expected["history"]["lagrangian"]


# Graphs --------------------------------------------------------------------------------------------------------

GRAPHS = {
    "quadratic": ({},),
    "exact last layer": ({"w_solver": "exact", "rho": 2.0},),
    "searches from given starts": ({"alpha0": 1.0, "t0": 1.0},),
    "accelerated": ({"mode": "accelerated"},),
    "accelerated, exact": (
        {"mode": "accelerated", "w_solver": "exact", "hidden": (5, 4), "regularizer": "l2"},
    ),
    "three layers, l1": ({"hidden": (5, 4), "regularizer": "l1"},),
    "labelled rows alone": ({"rows": "train", "mode": "accelerated"},),
    "sparse features": ({"sparse": True, "w_solver": "exact"}, 40),
    "one layer, tanh": ({"hidden": (), "w_solver": "exact"},),
    "fewer nodes than would fill the ranks": ({"activation": "tanh"}, 5),
}


@pytest.fixture(scope="module")
def graph_alone(pool):
    return pool.run(tasks.graphs_trained, 1, GRAPHS)[0]


@pytest.mark.parametrize("world", WORLDS)
def test_a_graph_on_any_number_of_ranks_agrees_with_one(pool, graph_alone, world):
    """All cases on three ranks, every third on the others."""
    cases = GRAPHS if world == 3 else dict(list(GRAPHS.items())[::3])
    answers = pool.run(tasks.graphs_trained, world, cases)
    for name in cases:
        these = [answer[name] for answer in answers]
        with naming(name):
            check_graph(these, graph_alone[name], 1e-9 if "l1" in name else 1e-10)


def test_a_graph_is_streamed_on_two_ranks(pool):
    """The ranks agree to the bit; with one rank all but the metric does, a mean of the ranks' own."""
    case = {"streamed": ({"mode": "streaming", "max_iter": 30, "self_training": False},)}
    (alone,) = (answer["streamed"] for answer in pool.run(tasks.graphs_trained, 1, case))
    ranks = [answer["streamed"] for answer in pool.run(tasks.graphs_trained, 2, case)]
    check_same_on_all_ranks(ranks)
    losses = [answer["history"]["loss"] for answer in (alone, ranks[0])]
    assert losses[0][0] == pytest.approx(losses[1][0], rel=0.1)
    assert losses[0][-1] == pytest.approx(losses[1][-1], rel=0.1)


def check_graph(these, expected, tolerance):
    """Rows lie in the order of the partition."""
    order = np.argsort(np.concatenate([answer["nodes"] for answer in these]))
    rows = [values[order] for values in joined(these, "rows")]
    check_same_on_all_ranks(these)
    close(rows, expected["rows"], tolerance)
    check_agreement([these[0] | {"rows": expected["rows"]}], expected)


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("n_nodes", [3, 30])
def test_products_over_ranks_are_those_of_the_whole_matrix(pool, world, n_nodes):
    """Boundary rows fetched, and sums for them returned."""
    for pairs, said, shape in pool.run(tasks.halo_products, world, n_nodes):
        for found, expected in pairs:
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
        assert f"{world} parts by" in said
        assert shape[1] == len(pairs[0][0])


def test_a_rank_without_nodes_takes_part(pool):
    owner = np.arange(30) % 2 * 3
    for pairs, _, _ in pool.run(tasks.halo_products, 4, 30, owner):
        for found, expected in pairs:
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_a_snapshot_of_a_graph_is_taken_up_by_other_parts(pool, tmp_path):
    longer = {"max_iter": 5}
    whole = pool.run(tasks.graph_trained, 1, longer)[0]
    pool.run(tasks.graph_trained, 3, longer, 40, tmp_path, 3)
    copy = shutil.copytree(tmp_path, tmp_path.with_name("copy"))
    for world, folder in ((2, tmp_path), (1, copy)):
        answers = pool.run(tasks.graph_trained, world, longer, 40, folder)
        assert answers[0]["history"]["iteration"] == [1, 2, 3, 4, 5]
        close(answers[0]["params"], whole["params"], 1e-10)


@pytest.mark.parametrize("world", [1, 3, 4])
def test_a_graph_that_no_rank_has_whole_is_trained_as_the_whole_one(pool, world):
    for mode in ("convergent", "accelerated"):
        for whole, parts in pool.run(tasks.graph_in_parts, world, mode):
            close(parts["params"], whole["params"], 1e-10)
            close(parts["rows"], whole["rows"], 1e-10)
            assert parts["history"]["val_accuracy"] == whole["history"]["val_accuracy"]


def test_an_edge_that_one_of_its_ranks_does_not_know_is_refused(pool):
    for _, error in pool.outcomes(tasks.graph_in_parts, 3, "convergent", "edges"):
        assert error.startswith("InputError: every edge between two ranks must be in the edge_index of both")


# Other blocks --------------------------------------------------------------------------------------------------

OTHERS = {
    "convolutions, exact": ("convolutions", {}),
    "convolutions, quadratic": ("convolutions", {"w_solver": "quadratic", "a_solver": "quadratic"}),
    "convolutions, accelerated": ("convolutions", {"mode": "accelerated"}),
    "convolutions, fewer rows than ranks": ("convolutions", {"regularizer": "l2", "mode": "accelerated"}, 2),
    "a module of one's own": ("a module of one's own", {}),
    "a module of one's own, accelerated": ("a module of one's own", {"mode": "accelerated"}, 7),
}


def test_convolutions_pooling_and_modules_of_ones_own_agree(pool):
    expected = pool.run(tasks.networks_trained, 1, OTHERS)[0]
    answers = pool.run(tasks.networks_trained, 3, OTHERS)
    for case in OTHERS:
        with naming(case):
            check_agreement([answer[case] for answer in answers], expected[case])


@pytest.mark.parametrize("name", ["a norm of the batch", "recurrent"])
def test_blocks_that_cannot_be_spread_are_named_before_work_begins(pool, name):
    for _, error in pool.outcomes(tasks.network_trained, 2, name, {}):
        assert error.startswith("InputError: these blocks cannot be trained on several ranks:")
