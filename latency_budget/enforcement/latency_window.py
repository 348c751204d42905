"""How long the links of the chain took in the latest turns of a service, and so are likely to take.

Links that lie ahead are taken to last as long as four in five of the latest did. Of each link the
latest turns that have it are remembered: a turn whose reply was not waited for to its end says
nothing of some of them. Pure.
"""

import math
import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import fields
from typing import Final

from latency_budget.account.turn_record import NS_PER_MS

from .stage_latencies import Progress, StageLatencies

WINDOW: Final = 32
"""Turns that are looked back on. Fewer forget the slow turn that comes every now and then; more go
on acting for minutes after a burst."""

LIKELY: Final = 0.8
"""Share of the latest turns that were no slower. Higher answers to single outliers; at the middle
every second turn would be late before anything is done."""


class LatencyWindow:
    """The latest turns. One thread."""

    def __init__(self) -> None:
        self._values: dict[str, deque[float]] = {
            each.name: deque(maxlen=WINDOW) for each in fields(StageLatencies)
        }

    def add(self, lags: StageLatencies) -> None:
        for name, values in self._values.items():
            value = getattr(lags, name)
            if value is not None:
                values.append(value)

    def middle_ms(self, name: str) -> float | None:
        """Of a field of `StageLatencies`. None where no turn has it."""
        values = self._values[name]
        return statistics.median(values) if values else None

    def middle_sum_ms(self, *names: str) -> float:
        """Unknown ones count nothing."""
        return sum(self.middle_ms(name) or 0.0 for name in names)

    def likely_ms(self, name: str) -> float | None:
        """What a link is likely to take at most."""
        values = self._values[name]
        return quantile(values, LIKELY) if values else None

    def most_ms(self, name: str) -> float | None:
        """The longest of the latest turns."""
        return max(self._values[name], default=None)

    def ready_ns(self, progress: Progress) -> int | None:
        """When the first sound of the reply under way is likely to be ready. None: unknown yet."""
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


def quantile(values: Iterable[float], share: float) -> float:
    """By nearest rank; of at least one value."""
    ordered = sorted(values)
    return ordered[math.ceil(share * len(ordered)) - 1]
