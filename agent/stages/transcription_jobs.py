"""Recognizer passes over one session's speech, final and partial.

A pass visits two threads: the detector's, which has the stream, for the audio; the recognizer's for
the words, or another server; and the detector's again, where the stream drops results that a newer
pass made stale.
"""

import contextlib
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol, TypeVar

import asr
import languages
from agent.errors import StageError
from agent.session.ports.stage_ports import SpeechResult
from agent.stages.call_audio import ArrivalClock, GuardedStream
from agent.turn_taking import events as ev
from latency_budget.account.clock import Clock

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


FOUND_AFTER_S: Final = 1.0
"""Speech from which on the language of a call is taken as found. Shorter: a "hm" decides."""

FOUND_PROBABILITY: Final = 0.7
"""Least probability of it. Of 60 sentences by voices in English, German, Spanish and French none
was below 0.9, of 80 by English learners one below 0.7; noise and other languages give the four 0.4
together, or less."""


Answer = TypeVar("Answer")
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class LanguageFinding:
    """What finding the languages of calls has cost, of all calls."""

    num_passes: int = 0
    """Passes, partial and final, in which a language was looked for."""
    ms: float = 0.0
    """Their time for it, ms; part of the recognizer's."""


class JobDecoder(Protocol):
    """Recognizer of one call, in this process or elsewhere (`remote/remote_recognizer.py`)."""

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages that `set_options` takes; empty while they are not known."""
        ...

    @property
    def takes_prompts(self) -> bool:
        """Jobs can have a prompt."""
        ...

    @property
    def finds_language(self) -> bool:
        """Jobs can have several languages to choose from."""
        ...

    def set_options(self, options: asr.TranscriptionOptions) -> None:
        """Language and prompt of the next jobs."""
        ...

    async def run(self) -> None:
        """Do what it does beside its jobs, until cancelled or done."""
        ...

    async def decode(self, job: asr.DecodeJob, priority: int) -> asr.Hypothesis | None:
        """Recognize a job. None: a partial job brought nothing new. Raises StageError."""
        ...


class LocalDecoder:
    """A `JobDecoder` on a recognizer's thread of this process. One call, one event loop."""

    def __init__(
        self,
        recognizer: ModelThread[asr.Recognizer],
        thread_for: Callable[[str | None], ModelThread[asr.Recognizer]] | None = None,
        known: Callable[[], tuple[str, ...]] | None = None,
        finding: LanguageFinding | None = None,
    ) -> None:
        """`thread_for`: the recognizer of a language, `known`: languages of all recognizers. None:
        `recognizer` is the only one. `finding`: counts that this call's are added to."""
        self._finding = LanguageFinding() if finding is None else finding
        self._recognizer = recognizer
        self._thread_for = thread_for or (lambda language: recognizer)
        self._known = known
        self._caller = object()
        """Whose jobs these are, for their order among those of other calls."""
        self._early = asr.FinalReuse()
        """Touched on the recognizer's thread only."""
        self._options = asr.AS_LOADED
        self._is_poisoned = False
        """The last final pass failed, and failed again."""

    @property
    def languages(self) -> tuple[str, ...]:
        if self._known is not None:
            return self._known()
        model = self._recognizer.model
        return () if model is None else model.languages

    @property
    def takes_prompts(self) -> bool:
        return True

    @property
    def finds_language(self) -> bool:
        model = self._thread_for(languages.FOREIGN).model
        return isinstance(model, asr.FindsLanguage) and model.finds_language

    @property
    def can_stand_in(self) -> bool:
        """True if the recognizer is loaded and knows the call's language."""
        model, language = self._recognizer.model, self._options.language
        return model is not None and (language is None or language in model.languages)

    def set_options(self, options: asr.TranscriptionOptions) -> None:
        """See `JobDecoder`. Words of an early pass that is over stay as they are, unless they are
        of another language."""
        before = self._options
        if (options.language, options.candidates) != (before.language, before.candidates):
            language = languages.FOREIGN if options.candidates else options.language
            self._recognizer = self._thread_for(language)
            self._early = asr.FinalReuse()
        self._options = options

    async def run(self) -> None:
        """Nothing: the thread has an owner of its own."""

    async def decode(self, job: asr.DecodeJob, priority: int) -> asr.Hypothesis | None:
        """See `JobDecoder`. Where the recognizer fails at a final pass, it is rebuilt and has that
        pass again: the caller need not say it again. Not where that was in vain the last time: the
        recognizer is rebuilt for all calls, and this one may have what breaks it."""
        thread, early, options = self._recognizer, self._early, self._options
        decode = partial(self._decode_once, thread, early, options, job, priority)
        restarts = thread.restarts
        try:
            hypothesis = await decode()
            self._is_poisoned = self._is_poisoned and priority != URGENT
            return hypothesis
        except StageError:
            is_rebuilt = thread.restarts > restarts
            if priority != URGENT or not is_rebuilt or not thread.may_retry or self._is_poisoned:
                raise
        self._is_poisoned = True
        hypothesis = await decode()
        self._is_poisoned = False
        return hypothesis

    async def _decode_once(
        self,
        thread: ModelThread[asr.Recognizer],
        early: asr.FinalReuse,
        options: asr.TranscriptionOptions,
        job: asr.DecodeJob,
        priority: int,
    ) -> asr.Hypothesis | None:
        def recognized(model: asr.Recognizer) -> asr.Hypothesis:
            return early.recognize(_SessionRecognizer(model, _options_for(model, options)), job)

        hypothesis = await thread.call(
            recognized,
            timeout_s=DECODE_TIMEOUT_S + DECODE_TIMEOUT_PER_S * len(job.pcm) / asr.RATE_HZ,
            priority=priority,
            caller=self._caller,
        )
        if hypothesis.language_ms > 0:
            self._finding.num_passes += 1
            self._finding.ms += hypothesis.language_ms
        return hypothesis


def _options_for(
    model: asr.Recognizer, options: asr.TranscriptionOptions
) -> asr.TranscriptionOptions:
    """Options for one model: without a language where it is the model's own, or one that it does
    not know, as that of a recognizer which stands in."""
    if options.candidates:
        return options
    if options.language is None or options.language in model.languages[1:]:
        return options
    return replace(options, language=None)


@dataclass(frozen=True, slots=True)
class _SessionRecognizer:
    """A `Transcriber` with the language and the prompt of one session."""

    recognizer: asr.Recognizer
    options: asr.TranscriptionOptions

    def transcribe(self, pcm: asr.Pcm, *, fallback: bool = True) -> asr.Hypothesis:
        """See `asr.Transcriber`. Raises ValueError for garbage: the session could not go on with
        it, and the recognizer is built anew."""
        if self.options == asr.AS_LOADED:
            hypothesis = self.recognizer.transcribe(pcm, fallback=fallback)
        else:
            hypothesis = self.recognizer.transcribe(pcm, fallback=fallback, options=self.options)
        if hypothesis.is_garbage:
            raise ValueError(
                f"the recognizer gave {len(hypothesis.text)} characters with a log-probability of "
                f"{hypothesis.avg_logprob}"
            )
        return hypothesis


def finite_log_odds(model: asr.EndOfTurnModel, pcm: asr.Pcm) -> float:
    """The model's log odds that the turn is over. Raises ValueError where they are no number: the
    session could not go on with it, and the model is built anew."""
    log_odds = model.log_odds(pcm)
    if not math.isfinite(log_odds):
        raise ValueError(f"the end-of-turn model gave {log_odds}")
    return log_odds


class TranscriptionJobs:
    """Decode jobs of one session. One event loop."""

    def __init__(
        self,
        guarded: GuardedStream,
        detector: ModelThread[asr.VoiceDetector],
        decoder: JobDecoder,
        turn_model: ModelThread[asr.EndOfTurnModel],
        clock: Clock,
        arrivals: ArrivalClock,
        emit: Callable[[SpeechResult], None],
    ) -> None:
        """`emit` takes each result, on the event loop."""
        self._emit = emit
        self._caller = object()
        """Whose jobs these are, for their order among those of other calls."""
        self._guarded = guarded
        self._stream = guarded.stream
        self._detector = detector
        self._decoder = decoder
        self._turn_model = turn_model
        self._clock = clock
        self._arrivals = arrivals
        self._committed: dict[int, asr.DecodeJob | None] = {}
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
            self._emit(SpeechResult(utterance, ev.TranscriptFailed(utterance, revision)))
            return
        if job is not None and final is None:
            return  # stale: a newer pass is on its way
        text = final.text if isinstance(final, asr.FinalTranscript) else ""
        last = final.last_voiced_sample if isinstance(final, asr.FinalTranscript) else None
        self._emit(
            SpeechResult(
                utterance,
                ev.TranscriptReady(utterance, revision, text),
                decode_ns=(start_ns, self._clock.now_ns()),
                last_voiced_ns=None if last is None else self._arrivals.when(last),
            )
        )

    async def score_end_of_turn(self, job: asr.DecodeJob) -> None:
        """Emit the end-of-turn score of the utterance up to a pause. Where the model fails or
        hangs, and of a job without audio, the words alone decide."""
        if not len(job.pcm):
            return
        with contextlib.suppress(StageError):
            log_odds = await self._turn_model.call(
                partial(finite_log_odds, pcm=job.pcm),
                timeout_s=TURN_MODEL_TIMEOUT_S,
                priority=URGENT,
                caller=self._caller,
            )
            score = ev.PauseJudged(job.utterance, job.revision, round(log_odds, 3))
            self._emit(SpeechResult(job.utterance, score))

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
            self._emit(SpeechResult(transcript.utterance, partial=text))
        elif not has_words:
            self._emit(SpeechResult(job.utterance, partial=("", 0)))

    async def _decode(
        self, job: asr.DecodeJob, priority: int
    ) -> tuple[asr.PartialTranscript | asr.FinalTranscript | None, bool]:
        """The transcript, None for a stale job or unchanged text; and whether there were words."""
        hypothesis: asr.Hypothesis | None
        if len(job.pcm):
            hypothesis = await self._decoder.decode(job, priority)
        else:  # the words before are settled, and nothing was said since
            hypothesis = asr.Hypothesis("")
        if hypothesis is None:
            await self.notify_stream(partial(self._stream.fail, job))
            return None, True
        if (
            hypothesis.language
            and hypothesis.language_prob >= FOUND_PROBABILITY
            and len(job.pcm) >= FOUND_AFTER_S * asr.RATE_HZ
            and hypothesis.text.strip()
        ):
            self._emit(SpeechResult(job.utterance, language=hypothesis.language))
        transcripts = await self.ask(lambda: self._stream.complete(job, hypothesis))
        return transcripts[0] if transcripts else None, bool(hypothesis.text.strip())

    async def notify_stream(self, update: Callable[[], None]) -> None:
        """`ask` without an answer: a broken detector is logged, not raised."""
        try:
            await self.ask(update)
        except StageError as error:
            _log.warning("a speech stream could not be updated: %s", error)
