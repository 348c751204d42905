"""Text and token ids of one reply as it grows: detokenizing, stop strings, end of the reply."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from latency_budget.account.turn import TurnId
from llm_engine.checkpoints.tokenizer import Detokenizer


def overlap(text: str, marker: str) -> int:
    """Number of last characters that may be the first of a marker."""
    longest = min(len(text), len(marker) - 1)
    return next((n for n in range(longest, 0, -1) if marker.startswith(text[-n:])), 0)


class StopMatcher:
    """Finds stop strings in text that arrives in pieces. Holds back the end of the text as long as
    it may be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.hit = False
        """True once a stop string was found; what is pushed after that is ignored."""

    def push(self, text: str) -> str:
        """Add text; returns what may be released now."""
        if self.hit:
            return ""
        held = self._held + text
        starts = ((held.find(stop), stop) for stop in self._stops)
        # The one that is complete first ends the text, as it would if characters came one by one.
        found = [(start + len(stop), start) for start, stop in starts if start >= 0]
        if found:
            self.hit = True
            self._held = ""
            return held[: min(found)[1]]
        num_safe = len(held) - max((overlap(held, stop) for stop in self._stops), default=0)
        self._held = held[num_safe:]
        return held[:num_safe]

    def flush(self) -> str:
        """Return the held text at the end of the reply: a mere beginning of a stop string is
        text."""
        held, self._held = self._held, ""
        return held


class FinishReason(StrEnum):
    """Why a reply ended."""

    STOP = "stop"
    """The model ended its turn, a stop string came, or the grammar was at its end."""
    LENGTH = "length"
    """max_tokens, or no room left in the context."""
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a reply."""

    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens taken from the sequence's cache."""
    output_tokens: int


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """Next piece of a reply."""

    turn: TurnId
    index: int
    """Index of the chunk in its reply, from 0."""
    text: str
    """Text in whole characters, never part of a stop string. Empty on the last chunk, and where the
    chunk is part of a thought."""
    token_ids: tuple[int, ...]
    """Tokens that begin in the text released so far and were not in an earlier chunk."""
    finish_reason: FinishReason | None = None
    """Set on the last chunk, and only there."""
    usage: Usage | None = None
    """Set on the last chunk, unless the reply was cancelled before it began, and on the first, with
    the counts up to then."""
    thought: str = ""
    """What the model thinks before `text`: neither spoken nor part of the history. Only in replies
    of conversations; elsewhere thoughts are part of the text."""


class OutputText:
    """Converts sampled ids to text, and releases both as far as no stop string can begin there."""

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        end_ids: frozenset[int],
        stops: Sequence[str],
        max_tokens: int,
    ) -> None:
        self._detokenizer = Detokenizer(token_bytes)
        self._stops = StopMatcher(stops)
        self._end_ids = end_ids
        self.max_tokens = max_tokens
        self._unreleased: list[tuple[int, int]] = []
        """First character and id of each token whose text is held back."""
        self._num_released_chars = 0
        self.num_tokens = 0
        """Tokens accepted so far, not counting the one that ended the turn."""
        self.finish_reason: FinishReason | None = None

    def accept(self, token_id: int, *, is_last: bool = False) -> tuple[str, tuple[int, ...]]:
        """Add the next sampled token. Returns the text and ids that may be released now.

        `is_last`: nothing but the end may follow, so that the reply ends without waiting for it.
        """
        if token_id in self._end_ids:
            self.finish_reason = FinishReason.STOP
            return self._release(self._stops.flush(), everything=True)
        self.num_tokens += 1
        self._unreleased.append((self._detokenizer.num_chars, token_id))
        text = self._stops.push(self._detokenizer.push(token_id))
        if self._stops.hit:
            self.finish_reason = FinishReason.STOP
            return self._release(text)
        if is_last or self.num_tokens >= self.max_tokens:
            self.finish_reason = FinishReason.STOP if is_last else FinishReason.LENGTH
            return self._release(text + self._stops.flush(), everything=True)
        return self._release(text)

    def _release(self, text: str, *, everything: bool = False) -> tuple[str, tuple[int, ...]]:
        self._num_released_chars += len(text)
        shown = self._num_released_chars
        num_ids = sum(everything or start < shown for start, _ in self._unreleased)
        ids = tuple(token_id for _, token_id in self._unreleased[:num_ids])
        del self._unreleased[:num_ids]
        return text, ids
