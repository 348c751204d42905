"""The speech stream of one call, and the lock that says which thread may touch it.

Theory of operation: all work on a stream is done by the detector's owner thread, one job at a
time. But a thread whose detector hangs can't be killed: it is abandoned, another thread takes its
place, and if the first one ever returns it must not go on with a stream that the second one is
using. So the stream is touched under a lock only. The lock is released while the detector works
(the one call that may hang); a thread that takes the lock again first checks that the stream still
belongs to its job, and if not, ends the job without having changed anything.

What was tried: a new stream after each hang. It loses the caller's open utterance, and numbers the
next one as the first.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

import asr
from agent.errors import ClientError

Answer = TypeVar("Answer")
Audio = tuple[npt.NDArray[np.int16], int]
"""int16 mono samples, and their rate in Hz."""

Played = tuple[int, list[float]]
"""The agent's voice: microphone sample at which it is played, and the levels of its frames."""


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
