"""Voice agent service: sessions, turn-taking, transports, HTTP. Importing it loads nothing else."""

from typing import Any


def __getattr__(name: str) -> Any:
    """`agent.client_events` is the earlier name of `agent.client.events`."""
    if name != "client_events":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return import_module("agent.client.events")
