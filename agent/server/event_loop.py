"""Event loop of the service, and its timeout of TLS handshakes."""

import sys
from typing import Any, Final

from agent.errors import CLOSE_TIMEOUT_S

TLS_TIMEOUT_S: Final = 10.0
"""For a TLS handshake, as long as for a request. The loop's own minute would let whoever opens
connections and says nothing take all file descriptors: before the handshake nobody counts them."""


def loop_factory() -> Any:
    """Makes the service's event loop; None for Python's own."""
    if sys.platform == "win32":
        return None
    import uvloop

    class Loop(uvloop.Loop):
        """uvicorn can't be told how long to wait for TLS."""

        async def create_server(self, *args: Any, **options: Any) -> Any:
            if options.get("ssl") is not None:
                options.setdefault("ssl_handshake_timeout", TLS_TIMEOUT_S)
                options.setdefault("ssl_shutdown_timeout", CLOSE_TIMEOUT_S)
            return await super().create_server(*args, **options)

    return Loop
