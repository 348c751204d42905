"""Token ids to text, as they come.

A token may end inside a character: byte-level vocabularies split emoji and rare letters. Text is
therefore given out a whole character at a time. Bytes that can never become a character (models do
produce them, rarely) are left out rather than shown as U+FFFD: nobody can speak a replacement
character.
"""

import codecs
from collections.abc import Iterable, Sequence


class Detokenizer:
    """Turns one reply's ids into text. Not for use across threads."""

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
        self._num_chars = 0

    @property
    def num_chars(self) -> int:
        """Characters given out so far. The next token's text starts here; so does a character that
        the last token left unfinished."""
        return self._num_chars

    def push(self, token_id: int) -> str:
        """The characters that this token completes, perhaps none.

        Ids beyond the vocabulary (models pad their output) have no text.
        """
        known = 0 <= token_id < len(self._token_bytes)
        text = self._decoder.decode(self._token_bytes[token_id] if known else b"")
        self._num_chars += len(text)
        return text


def char_starts(token_ids: Iterable[int], token_bytes: Sequence[bytes]) -> list[int]:
    """For each token the character of the whole text at which its own begins."""
    detokenizer = Detokenizer(token_bytes)
    starts = []
    for token_id in token_ids:
        starts.append(detokenizer.num_chars)
        detokenizer.push(token_id)
    return starts
