"""Files and pickles of estimators hold the network, not the rows it was trained on."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from convergent import train
from dladmm import GCNClassifier, InputError, MLPClassifier, ModuleClassifier, datasets, mlp
from dladmm.training.checkpoint import load_model, save_model
from dladmm.training.result import Result

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(scope="module")
def table():
    X = np.random.default_rng(0).normal(size=(20000, 30))
    return X, (X[:, 0] > 0).astype(int)


@pytest.mark.parametrize("mode", ["accelerated", "convergent", "streaming"])
def test_20000_rows_do_not_swell_the_file(mode, table, tmp_path):
    """The file of these 662 weights had 14 MB: the variables of every row were in it."""
    clf = MLPClassifier((20,), mode=mode, max_iter=3, random_state=0).fit(*table)
    clf.save(tmp_path / "f")
    assert (tmp_path / "f").stat().st_size < 50_000
    assert len(pickle.dumps(clf)) < 50_000
    for again in (MLPClassifier.load(tmp_path / "f"), pickle.loads(pickle.dumps(clf))):
        assert np.array_equal(again.predict_proba(table[0]), clf.predict_proba(table[0]))
        assert not hasattr(again, "state_")
    assert hasattr(clf, "state_") == (mode == "convergent")


def test_the_last_iterate_is_written_when_asked_for(tmp_path, table):
    X, y = table[0][:200], table[1][:200]
    clf = MLPClassifier((5,), mode="convergent", max_iter=3, random_state=0).fit(X, y)
    clf.save(tmp_path / "f", state=True)
    assert torch.equal(MLPClassifier.load(tmp_path / "f").state_.z[0], clf.state_.z[0])
    clf.set_params(mode="accelerated").fit(X, y)
    assert not hasattr(clf, "state_")
    with pytest.raises(InputError, match="keeps in mode='convergent' only"):
        clf.save(tmp_path / "g", state=True)


def test_a_file_of_an_earlier_version_with_its_iterate_loads(tmp_path, table):
    X, y = table[0][:200], table[1][:200]
    clf = MLPClassifier((5,), mode="accelerated", max_iter=3, random_state=0).fit(X, y)
    result = train(mlp([30, 5, 2]), X, y, max_iter=2)
    clf.save(tmp_path / "new")
    earlier = Result(clf.status_, clf.history_, clf.certificate_, clf.module_, result.state)
    extra = load_model(tmp_path / "new").extra
    save_model(earlier, tmp_path / "old", loss=clf._loss, extra=extra, state=True)
    assert (MLPClassifier.load(tmp_path / "old").predict(X) == clf.predict(X)).all()


def test_other_estimators_and_results_too(tmp_path, table):
    X, y = table[0][:500], table[1][:500]
    karate = datasets.load("karate")
    gcn = GCNClassifier((16,), max_iter=3, random_state=0).fit(karate)
    gcn.save(tmp_path / "gcn")
    assert (GCNClassifier.load(tmp_path / "gcn").predict(karate) == gcn.predict(karate)).all()
    module = ModuleClassifier(max_iter=3, random_state=0).fit(X, y)
    module.save(tmp_path / "module")
    assert (ModuleClassifier.load(tmp_path / "module").predict(X) == module.predict(X)).all()
    assert not hasattr(gcn, "state_")
    assert not hasattr(module, "state_")
    result = train(mlp([30, 5, 2]), X, y, max_iter=2)
    assert pickle.loads(pickle.dumps(result)).state is None
    result.save(tmp_path / "result")
    assert load_model(tmp_path / "result").state is None
    result.save(tmp_path / "whole", state=True)
    assert torch.equal(load_model(tmp_path / "whole").state.u, result.state.u)
