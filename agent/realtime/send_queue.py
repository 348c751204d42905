"""Send queue of one client: frames in order, bounded by bytes and by age.

Overflow: a client that does not read is disconnected. Dropping frames instead would leave it with
half a reply that it takes for the whole. Before that, a client whose requests cause more than it
reads is not read from (`room`).
"""

import asyncio
from collections import deque
from typing import Final

from agent.errors import SlowReader
from latency_budget.account.clock import Clock

MAX_BYTES: Final = 4 * 1024 * 1024
"""About 60 s of base64 audio. Audio is paced, so a reader that keeps up never has 1 % of this."""

MAX_AGE_NS: Final = 15_000_000_000
"""Largest age of a frame in ns: audio of 15 s ago is of no use."""


class SendQueue:
    """Frames in order, one reader. Belongs to one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._frames: deque[tuple[int, str | bytes, int]] = deque()
        """Time of `put` in ns, the frame, and its bytes."""
        self._num_bytes = 0
        self._filled = asyncio.Event()
        self._taken = asyncio.Event()
        self._overflowed = False
        self._closed = False
        self.peak_bytes = 0

    def put(self, frame: str | bytes) -> None:
        """Never waits. After an overflow, and once closed, frames are dropped."""
        if self._overflowed or self._closed:
            return
        now_ns = self._clock.now_ns()
        oldest_ns = self._frames[0][0] if self._frames else now_ns
        num_bytes = _size(frame)
        if self._num_bytes + num_bytes > MAX_BYTES or now_ns - oldest_ns > MAX_AGE_NS:
            self._overflowed = True
        self._frames.append((now_ns, frame, num_bytes))
        self._num_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self._num_bytes)
        self._filled.set()

    async def get(self) -> str | bytes:
        """The next frame. Raises SlowReader after an overflow."""
        while not self._frames and not self._overflowed:
            self._filled.clear()
            await self._filled.wait()
        if self._overflowed:
            raise SlowReader
        _, frame, num_bytes = self._frames.popleft()
        self._num_bytes -= num_bytes
        self._taken.set()
        return frame

    def close(self) -> None:
        """Discard the frames that wait, and all later ones: there is no reader any more."""
        self._closed = True
        self.forget()

    def forget(self) -> None:
        """Discard the frames that wait."""
        self._frames.clear()
        self._num_bytes = 0
        self._taken.set()

    async def room(self) -> None:
        """Wait until there is room for the answer to another request, the largest included."""
        while self._num_bytes > MAX_BYTES // 2 and not self._overflowed:
            self._taken.clear()
            await self._taken.wait()


def _size(frame: str | bytes) -> int:
    if isinstance(frame, bytes) or frame.isascii():
        return len(frame)
    return len(frame.encode())
