"""Exchanges of a history: which may be dropped, and which are condensed. Pure.

An exchange is a message of the user with all that follows it up to the next one, so no tool's
result is left without its call. Histories of token ids and of text drop and condense by the same
rules.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import is_
from typing import Final, Protocol

from .tool_calls import has_results

KEPT_SHARE: Final = 0.75
"""Share of the context that is filled after exchanges were dropped. Higher: they are dropped, and
the history computed anew, more often. Lower: the model forgets more than it must."""

MIN_KEPT_EXCHANGES: Final = 2
"""Newest exchanges that are never condensed: the last reply may still be cut, and its question be
taken back."""


class HistoryMessage(Protocol):
    """A message of a history."""

    @property
    def role(self) -> str: ...

    @property
    def text(self) -> str | None:
        """None where only its ids are known, which is so of replies alone."""
        ...


def begins_exchange(message: HistoryMessage) -> bool:
    """True for words of the user. A tool's result is none, though a chat template without tools has
    it in a message of the user."""
    return message.role == "user" and not has_results(message.text or "")


def ends_of_exchanges(messages: Sequence[HistoryMessage], *, is_last_over: bool) -> list[int]:
    """Number of messages up to the end of each exchange that may be dropped: all but the last,
    which asks for a reply, unless it is complete (`is_last_over`)."""
    ends = [index for index, message in enumerate(messages) if index and begins_exchange(message)]
    return [*ends, len(messages)] if is_last_over and messages else ends


def end_beyond(ends: Sequence[int], sizes: Iterable[int], num_tokens: int) -> int:
    """The first of these ends before which there are at least so many tokens; the last one where
    none is. `sizes`: tokens of each message."""
    before = [0, *accumulate(sizes)]
    return next((end for end in ends if before[end] >= num_tokens), ends[-1])


def num_condensed(
    messages: Sequence[HistoryMessage], sizes: Sequence[int], max_kept_tokens: int
) -> int:
    """Number of messages in the whole exchanges from the beginning whose removal leaves at most so
    many tokens; fewer where the newest `MIN_KEPT_EXCHANGES` alone have more."""
    ends = ends_of_exchanges(messages, is_last_over=False)[: -(MIN_KEPT_EXCHANGES - 1)]
    return end_beyond([0, *ends], sizes, sum(sizes) - max_kept_tokens)


def begins_with(messages: Sequence[object], beginning: Sequence[object]) -> bool:
    """True if the messages begin with these very ones, and there are more."""
    return len(beginning) < len(messages) and all(map(is_, beginning, messages))
