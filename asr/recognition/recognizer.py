"""Interface of a speech recognizer: what every caller of a recognizer is typed against.

`asr.load_recognizer` makes one, `asr.check_recognizer` is the contract. Engines of other packages
have a smaller interface (`engine.py`), of which `EngineRecognizer` makes this one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from asr.audio.samples import Pcm

from .transcripts import Hypothesis
from .word_times import TimedWord


def is_language_code(code: str) -> bool:
    """True for what may be a code of a language, such as "de" or "haw"."""
    return code.isalpha() and code.islower() and len(code) <= 3


@dataclass(frozen=True, slots=True)
class TranscriptionOptions:
    """Options of one transcription that differ from those of loading."""

    language: str | None = None
    """One of `Recognizer.languages`, a code like "de"; None: the language of loading."""
    prompt: str = ""
    """Text that came before, or names and a spelling to follow. Not an instruction."""
    candidates: tuple[str, ...] = ()
    """Languages of which the speech is in one, to be found (`FindsLanguage`); empty: `language`."""


AS_LOADED: Final = TranscriptionOptions()
"""The language of loading, and no prompt."""


@runtime_checkable
class FindsLanguage(Protocol):
    """A recognizer that finds the language of speech, and says it in `Hypothesis.language`."""

    @property
    def finds_language(self) -> bool:
        """True if `TranscriptionOptions.candidates` has an effect."""
        ...


class Transcriber(Protocol):
    """The part of a recognizer that a stream of speech needs."""

    def transcribe(self, pcm: Pcm, *, fallback: bool = True) -> Hypothesis:
        """Recognize float32 [n] at 16 kHz, of any length; blocks for as long as that takes.

        `fallback=False` is for partials: no second attempt at a text that is not believed, and no
        text where one would be needed. Less than 50 ms gives an empty text; longer silence
        may give invented words, so the caller asks only where a voice was detected.
        """
        ...


class Recognizer(Transcriber, Protocol):
    """One loaded model. One thread at a time calls it, and each call blocks."""

    def transcribe(
        self, pcm: Pcm, *, fallback: bool = True, options: TranscriptionOptions = AS_LOADED
    ) -> Hypothesis:
        """See `Transcriber.transcribe`; with the language and prompt of `options`."""
        ...

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages that `TranscriptionOptions` may name; the first is that of
        loading."""
        ...

    def steps(self, pcm: Pcm, options: TranscriptionOptions = AS_LOADED) -> Iterator[Hypothesis]:
        """`transcribe` in steps of about one decode, so that other jobs run in between; for files,
        for which nobody waits: it may take longer over a text that is not believed. Yields the best
        text so far, at least once; the last one counts. float32 [n], at most 28 s."""
        ...

    def word_times(
        self, pcm: Pcm, tokens: tuple[int, ...], options: TranscriptionOptions = AS_LOADED
    ) -> list[TimedWord]:
        """The words of `tokens` (a `Hypothesis.tokens` of this audio and these options) with the
        samples at which each begins and ends, in order. As much work as a decode."""
        ...

    def num_prompt_tokens(self, options: TranscriptionOptions) -> int:
        """Tokens of the prompt that the model sees beside each piece of audio; 0 without one."""
        ...

    def warm(self) -> None:
        """Run every part once, so that the first caller does not pay for it."""
        ...
