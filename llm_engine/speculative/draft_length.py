"""How many tokens to draft: as many as pay, measured while running.

Two things decide. How often drafted tokens are right: an average over the last few dozen of them,
per drafter. And what a step with more rows costs: an average of the time that steps of each size
took. From these follows how many tokens a step of each size brings per millisecond; the best size
is taken, and the best may be no draft at all. Every so often one is tried all the same, since what
did not pay in free talk may pay when a number is read back.

Time decides only how fast a reply comes, never what is in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from llm_engine.config import MAX_DRAFT_TOKENS

_FIRST_GUESS: Final = 0.5
"""Share of drafted tokens that are right, until some were tried."""
_RIGHT_MEMORY: Final = 1 / 24
"""Weight of a newly checked token in the average."""
_COST_MEMORY: Final = 1 / 8
"""Weight of a newly timed step in the average."""
_UNTRIED_ROW: Final = 0.12
"""What each further row is taken to cost, in steps of one row, until that size was timed. Measured:
two rows 0 to 0.1, eight rows 0.7 in all."""
_SHORTEST_MS: Final = 0.01
"""No step is shorter, whatever a clock says that stands still."""
PROBE_EVERY: Final = 32
"""Drafts left out in a row, until one is tried."""


@dataclass(slots=True)
class DraftCounts:
    """A drafter's record."""

    num_drafted: int = 0
    num_accepted: int = 0


class DraftLengthPolicy:
    """Chooses draft lengths. Belongs to the engine's thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.counts = DraftCounts()
        self._share_right = _FIRST_GUESS
        self._step_ms: dict[int, float] = {}
        self._num_skipped = 0

    def length(self, max_tokens: int) -> int:
        """How many tokens to draft next, at most `max_tokens`."""
        longest = min(max_tokens, MAX_DRAFT_TOKENS)
        best = max(range(longest + 1), key=self._tokens_per_ms, default=0)
        if best == 0 and longest > 0:
            self._num_skipped += 1
            if self._num_skipped > PROBE_EVERY:
                self._num_skipped = 0
                return 1
        return best

    def note_step(self, num_rows: int, ms: float) -> None:
        """A step of one sequence with so many rows took that long."""
        ms = max(ms, _SHORTEST_MS)
        known = self._step_ms.get(num_rows)
        self._step_ms[num_rows] = ms if known is None else known + _COST_MEMORY * (ms - known)

    def note_draft(self, drafted: Sequence[int], num_accepted: int) -> None:
        """Of these tokens the first so many were right."""
        self.counts.num_drafted += len(drafted)
        self.counts.num_accepted += num_accepted
        # What stands behind the first wrong token was not checked.
        for place in range(min(num_accepted + 1, len(drafted))):
            right = float(place < num_accepted)
            self._share_right += _RIGHT_MEMORY * (right - self._share_right)

    def _tokens_per_ms(self, num_drafted: int) -> float:
        expected = sum(self._share_right**place for place in range(num_drafted + 1))
        return expected / self._cost(num_drafted + 1)

    def _cost(self, num_rows: int) -> float:
        if num_rows in self._step_ms:
            return self._step_ms[num_rows]
        if not self._step_ms:
            return 1 + _UNTRIED_ROW * (num_rows - 1)
        nearest = min(self._step_ms, key=lambda known: abs(known - num_rows))
        base = self._step_ms[nearest] / (1 + _UNTRIED_ROW * (nearest - 1))
        return base * (1 + _UNTRIED_ROW * (num_rows - 1))
