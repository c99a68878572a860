"""One network from data that may not meet: silos keep their rows, and only sums travel (docs/silos.md).

Names are imported when they are first used: a client of Flower is started for every message and needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_PLACES = {
    "communicator": ("Link", "Silo", "SiloLost"),
    "hub": ("Hub", "SiloError", "Transport"),
    "threads": ("run_silos",),
    "training": ("smallest_silo", "train_silo"),
    "wire": ("Message", "MessageError"),
}


def __getattr__(name: str) -> Any:
    for module, names in _PLACES.items():
        if name in names:
            return getattr(import_module(f"dladmm.silos.{module}"), name)
    raise AttributeError(f"module 'dladmm.silos' has no attribute {name!r}")
