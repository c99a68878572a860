"""What a run is known by: a checkpoint is continued with the same data and settings only, and what differs is named."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import sparse

from dladmm import CallableLoss, Callback, InputError, datasets, mlp, train, train_graph
from dladmm.callbacks import Checkpoint
from dladmm.training import identity
from dladmm.training.checkpoint import CheckpointWarning, checkpoints
from dladmm.training.identity import MAY_CHANGE, fingerprint

# Steps of a few iterations are the subject, not what the networks have learnt
pytestmark = pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(40, 4)), RNG.integers(0, 3, 40)
SWAPPED = np.r_[1, 0, 2:40]


def distance(z, target):
    return 0.5 * (z - target).square().sum(1)


def other_distance(z, target):
    return 0.25 * (z - target).square().sum(1)


def run(folder, *, resume=False, **changes):
    callback = Checkpoint(folder, resume=resume)
    settings = {"model": mlp([4, 5, 3]), "X": X, "y": Y, "mode": "convergent", "max_iter": 2} | changes
    return train(callbacks=[callback], **settings)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One folder with a run of each mode; tests take copies."""
    place = tmp_path_factory.mktemp("runs")
    for mode in ("convergent", "accelerated", "streaming"):
        run(place / mode, mode=mode)
    return place


OTHERS = {
    "X": ({"X": X + 1e-9}, r"X \(same shape, other values\)"),
    "rows in another order": ({"X": X[SWAPPED], "y": Y[SWAPPED]}, r"X \(same shape, other values\)"),
    "y": ({"y": (Y + 1) % 3}, r"y \(same shape, other values\)"),
    "weights": ({"sample_weight": np.ones(40)}, r"sample_weight \(given only now\)"),
    "mask": ({"target_mask": np.ones(40, bool)}, r"target_mask \(given only now\)"),
    "penalty": ({"regularizer": "l1"}, r'regularizer \(.* then, \{"name": "l1"'),
    "seed": ({"random_state": 1}, r"random_state \(0 then, 1 now\)"),
    "loss": ({"loss": "squared_hinge"}, r"loss \(.*cross_entropy.* then"),
    "activation": ({"model": mlp([4, 5, 3], "tanh")}, r"network \(.*relu.*then.*tanh"),
    "dropout": ({"dropout": 0.3, "mode": "accelerated"}, r"dropout \(0.2 then, 0.3 now\)"),
    "rho": ({"rho": 5.0}, r"rho \(null then, 5.0 now\)"),
    "nu": ({"nu": 5.0}, r"nu \(null then, 5.0 now\)"),
    "solver": ({"w_solver": "quadratic"}, r'w_solver \("exact" then, "quadratic" now\)'),
    "prox": ({"prox": "fista"}, r'prox \("auto" then, "fista" now\)'),
    "batch": ({"batch_size": 7, "mode": "streaming"}, r"batch_size \(null then, 7 now\)"),
    "shuffling": ({"random_state": 3, "mode": "streaming"}, r"random_state \(0 then, 3 now\)"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_other_data_or_settings_are_refused_by_name_and_change_nothing(folders, tmp_path, what):
    changes, words = OTHERS[what]
    folder = tmp_path / "run"
    shutil.copytree(folders / changes.get("mode", "convergent"), folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(
        InputError, match=f"cannot be resumed here: the snapshot is of another run: .*{words}"
    ):
        run(folder, resume=True, **{"max_iter": 4} | changes)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("mode", ["convergent", "accelerated", "streaming"])
def test_what_may_change_does(folders, tmp_path, mode):
    shutil.copytree(folders / mode, tmp_path / "run")
    changes = {"eps_rel": 0.0, "eps_abs": 0.0, "diagnostics_every": 1, "validation": (X, Y)}
    result = run(tmp_path / "run", resume=True, mode=mode, max_iter=4, X=torch.tensor(X), **changes)
    assert result.history.n_iter == 4
    assert set(changes) - {"validation"} | {"max_iter", "compile", "max_memory"} == set(MAY_CHANGE)


def test_a_loss_of_ones_own_is_known_by_its_function(tmp_path):
    targets = np.eye(3)[Y]
    run(tmp_path, y=targets, loss=CallableLoss(distance, H=1.0))
    with pytest.raises(InputError, match=r"loss \(.*distance.* then, .*other_distance.* now\)"):
        run(tmp_path, resume=True, y=targets, loss=CallableLoss(other_distance, H=1.0))
    assert (
        run(tmp_path, resume=True, y=targets, loss=CallableLoss(distance, H=1.0), max_iter=3).history.n_iter
        == 3
    )


def test_graphs_are_known_by_nodes_and_edges(tmp_path):
    graph = datasets.load("karate")
    arrays = {"edge_index": graph.edge_index, "y": graph.y, "train_mask": graph.train_mask}

    def trained(resume, **changes):
        settings = {"hidden": (4,), "mode": "convergent", "max_iter": 2, **arrays} | changes
        return train_graph(torch.eye(34), callbacks=[Checkpoint(tmp_path, resume=resume)], **settings)

    trained(False)
    weight = np.full(graph.edge_index.shape[1], 2.0)
    with pytest.raises(InputError, match="another run: edge_weight"):
        trained(True, edge_weight=weight)
    assert trained(True, max_iter=3).history.n_iter == 3


def test_another_version_is_said_and_an_old_snapshot_is_not_compared(folders, tmp_path, monkeypatch):
    shutil.copytree(folders / "convergent", tmp_path / "a")
    monkeypatch.setattr(identity, "__version__", "99.0")
    with pytest.warns(CheckpointWarning, match="was made by version .* may not go on bit for bit"):
        run(tmp_path / "a", resume=True, max_iter=3)
    snapshot = []

    class Take(Callback):
        def on_epoch_end(self, trainer):
            tensors, meta = trainer.snapshot()
            snapshot.append(({name: t.clone() for name, t in tensors.items()}, json.loads(json.dumps(meta))))

    class Resume(Callback):
        def on_train_begin(self, trainer):
            tensors, meta = snapshot[0]
            trainer.resume(tensors, {name: value for name, value in meta.items() if name != "identity"})

    train(mlp([4, 5, 3]), X, Y, mode="convergent", max_iter=1, callbacks=[Take()])
    again = [Resume(), Checkpoint(tmp_path / "b", every=1)]
    with pytest.warns(CheckpointWarning, match="did not record data and settings"):
        resumed = train(mlp([4, 5, 3]), X, Y, mode="convergent", max_iter=2, callbacks=again)
    assert resumed.certificate.sufficient_descent
    assert not resumed.certificate.certified
    assert "resumed from a snapshot that does not say of which data" in str(resumed.certificate)
    later = train(
        mlp([4, 5, 3]),
        X,
        Y,
        mode="convergent",
        max_iter=3,
        callbacks=[Checkpoint(tmp_path / "b", resume=True)],
    )
    assert later.history.n_iter == 3
    assert not later.certificate.certified  # what it was resumed from had been resumed so


def test_a_resumed_run_that_could_be_compared_is_certified_as_one(folders, tmp_path):
    shutil.copytree(folders / "convergent", tmp_path / "a")
    assert run(tmp_path / "a", resume=True, max_iter=3).certificate.certified


def test_two_runs_in_one_folder_do_not_mix(folders, tmp_path):
    shutil.copytree(folders / "convergent", tmp_path / "run")
    with pytest.raises(InputError, match="already holds checkpoint-000002"):
        run(tmp_path / "run", X=2 * X)
    with pytest.raises(InputError, match="another run"):
        run(tmp_path / "run", resume=True, X=2 * X)
    assert checkpoints(tmp_path / "run")[0].name == "checkpoint-000002.dladmm"


@pytest.mark.parametrize(
    "given",
    [
        torch.tensor,
        np.asfortranarray,
        sparse.csr_matrix,
        sparse.coo_array,
        lambda x: torch.tensor(x).to_sparse(),
    ],
)
def test_a_fingerprint_is_of_the_numbers_however_they_lie(given, monkeypatch):
    whole = fingerprint(X)
    assert fingerprint(given(X)) == whole
    monkeypatch.setattr(identity, "ENTRIES_AT_ONCE", 12)
    assert fingerprint(given(X)) == whole
    assert (fingerprint(X[:5]) + fingerprint(X[5:], first_row=5)) % identity.SIZE == whole, "of ranks' rows"
    assert fingerprint(X[:, ::-1]) != whole, "columns have their places"
    assert fingerprint(X[::-1]) != whole, "and rows theirs"


def test_a_run_is_compared_where_both_sides_say_of_which_data():
    known, unknown = {"X": {"shape": [2, 2], "fingerprint": "0"}}, {}
    for then, now, compared in ((known, known, True), (unknown, known, False), (known, unknown, False)):
        before = {"data": then, "options": {}, "problem": {}, "library": identity.__version__}
        trainer = SimpleNamespace(known_by=before | {"data": now}, comm=SimpleNamespace(rank=0))
        assert identity.check_same_run(before, trainer) is compared
