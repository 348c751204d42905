"""The recognizer's passes over one session's speech, final and partial.

A pass visits two threads: the listener's for the audio, the recognizer's for the words, and the
listener's again, which drops results that a newer pass has overtaken.
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
"""The turn model takes 20 ms. This long, it hangs."""

MAX_ARRIVALS: Final = 4096
"""Frames whose time of arrival is remembered: 80 s of 20 ms frames, longer than any utterance whose
last word still matters to the clock."""

STEADY_NS: Final = 1_000_000_000
"""Within which frames are compared to find the one that came most directly. Longer, and the drift
of a sound card counts; shorter, and a network that stalls is not seen through."""

MAX_JITTER_NS: Final = 200_000_000
"""By which a frame is held up. What is later belongs to a stream that stood still between, as when
somebody mutes himself."""

Answer = TypeVar("Answer")
_log = logging.getLogger(__name__)


class ArrivalClock:
    """When audio came in: the one bridge from samples to nanoseconds."""

    def __init__(self) -> None:
        self._arrivals: deque[tuple[int, int]] = deque(maxlen=MAX_ARRIVALS)

    def note(self, received: int, at_ns: int) -> None:
        """So many 16 kHz samples had come by then."""
        self._arrivals.append((received, at_ns))

    def when(self, sample: int) -> tuple[int, int]:
        """When a sample was spoken (as far as a real-time stream tells), and when it arrived.

        The network holds frames up, some more than others. Where one of the last second, counted on
        in real time, has the sample spoken earlier than its own frame does, that one was held up
        less. Frames from before a gap in the stream would have it far too early. The newest arrival
        stands for samples that are not in yet. Needs at least one arrival.
        """
        arrivals = reversed(self._arrivals)
        own_sample, own_ns = next(arrivals)
        if sample >= own_sample:
            return own_ns, own_ns
        earliest_ns = spoken_ns = _counted(own_sample, own_ns, sample)
        for received, at_ns in arrivals:
            if received > sample:
                own_ns = at_ns
                earliest_ns = spoken_ns = _counted(received, at_ns, sample)
                continue
            other_ns = _counted(received, at_ns, sample)
            if at_ns < own_ns - STEADY_NS or other_ns < spoken_ns - MAX_JITTER_NS:
                break
            earliest_ns = min(earliest_ns, other_ns)
        return earliest_ns, own_ns


def _counted(received: int, at_ns: int, sample: int) -> int:
    """When a sample was spoken, if the last of so many was at this time."""
    return at_ns - (received - sample) * 1_000_000_000 // asr.RATE_HZ


class TranscriptionJobs:
    """Belongs to one session. `tell` is called on the event loop."""

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
        """Used on the recognizer's thread."""
        self.skips: frozenset[str] = frozenset()
        """Kinds of passes that are left out."""

    def committed(self, buffer: asr.CommittedBuffer) -> None:
        """The client ended this utterance: its audio is here already."""
        self._committed[buffer.utterance] = buffer.job

    async def ask(self, question: Callable[[], Answer]) -> Answer:
        """Call the listener on its thread, ahead of waiting audio. Raises StageError."""
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
        """Recognize the utterance up to a pause, and tell the machine.

        `has_audio` is called when its audio is there, unless the client ended the utterance.
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
        """Tell the machine how the utterance sounds up to a pause. Where the turn model fails or
        hangs, words alone decide."""
        with contextlib.suppress(StageError):
            log_odds = await self._turn_model.call(
                lambda model: model.log_odds(job.pcm),
                timeout_s=TURN_MODEL_TIMEOUT_S,
                priority=URGENT,
            )
            judged = ev.PauseJudged(job.utterance, job.revision, round(log_odds, 3))
            self._emit(Heard(job.utterance, judged))

    async def partial(self, job: asr.DecodeJob) -> None:
        """Recognize what has been said so far, when nothing better is to be done.

        An early pass is something better: if this is a pause, it has the words of the final.
        """
        if job.kind in self.skips:
            await self.notify_stream(partial(self._stream.fail, job))
            return
        try:
            told, has_words = await self._decode(job, NORMAL if job.kind == "early" else BACKGROUND)
        except StageError:
            await self.notify_stream(partial(self._stream.fail, job))
            return
        if isinstance(told, asr.PartialTranscript):
            self._emit(Heard(told.utterance, partial=(told.text, told.stable_chars)))
        elif not has_words:
            self._emit(Heard(job.utterance, partial=("", 0)))

    async def _decode(
        self, job: asr.DecodeJob, priority: int
    ) -> tuple[asr.PartialTranscript | asr.FinalTranscript | None, bool]:
        """A transcript that is news, and whether there were words at all."""
        hypothesis = await self._recognizer.call(
            lambda model: self._early.recognize(model, job),
            timeout_s=DECODE_TIMEOUT_S + DECODE_TIMEOUT_PER_S * len(job.pcm) / asr.RATE_HZ,
            priority=priority,
        )
        told = await self.ask(lambda: self._stream.complete(job, hypothesis))
        return told[0] if told else None, bool(hypothesis.text.strip())

    async def notify_stream(self, what: Callable[[], None]) -> None:
        """As `ask`, of something that a listener which is broken need not know."""
        try:
            await self.ask(what)
        except StageError as error:
            _log.warning("a listener could not be told of something: %s", error)
