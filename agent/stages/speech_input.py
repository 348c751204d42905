"""Speech input of one session: audio in, speech events and transcripts out.

Voice activity is detected on one thread and words are recognized on another, because a barge-in
must not wait for a decode that takes 150 ms. The state of the call (`call_audio.py`) is touched
on the first thread only, in the order of the jobs.

Overflow: see `call_audio.py`. While audio waits there the caller counts as sending, however long
ago the last frame came.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

import asr
from agent.errors import ClientError, StageError
from agent.session.api.settings import ServerVad, TurnDetection
from agent.session.ports.stage_ports import FULL_EFFORT, Effort, SpeechResult
from agent.stages.call_audio import ArrivalClock, Audio, GuardedStream, Played
from latency_budget.account.clock import Clock

from .audio_pace import FASTEST, AudioPace
from .call_audio import AudioQueue
from .model_thread import ModelThread
from .transcription_jobs import LISTEN_TIMEOUT_S, JobDecoder, TranscriptionJobs

MIN_COMMIT: Final = asr.RATE_HZ // 10
"""Samples. OpenAI refuses to commit less than 100 ms."""

SOONER_PAUSE_MS: Final = 48
"""Silence that counts as a pause where replies are prepared sooner: a frame and a half, found after
two. Two frames would be the settings' own 80; one fires inside words."""

LATER_PAUSE_MS: Final = 120
"""Silence that counts as a pause where a pass takes long and can't be broken off: of short ones
within the speech, each would keep the recognizer busy when the last one comes."""

TAIL_AFTER_S: Final = 8.0
"""Undecoded audio from which the older part of an utterance is settled, where the last pass must be
short: what is left then fits the recognizer's least window."""

SLOWED_EFFORT: Final = Effort(decodes_tail=True, skips_partials=True, pauses_later=True)
"""Effort for a caller whose audio comes faster than it is taken beside other calls: few passes, and
short ones, for another call waits for one of them at most."""

MAX_BOUNDS: Final = 64
"""Utterances whose first and last samples are kept. Nothing asks for older ones."""

GAP_NS: Final = 1_000_000_000
"""Time without audio that is a gap, as where a client mutes the microphone. Shorter: a network that
stalls, and sends the audio afterwards, is taken for one. Longer: the agent's voice in a gap is
compared with audio that came long after it."""

MAX_PLAYED: Final = 64
"""Frames of the agent's voice that wait for audio of the caller; the oldest go. The echo gate keeps
50 levels, and a frame has one at least."""

_log = logging.getLogger(__name__)


class SpeechInput:
    """A `SpeechInputPort` on a detector of this process. Belongs to one session; detects only while
    `run` runs."""

    def __init__(
        self,
        listening: asr.ListenerConfig,
        detector: ModelThread[asr.VoiceDetector],
        decoder: JobDecoder,
        turn_model: ModelThread[asr.EndOfTurnModel],
        clock: Clock,
        pause_ms: int,
        pace: AudioPace | None = None,
    ) -> None:
        """`pace`: that of all calls which share the detector. None: this one is alone."""
        self.utterance = 0
        """Number of the newest utterance that began."""
        self._guarded = GuardedStream(listening)
        self._stream = self._guarded.stream
        self._detector = detector
        self._decoder = decoder
        self._clock = clock
        self._pause_ms = pause_ms
        self._settle_after_s = listening.settle_after_s
        self._queue = AudioQueue()
        self._pace = pace or AudioPace(clock)
        self._endpointing = listening.endpointing
        self._effort = FULL_EFFORT
        self._num_changes = 0
        """Changes of endpointing that were asked for."""
        self._num_applied = 0
        """Of these, the last that the stream has; written on the detector's thread."""
        self._num_clearing = 0
        """Of these, the last with which the stream forgets all audio before it."""
        self._is_slowed = False
        self._was_slowed = False
        """The client was told."""
        self._last_audio_ns = clock.now_ns()
        self._group: asyncio.TaskGroup | None = None
        self._receiver: Callable[[SpeechResult], None] | None = None
        """Receiver of the results while `run` runs."""
        self._arrivals = ArrivalClock()
        self._jobs = TranscriptionJobs(
            self._guarded, detector, decoder, turn_model, clock, self._arrivals, self._emit
        )
        self.received = 0.0
        """16 kHz samples received so far."""
        self.resumed_ns = 0
        """Time of the client's return after a gap in its audio (monotonic ns)."""
        self._committed = 0.0
        """`received` at the last commit or clear."""
        self._is_refusing = False
        """The newest audio was refused for want of room, and the client has the error."""
        self._played: deque[tuple[int, Played]] = deque(maxlen=MAX_PLAYED)
        """The agent's voice since audio was last processed, each frame with its time (ns)."""
        self._newest: tuple[int, asyncio.Task[None]] | None = None
        """Utterance and task of the newest final pass."""
        self._bounds: dict[int, tuple[int, int]] = {}
        """First sample of each utterance not yet committed, and first sample after it."""

    async def run(self, tell: Callable[[SpeechResult], None]) -> None:
        """Process audio until cancelled; `tell` receives each result on this loop, in order."""
        self._receiver = tell
        pace = self._pace.join()
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                group.create_task(self._decoder.run())
                while True:
                    batch = await self._queue.take()
                    try:
                        self._slow(await pace.take(_duration_s(batch), self._tell_slowed))
                        await self._listen(batch)
                    finally:
                        self._last_audio_ns = self._clock.now_ns()
                        await self._queue.done()
        finally:
            self._group = None
            pace.leave()

    @property
    def last_audio_ns(self) -> int:
        """Time of the last audio, received or processed (monotonic ns): now, while some waits."""
        return self._last_audio_ns if self._queue.idle else self._clock.now_ns()

    async def feed(self, pcm: npt.NDArray[np.int16], rate_hz: int) -> None:
        """Take in audio from the caller, int16 mono. Waits while detection is behind."""
        now_ns = self._clock.now_ns()
        is_gap = now_ns - max(self.last_audio_ns, self.resumed_ns) > GAP_NS
        self._last_audio_ns = now_ns
        self.received += len(pcm) * asr.RATE_HZ / rate_hz
        if is_gap:  # the gap has no samples, so what was played in it moves back
            for _ in range(len(self._played)):
                at_ns, (_, levels) = self._played.popleft()
                self._played.append((at_ns, (self._sample_at(at_ns), levels)))
        self._arrivals.note(int(self.received), self._last_audio_ns)
        await self._queue.put((pcm, rate_hz))

    def transcribe(self, utterance: int, revision: int) -> None:
        """Start a final pass; it ends in TranscriptReady or TranscriptFailed.

        The pass over an earlier pause of this utterance is stale: it is cancelled if it has not
        begun.
        """
        if self._newest is not None and self._newest[0] == utterance:
            self._newest[1].cancel()
        end_sample = self.end_sample(utterance)
        final = self._jobs.final(
            utterance,
            revision,
            end_sample,
            lambda job: self._spawn(self._jobs.score_end_of_turn(job)),
        )
        task = self._spawn(final)
        self._newest = None if task is None else (utterance, task)

    def close(self, utterance: int, *, was_echo: bool = False) -> None:
        """End the utterance. Speech that goes on belongs to a new one."""
        end = partial(self._stream.end, utterance, was_echo=was_echo)
        self._spawn(self._jobs.notify_stream(end))

    def played(self, pcm: npt.NDArray[np.int16], rate_hz: int, at_ns: int) -> None:
        """Note the agent's voice, played from `at_ns` (monotonic) on."""
        if self._group is not None:
            played = self._sample_at(at_ns), levels_of(pcm, rate_hz)
            self._played.append((at_ns, played))

    def _sample_at(self, at_ns: int) -> int:
        """Sample of the caller's audio that arrives at a time (monotonic), counted on from the
        newest one."""
        since_ns = at_ns - max(self._last_audio_ns, self.resumed_ns)
        return int(self.received + since_ns * asr.RATE_HZ / 1e9)

    def set_detection(self, detection: TurnDetection | None, effort: Effort = FULL_EFFORT) -> None:
        """Use the client's turn detection from the next frame on, with this effort."""
        was_manual = self._endpointing is None
        self._endpointing = endpointing_for(detection, self._pause_ms)
        self._effort = effort
        self._configure()
        if was_manual and detection is not None and self._group is not None:
            self._num_clearing = self._num_changes

    def _slow(self, is_slowed: bool) -> None:
        """Spend less on a caller whose audio waits, to the benefit of the others."""
        if is_slowed != self._is_slowed:
            self._is_slowed = is_slowed
            self._configure()

    def _configure(self) -> None:
        effort = SLOWED_EFFORT if self._is_slowed else self._effort
        config = self._endpointing
        if config is not None and effort.pauses_sooner:
            config = replace(config, pause_ms=min(config.pause_ms, SOONER_PAUSE_MS))
        settle_after_s = TAIL_AFTER_S if effort.decodes_tail else self._settle_after_s
        if config is not None and effort.pauses_later:
            config = replace(config, pause_ms=max(config.pause_ms, LATER_PAUSE_MS))
        skips = {"partial": effort.skips_partials, "early": effort.pauses_later}
        self._jobs.skips = frozenset(kind for kind, is_skipped in skips.items() if is_skipped)
        self._num_changes += 1
        number = self._num_changes

        def configure() -> None:
            self._stream.configure(config, settle_after_s)
            self._num_applied = number

        self._spawn(self._jobs.notify_stream(configure))

    def set_transcription(self, options: asr.TranscriptionOptions) -> bool:
        """See `SpeechInputPort.set_transcription`."""
        check_language(options.language, self._decoder.languages)
        if options.candidates and not self._decoder.finds_language:
            raise ClientError(
                "The recognizer of this server does not find the language of a call: name it, like "
                '"de".',
                code="invalid_value",
                param="session.audio.input.transcription.language",
            )
        is_taken = self._decoder.takes_prompts or not options.prompt
        self._decoder.set_options(options if is_taken else replace(options, prompt=""))
        return is_taken

    async def commit(self) -> int:
        """All audio since the last commit is one utterance. Returns its number; where speech is
        detected and nobody has spoken since the last utterance ended, that one's.

        Raises ClientError where there is none, StageError where the detector is broken.
        """
        if self.received - self._committed < MIN_COMMIT:
            raise ClientError(
                "There is no audio to commit: send at least 100 ms of it first.",
                code="input_audio_buffer_commit_empty",
            )
        await self._queue.drained()
        stream = self._stream
        committed = await self._jobs.ask(
            lambda: stream.commit_buffer() if stream.takes_commit else None
        )
        if committed is None:
            return self.utterance
        self._jobs.committed(committed)
        first, _ = self._bounds.get(committed.utterance, (int(self._committed), 0))
        self._bounds[committed.utterance] = (first, int(self.received))
        self._committed = self.received
        self.utterance = committed.utterance
        return committed.utterance

    async def clear(self) -> int:
        """Forget all audio since the last commit. Returns the newest utterance's number."""
        await self._queue.drained()
        await self._jobs.ask(self._stream.clear)
        self._committed = self.received
        return self.utterance

    def end_sample(self, utterance: int) -> int:
        """First sample after the speech of an utterance, as far as it is known."""
        first, end = self._bounds.get(utterance, (0, 0))
        return end if end > first else int(self.received)

    def duration_s(self, utterance: int) -> float:
        """Duration of the utterance's speech. Forgets the utterance: ask once, at the end."""
        end = self.end_sample(utterance)
        first, _ = self._bounds.pop(utterance, (end, end))
        return max(0, end - first) / asr.RATE_HZ

    def _emit(self, heard: SpeechResult) -> None:
        if self._receiver is not None:
            self._receiver(heard)

    def _tell_slowed(self) -> None:
        if not self._was_slowed:
            self._emit(SpeechResult(self.utterance, slowed_to=FASTEST))
        self._was_slowed = True

    # --- voice activity ---

    async def _listen(self, batch: Sequence[Audio]) -> None:
        outputs: list[asr.ListenerOutput] = []
        played = [each for _, each in self._played]
        self._played.clear()
        num_applied = 0

        def take_in(detector: asr.VoiceDetector) -> None:
            nonlocal num_applied
            num_applied = self._num_applied
            self._guarded.take_in(detector, batch, outputs, played)

        try:
            await self._detector.call(take_in, timeout_s=LISTEN_TIMEOUT_S)
            self._is_refusing = False
        except ClientError as error:
            if not self._is_refusing:  # one error for all frames of a recording too long
                self._emit(SpeechResult(self.utterance, refused=error))
            self._is_refusing = True
        except StageError as error:  # the rest of the batch is lost
            _log.warning("audio of a caller was lost: %s", error)
            self._guarded.abandon()
        # What began in audio that the stream forgets meanwhile has no end.
        is_forgotten = num_applied < self._num_clearing
        for output in outputs:
            for event in () if is_forgotten else output.events:
                self._emit_event(event)
            for job in output.jobs:
                self._spawn(self._jobs.partial(job))

    def _emit_event(self, event: asr.EndpointEvent) -> None:
        utterance, onset_ns, paused_ns = event.utterance, None, None
        match event:
            case asr.SpeechStarted(at_sample=at_sample):
                self.utterance = utterance
                self._bounds[utterance] = (at_sample, at_sample)
                onset_ns, _ = self._arrivals.when(at_sample)
                if len(self._bounds) > MAX_BOUNDS:
                    del self._bounds[next(iter(self._bounds))]
            case asr.SpeechPaused(at_sample=at_sample):
                if utterance in self._bounds:  # else it has ended meanwhile
                    self._bounds[utterance] = (self._bounds[utterance][0], at_sample)
                paused_ns = self._clock.now_ns()
            case asr.SpeechResumed():
                if utterance in self._bounds:  # its end is open again
                    self._bounds[utterance] = (self._bounds[utterance][0],) * 2
        self._emit(SpeechResult(utterance, event, onset_ns=onset_ns, paused_ns=paused_ns))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None] | None":
        if self._group is None:
            work.close()  # the call has not begun or is over
            return None
        return self._group.create_task(work)


def _duration_s(batch: Sequence[Audio]) -> float:
    return sum(len(pcm) / rate_hz for pcm, rate_hz in batch)


def check_language(language: str | None, known: Sequence[str]) -> None:
    """Raise ClientError for a language of a session that is not one of these; all are taken while
    these are not known."""
    if language is None or not known or language in known:
        return
    shown = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
    param = "session.audio.input.transcription.language"
    raise ClientError(
        f"{param!r} is {language[:20]!r}; the recognizer of this server knows {shown}.",
        code="invalid_value",
        param=param,
    )


def levels_of(pcm: npt.NDArray[np.int16], rate_hz: int) -> list[float]:
    """RMS level of each stretch as long as a frame of the detector; the last may be shorter."""
    samples = pcm.astype(np.float32) / np.float32(32768)
    length = asr.FRAME * rate_hz // asr.RATE_HZ
    return [asr.level_of(samples[at : at + length]) for at in range(0, len(samples), length)]


def endpointing_for(detection: TurnDetection | None, pause_ms: int) -> asr.EndpointingConfig | None:
    """Endpointing thresholds for a client's turn detection. None: push-to-talk."""
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
