"""A function in a process of its own: without root's rights, on a full disk, or until it is killed."""

from __future__ import annotations

import os
import resource
import signal
import traceback
from collections.abc import Callable

NOBODY = 65534


def forked(
    function: Callable[[], object], *, unprivileged: bool = False, disk_full_at: int | None = None
) -> str:
    """What the function came to: ``ok``, or the name and the words of its exception (a traceback for a death).

    ``unprivileged`` gives up root's rights, which read and write everything; ``disk_full_at`` lets no file grow beyond
    that many bytes: the kernel refuses the write as it does on a full disk.
    """
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(receive)
        try:
            if disk_full_at is not None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (disk_full_at, disk_full_at))
            if unprivileged and os.geteuid() == 0:
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            function()
            words = "ok"
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
        except BaseException:
            words = traceback.format_exc()
        os.write(send, words.encode()[:60_000])
        os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        words = pipe.read().decode()
    _, status = os.waitpid(pid, 0)
    return words if os.WIFEXITED(status) and words else f"the process died ({status})"
