"""Adaptive draft length: as many tokens as pay, measured while running.

Two figures decide. The acceptance rate of drafted tokens: an average over the last few dozen, per
drafter. And the cost of a step with more rows: an average of the time that steps of each size took.
From these follows how many tokens a step of each size brings per millisecond; the best size is
taken, and the best may be no draft at all. Every `PROBE_EVERY` skipped drafts one is tried all the
same, since what did not pay in free talk may pay when a number is read back.

Time decides only how fast a reply comes, never what is in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from llm_engine.config import MAX_DRAFT_TOKENS

_INITIAL_ACCEPTANCE: Final = 0.5
"""Acceptance rate that is assumed until some tokens were checked."""
_ACCEPTANCE_WEIGHT: Final = 1 / 24
"""Weight of a newly checked token in the average."""
_COST_WEIGHT: Final = 1 / 8
"""Weight of a newly timed step in the average."""
_ASSUMED_ROW_COST: Final = 0.12
"""Assumed cost of each further row, in steps of one row, until that size was timed. Measured: two
rows 0 to 0.1, eight rows 0.7 in all."""
_SHORTEST_MS: Final = 0.01
"""Lower bound of a step's time, for clocks that stand still."""
PROBE_EVERY: Final = 32
"""Skipped drafts in a row after which one is tried."""


@dataclass(slots=True)
class DraftCounts:
    """Counts of one drafter's tokens."""

    num_drafted: int = 0
    num_accepted: int = 0


class DraftLengthPolicy:
    """Chooses the draft lengths of one drafter. Belongs to the engine's thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.counts = DraftCounts()
        self._acceptance = _INITIAL_ACCEPTANCE
        self._step_ms: dict[int, float] = {}
        self._num_skipped = 0

    def length(self, max_tokens: int) -> int:
        """Number of tokens to draft next, at most `max_tokens`."""
        longest = min(max_tokens, MAX_DRAFT_TOKENS)
        best = max(range(longest + 1), key=self._tokens_per_ms, default=0)
        if best == 0 and longest > 0:
            self._num_skipped += 1
            if self._num_skipped > PROBE_EVERY:
                self._num_skipped = 0
                return 1
        return best

    def note_step(self, num_rows: int, ms: float) -> None:
        """Record the time of a step of one sequence with this many rows."""
        ms = max(ms, _SHORTEST_MS)
        known = self._step_ms.get(num_rows)
        self._step_ms[num_rows] = ms if known is None else known + _COST_WEIGHT * (ms - known)

    def note_draft(self, drafted: Sequence[int], num_accepted: int) -> None:
        """Record that the first `num_accepted` of these tokens were right."""
        self.counts.num_drafted += len(drafted)
        self.counts.num_accepted += num_accepted
        # Tokens behind the first wrong one were not checked.
        for place in range(min(num_accepted + 1, len(drafted))):
            right = float(place < num_accepted)
            self._acceptance += _ACCEPTANCE_WEIGHT * (right - self._acceptance)

    def _tokens_per_ms(self, num_drafted: int) -> float:
        expected = sum(self._acceptance**place for place in range(num_drafted + 1))
        return expected / self._cost(num_drafted + 1)

    def _cost(self, num_rows: int) -> float:
        if num_rows in self._step_ms:
            return self._step_ms[num_rows]
        if not self._step_ms:
            return 1 + _ASSUMED_ROW_COST * (num_rows - 1)
        nearest = min(self._step_ms, key=lambda known: abs(known - num_rows))
        base = self._step_ms[nearest] / (1 + _ASSUMED_ROW_COST * (nearest - 1))
        return base * (1 + _ASSUMED_ROW_COST * (num_rows - 1))
