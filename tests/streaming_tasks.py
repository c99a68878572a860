"""What two processes do in tests/streaming/test_optimizer_ranks.py."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from dladmm import StreamingADMM

STEPS = 14


class Net(nn.Module):
    """Square, tall and wide maps, a convolution, a gain, a table; a branch that a rank may leave out."""

    def __init__(self):
        super().__init__()
        self.first, self.table = nn.Conv2d(2, 7, 3), nn.Embedding(3, 7)
        self.up, self.norm, self.down = nn.Linear(7, 9), nn.LayerNorm(9), nn.Linear(9, 7)
        self.branch, self.head = nn.Linear(7, 7), nn.Linear(7, 3)

    def forward(self, x, kind, branch):
        h = self.first(x).tanh().mean((2, 3)) + self.table(kind)
        h = h + self.down(self.norm(self.up(h).tanh()))
        return self.head(
            h + self.branch(h).tanh() if branch else h + 0 * sum(p.sum() for p in self.branch.parameters())
        )


def made(dtype=torch.float64):
    torch.manual_seed(0)
    return Net().to(dtype)


def batch(i, rows=slice(None), dtype=torch.float64):
    generator = torch.Generator().manual_seed(i)
    x = torch.randn(12, 2, 5, 5, generator=generator, dtype=torch.float64).to(dtype)
    kind, y = (torch.randint(0, 3, (12,), generator=generator) for _ in range(2))
    return x[rows], kind[rows], y[rows]


def steps(called, optimizer, rows=slice(None), branch=lambda i: True):
    for i in range(STEPS):
        x, kind, y = batch(i, rows)
        optimizer.zero_grad()
        F.cross_entropy(called(x, kind, branch(i)), y).backward()
        optimizer.step()


def numbers(module):
    return {
        n: getattr(p, "full_tensor", lambda p=p: p)().detach().numpy().copy()
        for n, p in module.named_parameters()
    }


def one_process():
    module = made()
    steps(module, StreamingADMM(module, total_steps=20, weight_decay=0.1))
    return numbers(module)


def parallel(comm, wrapped):
    """Half of the rows on each rank; the optimizer is told of the wrapper or of the module in it."""
    rank, group = comm.rank, comm._group
    module = made()
    called = DistributedDataParallel(module, process_group=group)
    settings = {"total_steps": 20, "weight_decay": 0.1, "process_group": group}
    optimizer = StreamingADMM(called if wrapped else module, **settings)
    steps(called, optimizer, slice(6 * rank, 6 * rank + 6))
    return numbers(module)


def uneven(comm):
    """One rank sees a weight as a map in some steps, the other in all."""
    module = made()
    called = DistributedDataParallel(module, process_group=comm._group)
    optimizer = StreamingADMM(module, process_group=comm._group)
    rows = slice(6 * comm.rank, 6 * comm.rank + 6)
    steps(called, optimizer, rows, lambda i: comm.rank == 0 or i > 5)
    return numbers(module), optimizer.state[module.branch.weight]["observed"]


def sharded(comm):
    """fully_shard: gradients and parameters are rows of their own on each rank; then a second run resumes."""
    mesh = DeviceMesh.from_group(comm._group, "cpu")

    def shard():
        module = made()
        fully_shard(module.up, mesh=mesh)
        fully_shard(module, mesh=mesh)
        return module, StreamingADMM(module, total_steps=20, weight_decay=0.1, process_group=comm._group)

    rows = slice(6 * comm.rank, 6 * comm.rank + 6)
    module, optimizer = shard()
    steps(module, optimizer, rows)
    again, resumed = shard()
    again.load_state_dict(module.state_dict())
    resumed.load_state_dict(optimizer.state_dict())
    before = numbers(module)
    steps(module, optimizer, rows)
    steps(again, resumed, rows)
    own = sum(optimizer.state[p]["momentum"].numel() for p in (module.up.weight, module.down.weight))
    return before, numbers(module), numbers(again), own
