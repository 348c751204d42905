"""Event loop of the service, and its timeout of TLS handshakes.

uvloop looks names up on libuv's threads. Python's own loop does so on its default ones: there a
resolver that does not answer holds up everything that runs on these, the look at the keys' file as
well (3.5 s behind six requests that were given up, two cores of an AMD EPYC, 2026-11-27).
"""

import sys
from typing import Any, Final

from agent.errors import CLOSE_TIMEOUT_S

TLS_TIMEOUT_S: Final = 10.0
"""Time limit of a TLS handshake, the same as of a request. With the loop's default of a minute,
peers that open connections and send nothing could exhaust the file descriptors: connections are
not counted before the handshake."""


def loop_factory() -> Any:
    """Return the factory of the service's event loop (uvloop); None for Python's own loop."""
    if sys.platform == "win32":
        return None
    import uvloop

    class Loop(uvloop.Loop):
        """uvloop with TLS time limits, which uvicorn has no settings for."""

        async def create_server(self, *args: Any, **options: Any) -> Any:
            if options.get("ssl") is not None:
                options.setdefault("ssl_handshake_timeout", TLS_TIMEOUT_S)
                options.setdefault("ssl_shutdown_timeout", CLOSE_TIMEOUT_S)
            return await super().create_server(*args, **options)

    return Loop
