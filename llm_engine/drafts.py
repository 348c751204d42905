"""Guessing the next tokens cheaply, so that one pass over the weights can confirm several.

A drafter proposes how a reply goes on. The model then computes the rows of all proposed tokens in
one step and chooses after each as it would have chosen anyway, with the same random number (it
depends on the position alone). What it chooses is the reply; a proposal only decides how many of
the rows were of use. So a draft can be wrong, but it can't change a reply.
"""

from collections.abc import Sequence
from typing import Final, Protocol

LONGEST_MATCH: Final = 4
"""Tokens that must have occurred before in the same order: four rarely mislead, and two still find
most repetitions. One would propose something after every comma."""
SHORTEST_MATCH: Final = 2


class Draft(Protocol):
    """A drafter's view of one request. Asked between steps, on the engine's thread."""

    def propose(self, tokens: Sequence[int], max_tokens: int) -> Sequence[int]:
        """At most so many tokens that may follow; none where it has no idea.

        `tokens` are the prompt and the reply so far. They only grow from one call to the next.
        """
        ...

    def close(self) -> None:
        """The request is over."""
        ...


class Drafter(Protocol):
    """Makes a `Draft` for each request."""

    @property
    def name(self) -> str:
        """Under which its figures are counted."""
        ...

    def begin(self) -> Draft: ...


class NgramDrafter:
    """Proposes what followed when the last tokens last occurred in prompt, history or reply.

    Finds read-backs: names, numbers, the caller's own words, lists out of a document.
    """

    name = "ngram"

    def begin(self) -> Draft:
        return _NgramDraft()


class _NgramDraft:
    """Remembers, for each run of tokens, where it last ended."""

    def __init__(self) -> None:
        self._last_end: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0

    def propose(self, tokens: Sequence[int], max_tokens: int) -> Sequence[int]:
        # The runs that end with the last token are looked up, and only then remembered.
        self._index(tokens, len(tokens) - 1)
        for length in range(LONGEST_MATCH, SHORTEST_MATCH - 1, -1):
            end = self._last_end.get(tuple(tokens[-length:])) if length < len(tokens) else None
            if end is not None:
                return tokens[end : end + max_tokens]
        return ()

    def close(self) -> None:
        self._last_end.clear()

    def _index(self, tokens: Sequence[int], end: int) -> None:
        for stop in range(self._num_indexed + 1, end + 1):
            for length in range(SHORTEST_MATCH, min(LONGEST_MATCH, stop) + 1):
                self._last_end[tuple(tokens[stop - length : stop])] = stop
        self._num_indexed = max(self._num_indexed, end)
