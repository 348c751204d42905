"""Word times of a transcript, from Whisper's cross attention.

The runtime aligns tokens with the encoder's positions by dynamic time warping over the attention
of a few heads that the model names (openai/whisper, `timing.py`). A word lasts from its first
token's beginning to the next word's; the last one to the end of the speech.

Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from asr.audio.samples import RATE_HZ

SAMPLES_PER_POSITION: Final = RATE_HZ // 50
"""The encoder's positions are 20 ms apart."""


@dataclass(frozen=True, slots=True)
class TimedWord:
    """A word with the punctuation behind it."""

    text: str
    """Decoded text, including the blank before the word."""
    tokens: tuple[int, ...]
    first_sample: int
    """First sample in the recognized audio, 16 kHz."""
    end_sample: int
    """Sample after the last one."""


def token_starts(
    alignments: Sequence[tuple[int, int]], num_tokens: int, lead_samples: int
) -> list[int]:
    """First sample of each token, and finally the sample at which the last token ends.

    `alignments` are pairs of token and position, in order; `lead_samples` stand before the audio.
    """
    starts: dict[int, int] = {}
    for token, position in alignments:
        starts.setdefault(token, position * SAMPLES_PER_POSITION - lead_samples)
    times: list[int] = []
    for token in range(num_tokens + 1):
        times.append(max(0, starts.get(token, times[-1] if times else 0)))
    return times


def timed_words(
    texts: Sequence[str], tokens: Sequence[Sequence[int]], starts: Sequence[int], num_samples: int
) -> list[TimedWord]:
    """Build words from the texts and tokens of each; punctuation is joined to the word before.

    `starts` as `token_starts` gives them; nothing lasts longer than the audio's `num_samples`.
    """
    words: list[TimedWord] = []
    index = 0
    for text, its_tokens in zip(texts, tokens, strict=True):
        first = min(starts[index], num_samples)
        index += len(its_tokens)
        end = max(first, min(starts[index], num_samples))
        if words and not any(character.isalnum() for character in text):
            before = words.pop()
            # The time of a mark is that of the pause behind the word: no part of it.
            words.append(
                TimedWord(
                    before.text + text,
                    (*before.tokens, *its_tokens),
                    before.first_sample,
                    before.end_sample,
                )
            )
        else:
            words.append(TimedWord(text, tuple(its_tokens), first, end))
    return words
