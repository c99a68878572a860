"""A snapshot in shards: rows are found by their places, and one that lacks rows is refused."""

from __future__ import annotations

import pytest
import torch

from dladmm import DataError, InputError
from dladmm.base.container import save
from dladmm.compute.communicator import Communicator, Shards
from dladmm.training.sharded_snapshot import load_own, remove_shards


def written(folder, places, rows=6):
    """A snapshot of six rows whose u is ten times the row's place, in one shard per list of places."""
    names = [
        f"checkpoint-000004.0123abcd.{rank:05d}-of-{len(places):05d}.dladmm" for rank in range(len(places))
    ]
    for name, own in zip(names, places, strict=True):
        at = torch.tensor(own, dtype=torch.int64)
        save(folder / name, "training", {"u": 10.0 * at[:, None], "places": at}, {})
    path = folder / "checkpoint-000004.dladmm"
    save(path, "training", {"params.0.W": torch.ones(2)}, {"shards": names, "rows": rows, "run": {}})
    return path


def test_all_rows_come_back_in_their_order(tmp_path):
    path = written(tmp_path, [[4, 1], [0, 5, 2], [3]])
    tensors, meta = load_own(path, None, None)
    assert tensors["u"][:, 0].tolist() == [0, 10, 20, 30, 40, 50]
    assert tensors["params.0.W"].tolist() == [1, 1]
    assert meta == {"run": {}}


def test_a_rank_takes_its_own_rows(tmp_path):
    path = written(tmp_path, [[4, 1], [0, 5, 2], [3]])
    comm = Communicator()
    shards = Shards(comm, 6, 6.0, 2)
    assert load_own(path, shards, 3)[0]["u"][:, 0].tolist() == [20, 30, 40]
    nodes = Shards(comm, 6, 6.0, 0, torch.tensor([5, 0]))
    assert load_own(path, nodes, 2)[0]["u"][:, 0].tolist() == [50, 0]


def test_missing_rows_are_refused_and_counted(tmp_path):
    with pytest.raises(DataError, match="lacks 2 of the rows"):
        load_own(written(tmp_path, [[4, 1], [0, 3]]), None, None)
    (tmp_path / "other").mkdir()
    with pytest.raises(DataError, match="lacks 1 of the rows"):
        load_own(written(tmp_path / "other", [[4, 1], [0, 3, 5]]), None, None)


def test_a_run_on_other_rows_is_refused(tmp_path):
    path = written(tmp_path, [[4, 1], [0, 5, 2], [3]])
    with pytest.raises(InputError, match="run on 6 rows, this run has 7"):
        load_own(path, None, 7)
    with pytest.raises(InputError, match="run on 6 rows, this run has 5"):
        load_own(path, Shards(Communicator(), 5, 5.0, 0), 3)


def test_shards_that_no_snapshot_names_are_removed(tmp_path):
    path = written(tmp_path, [[4, 1], [0, 5, 2], [3]])
    stray = tmp_path / "checkpoint-000002.99999999.00000-of-00001.dladmm"
    stray.write_bytes(b"x")
    remove_shards(tmp_path, [path])
    assert not stray.exists()
    assert len(list(tmp_path.iterdir())) == 4
