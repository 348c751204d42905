"""Recognizer passes over one session's speech, final and partial.

A pass visits two threads: the detector's, which has the stream, for the audio; the recognizer's for
the words; and the detector's again, where the stream drops results that a newer pass made stale.
"""

import contextlib
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import asr
from agent.errors import StageError
from agent.session.ports.stage_ports import Heard
from agent.turn_taking import events as ev
from latency_budget.account.clock import Clock

from .guarded_stream import GuardedStream
from .model_thread import BACKGROUND, NORMAL, URGENT, ModelThread

LISTEN_TIMEOUT_S: Final = 5.0
"""A second of audio takes 20 ms. This long, something hangs."""

DECODE_TIMEOUT_S: Final = 10.0
"""Whisper's full window takes 0.6 s on two idle cores, a text that is not believed three windows,
and a machine with several times as much to do as it can do that many times as long."""

DECODE_TIMEOUT_PER_S: Final = 0.2
"""More of it for each second of audio: a minute takes 3 s on a loaded machine."""

TURN_MODEL_TIMEOUT_S: Final = 5.0
"""The end-of-turn model takes 20 ms. This long, it hangs."""

MAX_ARRIVALS: Final = 4096
"""Frames whose time of arrival is remembered: 80 s of 20 ms frames, longer than any utterance whose
last word still matters to the clock."""

STEADY_NS: Final = 1_000_000_000
"""Span within which frames are compared to find the one with the least network delay. Longer, and
the drift of a sound card counts; shorter, and a network that stalls is not seen through."""

MAX_JITTER_NS: Final = 200_000_000
"""Largest network delay of a frame. More is a gap in the stream, as when a caller mutes the
microphone."""

Answer = TypeVar("Answer")
_log = logging.getLogger(__name__)


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


class TranscriptionJobs:
    """Decode jobs of one session. One event loop."""

    def __init__(
        self,
        guarded: GuardedStream,
        detector: ModelThread[asr.VoiceDetector],
        recognizer: ModelThread[asr.Recognizer],
        turn_model: ModelThread[asr.EndOfTurnModel],
        clock: Clock,
        arrivals: ArrivalClock,
        emit: Callable[[Heard], None],
    ) -> None:
        """`emit` takes each result, on the event loop."""
        self._emit = emit
        self._guarded = guarded
        self._stream = guarded.stream
        self._detector = detector
        self._recognizer = recognizer
        self._turn_model = turn_model
        self._clock = clock
        self._arrivals = arrivals
        self._committed: dict[int, asr.DecodeJob | None] = {}
        self._early = asr.FinalReuse()
        """Touched on the recognizer's thread only."""
        self.skips: frozenset[str] = frozenset()
        """Kinds of jobs that are not run."""

    def committed(self, buffer: asr.CommittedBuffer) -> None:
        """Keep the job of an utterance that the client ended, for `final`."""
        self._committed[buffer.utterance] = buffer.job

    async def ask(self, question: Callable[[], Answer]) -> Answer:
        """Call the stream on the detector's thread, ahead of waiting audio. Raises StageError."""
        return await self._detector.call(
            lambda _: self._guarded.use(question),
            timeout_s=LISTEN_TIMEOUT_S,
            priority=URGENT,
        )

    async def final(
        self,
        utterance: int,
        revision: int,
        end_sample: int,
        has_audio: Callable[[asr.DecodeJob], object],
    ) -> None:
        """Recognize the utterance up to a pause, and emit the transcript.

        `has_audio` receives the job as soon as its audio is there, unless the client ended the
        utterance.
        """
        start_ns = self._clock.now_ns()
        job: asr.DecodeJob | None = None
        try:
            if utterance in self._committed:
                job = self._committed.pop(utterance)
            else:
                job = await self.ask(lambda: self._stream.finalize(utterance, end_sample, revision))
                if job is not None:
                    has_audio(job)
            final = None if job is None else (await self._decode(job, URGENT))[0]
        except StageError:
            if job is not None:
                await self.notify_stream(partial(self._stream.fail, job))
            self._emit(Heard(utterance, ev.TranscriptFailed(utterance, revision)))
            return
        if job is not None and final is None:
            return  # stale: a newer pass is on its way
        text = final.text if isinstance(final, asr.FinalTranscript) else ""
        last = final.last_voiced_sample if isinstance(final, asr.FinalTranscript) else None
        self._emit(
            Heard(
                utterance,
                ev.TranscriptReady(utterance, revision, text),
                decode_ns=(start_ns, self._clock.now_ns()),
                last_voiced_ns=None if last is None else self._arrivals.when(last),
            )
        )

    async def score_end_of_turn(self, job: asr.DecodeJob) -> None:
        """Emit the end-of-turn score of the utterance up to a pause. Where the model fails or
        hangs, the words alone decide."""
        with contextlib.suppress(StageError):
            log_odds = await self._turn_model.call(
                lambda model: model.log_odds(job.pcm),
                timeout_s=TURN_MODEL_TIMEOUT_S,
                priority=URGENT,
            )
            score = ev.PauseJudged(job.utterance, job.revision, round(log_odds, 3))
            self._emit(Heard(job.utterance, score))

    async def partial(self, job: asr.DecodeJob) -> None:
        """Recognize what has been said so far, at background priority.

        An early pass goes before: if this is a pause, it has the words of the final.
        """
        if job.kind in self.skips:
            await self.notify_stream(partial(self._stream.fail, job))
            return
        try:
            transcript, has_words = await self._decode(
                job, NORMAL if job.kind == "early" else BACKGROUND
            )
        except StageError:
            await self.notify_stream(partial(self._stream.fail, job))
            return
        if isinstance(transcript, asr.PartialTranscript):
            text = (transcript.text, transcript.stable_chars)
            self._emit(Heard(transcript.utterance, partial=text))
        elif not has_words:
            self._emit(Heard(job.utterance, partial=("", 0)))

    async def _decode(
        self, job: asr.DecodeJob, priority: int
    ) -> tuple[asr.PartialTranscript | asr.FinalTranscript | None, bool]:
        """The transcript, None for a stale job or unchanged text; and whether there were words."""
        hypothesis = await self._recognizer.call(
            lambda model: self._early.recognize(model, job),
            timeout_s=DECODE_TIMEOUT_S + DECODE_TIMEOUT_PER_S * len(job.pcm) / asr.RATE_HZ,
            priority=priority,
        )
        transcripts = await self.ask(lambda: self._stream.complete(job, hypothesis))
        return transcripts[0] if transcripts else None, bool(hypothesis.text.strip())

    async def notify_stream(self, update: Callable[[], None]) -> None:
        """`ask` without an answer: a broken detector is logged, not raised."""
        try:
            await self.ask(update)
        except StageError as error:
            _log.warning("a speech stream could not be updated: %s", error)
