"""Training on several ranks: the names a user's program needs (docs/distributed.md)."""

from dladmm.compute.communicator import (
    ALONE,
    Communicator,
    DistributedError,
    Group,
    Shards,
    Traffic,
    current,
    share,
)

__all__ = ["ALONE", "Communicator", "DistributedError", "Group", "Shards", "Traffic", "current", "share"]
