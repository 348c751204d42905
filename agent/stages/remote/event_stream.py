"""Reader of a server-sent event stream. Pure, and bounded.

Own code: httpx's lines, and httpx-sse which reads by them, hold a line of any length in memory, and
a server that goes wrong may send one that never ends.
"""

from typing import Final

from .errors import MalformedStreamError

MAX_EVENT_BYTES: Final = 1 << 20
"""Longest event. One token's takes some hundred bytes; a tool call that some servers send whole
takes as much as its arguments."""

DONE: Final = "[DONE]"
"""Data of the event after the last chunk."""


class EventStream:
    """Events of one stream, from bytes that are cut anywhere."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[str] = []
        self._num_data_chars = 0

    def push(self, data: bytes) -> list[str]:
        """Take in bytes; returns the data of the events that are complete.

        Raises MalformedStreamError for an event that is too long, and for text that is not UTF-8.
        """
        events: list[str] = []
        *ends, rest = data.split(b"\n")
        for end in ends:
            self._line += end
            self._read_line(events)
        self._line += rest
        if len(self._line) > MAX_EVENT_BYTES:
            raise MalformedStreamError("sent a line that is too long")
        return events

    def _read_line(self, events: list[str]) -> None:
        if len(self._line) > MAX_EVENT_BYTES:
            raise MalformedStreamError("sent a line that is too long")
        try:
            line = self._line.decode().removesuffix("\r")
        except UnicodeDecodeError:
            raise MalformedStreamError("sent text that is not UTF-8") from None
        self._line.clear()
        if not line:
            if self._data:
                events.append("\n".join(self._data))
            self._data, self._num_data_chars = [], 0
            return
        name, _, value = line.partition(":")
        if name != "data":
            return  # a comment that keeps the connection open, an event's name, an id
        value = value.removeprefix(" ")
        self._num_data_chars += len(value)
        if self._num_data_chars > MAX_EVENT_BYTES:
            raise MalformedStreamError("sent an event that is too long")
        self._data.append(value)
