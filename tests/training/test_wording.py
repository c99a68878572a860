"""Refusals speak of what the user typed: no signature of ours, no private class, and a way out."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dladmm import MLPClassifier, MLPRegressor, ModuleClassifier, train, train_graph

X = np.random.default_rng(0).normal(size=(12, 3)).astype("float32")
Y = np.arange(12) % 2
WORDS = np.array(["cat", "dog"] * 6)
SOURCE = Path(__file__).parents[2] / "src" / "dladmm"


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def loader(targets: list) -> DataLoader:
    return DataLoader([(torch.zeros(3), target) for target in targets], batch_size=4)


CASES = {
    "function and y": (lambda: train(network(), lambda rank, world: (X, Y), Y), "leave y out"),
    "function of one": (lambda: train(network(), lambda rank: (X, Y)), "Give arrays X and y"),
    "function for validation": (lambda: train(network(), X, Y, validation=lambda: (X, Y)), r"Give \(X, y\)"),
    "function that returns X": (lambda: train(network(), lambda rank, world: X), "must return .X, y."),
    "function for a graph": (lambda: train_graph(lambda: None), "Give a graph object"),
    "function without a part": (lambda: train_graph(lambda rank, world: None), "must return a GraphPart"),
    "words as y": (lambda: train(network(), X, WORDS), "y holds text .*0, 1, 2.*MLPClassifier"),
    "no y": (lambda: train(network(), X), "y is missing: give targets beside the rows X"),
    "words as X": (lambda: train(network(), np.array([["a"] * 3] * 12), Y), "X holds text .*TableEncoder"),
    "words from a loader": (lambda: train(network(), loader(["cat", "dog"] * 4)), "loader returns them"),
    "loader for a classifier": (
        lambda: MLPClassifier().fit(loader([0, 1] * 4)),
        "dladmm.train.module, loader",
    ),
    "data set for a regressor": (
        lambda: MLPRegressor().fit(TensorDataset(torch.from_numpy(X)), Y),
        "X is a TensorDataset.*partial_fit",
    ),
    "generator for a classifier": (lambda: MLPClassifier().fit((x for x in X), Y), "X is a generator"),
    "the class of a network": (lambda: train(nn.Sequential, X, Y), "got the class Sequential"),
    "a network for a factory": (
        lambda: ModuleClassifier(network()).fit(X, Y),
        "is a network, Sequential; give",
    ),
    "a factory without sizes": (lambda: ModuleClassifier(network).fit(X, Y), "function of two numbers"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_said_in_the_words_of_who_typed_it(case):
    call, message = CASES[case]
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        call()
    said = str(caught.value)
    for ours in ("(rank, world)", "__init__", "encode text", "positional argument", "_MLP"):
        assert ours not in said


def test_y_is_asked_for_as_scikit_learn_does():
    with pytest.raises(ValueError, match="requires y to be passed"):
        MLPClassifier().fit(X)


def test_no_message_has_a_signature_of_ours():
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        raised = [
            node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Raise)
        ]
        words = [n.value for node in raised for n in ast.walk(node) if isinstance(n, ast.Constant)]
        found += [
            (path.name, said)
            for said in map(str, words)
            if re.search(r"\(rank, world\)|__init__|encode text", said)
        ]
    assert found == []
