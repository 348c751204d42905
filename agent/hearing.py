"""The ears of one session: audio in, speech events and transcripts out.

Voice activity is watched on one thread and words are recognized on another, because a barge-in must
not wait for a decode that takes 150 ms. The per-call state (`asr.Listener`) is touched on the first
thread only; every access goes through it, in order. The detector itself comes with each job: a
stage that was restarted has another one.

Overflow: a client that sends faster than the ears listen is not read from until they have caught
up (`feed` waits), so a burst costs time, not memory.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Final

import numpy as np
import numpy.typing as npt

import asr
from latency_budget.clock import Clock

from . import events as ev
from .errors import ClientError, StageError
from .passes import LISTEN_TIMEOUT_S, Arrivals, Passes
from .ports import Heard
from .settings import ServerVad, TurnDetection
from .stage_thread import StageThread

MAX_WAITING: Final = 64
"""Frames received but not yet listened to. Real-time callers have one or two."""

BATCH: Final = 16
"""Frames listened to in one go when they have piled up; other calls get their turn between."""

MIN_COMMIT: Final = asr.RATE_HZ // 10
"""Samples. OpenAI refuses to commit less than 100 ms."""


class PresentDetector:
    """The detector that the stage has at the moment."""

    def __init__(self) -> None:
        self.model: asr.VoiceDetector | None = None
        """Set before each job."""

    def probability(self, frame: npt.NDArray[np.float32], state: asr.VadState) -> float:
        assert self.model is not None
        return self.model.probability(frame, state)


class Hearing:
    """Belongs to one session. Nothing is heard unless `run` is running."""

    def __init__(
        self,
        listening: asr.ListenerConfig,
        detector: StageThread[asr.SileroVad],
        recognizer: StageThread[asr.WhisperTranscriber],
        clock: Clock,
        pause_ms: int,
    ) -> None:
        self.last_audio_ns = clock.now_ns()
        self.utterance = 0
        """The newest one that began."""
        self._present = PresentDetector()
        self._listener = listener = asr.Listener(listening, self._present)
        self._detector = detector
        self._clock = clock
        self._pause_ms = pause_ms
        self._inbox: asyncio.Queue[tuple[npt.NDArray[np.int16], int]] = asyncio.Queue(MAX_WAITING)
        self._group: asyncio.TaskGroup | None = None
        self._tell: Callable[[Heard], None] = lambda heard: None
        self._arrivals = Arrivals()
        self._passes = Passes(listener, detector, recognizer, clock, self._arrivals)
        self._received = 0.0
        """16 kHz samples so far."""
        self._committed = 0.0
        """Of those, up to the last commit or clear."""
        self._resampler: tuple[int, asr.Resampler] | None = None
        self._newest: tuple[int, asyncio.Task[None]] | None = None
        """The newest final pass, and whose it is."""
        self._bounds: dict[int, tuple[int, int]] = {}
        """Of each utterance not yet committed: first sample, and first sample after it."""

    async def run(self, tell: Callable[[Heard], None]) -> None:
        """Listen until cancelled; `tell` is called on this loop, in order."""
        self._tell = self._passes.tell = tell
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
        self._arrivals.note(int(self._received), self.last_audio_ns)
        await self._inbox.put((pcm, rate_hz))

    def transcribe(self, utterance: int, revision: int) -> None:
        """Start a final pass; its end is told as TranscriptReady or TranscriptFailed.

        The pass over an earlier pause of this utterance is of no use any more: if it has not begun,
        it won't.
        """
        if self._newest is not None and self._newest[0] == utterance:
            self._newest[1].cancel()
        end_sample = self.end_sample(utterance)
        task = self._spawn(self._passes.final(utterance, revision, end_sample))
        self._newest = None if task is None else (utterance, task)

    def close(self, utterance: int) -> None:
        """The utterance is over. Speech that goes on belongs to a new one."""
        self._spawn(self._tell_listener(lambda: self._listener.end(utterance)))

    def set_detection(self, detection: TurnDetection | None) -> None:
        """Follow the client's turn detection from the next frame on."""
        config = endpointing_for(detection, self._pause_ms)
        self._spawn(self._tell_listener(lambda: self._listener.configure(config)))

    async def commit(self) -> int:
        """All audio since the last commit is one utterance. Returns its number.

        Raises ClientError where there is none, StageError where the ears are broken.
        """
        if self._received - self._committed < MIN_COMMIT:
            raise ClientError(
                "There is no audio to commit: send at least 100 ms of it first.",
                code="input_audio_buffer_commit_empty",
            )
        await self._inbox.join()
        committed = await self._passes.ask(self._listener.commit_buffer)
        self._passes.committed(committed)
        self._bounds[committed.utterance] = (int(self._committed), int(self._received))
        self._committed = self._received
        self.utterance = committed.utterance
        return committed.utterance

    async def clear(self) -> int:
        """Forget all audio since the last commit. Returns the newest utterance's number."""
        await self._inbox.join()
        await self._passes.ask(self._listener.clear)
        self._committed = self._received
        return self.utterance

    def end_sample(self, utterance: int) -> int:
        """First sample after the speech of an utterance, as far as it is known."""
        return self._bounds.get(utterance, (0, int(self._received)))[1]

    def duration_s(self, utterance: int) -> float:
        """Of its speech. Asked once, at the end."""
        first, end = self._bounds.pop(utterance, (0, 0))
        return max(0, end - first) / asr.RATE_HZ

    # --- voice activity ---

    async def _listen(self, batch: list[tuple[npt.NDArray[np.int16], int]]) -> None:
        def job(model: asr.SileroVad) -> asr.ListenerOutput:
            self._present.model = model
            pcm = np.concatenate([self._converted(*each) for each in batch])
            try:
                return self._listener.feed(pcm)
            except asr.AudioError as error:
                raise ClientError(f"{error}.", code="input_audio_buffer_full") from error

        try:
            heard = await self._detector.call(job, timeout_s=LISTEN_TIMEOUT_S)
        except ClientError as error:
            self._tell(Heard(self.utterance, refused=error))
            return
        except StageError:
            return  # the stage restarts and says so; what came meanwhile is lost
        for event in heard.events:
            self._pass_on(event)
        for each in heard.jobs:
            self._spawn(self._passes.partial(each))

    def _converted(self, pcm: npt.NDArray[np.int16], rate_hz: int) -> npt.NDArray[np.float32]:
        """To float32 at 16 kHz, as one stream. On the detector's thread."""
        if self._resampler is None or self._resampler[0] != rate_hz:
            self._resampler = (rate_hz, asr.Resampler(rate_hz))
        return self._resampler[1].push(pcm)

    def _pass_on(self, event: asr.EndpointEvent) -> None:
        """The listener's events are the machine's, but for their type."""
        utterance = event.utterance
        match event:
            case asr.SpeechStarted(at_sample=at_sample):
                self.utterance = utterance
                self._bounds[utterance] = (at_sample, at_sample)
                self._tell(Heard(utterance, ev.SpeechStarted(utterance, at_sample)))
            case asr.SpeechPaused(at_sample=at_sample):
                self._bounds[utterance] = (self._bounds[utterance][0], at_sample)
                paused_ns = self._clock.now_ns()
                paused = ev.SpeechPaused(utterance, at_sample)
                self._tell(Heard(utterance, paused, paused_ns=paused_ns))
            case asr.SpeechResumed(at_sample=at_sample):
                self._tell(Heard(utterance, ev.SpeechResumed(utterance, at_sample)))
            case asr.SilenceGrew(silence_ms=silence_ms):
                self._tell(Heard(utterance, ev.SilenceGrew(utterance, silence_ms)))

    async def _tell_listener(self, what: Callable[[], None]) -> None:
        with contextlib.suppress(StageError):
            await self._passes.ask(what)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None] | None":
        if self._group is None:
            work.close()  # the call has not begun or is over
            return None
        return self._group.create_task(work)


def endpointing_for(detection: TurnDetection | None, pause_ms: int) -> asr.EndpointingConfig | None:
    """How the listener follows a client's turn detection. None: push-to-talk."""
    if detection is None:
        return None
    if isinstance(detection, ServerVad):
        threshold = min(max(detection.threshold, 0.05), 0.95)
        return asr.EndpointingConfig(
            speech_threshold=threshold,
            silence_threshold=max(threshold - 0.15, 0.01),
            pause_ms=pause_ms,
            preroll_ms=detection.prefix_padding_ms,
        )
    return asr.EndpointingConfig(pause_ms=pause_ms)
