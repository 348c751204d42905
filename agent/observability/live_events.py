"""Live events of the service for pages and operators: the stream `/v1/latency/events`.

Every event is put into one ring, as a tuple, with or without listeners: this costs less than a
microsecond a mark, and a listener that was disconnected for a moment can request the events that it
missed. JSON is encoded when an event is sent, once for each listener. A listener that is too slow
for the ring receives the number of lost events, and continues with the oldest event in the ring.

A listener that does not read can't be distinguished from one that does: the operating system
buffers megabytes before a write blocks, and an idle service sends 20 bytes a minute. So every
stream ends after `STREAM_S`. A live listener reconnects, as browsers do by themselves, and misses
nothing.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Literal

EventKind = Literal["mark", "turn", "session", "refusal", "engine", "settings", "lost"]

MAX_KEPT: Final = 4096
"""Size of the ring in events: about ten minutes of one call, marks included."""

MAX_ENCODED: Final = 64
"""Events encoded at once for a listener, which takes 0.3 ms: one that requests the whole ring
leaves calls their turns in between."""

MAX_LISTENERS: Final = 32
"""Each listener costs the event loop the JSON encoding of every event."""

STREAM_S: Final = 300.0
"""Duration of a stream in seconds. A listener that is gone, or never reads, occupies a place for at
most so long; each end costs the live listeners a request."""

RETRY_MS: Final = 1000
"""Reconnection time of browsers after the end of a stream, in ms; their default is three
seconds."""

HEARTBEAT_S: Final = 15.0
"""Interval of comment lines in seconds, so that proxies keep the connection and a listener that is
gone is detected."""

_BEGINNING: Final = f": halfsec\nretry: {RETRY_MS}\n\n"

Content = Callable[[], dict[str, Any]]
"""Returns an event's data when it is sent; called once for each listener."""


class LiveEvents:
    """Ring of live events and its listeners. Belongs to the service's event loop."""

    def __init__(self) -> None:
        self._wakers: set[asyncio.Event] = set()
        """One for each listener: set when there is a new event."""
        self._ring: deque[tuple[int, EventKind, str | None, Content]] = deque(maxlen=MAX_KEPT)
        self._next_id = 1
        self._is_closed = False

    @property
    def num_listeners(self) -> int:
        return len(self._wakers)

    @property
    def full(self) -> bool:
        return self.num_listeners >= MAX_LISTENERS

    def publish(self, kind: EventKind, session: str | None, content: Content) -> None:
        """Send an event to all listeners. `session`: the call of the event; None for the whole
        service."""
        self._ring.append((self._next_id, kind, session, content))
        self._next_id += 1
        for waker in self._wakers:
            waker.set()

    def close(self) -> None:
        """End all streams, at the end of the service."""
        self._is_closed = True
        self.look_up()

    def look_up(self) -> None:
        """Wake all listeners, so that they check their authorization again."""
        for waker in self._wakers:
            waker.set()

    async def listen(
        self,
        *,
        session: str | None = None,
        after_id: int | None = None,
        may: Callable[[], bool] = lambda: True,
    ) -> AsyncIterator[str]:
        """Server-sent events from now on, or after `after_id`.

        `session` limits them to one session; events of no session go to every listener. `may`
        returns whether the listener is still authorized. The stream ends after `STREAM_S`, at
        `close`, and when `may` returns False; at once where it finds `MAX_LISTENERS` others, as
        several may that were let in before the first of them began.
        """
        if self.full:
            yield _BEGINNING
            return
        next_id = self._next_id if after_id is None else after_id + 1
        if next_id > self._next_id:  # an id of an earlier server process
            next_id = self._ring[0][0] if self._ring else self._next_id
        waker, is_over = asyncio.Event(), asyncio.Event()
        self._wakers.add(waker)
        timer = asyncio.get_running_loop().call_later(STREAM_S, _set_both, is_over, waker)
        try:
            yield _BEGINNING
            while may() and not (self._is_closed or is_over.is_set()):
                waker.clear()
                texts, next_id = self._texts(next_id, session)
                for text in texts:
                    yield text
                if next_id < self._next_id:
                    await asyncio.sleep(0)
                    continue
                if not may():
                    break
                if await _is_quiet(waker):
                    yield ": still here\n\n"
        finally:
            timer.cancel()
            self._wakers.discard(waker)

    def _texts(self, next_id: int, session: str | None) -> tuple[list[str], int]:
        """Encoded events of the ring from `next_id` on, `MAX_ENCODED` at most, oldest first; the
        number of lost ones before. And the id of the event after them."""
        oldest_id = self._ring[0][0] if self._ring else self._next_id
        texts = []
        if next_id < oldest_id:
            texts.append(_text(oldest_id - 1, "lost", {"events": oldest_id - next_id}))
            next_id = oldest_id
        end_id = min(next_id + MAX_ENCODED, self._next_id)
        for number in range(next_id, end_id):
            _, kind, of_session, content = self._ring[number - oldest_id]
            if session is None or of_session in (None, session):
                data = content() if of_session is None else {"session": of_session, **content()}
                texts.append(_text(number, kind, data))
        return texts, end_id


def _set_both(first: asyncio.Event, second: asyncio.Event) -> None:
    first.set()
    second.set()


async def _is_quiet(waker: asyncio.Event) -> bool:
    """Wait for an event. True if none came within `HEARTBEAT_S`."""
    try:
        async with asyncio.timeout(HEARTBEAT_S):
            await waker.wait()
    except TimeoutError:
        return True
    return False


def _text(number: int, kind: EventKind, data: dict[str, Any]) -> str:
    """One event in the format of server-sent events."""
    return f"id: {number}\nevent: {kind}\ndata: {json.dumps(data)}\n\n"
