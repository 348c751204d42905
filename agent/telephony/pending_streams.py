"""Pending streams: connections that have not named their call yet; their number and timeout.

Anybody can open one, without a key, and say nothing: what shows that it is a carrier's comes with
its first message. So there are only `MAX_STREAMS` of them over all carriers. One more is not
refused but takes the place of another. Were it refused, an attacker would only have to keep as many
open as there may be, and no call came in any more. As it is he has to open that many within the
tenth of a second that a carrier takes from its handshake to its first message.

It is the oldest of the address that has most of them: who comes from one address is in nobody's way
but his own.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from agent.http.peer_address import place_of
from agent.telephony.carriers.media_stream import StreamError

MAX_STREAMS: Final = 64
"""Carriers need as many as calls begin within a tenth of a second."""

CROWDED_OUT: Final = (
    "too many streams did not say what call they are; this was the oldest of its address"
)


class OpeningStreams:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        self._places: dict[asyncio.Timeout, str] = {}
        """The oldest first: what ends the wait for each, and where it comes from."""

    def __len__(self) -> int:
        return len(self._places)

    @asynccontextmanager
    async def wait(self, address: str, seconds: float) -> AsyncIterator[None]:
        """For a stream to say what it is. Raises TimeoutError; StreamError where it had to make
        room for another."""
        if len(self._places) >= MAX_STREAMS:
            self._make_room()
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                self._places[limit] = place_of(address)
                yield
        except TimeoutError:
            if limit not in self._places:
                raise StreamError(CROWDED_OUT) from None
            raise
        finally:
            self._places.pop(limit, None)

    def _make_room(self) -> None:
        most, _ = Counter(self._places.values()).most_common(1)[0]
        oldest = next(limit for limit, place in self._places.items() if place == most)
        del self._places[oldest]
        oldest.reschedule(0)  # which is long ago
