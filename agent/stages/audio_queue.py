"""Queue of audio that the voice detector has not processed, and the times at which it arrived.

The queue is bounded by its length in samples.

Overflow: `put` waits. A client that sends faster than detection runs is not read from until
detection has caught up, so a burst costs time, not memory.
"""

import asyncio
from collections import deque
from typing import Final

import asr

from .guarded_stream import Audio

MAX_WAITING: Final = 4 * asr.RATE_HZ
"""16 kHz samples. A real-time caller has a frame or two waiting; a fast sender's full queue is
80 ms of work, for which the client's own other events wait."""

MAX_JOB: Final = asr.RATE_HZ
"""16 kHz samples processed in one job, which takes 20 ms: the jobs of other calls run in between,
and only a detector that hangs misses a deadline of seconds."""

MIN_COST: Final = asr.RATE_HZ // 100
"""16 kHz samples that the shortest frame counts as: one sample takes memory and time as well."""


class AudioInbox:
    """One writer, one reader. Belongs to one event loop."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[Audio, float]] = deque()
        """Audio, and its cost in 16 kHz samples."""
        self._waiting = 0.0
        self._busy = False
        """The reader has not called `done` for its last batch."""
        self._changed = asyncio.Condition()

    @property
    def idle(self) -> bool:
        """No audio waits or is being processed."""
        return not self._pieces and not self._busy

    async def put(self, audio: Audio) -> None:
        """Cut audio into pieces of a job at most, and wait until the last piece is in."""
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
        """Wait for audio and return at most `MAX_JOB` of it. Call `done` when it is processed."""
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
        """Note that the batch of the last `take` has been processed."""
        async with self._changed:
            self._busy = False
            self._changed.notify_all()

    async def drained(self) -> None:
        """Wait until all audio has been processed."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.idle)


MAX_ARRIVALS: Final = 4096
"""Frames whose time of arrival is remembered: 80 s of 20 ms frames, longer than any utterance whose
last word still matters to the clock."""


STEADY_NS: Final = 1_000_000_000
"""Span within which frames are compared to find the one with the least network delay. Longer, and
the drift of a sound card counts; shorter, and a network that stalls is not seen through."""


MAX_JITTER_NS: Final = 200_000_000
"""Largest network delay of a frame. More is a gap in the stream, as when a caller mutes the
microphone."""


class ArrivalClock:
    """Arrival times of audio: the one bridge from samples to nanoseconds."""

    def __init__(self) -> None:
        self._arrivals: deque[tuple[int, int]] = deque(maxlen=MAX_ARRIVALS)

    def note(self, received: int, at_ns: int) -> None:
        """Note that `received` 16 kHz samples had arrived at `at_ns` (monotonic)."""
        self._arrivals.append((received, at_ns))

    def when(self, sample: int) -> tuple[int, int]:
        """Times (monotonic ns) at which a sample was spoken, as a real-time stream implies, and at
        which it arrived.

        The network delays frames, some more than others. A frame of the last second that, counted
        on in real time, implies an earlier time than the sample's own frame was delayed less, and
        counts. Frames from before a gap in the stream would imply one far too early. The newest
        arrival stands for samples that are not in yet. Needs at least one arrival.
        """
        arrivals = reversed(self._arrivals)
        own_sample, own_ns = next(arrivals)
        if sample >= own_sample:
            return own_ns, own_ns
        earliest_ns = spoken_ns = _implied_ns(own_sample, own_ns, sample)
        for received, at_ns in arrivals:
            if received > sample:
                own_ns = at_ns
                earliest_ns = spoken_ns = _implied_ns(received, at_ns, sample)
                continue
            other_ns = _implied_ns(received, at_ns, sample)
            if at_ns < own_ns - STEADY_NS or other_ns < spoken_ns - MAX_JITTER_NS:
                break
            earliest_ns = min(earliest_ns, other_ns)
        return earliest_ns, own_ns


def _implied_ns(received: int, at_ns: int, sample: int) -> int:
    """Time at which a sample was spoken, if sample `received` was spoken at `at_ns`."""
    return at_ns - (received - sample) * 1_000_000_000 // asr.RATE_HZ
