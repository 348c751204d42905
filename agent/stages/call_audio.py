"""Audio of one call before the voice detector: its queue, its times of arrival, the locked stream.

Overflow: the queue is bounded by its length in samples, and `put` waits. A client that sends faster
than detection runs is not read from until detection has caught up, so a burst costs time, not
memory.

Theory of operation of the lock: all work on a call's stream is done by the detector's owner thread,
one job at a time. But a thread whose detector hangs can't be killed: it is abandoned, another
thread takes its place, and if the first one ever returns it must not go on with a stream that the
second one is using. So the stream is touched under a lock only. The lock is released while the
detector works (the one call that may hang); a thread that takes the lock again first checks that
the stream still belongs to its job, and if not, ends the job without having changed anything.

What was tried: a new stream after each hang. It loses the caller's open utterance, and numbers the
next one as the first.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

import asr
from agent.errors import ClientError

MAX_WAITING: Final = 4 * asr.RATE_HZ
"""16 kHz samples. A real-time caller has a frame or two waiting; a fast sender's full queue is
80 ms of work, for which the client's own other events wait."""

MAX_JOB: Final = asr.RATE_HZ
"""16 kHz samples processed in one job, which takes 20 ms: the jobs of other calls run in between,
and only a detector that hangs misses a deadline of seconds."""

MIN_COST: Final = asr.RATE_HZ // 100
"""16 kHz samples that the shortest frame counts as: one sample takes memory and time as well."""


Answer = TypeVar("Answer")
Audio = tuple[npt.NDArray[np.int16], int]
"""int16 mono samples, and their rate in Hz."""

Played = tuple[int, list[float]]
"""The agent's voice: microphone sample at which it is played, and the levels of its frames."""


class AudioQueue:
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


class GivenUpError(Exception):
    """The job of a thread that hung: another thread has the stream now."""


class GuardedStream:
    """An `asr.AsrStream` behind a lock, one for each call. `use` and `take_in` run on the
    detector's owner thread."""

    def __init__(self, config: asr.ListenerConfig) -> None:
        self.stream: Final = asr.AsrStream(config)
        self._vad_state = asr.VadState()
        self._lock = threading.Lock()
        self._job: object | None = None
        """Identity of the job that has the stream; a new object for each job."""
        self._resampler: tuple[int, asr.Resampler] | None = None
        """Input rate in Hz, and the resampler from it."""
        self._dc_blocker = asr.DcBlocker()

    def use(self, question: Callable[[], Answer]) -> Answer:
        """Call a method of the stream under the lock."""
        with self._lock:
            self._job = object()
            return question()

    def take_in(
        self,
        detector: asr.VoiceDetector,
        batch: Sequence[Audio],
        outputs: list[asr.ListenerOutput],
        played: Sequence[Played] = (),
    ) -> None:
        """Feed audio to the stream, and the levels of what the agent said meanwhile.

        Each frame's output is appended to `outputs` at once, so that a detector that fails loses
        none. Raises ClientError where push-to-talk has no room, GivenUpError after a hang.
        """
        with self._lock:
            job = self._job = object()
            for first_sample, levels in played:
                self.stream.echo.played(first_sample, levels)
            pcm = np.concatenate([self._converted(*each) for each in batch])
            # A frame at a time: what the detector did not get to is lost if it fails, not queued.
            for start in range(0, len(pcm), asr.FRAME):
                try:
                    self.stream.append(pcm[start : start + asr.FRAME])
                except asr.AudioError as error:
                    raise ClientError(f"{error}.", code="input_audio_buffer_full") from error
                while (frame := self.stream.next_frame()) is not None:
                    probability = self._probability(detector, frame, job)
                    outputs.append(self.stream.take_probability(probability))

    def abandon(self) -> None:
        """Take the stream from the job that has it. Any thread."""
        with self._lock:
            self._job = None

    def _probability(self, detector: asr.VoiceDetector, frame: asr.Pcm, job: object) -> float:
        """Probability of speech in a frame, with the lock released. Raises GivenUpError."""
        state = replace(self._vad_state)
        self._lock.release()
        try:
            probability = detector.probability(frame, state)
        finally:
            self._lock.acquire()
        if self._job is not job:
            raise GivenUpError
        self._vad_state = state
        return probability

    def _converted(self, pcm: npt.NDArray[np.int16], rate_hz: int) -> asr.Pcm:
        """float32 at 16 kHz without a DC offset; one stream, whatever the input's rates."""
        if self._resampler is None or self._resampler[0] != rate_hz:
            self._resampler = (rate_hz, asr.Resampler(rate_hz))
        return self._dc_blocker.push(self._resampler[1].push(pcm))
