from __future__ import annotations

import subprocess
import sys

import pytest

from dladmm import datasets
from dladmm.base.errors import InputError


def test_names():
    assert datasets.names() == (
        *("mnist", "fashion_mnist", "cora", "citeseer", "pubmed", "coauthor_cs", "coauthor_physics"),
        *("digits", "karate", "moons", "spirals", "sbm"),
    )


@pytest.mark.parametrize("name", ["Karate", " karate ", "KARATE"])
def test_names_are_forgiving(name):
    assert datasets.load(name).name == "karate"


@pytest.mark.parametrize(
    ("name", "message"),
    [("karat", r"did you mean 'karate'\?"), ("imagenet", "it must be one of mnist, "), (3, "name is 3")],
)
def test_unknown_names(name, message):
    with pytest.raises(InputError, match=message):
        datasets.load(name)


@pytest.mark.parametrize(
    ("name", "option", "message"),
    [
        ("karate", "seed", "no option 'seed'; its options are: labels_per_class"),
        ("cora", "full", "no option 'full'; its options are: none"),
        ("mnist", "entry", "no option 'entry'; its options are: full"),
    ],
)
def test_unknown_options(name, option, message):
    with pytest.raises(InputError, match=message):
        datasets.load(name, **{option: 1})


def test_fetching_embedded_data_makes_no_sense():
    with pytest.raises(InputError, match="there is nothing to fetch"):
        datasets.fetch("digits")


def test_works_without_optional_packages():
    """torch, numpy, scipy and scikit-learn are enough to load; the error for the rest is clear."""
    code = """
import sys
for name in ("pooch", "requests", "typer", "rich", "torch_geometric", "platformdirs", "networkx"):
    sys.modules[name] = None
from dladmm import datasets
from dladmm.base.errors import DladmmError
for name in ("digits", "karate", "moons", "spirals", "sbm"):
    datasets.load(name)
try:
    datasets.load("cora", download=True, data_dir=sys.argv[1])
except DladmmError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, "nowhere"], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "fetching data needs pooch, which is not installed; pip install pooch\n"
