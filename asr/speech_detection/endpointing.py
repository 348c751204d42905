"""Endpointing: starts, pauses and resumptions of speech from the voice detector's probabilities.

Theory of operation
-------------------
One automaton per call:

    QUIET --onset--> SPEAKING --silence >= pause_ms--> PAUSING --speech >= min_resume_ms--> SPEAKING

It does not decide when a turn is over. It says when the caller paused and how the silence grows;
its owner compares that with the words and calls `end`. The next speech is a new utterance.

Two thresholds keep it from chattering: a frame is *voiced* from `speech_threshold` on, *silent*
below `silence_threshold`, and in between it continues whatever is going on. An onset must last
before it counts, because a click, a cough or a breath would otherwise interrupt the agent; where it
began is remembered, so the first word loses nothing.

Silence counts from the last *loud* sample where the owner says how far a frame is loud
(`energy_endpoint.py`): the detector's probability falls a tenth of a second after the voice does.
A sound in a pause that is loud but too short to be speech (the "t" that ends a word) makes the
silence begin anew behind it.

All counting is in samples of the call, never in time: audio that arrives in bursts, late, or faster
than real time gives the same events. Events of one utterance come in the order
started (pause resumed)* [pause], where a pause is paused grew* and, behind each short sound in it,
grew* paused grew* again; positions never decrease.
"""

from dataclasses import dataclass
from enum import Enum, auto

from asr.audio.samples import ms_from_samples, samples_from_ms

from .vad import FRAME


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointingConfig:
    """Thresholds for speech to begin, pause and resume. Raises ValueError when inconsistent."""

    speech_threshold: float = 0.5
    """Probability from which a frame is voiced. Telephone speech lies at 0.8-1.0, noise, hum and
    tones below 0.3 (silero 5, measured on prompts and synthetic noise)."""
    silence_threshold: float = 0.35
    """Probability below which a frame is silent; silero's own default is 0.15 below the other."""
    min_speech_ms: int = 96
    """Voiced time before speech counts as begun. 64 lets single clicks through, which interrupt the
    agent; 160 loses a short "no"."""
    min_speech_over_ms: int = 160
    """Voiced time before speech counts as begun while the agent is audible: stopping it for a
    click is worse than stopping it 64 ms later. 250 ms after the onset it must be silent at the
    client."""
    pause_ms: int = 80
    """Silence before speech counts as paused. With 48 seven pauses are found in a turn, two thirds
    of them inside words (stops before "t" and "k"), with 80 five, with 112 four; what is added here
    is missing where the turn ends, because words are not recognized before."""
    min_resume_ms: int = 64
    """Voiced time before a pause counts as over. A single voiced frame is a breath or a click, and
    would throw away the transcript that is being made."""
    preroll_ms: int = 400
    """Audio kept from before the onset. The detector needs up to 300 ms of a soft first syllable
    before it is sure; more would bring in the end of an echo or of another speaker."""

    def __post_init__(self) -> None:
        if not 0 < self.silence_threshold <= self.speech_threshold < 1:
            raise ValueError(
                "endpointing needs 0 < silence_threshold <= speech_threshold < 1, got "
                f"{self.silence_threshold} and {self.speech_threshold}"
            )
        if (
            min(
                self.min_speech_ms,
                self.min_speech_over_ms,
                self.pause_ms,
                self.min_resume_ms,
                self.preroll_ms,
            )
            < 0
        ):
            raise ValueError("endpointing durations are not negative")


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """The caller has begun to speak.

    The four events below are those of the turn-taking machine too; traces name them by class."""

    utterance: int
    at_sample: int
    """First voiced sample, without pre-roll."""


@dataclass(frozen=True, slots=True)
class SpeechPaused:
    """Silence has reached `pause_ms`: the caller is thinking, or done. Emitted again when a short
    sound broke the silence, so that the end of a word is not lost."""

    utterance: int
    at_sample: int
    """First silent sample."""


@dataclass(frozen=True, slots=True)
class SilenceGrew:
    """The pause goes on; one for each further silent frame. Counted in samples, so that audio sent
    in bursts gives the same turns."""

    utterance: int
    silence_ms: int
    """Since the last loud sample: the pause's `at_sample`, or the end of a short sound after it."""


@dataclass(frozen=True, slots=True)
class SpeechResumed:
    """The caller goes on with the utterance after a pause."""

    utterance: int
    at_sample: int
    """First voiced sample after the pause."""


EndpointEvent = SpeechStarted | SpeechPaused | SilenceGrew | SpeechResumed


class _State(Enum):
    QUIET = auto()
    SPEAKING = auto()
    PAUSING = auto()


class Endpointer:
    """Endpointing automaton of one call. Utterances count from 1. Not thread-safe, never blocks."""

    def __init__(self, config: EndpointingConfig) -> None:
        self._config = config
        self._state = _State.QUIET
        self._utterance = 1
        """Number of the open utterance, or of the one that opens next."""
        self._position = 0
        """Sample after the last frame."""
        self._voiced_from: int | None = None
        """Start of voiced frames that may become an onset or a resumption."""
        self._silent_from: int | None = None
        """While SPEAKING: start of a silence that may become a pause. While PAUSING: its start."""
        self._is_noticed = False
        """While PAUSING: the silence behind the last sound has reached `pause_ms`."""
        self._resumed_at: int | None = None
        """First sample after the utterance's last pause."""
        self._carried_onset: int | None = None
        """While QUIET: onset of speech that the end of an utterance left to the next one."""

    @property
    def config(self) -> EndpointingConfig:
        return self._config

    @property
    def utterance(self) -> int:
        """The open utterance, or the number of the one that opens next."""
        return self._utterance

    @property
    def is_open(self) -> bool:
        """An utterance has started and not ended."""
        return self._state is not _State.QUIET

    @property
    def is_pausing(self) -> bool:
        return self._state is _State.PAUSING

    def configure(self, config: EndpointingConfig) -> None:
        """Use other thresholds from the next frame on."""
        self._config = config

    def push(
        self,
        probability: float,
        first_sample: int,
        num_loud: int | None = None,
        is_overlap: bool = False,
    ) -> tuple[EndpointEvent, ...]:
        """Take in the next frame's probability of speech, 0..1; returns at most one event.

        `num_loud`: samples of it up to the last that is loud enough for speech, where that is
        known; it counts inside an utterance only. `is_overlap`: the agent is audible, and speech
        must last longer to count as the caller's. Raises ValueError for a frame that begins before
        the last one ended.
        """
        if first_sample < self._position:
            raise ValueError(f"frame at {first_sample} comes before {self._position}")
        self._position = first_sample + FRAME
        if self._state is _State.QUIET:
            return self._push_quiet(probability, first_sample, is_overlap)
        loud_until = None if num_loud is None else first_sample + num_loud
        if loud_until == first_sample:
            probability = 0.0
        if self._state is _State.SPEAKING:
            return self._push_speaking(probability, first_sample, loud_until)
        return self._push_pausing(probability, first_sample, loud_until)

    def end(self, utterance: int) -> None:
        """The owner has decided that this utterance is over; stale numbers are ignored.

        Speech that had resumed after a pause when this came is the next utterance's, from where it
        resumed: the decision was taken without it.
        """
        if utterance != self._utterance or self._state is _State.QUIET:
            return
        # In a pause, `_voiced_from` may hold the beginning of a resumption: it stays an onset.
        self._carried_onset = self._resumed_at if self._state is _State.SPEAKING else None
        self._silent_from = self._resumed_at = None
        self._state = _State.QUIET
        self._utterance += 1

    def reset(self) -> None:
        """Forget the open utterance and any onset. The number is used up."""
        self._utterance += 1
        self._state = _State.QUIET
        self._voiced_from = self._silent_from = self._resumed_at = self._carried_onset = None

    def _follow_voice(self, probability: float, first_sample: int) -> None:
        """Keep `_voiced_from` up to date."""
        if probability >= self._config.speech_threshold:
            if self._voiced_from is None:
                self._voiced_from = first_sample
        elif probability < self._config.silence_threshold:
            self._voiced_from = None

    def _voiced_for(self, min_ms: int) -> int | None:
        """First sample of the voice that has lasted `min_ms`, if one has."""
        began = self._voiced_from
        if began is None or self._position - began < samples_from_ms(min_ms):
            return None
        return began

    def _push_quiet(
        self, probability: float, first_sample: int, is_overlap: bool
    ) -> tuple[EndpointEvent, ...]:
        self._follow_voice(probability, first_sample)
        onset = self._carried_onset
        if onset is None:
            config = self._config
            needed_ms = config.min_speech_over_ms if is_overlap else config.min_speech_ms
            onset = self._voiced_for(needed_ms)
        if onset is None:
            return ()
        self._state = _State.SPEAKING
        self._voiced_from = self._silent_from = self._carried_onset = None
        return (SpeechStarted(self._utterance, onset),)

    def _push_speaking(
        self, probability: float, first_sample: int, loud_until: int | None
    ) -> tuple[EndpointEvent, ...]:
        if probability >= self._config.speech_threshold:
            is_loud = loud_until is None or loud_until == self._position
            self._silent_from = None if is_loud else loud_until
        elif self._silent_from is None and probability < self._config.silence_threshold:
            self._silent_from = first_sample
        if self._silent_from is None:
            return ()
        if self._position - self._silent_from < samples_from_ms(self._config.pause_ms):
            return ()
        self._state = _State.PAUSING
        self._is_noticed = True
        return (SpeechPaused(self._utterance, self._silent_from),)

    def _push_pausing(
        self, probability: float, first_sample: int, loud_until: int | None
    ) -> tuple[EndpointEvent, ...]:
        assert self._silent_from is not None
        self._follow_voice(probability, first_sample)
        resumed = self._voiced_for(self._config.min_resume_ms)
        if resumed is not None:
            self._state = _State.SPEAKING
            self._voiced_from = self._silent_from = None
            self._resumed_at = resumed
            return (SpeechResumed(self._utterance, resumed),)
        if loud_until is not None and probability >= self._config.silence_threshold:
            self._silent_from = loud_until
            self._is_noticed = False
        if self._voiced_from is not None:
            # Perhaps a resumption: the silence must not grow, or the turn ends under the caller.
            return ()
        silence = self._position - self._silent_from
        if not self._is_noticed and silence >= samples_from_ms(self._config.pause_ms):
            self._is_noticed = True
            return (SpeechPaused(self._utterance, self._silent_from),)
        return (SilenceGrew(self._utterance, int(ms_from_samples(silence))),)
