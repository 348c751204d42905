"""State of one open utterance: due decode jobs, settled text, stale results."""

from dataclasses import dataclass, field
from typing import Final

from asr.audio.samples import (
    RATE_HZ,
    VOICED_FRAME,
    last_voiced_sample,
    quietest_sample,
    samples_from_ms,
)
from asr.recognition.stabilizer import Stabilized, Stabilizer
from asr.recognition.transcripts import (
    DecodeJob,
    FinalTranscript,
    Hypothesis,
    JobKind,
    PartialTranscript,
)
from asr.speech_detection.endpointing import EndpointingConfig

from .audio_buffer import AudioBuffer


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConfig:
    """Settings of a speech stream."""

    endpointing: EndpointingConfig | None = field(default_factory=EndpointingConfig)
    """Thresholds of endpointing; None: push-to-talk."""
    partial_interval_ms: int = 600
    """New audio between partials; 0: no partials, nor early passes. A partial costs about 130 ms of
    two cores, so 300 would take half of the machine from the language model; above 1000 its prefill
    comes too late."""
    min_voiced_ms: int = 160
    """An utterance with less voice is not decoded: Whisper answers noise with "you" and "Thank
    you.". The shortest words ("no", "two") have 190 ms and more."""
    tail_ms: int = 96
    """Audio after the first silent sample that a final pass includes: soft final consonants lie
    there, and it has always arrived when the pause is found."""
    early_ms: int = 32
    """Silence after which an early pass is made (`asr/recognition/final_reuse.py`); 0: only where
    a partial is due then.
    16 makes the words 5 ms sooner for 6 % more work, 48 makes them 17 ms later for 7 % less."""
    settle_after_s: float = 20.0
    """Undecoded audio from which the older part is settled. The encoder's time grows with it."""
    max_unsettled_s: float = 120.0
    """Longest undecoded audio of an utterance that is kept: 7.7 MB."""
    max_buffer_s: float = 600.0
    """Push-to-talk: longest audio between commits. 38 MB if no job is ever completed."""
    max_gap_s: float = 5.0
    """A gap in the audio's positions (lost packets) up to this long is filled with silence."""


DOUBTFUL_CERTAINTY: Final = 0.82
DOUBTFUL_LOGPROB: Final = -0.4
DOUBTFUL_NO_SPEECH: Final = 0.6
UNLIKELY_NO_SPEECH: Final = 0.45
"""Words from a voice that the detector is less sure of than the first are an answer to music or
noise, where the recognizer hears no speech itself: with more than the third, or with more than the
fourth where the words are less likely than the second. Of ringtones and songs that were taken for
speech the detector was 0.55-0.81 sure, of 609 prompts only of three ("s" and twice "at") less than
0.82. But of a caller in a bare room, four times as far away, it is as unsure, and the words are as
unlikely: 33 of 58 utterances with words (two impulse responses) were taken for noise until the
fourth was asked as well, 3 since. Of 85 minutes of music and noisy places 9 passes had words, with
0.57-0.80. Push-to-talk is exempt: the caller says that it was speech."""

DOUBTFUL_VOICED_MS: Final = 400
"""Shortest voice for which unlikely words are doubted, in ms. With less of it they are accepted: of
a single letter the detector is no surer than of music, and callers spell. In so short a time the
recognizer's own probability of no speech decides."""


class Utterance:
    """One utterance of a call. Positions are samples of the call."""

    def __init__(
        self,
        number: int,
        onset: int | None,
        began: int,
        audio: AudioBuffer,
        config: ListenerConfig,
    ) -> None:
        """`onset`: first voiced sample; None in push-to-talk, where the audio is searched for it.
        `began`: first sample, pre-roll included."""
        self.number = number
        self.began = began
        self.unsettled = began
        """First sample that no segment has covered."""
        self.settled_text = ""
        self.revision = 0
        """Number of the newest final pass."""
        self.is_pausing = False
        self.is_ended = False
        self.awaits_final = False
        self._onset = onset
        self._audio = audio
        self._config = config
        self._decoded_to = began
        """End of the last partial."""
        self._early_to: int | None = None
        """Last voiced sample of the last early pass."""
        self._last_voiced: tuple[tuple[int, int], int | None] | None = None
        """The newest answer of `last_voiced`, behind the stretch that it is about: whether a pass
        is due and the pass itself ask for the same, which takes 1 ms for 20 s."""
        self._stabilizer = Stabilizer()
        self._last_partial: Stabilized | None = None

    def configure(self, config: ListenerConfig) -> None:
        """Use other settings from now on. Where they are those of push-to-talk, a pause is none."""
        self._config = config
        if config.endpointing is None:
            self.is_pausing = False

    def due(self, probability: float, threshold: float, silence_samples: int) -> DecodeJob | None:
        """The partial, early pass or segment that is due after a frame of this probability of
        speech, `silence_samples` samples after the last loud one."""
        if self.awaits_final:
            return None
        end = self._audio.end_of_frames
        unsettled_s = (end - self.unsettled) / RATE_HZ
        if unsettled_s >= self._config.settle_after_s:
            return self._segment(end, threshold)
        if self._has_dropped(silence_samples, end, threshold):
            return self._partial("early", end, threshold)
        # Longer audio takes longer to decode, so it is decoded less often.
        interval_ms = self._config.partial_interval_ms * max(1.0, unsettled_s / 10)
        is_soon = end - self._decoded_to < samples_from_ms(interval_ms)
        if self._config.partial_interval_ms == 0 or self.is_pausing or is_soon:
            return None
        if probability < threshold or not self.is_voiced(end, threshold):
            return None
        # The detector still takes the first silence for speech.
        return self._partial("early" if silence_samples else "partial", end, threshold)

    def _partial(self, kind: JobKind, end: int, threshold: float) -> DecodeJob:
        job = self.job(kind, end, threshold)
        self._decoded_to, self._early_to = end, job.last_voiced_sample
        return job

    def _has_dropped(self, silence_samples: int, end: int, threshold: float) -> bool:
        """The voice has just dropped, after words that no early pass has covered."""
        config = self._config
        if (
            not 0 < samples_from_ms(config.early_ms) <= silence_samples
            or config.partial_interval_ms == 0
        ):
            return False
        if self.is_pausing or not self.is_voiced(end, threshold):
            return False
        return self.last_voiced(end) != self._early_to

    def _segment(self, end: int, threshold: float) -> DecodeJob | None:
        pcm = self._audio.read(self.unsettled, end)
        cut = self.unsettled + quietest_sample(pcm, len(pcm) // 2, len(pcm) - RATE_HZ)
        if not self.is_voiced(cut, threshold):
            self.unsettled = cut
            return None
        return self.job("segment", cut, threshold)

    def is_voiced(self, end: int, threshold: float) -> bool:
        """The undecoded audio before `end` has enough voice to hold words."""
        voiced_ms = self._audio.voiced_ms(self.unsettled, end, threshold)
        return voiced_ms >= self._config.min_voiced_ms

    def last_voiced(self, end: int) -> int | None:
        """`samples.last_voiced_sample` of the audio kept before `end`. Frames count from the call's
        first sample, so the result does not depend on the onset that was found."""
        first = self.began if self._onset is None else self._onset
        first = max(first, self._audio.first_sample)
        first += -first % VOICED_FRAME
        if self._last_voiced is None or self._last_voiced[0] != (first, end):
            found = last_voiced_sample(self._audio.view(first, end), first)
            self._last_voiced = (first, end), found
        return self._last_voiced[1]

    def job(self, kind: JobKind, end: int, threshold: float) -> DecodeJob:
        """Job to decode the unsettled audio up to `end`."""
        onset = self._onset
        if onset is None:
            onset = self._audio.first_voiced(self.began, threshold)
        return DecodeJob(
            kind,
            self.number,
            self.revision,
            self.unsettled,
            self._audio.read(self.unsettled, end),
            settled_text=self.settled_text,
            last_voiced_sample=self.last_voiced(end) if kind in ("early", "final") else None,
            utterance_first_sample=self.began if onset is None else onset,
            certainty=self._audio.certainty(self.unsettled, end, threshold),
            voiced_ms=self._audio.voiced_ms(self.unsettled, end, threshold),
        )

    def _is_noise(self, job: DecodeJob, hypothesis: Hypothesis) -> bool:
        """The words of a final pass are an answer to music or noise."""
        is_exempt = job.kind != "final" or self._config.endpointing is None
        if is_exempt or job.certainty >= DOUBTFUL_CERTAINTY:
            return False
        is_unlikely = hypothesis.avg_logprob < DOUBTFUL_LOGPROB
        is_long = job.voiced_ms >= DOUBTFUL_VOICED_MS
        limit = UNLIKELY_NO_SPEECH if is_unlikely and is_long else DOUBTFUL_NO_SPEECH
        return hypothesis.no_speech_prob > limit

    def is_stale(self, job: DecodeJob) -> bool:
        """The result of a job is out of date."""
        if job.kind == "segment":
            return self.is_ended or job.first_sample != self.unsettled
        if job.kind in ("partial", "early") and self.is_ended:
            return True
        return job.revision != self.revision

    def take(
        self, job: DecodeJob, hypothesis: Hypothesis
    ) -> tuple[PartialTranscript | FinalTranscript, ...]:
        """Take in the result of a job that is not stale."""
        words = "" if self._is_noise(job, hypothesis) else hypothesis.text
        text = f"{job.settled_text} {words}".strip()
        if job.kind == "final":
            self.awaits_final = False
            return (_final(job, hypothesis, text),)
        if job.kind == "segment":
            self.settled_text = text
            self.unsettled = job.end_sample
            return ()
        partial = self._stabilizer.push(text)
        if not partial.text or partial == self._last_partial:
            return ()
        self._last_partial = partial
        return (PartialTranscript(self.number, partial.text, partial.stable_chars),)

    def shed(self, limit: int) -> int:
        """Give up the oldest unsettled audio beyond `limit` samples; returns the samples lost."""
        excess = self._audio.end_sample - self.unsettled - limit
        if excess <= 0:
            return 0
        # A second at a time, not a frame at a time: moving the rest costs.
        self.unsettled += excess + RATE_HZ
        return excess + RATE_HZ


def _final(job: DecodeJob, hypothesis: Hypothesis, text: str) -> FinalTranscript:
    return FinalTranscript(
        job.utterance,
        job.revision,
        text,
        job.utterance_first_sample,
        job.last_voiced_sample,
        hypothesis.avg_logprob,
        hypothesis.no_speech_prob,
        hypothesis.fell_back,
    )
