"""A recognizer without a model: a second implementation of `asr.Recognizer`."""

from collections.abc import Iterator

import numpy as np

from asr import AS_LOADED, RATE_HZ, Hypothesis, Pcm, TimedWord, TranscriptionOptions

MIN_SAMPLES = RATE_HZ // 10


class ScriptedRecognizer:
    """Hears the same text in any audio that is not silent; a token is a word's index."""

    languages = ("en", "de")

    def __init__(self, text: str = "hello there") -> None:
        self._words = text.split()

    def transcribe(
        self, pcm: Pcm, *, fallback: bool = True, options: TranscriptionOptions = AS_LOADED
    ) -> Hypothesis:
        *_, last = self.steps(pcm, options)
        return last

    def steps(self, pcm: Pcm, options: TranscriptionOptions = AS_LOADED) -> Iterator[Hypothesis]:
        audio_s = len(pcm) / RATE_HZ
        if len(pcm) < MIN_SAMPLES or not np.nan_to_num(pcm).any():
            yield Hypothesis("", audio_s=audio_s)
        else:
            tokens = tuple(range(len(self._words)))
            yield Hypothesis(" ".join(self._words), tokens, audio_s=audio_s)

    def word_times(
        self, pcm: Pcm, tokens: tuple[int, ...], options: TranscriptionOptions = AS_LOADED
    ) -> list[TimedWord]:
        edges = [len(pcm) * index // max(1, len(tokens)) for index in range(len(tokens) + 1)]
        return [
            TimedWord(f" {self._words[token]}", (token,), edges[place], edges[place + 1])
            for place, token in enumerate(tokens)
        ]

    def num_prompt_tokens(self, options: TranscriptionOptions) -> int:
        return len(options.prompt.split())

    def warm(self) -> None:
        self.transcribe(np.zeros(RATE_HZ, np.float32))
