"""Detection of repetition loops in a transcript.

Whisper repeats itself when it has lost the audio, above all with a short encoder window. The text
then is worthless and takes ten times as long to produce.

Pure.
"""

import re
import zlib
from collections.abc import Sequence
from typing import Final

MAX_COMPRESSION: Final = 2.4
"""Length over zlib length. OpenAI's threshold; real sentences lie at 0.8-1.6."""

MAX_NGRAM: Final = 12

MIN_REPEATS: Final = 4
"""The same words four times in a row. Three do occur in speech: "no, no, no"."""

MIN_LOOP_TOKENS: Final = 6
"""A loop shorter than this may be a number: "zero zero zero zero"."""

MIN_REPEATED_WORDS: Final = 3
"""Words at the end of a text that repeat what came just before them."""


def is_degenerate(text: str, tokens: Sequence[int]) -> bool:
    """True where `text`, decoded from `tokens`, repeats itself as speech seldom does."""
    return (
        compression_ratio(text) > MAX_COMPRESSION
        or loop_at(tokens) is not None
        or repeats_ending(text)
    )


def repeats_ending(text: str) -> bool:
    """True where the text ends by beginning its last sentence again ("Press 1 to call. Press 1
    to"), or is one word twice.

    The commonest damage of short windows: Whisper reads on into the silence. People do say things
    twice, so this is a reason to look again, not to cut.
    """
    words = re.findall(r"[\w']+", text.casefold())
    for period in range(1, len(words)):
        alike = 0
        while alike < len(words) - period and words[~alike] == words[~alike - period]:
            alike += 1
        if alike >= MIN_REPEATED_WORDS and 2 * alike >= period:
            return True
    return len(words) == 2 and words[0] == words[1]


def compression_ratio(text: str) -> float:
    """Bytes of the text over bytes of its zlib form; 0 for no text."""
    raw = text.encode()
    return len(raw) / len(zlib.compress(raw)) if raw else 0.0


def loop_at(tokens: Sequence[int]) -> tuple[int, int] | None:
    """Start and length of the shortest phrase that is repeated without a break; None: no loop."""
    for length in range(1, MAX_NGRAM + 1):
        wanted = max(MIN_REPEATS * length, MIN_LOOP_TOKENS) - length
        run = 0
        for index in range(length, len(tokens)):
            run = run + 1 if tokens[index] == tokens[index - length] else 0
            if run >= wanted:
                return index - run - length + 1, length
    return None


def unlooped(tokens: Sequence[int]) -> tuple[int, ...]:
    """The tokens up to the end of the loop's first round; all of them where there is no loop."""
    loop = loop_at(tokens)
    return tuple(tokens) if loop is None else tuple(tokens[: loop[0] + loop[1]])
