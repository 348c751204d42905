"""Pending streams: connections that have not named their call yet; their number and timeout.

Any client can open such a connection without a key and send nothing: authentication comes with the
first message. So at most `MAX_STREAMS` of them are open, over all carriers. One more is not refused
but replaces another: if it were refused, an attacker could block all calls by keeping that many
open. As it is, an attacker has to open that many within the tenth of a second that a carrier takes
from its handshake to its first message.

The replaced one is the oldest of the network that has most of them: a flood from one network
displaces only its own streams.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from agent.http.peer_address import place_of
from agent.telephony.carriers.media_stream import StreamError

MAX_STREAMS: Final = 64
"""Most pending streams. Carriers need as many as calls begin within a tenth of a second."""

CROWDED_OUT: Final = (
    "too many streams did not say what call they are; this was the oldest of its address"
)


class PendingStreams:
    """Streams that wait for their first message. Belongs to the event loop."""

    def __init__(self) -> None:
        self._networks: dict[asyncio.Timeout, str] = {}
        """Time limit and network of each stream, the oldest first."""

    def __len__(self) -> int:
        return len(self._networks)

    @asynccontextmanager
    async def wait(self, address: str, seconds: float) -> AsyncIterator[None]:
        """Limit the time of the block, which reads a stream's first message. Raises TimeoutError;
        StreamError where another stream replaced this one."""
        waiting = {each: net for each, net in self._networks.items() if not each.expired()}
        if len(waiting) >= MAX_STREAMS:
            self._make_room(waiting)
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                self._networks[limit] = place_of(address)
                yield
        except TimeoutError:
            if limit not in self._networks:
                raise StreamError(CROWDED_OUT) from None
            raise
        finally:
            self._networks.pop(limit, None)

    def _make_room(self, waiting: Mapping[asyncio.Timeout, str]) -> None:
        """`waiting`: streams whose time is not over. Those whose is, end by themselves."""
        most, _ = Counter(waiting.values()).most_common(1)[0]
        oldest = next(limit for limit, network in waiting.items() if network == most)
        del self._networks[oldest]
        oldest.reschedule(0)  # a time in the past
