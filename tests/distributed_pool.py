"""Four real processes that stay for all tests of a run: ``pool.run(task, world, *arguments)`` runs a task on some."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from dladmm.distributed import ALONE, Group

SIZE = 4
PATIENCE = 120
"""Seconds after which a test gives a task up: longer than any takes, shorter than anybody waits."""


def work(rank, folder, pipe):
    """A process of the pool: one group for every world size, and tasks until None comes."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    wait = timedelta(seconds=20)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=SIZE, timeout=wait)
    groups = {size: dist.new_group(list(range(size)), timeout=wait) for size in range(2, SIZE + 1)}
    while (order := pipe.recv()) is not None:
        task, world, arguments = order
        try:
            comm = ALONE if world == 1 else Group(groups[world])
            pipe.send((task(comm, *arguments), None))
        except BaseException as error:
            pipe.send((None, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
    dist.destroy_process_group()


class Pool:
    """Its processes are forked from one that has imported everything, so that starting them is quick."""

    def __init__(self):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["dladmm", "torch.distributed", "distributed_tasks"])
        self._folder = tempfile.TemporaryDirectory()
        self.pipes, self.processes = [], []
        for rank in range(SIZE):
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(rank, Path(self._folder.name), theirs), daemon=True)
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, task, world, *arguments):
        """What ``task(communicator, *arguments)`` returns on each of ``world`` ranks."""
        answers = self.outcomes(task, world, *arguments)
        for rank, (_, error) in enumerate(answers):
            assert error is None, f"rank {rank} of {world}: {error}"
        return [answer for answer, _ in answers]

    def outcomes(self, task, world, *arguments):
        """The same, with (None, error) where a rank raised."""
        for pipe in self.pipes[:world]:
            pipe.send((task, world, arguments))
        answers = []
        for rank, pipe in enumerate(self.pipes[:world]):
            assert pipe.poll(PATIENCE), f"rank {rank} of {world} does not answer"
            answers.append(pipe.recv())
        return answers

    def close(self):
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join(10)
            if process.is_alive():
                process.kill()
        self._folder.cleanup()
