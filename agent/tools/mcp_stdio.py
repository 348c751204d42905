"""Codec that bounds the lines of an MCP server that is a command.

The library collects a line of the command's output until it ends, however long it is, and then
parses it. How it decodes the output is the one thing that can be chosen: by the name of a codec.
The one named here is UTF-8; its decoder counts, and tells who called `watch_lines` of a line that
has more than MAX_LINE_CHARS. From then on it drops what comes: the connection is about to be ended.
"""

import codecs
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

from .mcp_http import MAX_ANSWER_BYTES

MAX_LINE_CHARS: Final = MAX_ANSWER_BYTES
"""Longest line: one answer, or one notification."""

ENCODING: Final = "halfsec_lines_utf_8"
"""For `StdioServerParameters`."""

_UTF8: Final = codecs.lookup("utf-8")

_watcher: ContextVar[Callable[[], None] | None] = ContextVar("watcher of lines", default=None)
"""Of the task that enters the library's `stdio_client`, whose tasks inherit it."""


def watch_lines(on_too_long: Callable[[], None]) -> None:
    """Have the servers that the calling task starts from now on watched: `on_too_long` is called
    once for each whose line is too long, by a task of the same loop."""
    _watcher.set(on_too_long)


class _Decoder(codecs.getincrementaldecoder("utf-8")):  # type: ignore[misc]  # found when it runs
    def __init__(self, errors: str = "strict") -> None:
        super().__init__(errors)
        self._on_too_long = _watcher.get()
        self._num_chars = 0
        """Of the line that has not ended."""
        self._is_too_long = False

    def decode(self, data: bytes, final: bool = False) -> str:
        if self._is_too_long:
            return ""
        text: str = super().decode(data, final)
        first, newline, _ = text.partition("\n")
        longest = self._num_chars + len(first)
        self._num_chars = len(text) - text.rindex("\n") - 1 if newline else longest
        if longest > MAX_LINE_CHARS:
            self._is_too_long = True
            if self._on_too_long is not None:
                self._on_too_long()
            return ""
        return text


def _find(name: str) -> codecs.CodecInfo | None:
    if name != ENCODING:
        return None
    return codecs.CodecInfo(_UTF8.encode, _UTF8.decode, incrementaldecoder=_Decoder, name=ENCODING)


codecs.register(_find)
