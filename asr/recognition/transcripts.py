"""Records between a speech stream and a recognizer: decode jobs, hypotheses, transcripts."""

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from asr.audio.samples import Pcm

MAX_UNREADABLE: Final = 0.1
"""Share of a text that may be unreadable: a pass that ends within a letter leaves one such
character."""

JobKind = Literal["partial", "early", "segment", "final"]
"""`partial`: what the caller has said so far. `early`: the same where the voice has just dropped,
before that counts as a pause (`final_reuse.py`). `segment`: the older part of a long utterance,
decoded once so that later jobs stay short. `final`: an utterance up to a pause, or to its end."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """Result of one decode of a recognizer."""

    text: str
    """Stripped; empty when nothing was said."""
    tokens: tuple[int, ...] = ()
    """Token ids of the recognizer's own vocabulary."""
    avg_logprob: float = 0.0
    """Natural log of the mean probability of a token. Below -1 the words are guesses."""
    no_speech_prob: float = 0.0
    audio_s: float = 0.0
    window_s: float = 0.0
    """Audio that the encoder saw, padding included; summed where there was more than one window."""
    encode_ms: float = 0.0
    """Time of features and encoder."""
    decode_ms: float = 0.0
    fell_back: bool = False
    """The short window was not enough, and wider ones were tried."""
    language: str = ""
    """Language that was found, a code like "de"; empty: it was given, or none was likely."""
    language_prob: float = 0.0
    """Its probability, 0..1."""
    language_ms: float = 0.0
    """Time that finding it took; part of `decode_ms`."""
    taken_over: bool = False
    """Nothing was decoded: the result of an earlier pass over the same words (`final_reuse.py`)."""

    @property
    def is_garbage(self) -> bool:
        """True where no working recognizer gives this: more than a tenth of the text are control
        and replacement characters, or its probability is no number."""
        num_unreadable = sum(map(_is_unreadable, self.text))
        return num_unreadable > max(1.0, MAX_UNREADABLE * len(self.text)) or not math.isfinite(
            self.avg_logprob
        )


def joined(parts: Sequence[Hypothesis], audio_s: float) -> Hypothesis:
    """Hypothesis of audio that was recognized in pieces, of this length; without pieces an empty
    one. Its probability is their mean by length, and no number where one of them is none."""
    if not parts:
        return Hypothesis("", audio_s=audio_s)
    if len(parts) == 1:
        return replace(parts[0], audio_s=audio_s)
    return Hypothesis(
        text=" ".join(part.text for part in parts if part.text),
        tokens=tuple(token for part in parts for token in part.tokens),
        avg_logprob=sum(part.avg_logprob * part.audio_s for part in parts)
        / sum(part.audio_s for part in parts),
        no_speech_prob=min(part.no_speech_prob for part in parts),
        audio_s=audio_s,
        window_s=sum(part.window_s for part in parts),
        encode_ms=sum(part.encode_ms for part in parts),
        decode_ms=sum(part.decode_ms for part in parts),
        fell_back=any(part.fell_back for part in parts),
        language=parts[0].language,
        language_prob=parts[0].language_prob,
        language_ms=sum(part.language_ms for part in parts),
    )


@dataclass(frozen=True, slots=True)
class DecodeJob:
    """Audio to recognize. Hand the result to `AsrStream.complete`, or the job to
    `AsrStream.fail`."""

    kind: JobKind
    utterance: int
    revision: int
    """Number of the final pass over the utterance, from 1; for a partial, of the pass before it."""
    first_sample: int
    """Position of `pcm` in the call."""
    pcm: Pcm = field(repr=False)
    """float32 [n], a copy: any thread may read it."""
    settled_text: str = ""
    """Text of the utterance before `pcm`."""
    last_voiced_sample: int | None = None
    """Last voiced sample, for final and early passes: see FinalTranscript."""
    utterance_first_sample: int = 0
    """First voiced sample of the utterance, for final passes."""
    certainty: float = 1.0
    """Mean probability of speech over the voiced frames, 0..1."""
    voiced_ms: float = 0.0
    """Duration of the voiced frames."""

    @property
    def end_sample(self) -> int:
        """Sample after the last."""
        return self.first_sample + len(self.pcm)


@dataclass(frozen=True, slots=True)
class PartialTranscript:
    """Transcript of an utterance that is still going on."""

    utterance: int
    text: str
    stable_chars: int
    """`text[:stable_chars]` stays as it is until the final transcript, which may differ."""


@dataclass(frozen=True, slots=True)
class FinalTranscript:
    """Transcript of an utterance up to a pause, or to its end."""

    utterance: int
    revision: int
    """Number of the final pass over the utterance, from 1."""
    text: str
    """Empty: nothing was said."""
    first_sample: int
    """First voiced sample of the utterance."""
    last_voiced_sample: int | None
    """Last sample of the last voiced 20 ms, see `samples.last_voiced_sample`; None: none voiced."""
    avg_logprob: float
    no_speech_prob: float
    fell_back: bool
    """The short window was not enough, so this pass took several times as long."""


def _is_unreadable(character: str) -> bool:
    return character == "\ufffd" or (
        unicodedata.category(character) in ("Cc", "Cs", "Co", "Cn") and not character.isspace()
    )
