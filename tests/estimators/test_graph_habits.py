"""What PyG users look for in GCNClassifier: early stopping, weights of nodes, several splits."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from dladmm import GCNClassifier, InputError, Status, datasets, train_graph

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def communities(seed: int = 0, n: int = 300) -> SimpleNamespace:
    """Three communities with noisy features, and masks of four splits."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    i, j = rng.integers(0, n, (2, 12 * n))
    kept = (y[i] == y[j]) | (rng.random(12 * n) < 0.25)
    x = np.eye(3)[y] + 2 * rng.normal(size=(n, 3))
    order = np.stack([rng.permutation(n) for _ in range(4)], axis=1)
    return SimpleNamespace(
        x=x,
        edge_index=np.stack([i, j])[:, kept],
        y=y,
        train_mask=order < 30,
        val_mask=(order >= 30) & (order < 90),
        test_mask=order >= 90,
    )


GRAPH = communities()


def of_split(split: int) -> SimpleNamespace:
    masks = {f"{name}_mask": getattr(GRAPH, f"{name}_mask")[:, split] for name in ("train", "val", "test")}
    return SimpleNamespace(x=GRAPH.x, edge_index=GRAPH.edge_index, y=GRAPH.y, **masks)


@pytest.mark.usefixtures("short_teachers")
def test_several_splits_are_fitted_and_scored_by_their_number():
    for split in (0, 3):
        several = GCNClassifier((8,), max_iter=10, random_state=0).fit(GRAPH, split=split)
        one = GCNClassifier((8,), max_iter=10, random_state=0).fit(of_split(split))
        assert np.array_equal(several.predict(GRAPH), one.predict(of_split(split)))
        for mask in ("train", "val", "test"):
            assert several.score(GRAPH, mask=mask) == one.score(of_split(split), mask=mask)
    assert several.score(GRAPH, split=1) != several.score(GRAPH)


@pytest.mark.parametrize(
    ("split", "words"),
    [
        (None, "train_mask holds 4 splits: say which with split=0 to 3"),
        (4, "split must be a whole number from 0 to 3, got 4"),
        ("first", "split must be a whole number"),
    ],
)
def test_splits_that_are_not(split, words):
    with pytest.raises(InputError, match=words):
        GCNClassifier((8,), max_iter=2).fit(GRAPH, split=split)


def test_early_stopping_keeps_the_best_weights():
    graph = of_split(0)
    gcn = GCNClassifier((8,), early_stopping=True, n_iter_no_change=20, self_training=False, random_state=0)
    gcn.fit(graph)
    assert gcn.status_ is Status.EARLY_STOPPED
    assert gcn.n_iter_ < 100
    assert gcn.score(graph, mask="val") == pytest.approx(gcn.best_validation_score_)
    assert gcn.validation_scores_ == gcn.history_["val_accuracy"]
    with pytest.raises(InputError, match="early_stopping looks at the nodes of val_mask"):
        gcn.fit(graph.x, graph.y, edge_index=graph.edge_index, train_mask=graph.train_mask)


def test_a_node_of_weight_zero_has_no_label_and_one_of_weight_two_counts_twice():
    graph = of_split(0)
    labelled = np.flatnonzero(graph.train_mask)
    kept = {"max_iter": 15, "mode": "convergent", "random_state": 0, "dtype": "float64"}
    weight = np.ones(len(graph.y))
    weight[labelled[:10]] = 0
    without = graph.train_mask.copy()
    without[labelled[:10]] = False
    weighted = GCNClassifier((8,), **kept).fit(graph, sample_weight=weight).predict_proba(graph)
    fewer = GCNClassifier((8,), **kept).fit(graph, train_mask=without).predict_proba(graph)
    np.testing.assert_allclose(weighted, fewer, rtol=1e-9)
    whole = GCNClassifier((8,), **kept).fit(graph).predict_proba(graph)
    assert abs(whole - weighted).max() > 1e-3
    ignored = np.where(graph.train_mask, 1.0, np.nan)
    same = GCNClassifier((8,), **kept).fit(graph, sample_weight=ignored).predict_proba(graph)
    np.testing.assert_allclose(same, whole, rtol=1e-9)


@pytest.mark.usefixtures("short_teachers")
@pytest.mark.filterwarnings("ignore::dladmm.NoBetterThanConstant")
def test_a_heavy_class_is_told_more_often():
    graph = of_split(0)
    heavy = np.where(graph.y == 0, 30.0, 1.0)
    plain = GCNClassifier((8,), max_iter=30, random_state=0).fit(graph)
    weighted = GCNClassifier((8,), max_iter=30, random_state=0).fit(graph, sample_weight=heavy)
    assert (weighted.predict(graph) == 0).mean() > (plain.predict(graph) == 0).mean()


@pytest.mark.parametrize(
    ("weight", "words"),
    [
        (np.ones(5), r"sample_weight must have shape \(34,\), one per node"),
        (-np.ones(34), "sample_weight must be finite and 0 or more"),
        (np.zeros(34), "above 0 for some labelled node"),
    ],
)
def test_weights_that_cannot_be(weight, words):
    with pytest.raises(InputError, match=words):
        train_graph(datasets.load("karate"), hidden=(4,), max_iter=2, sample_weight=weight)


def test_clusters_refuse_weights():
    with pytest.raises(InputError, match="sample_weight cannot be used with clusters"):
        train_graph(
            of_split(0).x, GRAPH.edge_index, GRAPH.y, of_split(0).train_mask, sample_weight=np.ones(300),
            mode="streaming", batch_size=50, max_iter=1,
        )  # fmt: skip
