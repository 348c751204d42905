"""What passes between a listener and a recognizer, and what comes out of both."""

from dataclasses import dataclass, field
from typing import Literal

from asr.audio.samples import Pcm

JobKind = Literal["partial", "early", "segment", "final"]
"""`partial`: what the caller has said so far. `early`: the same where the voice has just dropped,
before that counts as a pause (`final_reuse.py`). `segment`: the older part of a long utterance,
decoded once so that later jobs stay short. `final`: an utterance up to a pause, or to its end."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """What a recognizer made of some audio."""

    text: str
    """Stripped; empty when nothing was said."""
    tokens: tuple[int, ...] = ()
    """Of the recognizer's own vocabulary."""
    avg_logprob: float = 0.0
    """Natural log of the mean probability of a token. Below -1 the words are guesses."""
    no_speech_prob: float = 0.0
    audio_s: float = 0.0
    window_s: float = 0.0
    """Audio that the encoder saw, padding included; summed where there was more than one window."""
    encode_ms: float = 0.0
    """Features and encoder."""
    decode_ms: float = 0.0
    fell_back: bool = False
    """The short window did not do, and wider ones were tried."""
    taken_over: bool = False
    """Nothing was decoded: an earlier pass over the same words had this (`final_reuse.py`)."""


@dataclass(frozen=True, slots=True)
class DecodeJob:
    """Audio to recognize. Hand the result to `Listener.complete`, or the job to `Listener.fail`."""

    kind: JobKind
    utterance: int
    revision: int
    """Which final pass over the utterance this is, from 1; of a partial: the passes before it."""
    first_sample: int
    """Position of `pcm` in the call."""
    pcm: Pcm = field(repr=False)
    """float32 [n], a copy: any thread may read it."""
    settled_text: str = ""
    """What the utterance said before `pcm`."""
    last_voiced_sample: int | None = None
    """Of a final and of an early pass: see FinalTranscript."""
    utterance_first_sample: int = 0
    """Of a final: the utterance's first voiced sample."""
    certainty: float = 1.0
    """Mean probability of speech over the voiced frames, 0..1."""
    voiced_ms: float = 0.0
    """Of the frames in which speech was heard."""

    @property
    def end_sample(self) -> int:
        """Sample after the last."""
        return self.first_sample + len(self.pcm)


@dataclass(frozen=True, slots=True)
class PartialTranscript:
    """What the caller has said so far."""

    utterance: int
    text: str
    stable_chars: int
    """`text[:stable_chars]` stays as it is until the final transcript, which may differ."""


@dataclass(frozen=True, slots=True)
class FinalTranscript:
    """What the caller has said up to a pause, or to the end of the utterance."""

    utterance: int
    revision: int
    """Which final pass over the utterance, from 1."""
    text: str
    """Empty: nothing was said."""
    first_sample: int
    """First voiced sample of the utterance."""
    last_voiced_sample: int | None
    """Last sample of the last voiced 20 ms, see `audio.last_voiced_sample`; None: none voiced."""
    avg_logprob: float
    no_speech_prob: float
    fell_back: bool
    """The short window did not do, so this pass took several times as long."""
