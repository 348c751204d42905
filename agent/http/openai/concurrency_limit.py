"""Concurrency limit of requests beside the calls: the number in progress, and the refusal beyond.

Requests that wait for a model hold an upload or a sentence of audio, and a client that reads slowly
holds both. So the number is bounded, and a request beyond it gets an error to try again, which
stock clients do by themselves.

One client must not take all places. It is admitted while it holds fewer than are free: alone it
gets half of them, two get a third each, and the next one always finds a place (the dynamic
threshold of Choudhury and Hahne, 1998, for buffers that queues share). A client is a key, or an
address where there is none.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from agent.http.json_body import RefusedError

MAX_AT_ONCE: Final = 16
"""Each has one job in a stage's queue, of 64. More at once make none of them sooner."""

MAX_OF_ONE: Final = MAX_AT_ONCE // 2
"""So many a client has at most, while no other asks."""


class ConcurrencyLimit:
    """Limit of one kind of request. For one event loop."""

    def __init__(self, max_at_once: int = MAX_AT_ONCE) -> None:
        self._free = max_at_once
        self._held: Counter[str] = Counter()

    @contextmanager
    def take(self, client: str) -> Iterator[None]:
        """Until the context is left. Raises RefusedError where all are taken, or this client has
        its share."""
        if not self._free:
            raise RefusedError(503, "request", "has to wait for others; try again shortly")
        if self._held[client] >= self._free:
            problem = (
                f"has to wait for yours: {self._held[client]} of them are in progress, and the "
                "places left are for others; try again shortly"
            )
            raise RefusedError(503, "request", problem)
        self._free -= 1
        self._held[client] += 1
        try:
            yield
        finally:
            self._free += 1
            self._held -= Counter([client])  # which forgets those at zero
