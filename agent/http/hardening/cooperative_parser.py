"""Cooperative parsing: received bytes are parsed in slices so that other connections get turns."""

import asyncio
from collections.abc import Callable
from typing import Final

SLICE_BYTES: Final = 4096
"""Parsed in one go. Of the smallest WebSocket frames these are 682, which take 3 ms."""


class CooperativeParser:
    """Of one connection. Belongs to the event loop.

    `parse` takes a slice and says how many seconds to wait before the next. `is_held`: nothing is
    to be parsed now; `go_on` is called when that is over. The connection is not to be read from
    while there is a `backlog`, which is then one network read at most.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        parse: Callable[[bytes], float],
        is_held: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._parse = parse
        self._is_held = is_held
        self._unread = bytearray()
        self._timer: asyncio.Handle | None = None
        self.on_parsed: Callable[[], None] = lambda: None
        """Called whenever the backlog may have changed."""

    @property
    def is_put_off(self) -> bool:
        """Whether parsing goes on by itself."""
        return self._timer is not None

    @property
    def backlog(self) -> bool:
        """Whether there is something to parse, or to wait for, before more is wanted."""
        return bool(self._unread) or self.is_put_off

    def add(self, data: bytes) -> None:
        self._unread += data
        self.go_on()

    def go_on(self) -> None:
        """Parse one slice, unless that is to happen later; the next ones follow."""
        if self._unread and self._timer is None and not self._is_held():
            self._parse_slice()
        self.on_parsed()

    def clear(self) -> None:
        """Forget everything: the connection is over."""
        self._unread.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _parse_slice(self) -> None:
        piece = bytes(self._unread[:SLICE_BYTES])
        del self._unread[:SLICE_BYTES]
        wait_s = self._parse(piece)
        if wait_s > 0:
            self._timer = self._loop.call_later(wait_s, self._resume)
        elif self._unread:
            self._timer = self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._timer = None
        self.go_on()
