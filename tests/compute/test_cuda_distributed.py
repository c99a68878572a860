"""Ranks on a GPU: NCCL with as many ranks as there are GPUs, gloo with two ranks that share one."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist

from convergent import train, train_graph
from distributed_tasks import data, quietly
from dladmm import datasets, mlp
from dladmm.distributed import ALONE, Group

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

SETTINGS = {
    "quadratic": {"w_solver": "quadratic", "a_solver": "quadratic"},
    "exact": {},
    "compiled": {"compile": True},
    "accelerated": {"mode": "accelerated"},
}


class NeverAlone(Group):
    """A group that makes its calls even when it has one rank: all that NCCL can be asked for on one GPU."""

    alone = False


def trained(comm, kind, device):
    if kind == "graph":
        graph = datasets.load("karate")
        result = quietly(
            train_graph, graph, hidden=(8,), max_iter=4, dtype="float64", rho=1.0, device=device,
            communicator=comm, eps_abs=0.0, eps_rel=0.0,
        )  # fmt: skip
    else:
        X, y = data(61)
        result = quietly(
            train, mlp([X.shape[1], 7, 6, 3]), X, y, max_iter=4, dtype="float64", device=device,
            communicator=comm, eps_abs=0.0, eps_rel=0.0, **SETTINGS[kind],
        )  # fmt: skip
    return {
        "params": [p.cpu().numpy() for block in result.state.params for p in block.values()],
        "objective": result.history["objective"],
        "certified": result.certificate.certified,
        "calls": comm.traffic.calls,
    }


def work(rank, size, backend, folder, pipe):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    device = f"cuda:{rank % torch.cuda.device_count()}"
    torch.cuda.set_device(device)
    place, wait = f"file://{folder}/rendezvous", timedelta(seconds=60)
    try:
        dist.init_process_group(backend, init_method=place, rank=rank, world_size=size, timeout=wait)
        answers = {}
        for kind in (*SETTINGS, "graph"):
            comm = NeverAlone() if size == 1 else Group()
            answers[kind] = trained(comm, kind, device)
        dist.destroy_process_group()
        pipe.send((answers, None))
    except BaseException as error:
        pipe.send((None, f"{error}\n{traceback.format_exc()}"))


@pytest.fixture(scope="module")
def alone():
    return {kind: trained(ALONE, kind, "cuda:0") for kind in (*SETTINGS, "graph")}


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_ranks_on_gpus_agree_with_one_process(backend, alone):
    size = max(1, min(4, torch.cuda.device_count())) if backend == "nccl" else 2
    context = multiprocessing.get_context("spawn")
    answers = []
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            processes.append(context.Process(target=work, args=(rank, size, backend, folder, theirs)))
            processes[-1].start()
            theirs.close()
            pipes.append(ours)
        for pipe in pipes:
            assert pipe.poll(180), "a rank does not answer"
            answer, error = pipe.recv()
            assert error is None, error
            answers.append(answer)
        for process in processes:
            process.join(60)
    for kind, expected in alone.items():
        for answer in answers:
            found = answer[kind]
            assert found["calls"] > 0
            assert found["certified"] == expected["certified"]
            for ours, theirs, first in zip(
                found["params"], expected["params"], answers[0][kind]["params"], strict=True
            ):
                assert np.array_equal(ours, first), f"{kind}: ranks differ"
                assert np.allclose(ours, theirs, rtol=1e-9, atol=1e-10), f"{kind}: {abs(ours - theirs).max()}"
