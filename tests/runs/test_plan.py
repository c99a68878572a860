"""Experiments become cells: what a file says, and everything that makes a run what it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dladmm.base.errors import InputError
from dladmm.runs.chosen import chosen_settings
from dladmm.runs.experiment import from_toml
from dladmm.runs.plan import cells
from small_experiments import ACCURACY, small


def test_what_the_library_chose_is_among_the_settings():
    """So that a cell is another cell when a default changes."""
    settings = cells(small(), "cpu")[0].settings
    assert (settings["start"], settings["init_std"], settings["growth"]) == ("paper", 0.1, 2.0)


def test_a_data_set_and_a_method_may_have_settings_of_their_own():
    e = small(
        ACCURACY,
        datasets=["karate", "cora"],
        methods={
            "dladmm": {"chosen": True},
            "adam": {"datasets": ["cora"], "hidden": [5], "activation": "tanh"},
        },
        **{"for": {"karate": {"hidden": [3], "seeds": 1}}},
    )
    found = {cell.name: cell for cell in cells(e, "cpu")}
    assert list(found) == ["karate-dladmm-0", "cora-dladmm-0", "cora-dladmm-1", "cora-adam-0", "cora-adam-1"]
    assert found["karate-dladmm-0"].hidden == (3,)
    assert found["cora-dladmm-0"].hidden == (4,)
    assert (found["cora-adam-0"].hidden, found["cora-adam-0"].activation) == ((5,), "tanh")
    assert found["cora-dladmm-0"].given["rho"] == chosen_settings("cora")["rho"] == 0.1
    assert found["cora-dladmm-0"].options["eps_rel"] == 0.0
    stopping = cells(replace(e, stop=True), "cpu")[0]
    assert "eps_rel" not in stopping.options
    one = replace(e, methods={name: about | {"stop": True} for name, about in e.methods.items()})
    assert "eps_rel" not in cells(one, "cpu")[0].options
    assert cells(one, "cpu")[0].given["stop"] is True  # a record says so: with and without are other cells
    assert stopping.settings["eps_rel"] == 1e-4  # the library's own


def test_unknown_settings_are_refused_wherever_they_stand():
    for wrong in ({"epochs": 3}, {"for": {"karate": {"epochs": 3}}}):
        with pytest.raises(InputError, match="experiment x: unknown setting epochs"):
            small(ACCURACY, name="x", **wrong)
    with pytest.raises(InputError, match="experiment x is not TOML"):
        from_toml("x", "full", "title =")


def test_chosen_settings_are_a_copy():
    chosen_settings("cora")["regularizer"]["strength"] = 7.0
    assert chosen_settings("Coauthor-CS")["max_iter"] == 10
    assert chosen_settings("cora")["regularizer"]["strength"] == 0.1
    assert chosen_settings("nothing") == {}


def test_the_seed_may_draw_the_split():
    drawn = cells(small(split_by_seed=True, seeds=2), "cpu")
    assert [cell.data for cell in drawn[:2]] == [{"seed": 0}, {"seed": 1}]
    assert drawn[1].settings["seed"] == 1


def test_settings_of_a_mode_that_is_not_used_do_not_make_another_cell():
    assert all("streaming" not in cell.settings for cell in cells(small(), "cpu"))
    methods = {"streaming": {"trainer": "dladmm", "mode": "streaming"}}
    streaming = small(methods=methods, grid={"neurons": [2]})
    assert "streaming" in cells(streaming, "cpu")[0].settings
