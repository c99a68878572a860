"""One network from data that may not meet: silos keep their rows, and only sums travel (docs/silos.md)."""

from dladmm.silos.communicator import Link, Silo, SiloLost
from dladmm.silos.hub import Hub, SiloError, Transport
from dladmm.silos.threads import run_silos
from dladmm.silos.training import smallest_silo, train_silo
from dladmm.silos.wire import Message, MessageError

__all__ = [
    "Hub",
    "Link",
    "Message",
    "MessageError",
    "Silo",
    "SiloError",
    "SiloLost",
    "Transport",
    "run_silos",
    "smallest_silo",
    "train_silo",
]
