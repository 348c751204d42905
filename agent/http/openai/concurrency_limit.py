"""Concurrency limit of requests beside the calls: the number in progress, and the refusal beyond.

Requests that wait for a model hold an upload or a sentence of audio, and a client that reads slowly
holds both. So the number is bounded, and a request beyond it gets an error to try again, which
stock clients do by themselves.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from agent.http.json_body import RefusedError

MAX_AT_ONCE: Final = 16
"""Each has one job in a stage's queue, of 64. More at once make none of them sooner."""


class ConcurrencyLimit:
    """Limit of one kind of request. For one event loop."""

    def __init__(self, max_at_once: int = MAX_AT_ONCE) -> None:
        self._free = max_at_once

    @contextmanager
    def take(self) -> Iterator[None]:
        """Until the context is left. Raises RefusedError where all are taken."""
        if not self._free:
            raise RefusedError(503, "request", "has to wait for others; try again shortly")
        self._free -= 1
        try:
            yield
        finally:
            self._free += 1
