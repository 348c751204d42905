"""A `Recognizer` from any engine: audio cut to its length, checked results, word times.

An engine (`engine.py`) turns one stretch of audio into text. What a recognizer needs besides is
done here the same way for every engine. Its token ids are the numbers of the words, which is enough
for what tokens are used for outside of an engine: counting, and asking for their times.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from asr.audio.conversion import finite
from asr.audio.samples import RATE_HZ, Pcm
from asr.errors import ModelError
from engine_plugins.discovery import said
from latency_budget.account.clock import Clock, SystemClock

from .engine import RawTranscript, RecognitionEngine, RecognizedWord
from .recognizer import AS_LOADED, TranscriptionOptions, is_language_code
from .transcripts import Hypothesis, joined
from .whisper import MIN_AUDIO_S, pieces
from .word_times import TimedWord

_log = logging.getLogger(__name__)


class EngineRecognizer:
    """A `Recognizer` from any engine. One thread at a time calls it."""

    def __init__(self, engine: RecognitionEngine, name: str, clock: Clock | None = None) -> None:
        """`name`: how it was loaded, for error messages. Raises ModelError where the engine's
        languages are no list of codes."""
        self._engine = engine
        self._name = name
        self._clock = clock or SystemClock()
        self._newest: tuple[Pcm, TranscriptionOptions, RawTranscript] | None = None
        """Audio, options and result of the newest pass, whose word times may be asked for."""
        languages = engine.languages
        if isinstance(languages, str) or not all(isinstance(code, str) for code in languages):
            raise ModelError(f'{name}: `languages` must be a list of codes like ("en", "de")')
        if wrong := [code for code in languages if not is_language_code(code)]:
            raise ModelError(f'{name}: `languages` has {wrong[:3]}, which are no codes like "en"')
        if not languages:
            raise ModelError(f"{name}: `languages` is empty; the first must be that of loading")
        self._languages = tuple(languages)

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the engine's languages. The first is that of loading."""
        return self._languages

    def transcribe(
        self, pcm: Pcm, *, fallback: bool = True, options: TranscriptionOptions = AS_LOADED
    ) -> Hypothesis:
        """See `Transcriber.transcribe`. An engine has no second attempt: `fallback` changes
        nothing."""
        pcm = finite(pcm)
        parts = [self._recognized(piece, options) for piece in pieces(pcm)]
        whole = joined(parts, len(pcm) / RATE_HZ)
        return replace(whole, tokens=tuple(range(len(whole.tokens))))

    def steps(self, pcm: Pcm, options: TranscriptionOptions = AS_LOADED) -> Iterator[Hypothesis]:
        """See `Recognizer.steps`. One step: an engine recognizes at once."""
        if len(pcm) < MIN_AUDIO_S * RATE_HZ:
            yield Hypothesis("", audio_s=len(pcm) / RATE_HZ)
        else:
            yield self._recognized(pcm, options)

    def word_times(
        self, pcm: Pcm, tokens: tuple[int, ...], options: TranscriptionOptions = AS_LOADED
    ) -> list[TimedWord]:
        """See `Recognizer.word_times`. Costs nothing right after `steps` with the same audio."""
        if not tokens:
            return []
        words = _timed_words(self._raw(pcm, options), len(pcm))
        return [words[token] for token in tokens if token < len(words)]

    def num_prompt_tokens(self, options: TranscriptionOptions) -> int:
        """Words of the prompt."""
        return len(options.prompt.split())

    def warm(self) -> None:
        """Recognize a second of silence."""
        self.transcribe(np.zeros(RATE_HZ, np.float32))

    def _recognized(self, pcm: Pcm, options: TranscriptionOptions) -> Hypothesis:
        began_ns = self._clock.now_ns()
        raw = self._raw(pcm, options)
        audio_s = len(pcm) / RATE_HZ
        return Hypothesis(
            raw.text,
            tuple(range(len(_timed_words(raw, len(pcm))))),
            avg_logprob=raw.avg_logprob,
            no_speech_prob=raw.no_speech_prob,
            audio_s=audio_s,
            window_s=audio_s,
            decode_ms=(self._clock.now_ns() - began_ns) / 1e6,
        )

    def _raw(self, pcm: Pcm, options: TranscriptionOptions) -> RawTranscript:
        """The engine's result, its text without blanks at the ends or two in a row. Raises
        ModelError."""
        if self._newest is not None and self._newest[0] is pcm and self._newest[1] == options:
            return self._newest[2]
        self._newest = None
        try:
            found = self._engine.recognize(finite(pcm), options)
        except Exception as error:
            # Its text may hold an address or a key, and this error is shown to clients.
            _log.warning("the recognizer %s failed: %s", self._name, said(error))
            raise ModelError(
                f"the recognizer {self._name} could not recognize {len(pcm) / RATE_HZ:.1f} s of "
                f"audio: {type(error).__name__}"
            ) from error
        if not isinstance(found, RawTranscript) or not isinstance(found.text, str):
            shown = type(found.text if isinstance(found, RawTranscript) else found).__name__
            raise ModelError(
                f"the recognizer {self._name} returned {shown}: `recognize()` must return "
                "asr.RawTranscript(text)"
            )
        text = " ".join(found.text.split())
        try:
            numbers = float(found.avg_logprob), float(found.no_speech_prob)
            raw = RawTranscript(text, tuple(found.words), *numbers)
        except (TypeError, ValueError) as error:
            raise ModelError(
                f"the recognizer {self._name} returned a RawTranscript whose words are no sequence "
                f"or whose probabilities are no numbers: {error}"
            ) from error
        self._newest = pcm, options, raw
        return raw


def _timed_words(raw: RawTranscript, num_samples: int) -> list[TimedWord]:
    """Words of a transcript; where the engine's do not make up the text, by the text's blanks, with
    times by length."""
    texts = _slices(raw.text, raw.words)
    if texts is not None:
        times = [(word.first_sample, word.end_sample) for word in raw.words]
    else:
        texts = [f" {word}" for word in raw.text.split()]
        times = _divided(texts, num_samples)
    words: list[TimedWord] = []
    at = 0
    for number, (text, (first, end)) in enumerate(zip(texts, times, strict=True)):
        first = min(max(int(first), at), num_samples)
        at = min(max(int(end), first), num_samples)
        words.append(TimedWord(text, (number,), first, at))
    return words


def _slices(text: str, words: Sequence[RecognizedWord]) -> list[str] | None:
    """The text cut behind each of its words; None where they are not its words."""
    found: list[str] = []
    at = 0
    for word in words:
        bare = word.text.strip()
        place = text.find(bare, at) if bare else -1
        if place < 0 or any(character.isalnum() for character in text[at:place]):
            return None
        found.append(text[at : place + len(bare)])
        at = place + len(bare)
    if not found or any(character.isalnum() for character in text[at:]):
        return None
    found[0] = f" {found[0]}"
    found[-1] += text[at:]
    return found


def _divided(texts: Sequence[str], num_samples: int) -> list[tuple[int, int]]:
    """Divide a stretch among words by their letters."""
    total = sum(map(len, texts))
    edges = [0]
    for text in texts:
        edges.append(edges[-1] + len(text))
    return [
        (num_samples * first // total, num_samples * end // total) for first, end in pairwise(edges)
    ]
