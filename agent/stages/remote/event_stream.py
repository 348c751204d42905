"""Reader of server-sent events. Pure.

httpx-sse is not used: it collects a line, and an event, of any length, so a broken server could
fill the memory of all calls.
"""

import re
from typing import Final

MAX_EVENT_BYTES: Final = 1 << 20
"""Longest event, in bytes. A token's has some 300; a call's arguments may come as one."""

MAX_STREAM_BYTES: Final = 32 << 20
"""Longest stream: 8192 tokens, the longest reply, at 4 kB each."""

_LINE_END: Final = re.compile(rb"\r\n|\r|\n")


class MalformedStreamError(ValueError):
    """The stream is not what it should be. The message is the predicate of a sentence."""


class SseReader:
    """Parser of one stream. The events are the same however its bytes are cut."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []
        self._num_held = 0
        """Bytes of the event so far."""
        self._num_read = 0
        self._follows_cr = False

    def push(self, chunk: bytes) -> list[str]:
        """Add bytes; returns the data of the events that are complete.

        Raises MalformedStreamError for an event or a stream that is too long, or not UTF-8.
        """
        if self._follows_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            self._follows_cr = False
        if not chunk:
            return []
        self._follows_cr = chunk.endswith(b"\r")
        self._num_read += len(chunk)
        first, *rest = _LINE_END.split(chunk)
        events: list[str] = []
        self._grow(first)
        for piece in rest:
            events += self._end_line()
            self._grow(piece)
        if self._num_read > MAX_STREAM_BYTES:
            raise MalformedStreamError(f"sent more than {MAX_STREAM_BYTES >> 20} MiB")
        return events

    def flush(self) -> list[str]:
        """Data of a last event without the empty line that should end it."""
        return [*self._end_line(), *self._end_line()]

    def _grow(self, piece: bytes) -> None:
        self._num_held += len(piece)
        if self._num_held > MAX_EVENT_BYTES:
            raise MalformedStreamError(f"sent an event of more than {MAX_EVENT_BYTES >> 20} MiB")
        self._line += piece

    def _end_line(self) -> list[str]:
        line = bytes(self._line)
        self._line.clear()
        if line:
            field, _, value = line.partition(b":")
            if field == b"data":
                self._data.append(value.removeprefix(b" "))
            else:
                self._num_held -= len(line)  # a comment or another field is kept nowhere
            return []
        self._num_held = 0
        if not self._data:
            return []
        data, self._data = b"\n".join(self._data), []
        try:
            return [data.decode()]
        except UnicodeDecodeError:
            raise MalformedStreamError("sent an event that is not UTF-8") from None
