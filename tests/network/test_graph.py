"""The normalised adjacency, sparse matrices, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse

from dladmm.base.errors import InputError, InputTypeError
from dladmm.compute import sparse as sparse_room
from dladmm.compute.sparse import MANY_COLUMNS, RowSums, SparseMatrix, csr_tensor, scipy_matrix
from dladmm.network.graph import (
    check_edge_index,
    check_edge_weight,
    check_node_features,
    check_node_mask,
    normalised_adjacency,
    propagated_features,
)
from graph_problems import CPU, random_graph
from reference_gcn import dense_adjacency


@pytest.mark.parametrize("seed", range(5))
def test_adjacency_is_the_papers_formula(seed):
    rng = np.random.default_rng(seed)
    pairs, x, _, _ = random_graph(rng, 17, 3, 2)
    ours = normalised_adjacency(torch.from_numpy(pairs.T), len(x)).toarray()
    assert np.allclose(ours, dense_adjacency(pairs, len(x)), atol=1e-15)
    assert np.array_equal(ours, ours.T)


def test_direction_repetition_and_self_loops_do_not_matter():
    one_way = normalised_adjacency([[0, 1], [1, 2]], 4).toarray()
    both_ways = normalised_adjacency([[0, 1, 1, 2], [1, 0, 2, 1]], 4).toarray()
    repeated = normalised_adjacency([[0, 0, 1, 1, 2, 3], [1, 1, 2, 1, 2, 3]], 4).toarray()
    assert np.array_equal(one_way, both_ways)
    assert np.array_equal(one_way, repeated)


def test_isolated_nodes_keep_themselves():
    assert np.array_equal(normalised_adjacency(np.empty((2, 0)), 3).toarray(), np.eye(3))
    assert normalised_adjacency([[0], [1]], 3).toarray()[2].tolist() == [0, 0, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sparse_products_agree_with_dense_and_repeat_bit_by_bit(dtype):
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(40, 30)) * (rng.random((40, 30)) < 0.2)
    M = SparseMatrix.of(sparse.csr_array(dense), dtype, CPU)
    right, left = torch.randn(30, 6, dtype=dtype), torch.randn(40, 6, dtype=dtype)
    expected = torch.from_numpy(dense).to(dtype)
    assert torch.allclose(M @ right, expected @ right, atol=1e-5)
    assert torch.allclose(M.T @ left, expected.T @ left, atol=1e-5)
    assert all(torch.equal(M @ right, M @ right) for _ in range(5))
    rows = torch.tensor([3, 1, 9])
    assert torch.equal(M.select(rows) @ right, (M @ right)[rows])
    assert torch.allclose(M.select(rows, rows).csr.to_dense(), expected[rows][:, rows])
    assert M.shape == (40, 30)
    assert M.T.shape == (30, 40)


def test_round_trip_of_sparse_tensors():
    matrix = sparse.random_array((7, 5), density=0.3, rng=np.random.default_rng(1), format="csr")
    tensor = csr_tensor(matrix, torch.float64, CPU)
    assert (scipy_matrix(tensor) != matrix).nnz == 0
    assert (scipy_matrix(tensor.to_sparse_coo()) != matrix).nnz == 0


def test_the_cheapest_form_of_the_features_is_taken():
    rng = np.random.default_rng(0)
    ring = normalised_adjacency(np.stack([np.arange(60), np.roll(np.arange(60), 1)]), 60)
    everybody = normalised_adjacency(np.stack(np.triu_indices(60, 1)), 60)
    few = sparse.random_array((60, 50), density=0.02, rng=rng, format="csr")
    many = sparse.random_array((60, 50), density=0.9, rng=rng, format="csr")
    same, propagated = propagated_features(everybody, few.tocsr())
    assert same.shape == (60, 50)
    assert (propagated, sparse.issparse(same)) == (True, False), "a full A~ makes A~ X dense"
    assert not propagated_features(ring, sparse.random_array((60, 5000), density=0.1, rng=rng).tocsr())[1]
    formed, propagated = propagated_features(ring, many.tocsr())
    assert (propagated, sparse.issparse(formed)) == (True, False)
    assert np.allclose(formed, ring @ many.toarray())
    block = sparse.csr_array((np.ones(60), (np.arange(60), np.zeros(60, int))), shape=(60, 50))
    formed, propagated = propagated_features(ring, block)
    assert (propagated, sparse.issparse(formed)) == (True, True)
    dense, propagated = propagated_features(ring, np.ones((60, 2)))
    assert propagated
    assert np.allclose(dense, 1.0)


def check_x(value):
    return lambda: check_node_features(value, torch.float32)


CASES = [
    ("edges of one row", lambda: check_edge_index([[0, 1]], 3), InputError, "shape \\(2, edges\\)"),
    ("pairs as rows", lambda: check_edge_index(np.zeros((5, 2), int), 3), InputError, "transpose a list"),
    ("edges of floats", lambda: check_edge_index([[0.0], [1.0]], 3), InputTypeError, "whole numbers"),
    ("edge beyond the nodes", lambda: check_edge_index([[0], [3]], 3), InputError, "nodes 0..3, but x has 3"),
    ("negative edge", lambda: check_edge_index([[0], [-1]], 3), InputError, "nodes -1..0"),
    ("weights", lambda: check_edge_weight([1.0, 0.5], 3), InputError, "one number per edge"),
    ("mask of indices", lambda: check_node_mask([0, 2], 3, "train_mask"), InputTypeError, "train_mask must be a bool"),
    ("mask of text", lambda: check_node_mask(["a"], 1, "train_mask"), InputTypeError, "boolean mask"),
    ("mask too short", lambda: check_node_mask([True], 3, "train_mask"), InputError, "shape \\(3,\\)"),
    ("mask of pairs", lambda: check_node_mask(np.ones((3, 2), bool), 3, "m"), InputError, "shape \\(3,\\)"),
    ("empty mask", lambda: check_node_mask([False] * 3, 3, "train_mask"), InputError, "selects no node"),
    ("x with NaN", check_x([[np.nan]]), InputError, "NaN"),
    ("sparse x with inf", check_x(sparse.csr_array([[np.inf, 0.0]])), InputError, "infinite"),
    ("x too large", check_x([[1e300]]), InputError, "too large"),
    ("x complex", check_x([[1j]]), InputTypeError, "complex"),
    ("x of text", check_x([["a"]]), InputTypeError, "not numeric"),
    ("x flat", check_x([1.0]), InputError, "\\(nodes, features\\)"),
    ("x empty", check_x(np.ones((0, 3))), InputError, "empty"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "exception", "message"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_bad_graphs_are_refused_with_a_clear_message(call, exception, message):
    with pytest.raises(exception, match=message):
        call()


def test_weights_of_one_are_no_weights():
    assert check_edge_weight(torch.ones(4), 4) is None
    assert check_edge_weight(None, 4) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_row_sums_are_the_product(dtype):
    """What a GPU does, here on the CPU: also for rows that are summed in pieces, and for empty ones."""
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(6, 2000)) * (
        rng.random((6, 2000)) < np.array([0.9, 0, 0.01, 0.6, 1, 0])[:, None]
    )
    csr = csr_tensor(sparse.csr_array(dense), dtype, CPU)
    sums = RowSums(csr)
    right = torch.from_numpy(rng.normal(size=(2000, 5))).to(dtype)
    assert sums.piece_starts is not None
    assert torch.allclose(sums @ right, torch.from_numpy(dense).to(dtype) @ right, atol=1e-3, rtol=1e-4)
    assert torch.equal(sums @ right, sums @ right)
    short = RowSums(csr_tensor(sparse.csr_array(dense[:, :100]), dtype, CPU))
    assert short.piece_starts is None
    assert torch.allclose(
        short @ right[:100], torch.from_numpy(dense[:, :100]).to(dtype) @ right[:100], atol=1e-4
    )


@pytest.mark.parametrize("at_once", [1, 3, 7, 100])
@pytest.mark.parametrize("columns", [MANY_COLUMNS - 1, MANY_COLUMNS, 50])
def test_products_with_many_columns_are_written_some_rows_at_a_time(monkeypatch, columns, at_once):
    """Rows without entries among them, alone in their part and beside others, and a factor stored by columns."""
    rng = np.random.default_rng(0)
    share = np.array([0.9, 0, 0, 0, 0, 0.1, 0, 1, 0.5, 0, 0.3])
    dense = rng.normal(size=(11, 40)) * (rng.random((11, 40)) < share[:, None])
    M = SparseMatrix.of(sparse.csr_array(dense), torch.float32, CPU)
    right, left = (torch.from_numpy(rng.normal(size=(n, columns))).float() for n in (40, 11))
    monkeypatch.setattr(sparse_room, "CACHED", at_once * columns)
    out = torch.full((11, columns), torch.nan)
    assert M.multiply(right, out) is out
    expected = dense @ right.double().numpy()
    assert np.allclose(out.numpy(), expected, atol=1e-5)
    assert np.allclose(M.T @ left, dense.T @ left.double().numpy(), atol=1e-5)
    by_columns = right.T.contiguous().T
    assert torch.equal(M @ by_columns, out)
    monkeypatch.undo()
    assert torch.equal(M @ right, out)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_products_on_a_gpu_repeat_bit_by_bit():
    rng = np.random.default_rng(0)
    matrix = sparse.random_array((3000, 2000), density=0.05, rng=rng, format="csr", dtype=np.float32)
    M = SparseMatrix.of(matrix, torch.float32, torch.device("cuda"))
    right = torch.randn(2000, 64, device="cuda")
    first = M @ right
    assert all(torch.equal(first, M @ right) for _ in range(10))
    assert torch.allclose(first.cpu(), torch.from_numpy(matrix @ right.cpu().numpy()), atol=1e-4)


def test_a_matrix_without_entries_or_columns():
    """A rank whose nodes have no neighbour on another rank has such a one."""
    for shape in ((5, 0), (5, 3)):
        matrix = SparseMatrix.of(sparse.csr_array(shape), torch.float64, CPU)
        assert matrix.csr.col_indices().stride() == matrix.csr.values().stride() == (1,)
        dense = torch.ones(shape[1], 2, dtype=torch.float64)
        assert torch.equal(matrix @ dense, torch.zeros(5, 2, dtype=torch.float64))
        assert torch.equal(RowSums(matrix.csr) @ dense, torch.zeros(5, 2, dtype=torch.float64))
        assert (matrix.T @ torch.ones(5, 2, dtype=torch.float64)).shape == (shape[1], 2)
        single = SparseMatrix.of(sparse.csr_array(shape), torch.float32, CPU)
        assert torch.equal(single @ torch.ones(shape[1], MANY_COLUMNS), torch.zeros(5, MANY_COLUMNS))
