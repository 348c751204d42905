"""Audio received but not yet listened to: bounded by its length, whatever frames it comes in.

Overflow: `put` waits. A client that sends faster than the ears listen is not read from until they
have caught up, so a burst costs time, not memory.
"""

import asyncio
from collections import deque
from typing import Final

import asr

from .guarded_stream import Audio

MAX_WAITING: Final = 4 * asr.RATE_HZ
"""16 kHz samples. Real-time callers have a frame or two; what a fast sender has here is 80 ms of
work, for which its own other events wait."""

MAX_JOB: Final = asr.RATE_HZ
"""16 kHz samples listened to in one go, which takes 20 ms: other calls get their turn between, and
a deadline of seconds is missed by what hangs only."""

MIN_COST: Final = asr.RATE_HZ // 100
"""16 kHz samples. A frame of one sample takes memory and time as well."""


class AudioInbox:
    """One writer, one reader. Belongs to one event loop."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[Audio, float]] = deque()
        """With what they cost, in 16 kHz samples."""
        self._waiting = 0.0
        self._busy = False
        """The reader has not finished what it took."""
        self._changed = asyncio.Condition()

    @property
    def idle(self) -> bool:
        """All audio that came has been listened to."""
        return not self._pieces and not self._busy

    async def put(self, audio: Audio) -> None:
        """Cut it into pieces and wait until the last one is in."""
        pcm, rate_hz = audio
        size = MAX_JOB * rate_hz // asr.RATE_HZ
        for first in range(0, len(pcm), size):
            piece = pcm[first : first + size]
            cost = max(len(piece) * asr.RATE_HZ / rate_hz, MIN_COST)
            async with self._changed:
                await self._changed.wait_for(lambda: self._waiting < MAX_WAITING)
                self._pieces.append(((piece, rate_hz), cost))
                self._waiting += cost
                self._changed.notify_all()

    async def take(self) -> list[Audio]:
        """Wait for audio; at most `MAX_JOB` of it. `done` says that it has been listened to."""
        async with self._changed:
            await self._changed.wait_for(lambda: bool(self._pieces))
            self._busy = True
            batch: list[Audio] = []
            room = float(MAX_JOB)
            while self._pieces and (not batch or self._pieces[0][1] <= room):
                audio, cost = self._pieces.popleft()
                batch.append(audio)
                room -= cost
                self._waiting -= cost
            self._changed.notify_all()
            return batch

    async def done(self) -> None:
        async with self._changed:
            self._busy = False
            self._changed.notify_all()

    async def drained(self) -> None:
        """Wait until all audio has been listened to."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.idle)
