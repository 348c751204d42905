"""Sliding window over the stage latencies of the latest turns, with their likely values.

Stages that lie ahead are predicted by the 80th percentile of the latest turns. The window is kept
for each stage: a turn whose reply was not waited for to its end has no value for some of them.
Pure.
"""

import statistics
from collections import deque
from dataclasses import fields
from typing import Final

from latency_budget.account.turn_record import NS_PER_MS
from latency_budget.statistics.report import percentile

from .stage_latencies import Progress, StageLatencies

WINDOW: Final = 32
"""Turns in the window. With fewer the slow turn that comes now and then drops out; with more the
policy goes on acting for minutes after a burst."""

LIKELY: Final = 80
"""Percentile that stands for the latency ahead. Higher, and single outliers decide; at the median
every second turn would be late before an action is taken."""


class LatencyWindow:
    """Latest values of each field of `StageLatencies`. One thread."""

    def __init__(self) -> None:
        self._values: dict[str, deque[float]] = {
            each.name: deque(maxlen=WINDOW) for each in fields(StageLatencies)
        }

    def add(self, latencies: StageLatencies) -> None:
        for name, values in self._values.items():
            value = getattr(latencies, name)
            if value is not None:
                values.append(value)

    def middle_ms(self, name: str) -> float | None:
        """Median of a field of `StageLatencies`. None where no turn has it."""
        values = self._values[name]
        return statistics.median(values) if values else None

    def middle_sum_ms(self, *names: str) -> float:
        """Sum of the medians of these fields; unknown ones count 0."""
        return sum(self.middle_ms(name) or 0.0 for name in names)

    def likely_ms(self, name: str) -> float | None:
        """The LIKELY percentile of a field. None where no turn has it."""
        values = self._values[name]
        return percentile(values, LIKELY) if values else None

    def most_ms(self, name: str) -> float | None:
        """The largest value of a field. None where no turn has it."""
        return max(self._values[name], default=None)

    def ready_ns(self, progress: Progress) -> int | None:
        """Predicted time at which the first sound of the reply under way is ready. None: not
        known."""
        at_ns = progress.voiced_ns
        for reached_ns, name in (
            (progress.words_ns, "words_ms"),
            (progress.asked_ns, "wait_ms"),
            (progress.token_ns, "prefill_ms"),
            (progress.piece_ns, "clause_ms"),
            (progress.ready_ns, "tts_ms"),
        ):
            if reached_ns is not None:
                at_ns = reached_ns
                continue
            likely_ms = self.likely_ms(name)
            if likely_ms is None:
                return None
            at_ns = max(at_ns + round(likely_ms * NS_PER_MS), progress.now_ns)
        return at_ns
