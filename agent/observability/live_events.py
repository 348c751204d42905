"""Live events of the service for pages and operators: the stream `/v1/latency/events`.

Everything goes into one ring, a tuple each, whether or not anybody looks: that costs a mark less
than a microsecond, and whoever was gone for a moment can ask for what he missed. JSON is made when
an event is sent, once for each listener. A listener that is too slow to follow the ring is told how
many events he lost, and goes on with the oldest there is.

One who does not read at all can't be told from one who does: the system takes megabytes for him
before anything has to wait, and a quiet service says 20 bytes a minute. So every stream ends after
`STREAM_S`. Whoever is there asks again, as browsers do by themselves, and misses nothing.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Literal

EventKind = Literal["mark", "turn", "session", "refusal", "engine", "lost"]

MAX_KEPT: Final = 4096
"""About ten minutes of one call, marks included."""

MAX_LISTENERS: Final = 32
"""Each costs the loop the JSON of every event."""

STREAM_S: Final = 300.0
"""Of a stream. So long someone who has gone, or never reads, takes one of the places; each end
costs those who listen a request."""

RETRY_MS: Final = 1000
"""After the end of a stream, for browsers: they wait three seconds if nobody says."""

HEARTBEAT_S: Final = 15.0
"""A comment line, so that proxies keep the connection and a listener that is gone is noticed."""

Content = Callable[[], dict[str, Any]]
"""Makes an event's data when it is sent; called once a listener."""


class LiveEvents:
    """Belongs to the service's loop."""

    def __init__(self) -> None:
        self._wakers: set[asyncio.Event] = set()
        """One for each listener: set when there is news."""
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
        """Tell all listeners. `session`: the call that it belongs to; None: all of them."""
        self._ring.append((self._next_id, kind, session, content))
        self._next_id += 1
        for waker in self._wakers:
            waker.set()

    def close(self) -> None:
        """The service ends: so do all streams."""
        self._is_closed = True
        self.look_up()

    def look_up(self) -> None:
        """Have all listeners see whether they still may."""
        for waker in self._wakers:
            waker.set()

    async def listen(
        self,
        *,
        session: str | None = None,
        after_id: int | None = None,
        may: Callable[[], bool] = lambda: True,
    ) -> AsyncIterator[str]:
        """Server-sent events from now on, or after `after_id`. Of one session where it is named;
        what belongs to no session is told to all. Ends after `STREAM_S`, and where the listener
        may no more."""
        next_id = self._next_id if after_id is None else after_id + 1
        if next_id > self._next_id:  # of a server before this one
            next_id = self._ring[0][0] if self._ring else self._next_id
        waker, is_over = asyncio.Event(), asyncio.Event()
        self._wakers.add(waker)
        timer = asyncio.get_running_loop().call_later(STREAM_S, _set_both, is_over, waker)
        try:
            yield f": halfsec\nretry: {RETRY_MS}\n\n"
            while may() and not (self._is_closed or is_over.is_set()):
                waker.clear()
                texts, next_id = self._texts(next_id, session), self._next_id
                for text in texts:
                    yield text
                if not may():
                    break
                if await _is_quiet(waker):
                    yield ": still here\n\n"
        finally:
            timer.cancel()
            self._wakers.discard(waker)

    def _texts(self, next_id: int, session: str | None) -> list[str]:
        """What is in the ring from `next_id` on."""
        oldest_id = self._ring[0][0] if self._ring else self._next_id
        texts = []
        if next_id < oldest_id:
            texts.append(_text(oldest_id - 1, "lost", {"events": oldest_id - next_id}))
        # From the new end: a listener who keeps up has a few of thousands to look at.
        for number, kind, of_session, content in reversed(self._ring):
            if number < next_id:
                break
            if session is None or of_session in (None, session):
                data = content() if of_session is None else {"session": of_session, **content()}
                texts.append(_text(number, kind, data))
        lost, found = texts[: next_id < oldest_id], texts[next_id < oldest_id :]
        return [*lost, *reversed(found)]


def _set_both(first: asyncio.Event, second: asyncio.Event) -> None:
    first.set()
    second.set()


async def _is_quiet(waker: asyncio.Event) -> bool:
    """Wait for news. True where none came for long."""
    try:
        async with asyncio.timeout(HEARTBEAT_S):
            await waker.wait()
    except TimeoutError:
        return True
    return False


def _text(number: int, kind: EventKind, data: dict[str, Any]) -> str:
    """One event, as the standard of server-sent events has it."""
    return f"id: {number}\nevent: {kind}\ndata: {json.dumps(data)}\n\n"
