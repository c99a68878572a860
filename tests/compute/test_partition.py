"""Partitions: every node somewhere, about as many on each rank, fewer edges cut than by chance."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
from scipy import sparse

from dladmm.base.errors import InputError
from dladmm.compute.partition import Partition, cut_in_order, partitioned, parts_of, refined
from dladmm.distributed import ALONE
from dladmm.network.graph import normalised_adjacency


def grid(n):
    """An n by n grid in a shuffled order."""
    number = np.random.default_rng(0).permutation(n * n).reshape(n, n)
    across = np.stack([number[:, :-1].ravel(), number[:, 1:].ravel()])
    down = np.stack([number[:-1].ravel(), number[1:].ravel()])
    return normalised_adjacency(np.concatenate([across, down], 1), n * n)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_the_built_in_partition_is_even_and_cuts_few_edges(size):
    matrix = grid(30)
    owner, method = parts_of(matrix, size, use_metis=False)
    found = Partition.of(matrix, owner, size, method)
    counts = np.bincount(owner, minlength=size)
    assert counts.sum() == 900
    assert counts.max() <= np.ceil(1.05 * 900 / size)
    assert found.edges == 2 * 30 * 29
    chance = np.random.default_rng(1).integers(0, size, 900)
    assert found.cut <= 0.2 * Partition.of(matrix, chance, size, "").cut
    assert len(found.halo) == size


def test_moves_over_the_borders_never_cut_more():
    matrix = grid(12)
    edges = sparse.csr_array(matrix - sparse.diags_array(matrix.diagonal()))
    edges.eliminate_zeros()
    for seed in range(5):
        chance = np.random.default_rng(seed).permutation(144) % 3
        better = refined(edges, chance, 3)
        before, after = (Partition.of(matrix, o, 3, "").cut for o in (chance, better))
        assert after < before
    assert set(cut_in_order(edges, 4)) == {0, 1, 2, 3}


def test_halo_and_cut_are_counted_as_by_hand():
    path = normalised_adjacency(np.array([[0, 1, 2], [1, 2, 3]]), 5)  # 0-1-2-3, and 4 alone
    found = Partition.of(path, np.array([0, 0, 1, 1, 2]), 3, "hand")
    assert (found.edges, found.cut, found.halo) == (3, 1, (1, 1, 0))
    assert str(found) == (
        "3 parts by hand: 1 of 3 edges cut (33.3 %), 1 to 2 nodes and 0 to 1 halo rows a rank"
    )


def test_metis_is_used_where_it_is_installed(monkeypatch):
    fake = types.ModuleType("pymetis")
    fake.part_graph = lambda size, xadj, adjncy: (7, [i % size for i in range(len(xadj) - 1)])
    monkeypatch.setitem(sys.modules, "pymetis", fake)
    owner, method = parts_of(grid(4), 2)
    assert method == "METIS"
    assert owner.tolist() == [0, 1] * 8


def test_a_partition_of_ones_own_is_checked():
    matrix = grid(3)
    assert partitioned(matrix, ALONE, np.zeros(9, int)).cut == 0
    for wrong in (np.zeros(8, int), np.full(9, 1), np.zeros(9)):
        with pytest.raises(InputError, match=r"for each of the 9 nodes"):
            partitioned(matrix, ALONE, wrong)


def test_no_part_grows_beyond_its_share_however_many_want_to_move_there():
    """All of part 1 have their neighbours in part 0, which is a clique: at most one of them may move."""
    pairs = [(i, j) for i in range(10) for j in range(i)]
    pairs += [(i, j) for i in range(10, 20) for j in range(3)]
    row, column = np.array([*pairs, *((j, i) for i, j in pairs)]).T
    edges = sparse.csr_array((np.ones(len(row)), (row, column)), shape=(20, 20))
    owner = refined(edges, np.repeat([0, 1], 10), 2)
    assert np.bincount(owner).max() <= 11
