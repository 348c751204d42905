"""Python client of the Realtime WebSocket: `connect`, the call, its events.

    from agent.client import connect, events

    async with connect("ws://localhost:8080") as call:
        async for event in call.events(): ...

Names are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .call import Call, ConnectOptions, connect, wait_ready
    from .errors import CallEndedError, ConnectError, NothingToResumeError

__all__ = [
    "Call",
    "CallEndedError",
    "ConnectError",
    "ConnectOptions",
    "NothingToResumeError",
    "connect",
    "wait_ready",
]

_MODULES = {
    "Call": "call",
    "CallEndedError": "errors",
    "ConnectError": "errors",
    "ConnectOptions": "call",
    "NothingToResumeError": "errors",
    "connect": "call",
    "wait_ready": "call",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
