"""Ages of what was stored with the time of a wall clock that may be put right meanwhile. Pure.

Theory of operation
-------------------
What outlives the process is stored with the time of day, and its age is what has passed since by
that clock. Where the clock is put right by days (a machine that gets its time from the network some
time after it has started), what was stored before is too old at once, or is not for days. So steps
are noticed, by a monotonic clock beside it: a time that the clock showed before a step counts by
what the monotonic one has counted since.

- Times that the clock has shown twice, before it was put back and after, are those after: what is
  kept for too long does less harm than what is lost.
- Times from before the process, which may be another clock's, count by the wall clock. Of those
  ahead of it no age is known.
- Where the machine sleeps the monotonic clock stands still, and its end is a step: sleep makes
  nothing older.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

from latency_budget.account.clock import NS_PER_S

MIN_STEP_NS: Final = 60 * NS_PER_S
"""Least difference between the two clocks that counts as a step. Lower: a clock that is only
steered makes steps. Higher: ages, which are limited in hours, are wrong by that."""

MAX_STEPS: Final = 8
"""Most steps that are remembered. A clock that is put right is so once."""


@dataclass(frozen=True, slots=True)
class _Span:
    """Times that the wall clock has shown between two steps, at most."""

    begin_unix_ns: int
    end_unix_ns: int
    ahead_ns: int
    """Wall time less monotonic time."""


class WallAges:
    """Steps of one wall clock, as seen by its owner. Not thread-safe."""

    def __init__(self, now_ns: int, wall_ns: int) -> None:
        """`now_ns`: monotonic; `wall_ns`: since 1970, of the same moment."""
        self._now_ns = now_ns
        self._wall_ns = self._begin_wall_ns = wall_ns
        self._before: deque[_Span] = deque(maxlen=MAX_STEPS)

    def look(self, now_ns: int, wall_ns: int) -> None:
        """Compare both clocks. What is said of ages is said of this moment. The more often, the
        better is it known which times the clock has shown before a step."""
        passed_ns = now_ns - self._now_ns
        expected_ns = self._wall_ns + passed_ns
        if abs(wall_ns - expected_ns) >= MIN_STEP_NS:
            ahead_ns = self._wall_ns - self._now_ns
            self._before.append(_Span(self._begin_wall_ns, expected_ns, ahead_ns))
            self._begin_wall_ns = wall_ns - passed_ns
        self._now_ns, self._wall_ns = now_ns, wall_ns

    def age_ns(self, at_unix_ns: int) -> int | None:
        """Age of what was stored at this time of the wall clock. None where that is ahead of it,
        and was so since the process began: not known."""
        if not self._begin_wall_ns <= at_unix_ns <= self._wall_ns:
            for span in reversed(self._before):
                if span.begin_unix_ns <= at_unix_ns <= span.end_unix_ns:
                    return self._now_ns - (at_unix_ns - span.ahead_ns)
        return None if at_unix_ns > self._wall_ns else self._wall_ns - at_unix_ns

    def younger_than(self, age_ns: int) -> list[tuple[int, int]]:
        """First and last time of the wall clock, in ns since 1970, between which is what is
        younger, in spans that may overlap."""
        since_ns = self._now_ns - age_ns
        found = [(self._wall_ns - age_ns, self._wall_ns)]
        for span in self._before:
            begin_ns = max(span.begin_unix_ns, since_ns + span.ahead_ns)
            if begin_ns <= span.end_unix_ns:
                found.append((begin_ns, span.end_unix_ns))
        return found
