"""HTTP/1.1 parser of the server's connections: h11, a bounded number of events at a time.

Theory of operation: h11 has an event for every chunk of a body, and uvicorn takes all events of a
network read in one go. A read brings up to 256 kB. That is five events of an honest upload, and
43,000 of a client that sends chunks of one byte, which needs no key for it: parsing those in one go
held every call up for 0.3 s, and the next read for as long again. So:

*Events are counted.* After `EVENTS_A_TURN` the parser asks for more data although it has some;
`http_protocol.py` goes on at the next turn of the event loop and does not read meanwhile. Bytes
would be the wrong measure: slices small enough for such chunks cost an honest upload twenty turns
of the loop for each read.

*h11 gets `SLICE_BYTES` at a time*, for it limits the size of a head or a trailer only while that is
incomplete: one of 65,000 lines that came in one read took 0.1 s before it was refused.

*Small chunks* are allowed, but not in such numbers that parsing costs more than sending them
(`MAX_SMALL_CHUNKS`).

*After the response* the rest of the request's body is read and discarded, so that a client that
sends on finds the response and not a reset connection. It is bounded (`MAX_DISCARDED_BYTES`, and
the time that a connection has for its next request): the client may not even have a key.
"""

import re
from typing import Any, Final

import h11

EVENTS_A_TURN: Final = 128
"""Events parsed in one go: 1 ms for the smallest chunks. A read of 256 kB in chunks of 64 kB has
72, so that no upload waits for a turn of the loop; with fewer, each read of it waits."""

SLICE_BYTES: Final = 4096
"""Bytes that h11 gets at once. With more, a head or a trailer may be longer than its limit by as
much; with less, each read of an upload takes more events."""

MAX_HEAD_LINES: Final = 512
"""Lines of a head that is parsed at all: 0.8 ms. Heads beyond a fifth of these are refused with a
reason (`header_limits.py`); 16 KiB could hold 4000, 7 ms."""

MAX_TRAILER_BYTES: Final = 2048
"""Trailer of a body in chunks, or the line before a chunk with its extensions: 3 ms in the shortest
lines. The server uses neither."""

MAX_SMALL_CHUNKS: Final = 4096
"""Chunks of any size in a body: 30 ms in all. JSON written piece by piece has hundreds."""

MIN_CHUNK_BYTES: Final = 64
"""Bytes that the chunks of a body have on average, beyond so many: 20 ms of the slowest telephone
codec are 33 to 160, and come 50 a second."""

MAX_DISCARDED_BYTES: Final = 32 << 20
"""Bytes of a body that come after the response: more than any upload that is accepted. With less, a
client that sends its upload before it reads finds the connection reset instead of its 401."""

_END_OF_HEAD: Final = re.compile(rb"\n\r?\n")


class HttpParser(h11.Connection):
    """The server's side of one HTTP/1.1 connection, sans I/O. Belongs to the event loop.

    Order of calls: `begin_turn`, then `next_event` until it returns NEED_DATA or PAUSED. While
    `has_more`, the rest waits for another turn, and nothing should be read.
    """

    def __init__(self, max_head_bytes: int) -> None:
        super().__init__(h11.SERVER, max_head_bytes)
        self.has_more = False
        """The last turn ended at its number of events."""
        self.refusal = ""
        """Reason why the request is refused by this class, rather than by h11."""
        self._unread = bytearray()
        """Received bytes that h11 has not got: one network read, where `has_more` is heeded."""
        self._num_left = 0
        self._num_chunks = 0
        self._num_bytes = 0
        self._num_discarded = 0
        self._discarded_bytes = 0

    @property
    def trailing_data(self) -> tuple[bytes, bool]:
        ahead, is_ended = super().trailing_data
        return ahead + bytes(self._unread), is_ended

    def begin_turn(self) -> None:
        """Allow the next `EVENTS_A_TURN` events."""
        self._num_left = EVENTS_A_TURN
        self.has_more = False

    def receive_data(self, data: bytes) -> None:
        """Keep the bytes until `next_event`. uvicorn does not report the end of the stream here."""
        self._unread += data

    def next_event(self) -> Any:
        """The next event, as h11's. Raises RemoteProtocolError."""
        if self.refusal:
            raise h11.RemoteProtocolError(self.refusal)
        if not self._num_left:
            self.has_more = True
            return h11.NEED_DATA
        self._num_left -= 1
        event = self._parsed()
        if isinstance(event, h11.Request):
            self._num_chunks = self._num_bytes = self._num_discarded = self._discarded_bytes = 0
        elif isinstance(event, h11.Data):
            self._count(event)
        return event

    def discard(self) -> None:
        """Drop what was not parsed: the connection is over."""
        self._unread.clear()

    def _parsed(self) -> Any:
        while True:
            self._check_lines()
            event = super().next_event()
            if event is not h11.NEED_DATA:
                return event
            if self.their_state is h11.SEND_BODY and self._num_waiting() > MAX_TRAILER_BYTES:
                self._refuse("The trailer or a chunk's extensions are too long.")
            if not self._unread:
                return event
            super().receive_data(bytes(self._unread[:SLICE_BYTES]))
            del self._unread[:SLICE_BYTES]

    def _check_lines(self) -> None:
        if self.their_state is not h11.IDLE:
            return
        ahead, _ = super().trailing_data
        if ahead.count(b"\n") <= MAX_HEAD_LINES:
            return
        if _END_OF_HEAD.split(ahead, 1)[0].count(b"\n") > MAX_HEAD_LINES:
            self._refuse(f"A request's head has at most {MAX_HEAD_LINES} lines.")

    def _num_waiting(self) -> int:
        """Bytes of an event that is not complete."""
        return len(super().trailing_data[0])

    def _count(self, event: h11.Data) -> None:
        self._num_bytes += len(event.data)
        self._num_chunks += event.chunk_start
        is_small = self._num_bytes < MIN_CHUNK_BYTES * self._num_chunks
        if self._num_chunks > MAX_SMALL_CHUNKS and is_small:
            self._refuse(
                f"A body of more than {MAX_SMALL_CHUNKS} chunks has {MIN_CHUNK_BYTES} bytes in "
                "each on average."
            )
        if self.our_state is not h11.DONE:
            return
        self._discarded_bytes += len(event.data)
        self._num_discarded += event.chunk_start
        if self._discarded_bytes > MAX_DISCARDED_BYTES or self._num_discarded > MAX_SMALL_CHUNKS:
            self._refuse("The body of a request that was answered does not end.")

    def _refuse(self, reason: str) -> None:
        self.refusal = reason
        raise h11.RemoteProtocolError(reason)
