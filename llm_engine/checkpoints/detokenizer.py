"""Incremental detokenizer: token ids to text.

A token may end inside a character: byte-level vocabularies split emoji and rare letters. Text is
therefore released in whole characters. Invalid bytes (models do produce them, rarely) are dropped
rather than shown as U+FFFD: a replacement character cannot be spoken.
"""

import codecs
from collections.abc import Iterable, Sequence


class Detokenizer:
    """Converts one reply's ids to text. Not thread-safe."""

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
        self._num_chars = 0

    @property
    def num_chars(self) -> int:
        """Characters released so far. The next token's text starts here, and so does a character
        that the last token left unfinished."""
        return self._num_chars

    def push(self, token_id: int) -> str:
        """Add a token; returns the characters that it completes, perhaps none.

        Ids beyond the vocabulary (models pad their output) have no text.
        """
        known = 0 <= token_id < len(self._token_bytes)
        text = self._decoder.decode(self._token_bytes[token_id] if known else b"")
        self._num_chars += len(text)
        return text


def char_starts(token_ids: Iterable[int], token_bytes: Sequence[bytes]) -> list[int]:
    """Index of the character at which each token's text begins."""
    detokenizer = Detokenizer(token_bytes)
    starts = []
    for token_id in token_ids:
        starts.append(detokenizer.num_chars)
        detokenizer.push(token_id)
    return starts
