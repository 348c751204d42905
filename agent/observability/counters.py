"""Counters of interruptions and of preemptive generation, shared by all calls."""

from collections import Counter
from dataclasses import dataclass


class BargeIns:
    """Callers who spoke while the agent could be heard, by kind of client."""

    def __init__(self) -> None:
        self.barged_in: Counter[str] = Counter()
        """There were words for the agent: its reply was cut."""
        self.kept: Counter[str] = Counter()
        """A backchannel, noise or echo: the reply went on."""


@dataclass(slots=True)
class PreemptiveCounts:
    """Replies that were prepared before the caller was known to be done."""

    made: int = 0
    used: int = 0
    """Heard, or at least begun as they stood."""
    dropped: int = 0
