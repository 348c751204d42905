"""The ears of one session: audio in, speech events and transcripts out.

Voice activity is watched on one thread and words are recognized on another, because a barge-in must
not wait for a decode that takes 150 ms. The per-call state (`asr.Listener`) is touched on the first
thread only; every access goes through it, in order.

Overflow: a client that sends faster than the ears listen is not read from until they have caught
up (`feed` waits), so a burst costs time, not memory.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

import asr
from latency_budget.clock import Clock

from . import events as ev
from .errors import ClientError, StageError
from .ports import Heard
from .settings import TurnDetection
from .stage_thread import BACKGROUND, NORMAL, URGENT, StageThread

MAX_WAITING: Final = 64
"""Frames received but not yet listened to. Real-time callers have one or two."""

BATCH: Final = 16
"""Frames listened to in one go when they have piled up; other calls get their turn between."""

LISTEN_TIMEOUT_S: Final = 5.0
"""A second of audio takes 20 ms. This long, something hangs."""

DECODE_TIMEOUT_S: Final = 6.0
"""Whisper's full window takes 0.6 s on two idle cores, thrice that under load."""

MAX_ARRIVALS: Final = 4096
"""Frames whose time of arrival is remembered: 80 s of 20 ms frames, longer than any utterance whose
last word still matters to the clock."""


class Hearing:
    """Belongs to one session. Nothing is heard unless `run` is running."""

    def __init__(
        self,
        listener: asr.Listener,
        detector: StageThread[asr.SileroVad],
        recognizer: StageThread[asr.WhisperTranscriber],
        clock: Clock,
    ) -> None:
        self.last_audio_ns = clock.now_ns()
        self.utterance = 0
        """The newest one that began."""
        self._listener = listener
        self._detector = detector
        self._recognizer = recognizer
        self._clock = clock
        self._inbox: asyncio.Queue[tuple[npt.NDArray[np.int16], int]] = asyncio.Queue(MAX_WAITING)
        self._group: asyncio.TaskGroup | None = None
        self._tell: Callable[[Heard], None] = lambda heard: None
        self._arrivals: deque[tuple[int, int]] = deque(maxlen=MAX_ARRIVALS)
        """(16 kHz samples received so far, at_ns)."""
        self._received = 0.0
        self._bounds: dict[int, tuple[int, int]] = {}
        """Of each utterance not yet committed: first sample, and first sample after it."""

    async def run(self, tell: Callable[[Heard], None]) -> None:
        """Listen until cancelled; `tell` is called on this loop, in order."""
        self._tell = tell
        async with asyncio.TaskGroup() as group:
            self._group = group
            while True:
                batch = [await self._inbox.get()]
                while len(batch) < BATCH and not self._inbox.empty():
                    batch.append(self._inbox.get_nowait())
                try:
                    await self._listen(batch)
                finally:
                    for _ in batch:
                        self._inbox.task_done()

    async def feed(self, pcm: npt.NDArray[np.int16], rate_hz: int) -> None:
        """Audio from the caller, int16 mono. Waits while the ears are behind."""
        self.last_audio_ns = self._clock.now_ns()
        self._received += len(pcm) * asr.RATE_HZ / rate_hz
        self._arrivals.append((int(self._received), self.last_audio_ns))
        await self._inbox.put((pcm, rate_hz))

    def transcribe(self, utterance: int, revision: int) -> None:
        """Start a final pass; its end is told as TranscriptReady or TranscriptFailed."""
        self._spawn(self._final_pass(utterance, revision))

    def close(self, utterance: int) -> None:
        """The utterance is over. Speech that goes on belongs to a new one."""
        self._spawn(self._end(utterance))

    def set_detection(self, detection: TurnDetection | None) -> None:
        """Follow the client's turn detection from the next frame on."""
        config = endpointing_for(detection)
        self._spawn(self._ask(lambda: self._listener.configure(config)))

    async def commit(self) -> int:
        """All audio since the last commit is one utterance. Returns its number.

        Raises ClientError where there is none, StageError where the ears are broken.
        """
        await self._inbox.join()
        utterance = await self._ask(self._listener.commit_buffer)
        if utterance is None:
            raise ClientError(
                "There is no audio to commit: send at least 100 ms of it first.",
                code="input_audio_buffer_commit_empty",
            )
        self.utterance = utterance
        return utterance

    async def clear(self) -> int:
        """Forget all audio since the last commit. Returns the number of the newest utterance."""
        await self._inbox.join()
        await self._ask(self._listener.clear)
        return self.utterance

    def end_sample(self, utterance: int) -> int:
        """First sample after the speech of an utterance, as far as it is known."""
        return self._bounds.get(utterance, (0, int(self._received)))[1]

    def duration_s(self, utterance: int) -> float:
        first, end = self._bounds.pop(utterance, (0, 0))
        return (end - first) / asr.RATE_HZ

    # --- on the way through the threads ---

    async def _listen(self, batch: list[tuple[npt.NDArray[np.int16], int]]) -> None:
        try:
            heard = await self._detector.call(
                lambda detector: self._listener.feed_all(batch, detector),
                timeout_s=LISTEN_TIMEOUT_S,
            )
        except StageError:
            return  # its thread restarts it and says so; what was not heard is lost
        for event in heard.events:
            self._tell_event(event)
        for job in heard.jobs:
            self._spawn(self._partial_pass(job))
