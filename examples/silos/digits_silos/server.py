"""The server app: adds up what silos send, and says what it cost."""

from dladmm.silos import Hub
from dladmm.silos.flower import server_app


def told(hub: Hub) -> None:
    print(
        f"{len(hub.outcomes)} silos finished after {hub.traffic.calls} rounds and {hub.traffic.bytes:,} bytes"
    )


app = server_app(told)
