"""Four real processes that stay for all tests of a run: ``pool.run(task, world, *arguments)`` runs a task on some."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from dladmm.distributed import ALONE, Group

SIZE = 4
PATIENCE = 120
"""Seconds after which a test gives a task up: longer than any takes, shorter than anybody waits."""


def work(rank, size, seconds, folder, pipe):
    """A process of the pool: one group for every world size, and tasks until None comes."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    wait = timedelta(seconds=seconds)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=size, timeout=wait)
    groups = {some: dist.new_group(list(range(some)), timeout=wait) for some in range(2, size + 1)}
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

    def __init__(self, size=SIZE, seconds=60):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["dladmm", "torch.distributed", "distributed_tasks"])
        self._folder = tempfile.TemporaryDirectory()
        self.pipes, self.processes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            settings = (rank, size, seconds, Path(self._folder.name), theirs)
            process = context.Process(target=work, args=settings, daemon=True)
            process.start()
            theirs.close()
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
            try:
                answers.append(pipe.recv())
            except (EOFError, ConnectionResetError):
                answers.append((None, "the process is gone"))
        return answers

    def close(self):
        for pipe in self.pipes:
            with suppress(OSError):  # its process may have died
                pipe.send(None)
        for process in self.processes:
            process.join(3)
            if process.is_alive():
                process.kill()
        self._folder.cleanup()

    def kill(self):
        """End processes that may be waiting for one that is gone."""
        for process in self.processes:
            process.kill()
            process.join(10)
        self._folder.cleanup()
