"""Every parameter of every estimator is described in its docstring, once."""

from __future__ import annotations

import re
from inspect import cleandoc

import pytest

from dladmm import GCNClassifier, MLPClassifier, MLPRegressor, ModuleClassifier, ModuleRegressor
from dladmm.estimators.documented import with_parameters_of


@pytest.mark.parametrize(
    "kind", [MLPClassifier, MLPRegressor, ModuleClassifier, ModuleRegressor, GCNClassifier]
)
def test_every_parameter_is_described_once(kind):
    text = cleandoc(kind.__doc__)
    section = re.search(r"Parameters\n-+\n(.*?)\n\n", text, re.DOTALL)[1]
    heads = re.findall(r"^(\w+(?:, \w+)*) :", section, re.MULTILINE)
    described = [name for head in heads for name in head.split(", ")]
    assert sorted(described) == sorted(kind().get_params())


def test_own_words_win_and_foreign_parameters_stay_out():
    class First:
        """One.

        Parameters
        ----------
        a : int
            Theirs.
        b, c : int
            Both.
        d : int

        Notes
        -----
        Theirs too.
        """

    @with_parameters_of(First)
    class Second:
        """Two.

        Parameters
        ----------
        a : int
            Ours.

        Notes
        -----
        Ours.
        """

        @classmethod
        def _get_param_names(cls):
            return ["a", "b", "c"]

    assert "Ours.\nb, c : int\n    Both.\n\nNotes\n-----\nOurs." in Second.__doc__
    assert "Theirs" not in Second.__doc__
    assert "\nd :" not in Second.__doc__
