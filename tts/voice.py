"""Voices: the interface, and the postprocessing of an engine's samples into a piece's audio.

An engine (hibari, Piper, a plug-in) turns one line of plain words into samples; no more differs.
`PostprocessedVoice` does the rest the same way for every engine: normalize the piece, go through it
sentence by sentence, trim the silence, set the level, add the pause that the punctuation asks for,
and map each chunk and each word to the characters of the reply.

Sentence by sentence is what makes a long text harmless: memory holds one sentence, the first audio
comes after one sentence, and synthesis can be cancelled between two chunks.

Synchronous and without threads: call everything of one voice from one thread.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from traceback import extract_tb
from typing import Protocol

import numpy as np
import numpy.typing as npt

import languages
from latency_budget.account.marks import AUDIBLE
from tts.text.normalize import SpokenWord, join_words, spoken_words, unnormalized_words
from tts.voices.engine import RawSpeech, SynthesisEngine, VoiceError

from . import loudness
from .text_chunker import SpeakablePiece
from .trim import find_voiced, pause_after, trim
from .word_times import WordTime, time_words

_log = logging.getLogger(__name__)

MAX_SENTENCE_CHARS = 240
"""Spoken characters that go to the engine at once. hibari's longest input is 400 phonemes; and
while a sentence is synthesized nothing can be cancelled (Piper: 1 s for 240 characters). Slow
speech has fewer, as its synthesis takes longer."""

MIN_SENTENCE_CHARS = 20
"""Fewer, at whatever speed, would be single words."""


@dataclass(frozen=True, slots=True)
class SpeechChunk:
    """Speech ready to be played. Chunks of a piece follow each other without a gap."""

    pcm: npt.NDArray[np.int16]
    """[n] mono samples. Begins within 10 ms of the first sound and ends with the pause."""
    rate_hz: int
    text_span: tuple[int, int]
    """Characters of the reply, as generated, that this chunk speaks. The spans of a piece's chunks
    are contiguous and cover the piece."""
    word_times: tuple[WordTime, ...]
    """In order; empty when the chunk speaks no word."""
    is_last: bool
    """The piece ends here."""

    @property
    def duration_ms(self) -> float:
        return 1000.0 * len(self.pcm) / self.rate_hz


class Voice(Protocol):
    """Interface of a voice. Any thread may own one, one thread at a time. `load_voice` makes them,
    `tts.check_voice` is the contract."""

    @property
    def name(self) -> str:
        """Name by which the voice was loaded."""
        ...

    @property
    def rate_hz(self) -> int:
        """Sample rate of every chunk."""
        ...

    def synthesize(self, piece: SpeakablePiece, speed: float = 1.0) -> Iterator[SpeechChunk]:
        """Speak a piece, a sentence at a time; stop iterating to cancel.

        `speed` 2 is twice the voice's own speed. The engines of halfsec take 0.25 to 4, but hibari
        and Piper need half the time at least: phonemes have a least length. Nothing to say (white
        space, punctuation, emoji) gives no chunk. Raises `VoiceError`."""
        ...

    def warm(self) -> None:
        """Do the work of a first synthesis, such as lazy loading. Call once before serving."""
        ...


class PostprocessedVoice:
    """A `Voice` from any engine."""

    def __init__(
        self,
        engine: SynthesisEngine,
        name: str = "",
        language: str = languages.ENGLISH.code,
        max_sentence_chars: int = MAX_SENTENCE_CHARS,
    ) -> None:
        """`name`: how the voice was loaded; empty: the engine's class. `language`: code of the
        language by whose rules text is read. `max_sentence_chars`: spoken characters that go to
        this engine at once."""
        self.language = language
        self._engine = engine
        self._name = name or type(engine).__name__
        self._max_sentence_chars = max_sentence_chars
        self._voice_gain_db: float | None = None
        self._has_logged_normalization = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def rate_hz(self) -> int:
        return self._engine.rate_hz

    def warm(self) -> None:
        """Synthesize a sentence and drop it: loads lazy parts, and measures the voice's level."""
        profile = languages.profile_of(self.language) or languages.ENGLISH
        raw = self._speak(profile.sentences.calibration, 1.0)
        measured = loudness.active_dbfs(raw.samples, self.rate_hz)
        if measured is None:
            raise VoiceError(f"the voice {self.name} is silent: is its model file intact?")
        self._voice_gain_db = loudness.TARGET_DBFS - measured

    def synthesize(self, piece: SpeakablePiece, speed: float = 1.0) -> Iterator[SpeechChunk]:
        """See `Voice.synthesize`."""
        if self._voice_gain_db is None:
            self.warm()
        max_chars = max(round(self._max_sentence_chars * min(1.0, speed)), MIN_SENTENCE_CHARS)
        sentences = split_sentences(self._words(piece), max_chars)
        first_char = piece.span[0]
        start = 0
        for number, words in enumerate(sentences):
            is_last = number == len(sentences) - 1
            end = len(piece.text) if is_last else sentences[number + 1][0].start
            pcm, word_times = self._shape(words, first_char, speed)
            span = (first_char + start, first_char + end)
            yield SpeechChunk(pcm, self.rate_hz, span, word_times, is_last)
            start = end

    def _words(self, piece: SpeakablePiece) -> Sequence[SpokenWord]:
        """Words of a piece. One that the rules fail on is spoken as it is written: it must not
        end the voice of all calls."""
        try:
            return spoken_words(piece.text, self.language, piece.fence, piece.before)
        except Exception as error:
            if not self._has_logged_normalization:  # the text stays out of the log
                self._has_logged_normalization = True
                _log.warning(
                    "normalization failed (language %s, %d characters): %s in %s; such text is "
                    "spoken as it is written, and not reported again",
                    self.language,
                    len(piece.text),
                    type(error).__name__,
                    ", ".join(f"{at.name}:{at.lineno}" for at in extract_tb(error.__traceback__)),
                )
            return unnormalized_words(piece.text, piece.fence)

    def _shape(
        self, words: Sequence[SpokenWord], first_char: int, speed: float
    ) -> tuple[npt.NDArray[np.int16], tuple[WordTime, ...]]:
        raw = self._speak(join_words(words), speed)
        voiced = find_voiced(raw.samples, self.rate_hz)
        if voiced is None:
            # Words that the engine has no sounds for, such as another script.
            return np.zeros(0, np.int16), ()
        pause_ms = pause_after(words[-1].mark, paragraph=words[-1].paragraph) / speed
        speech, cut_off = trim(raw.samples, voiced, self.rate_hz, pause_ms)
        measured = loudness.active_dbfs(speech, self.rate_hz)
        if measured is not None and self._voice_gain_db is not None:
            speech = loudness.apply_gain(speech, loudness.gain_db(measured, self._voice_gain_db))
        times = time_words(words, raw.groups, voiced, cut_off=cut_off, first_char=first_char)
        return loudness.to_int16(speech), times

    def _speak(self, line: str, speed: float) -> RawSpeech:
        try:
            return self._engine.speak(line, speed)
        except Exception as error:
            # Any exception of a model library becomes the one error that callers handle. It goes to
            # the log, which the words stay out of.
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise VoiceError(
                f"the voice {self.name} could not speak {len(line)} characters: {reason}"
            ) from error


def split_sentences(
    words: Sequence[SpokenWord], max_chars: int = MAX_SENTENCE_CHARS
) -> list[Sequence[SpokenWord]]:
    """Split words into sentences of about `max_chars` at most, long ones at a mark."""
    sentences: list[Sequence[SpokenWord]] = []
    start = 0
    length = 0
    for index, word in enumerate(words):
        length += len(word.text) + 1
        if word.ends_sentence or word.paragraph or index == len(words) - 1:
            sentences.append(words[start : index + 1])
            start, length = index + 1, 0
        elif length > max_chars:
            end = _parting(words, start, index)
            sentences.append(words[start:end])
            length = sum(len(later.text) + 1 for later in words[end : index + 1])
            start = end
    return sentences


def _parting(words: Sequence[SpokenWord], start: int, index: int) -> int:
    """Index after the last mark in the second half of `words[start:index]`, else `index`.

    Never within a token: the words of "$29.99" stay together, as long as it is not alone.
    """
    for end in range(index, (start + index) // 2, -1):
        if words[end - 1].mark and words[end - 1].start != words[end].start:
            return end
    for end in range(index, start, -1):
        if words[end - 1].start != words[end].start:
            return end
    return max(index, start + 1)


def leading_silence_ms(chunks: Sequence[SpeechChunk]) -> float:
    """Silence before the first audible sample; 0 when nothing is audible."""
    before = 0.0
    for chunk in chunks:
        audible = np.flatnonzero(np.abs(chunk.pcm.astype(np.int32)) > AUDIBLE)
        if len(audible):
            return before + 1000.0 * int(audible[0]) / chunk.rate_hz
        before += chunk.duration_ms
    return 0.0
