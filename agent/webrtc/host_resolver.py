"""Lookup of the STUN server's name, once for all calls.

The library asks for the name in asyncio's default executor, for each address of this machine and
each call. A resolver that does not answer then holds all threads of that executor, and with them
everything else that runs on it. Here one thread at a time looks the name up, for all who wait.
"""

import asyncio
import concurrent.futures
import ipaddress
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

KEPT_S: Final = 60.0
"""Time for which an address is used. `gethostbyname` does not say for how long it holds."""

FAILED_S: Final = 5.0
"""Time for which a name that was not found is not looked up again."""


@dataclass(frozen=True, slots=True)
class _Lookup:
    future: concurrent.futures.Future[str]
    began_s: float


class HostResolver:
    """IPv4 addresses of host names. For any event loop."""

    def __init__(self, look_up: Callable[[str], str] = socket.gethostbyname) -> None:
        """`look_up` blocks, and raises OSError."""
        self._look_up = look_up
        self._lock = threading.Lock()
        self._lookups: dict[str, _Lookup] = {}
        """By name: as many as the configuration has."""

    async def resolve(self, host: str, now_s: float) -> str:
        """Address of a host. `now_s`: a monotonic time. Raises OSError. A caller that gives up
        leaves the lookup to the others."""
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            pass
        with self._lock:
            lookup = self._lookups.get(host)
            if lookup is None or _is_stale(lookup, now_s):
                lookup = self._lookups[host] = _Lookup(self._begun(host), now_s)
        return await asyncio.wrap_future(lookup.future)

    def _begun(self, host: str) -> concurrent.futures.Future[str]:
        """Look a name up on a thread that no end of the process waits for."""
        future: concurrent.futures.Future[str] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()  # from here on no waiting caller can cancel it

        def run() -> None:
            try:
                future.set_result(self._look_up(host))
            except Exception as error:  # OSError, and UnicodeError for what is no name
                future.set_exception(error)

        threading.Thread(target=run, name="stun-lookup", daemon=True).start()
        return future


def _is_stale(lookup: _Lookup, now_s: float) -> bool:
    """True for an answer that is too old. A lookup that goes on is never given up."""
    if not lookup.future.done():
        return False
    failed = lookup.future.exception() is not None
    return now_s - lookup.began_s > (FAILED_S if failed else KEPT_S)
