"""Training on many machines: the same engine, each rank with rows of its own (docs/distributed.md)."""

from dladmm.distributed.communicator import (
    ALONE,
    Communicator,
    DistributedError,
    Group,
    Traffic,
    current,
)
from dladmm.distributed.shards import Shards, share

__all__ = ["ALONE", "Communicator", "DistributedError", "Group", "Shards", "Traffic", "current", "share"]
