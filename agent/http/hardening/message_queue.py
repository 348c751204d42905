"""Queue of received messages that the session has not read yet, bounded in bytes."""

import asyncio
from sys import getsizeof
from typing import Any, Final

MAX_WAITING_BYTES: Final = 24 << 20
"""Of memory. Six minutes of 24 kHz PCM in pieces of 20 ms or more. Fewer: a stock client that sends
a long recording at once gives up, for its pings wait behind it."""

KEPT_BYTES: Final = 64 << 10
"""Of those, what is dealt with although the client has gone: a second of that audio."""


class MessageQueue(asyncio.Queue[Any]):
    """ASGI messages of one connection, in order. Belongs to the event loop. It takes whatever it is
    given: while it `is_over` its bound, nothing more is to be read.

    When the client has gone, only the oldest of what it sent is kept. Nobody is left to hear the
    answer to the rest, and others want the line. It is the newest that goes, so that a client that
    comes back can be told how much of it was dealt with.
    """

    def __init__(self) -> None:
        super().__init__()
        self._num_bytes = 0

    @property
    def is_over(self) -> bool:
        return self._num_bytes > MAX_WAITING_BYTES

    def put_nowait(self, item: Any) -> None:
        if item["type"] == "websocket.disconnect":
            self._forget_newest()
        super().put_nowait(item)

    def _forget_newest(self) -> None:
        for message in [self.get_nowait() for _ in range(self.qsize())]:
            if self._num_bytes + _size(message) <= KEPT_BYTES:
                super().put_nowait(message)

    def _put(self, item: Any) -> None:
        self._num_bytes += _size(item)
        super()._put(item)

    def _get(self) -> Any:
        item = super()._get()
        self._num_bytes -= _size(item)
        return item


def _size(message: Any) -> int:
    """Bytes of memory that data from the client takes; 0 for what is none."""
    if message["type"] != "websocket.receive":
        return 0
    return getsizeof(message) + getsizeof(message.get("text") or message.get("bytes"))
