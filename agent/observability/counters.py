"""Counters of interruptions and preemptive generation, shared by all calls."""

from collections import Counter
from dataclasses import dataclass


class BargeIns:
    """Counts of callers' speech during the agent's audible reply, by kind of client."""

    def __init__(self) -> None:
        self.barged_in: Counter[str] = Counter()
        """Interruptions: words for the agent, which cut its reply."""
        self.kept: Counter[str] = Counter()
        """Backchannels, noise or echo: the reply continued."""


@dataclass(slots=True)
class PreemptiveCounts:
    """Counts of preemptive generation: replies prepared before the end of the turn was known."""

    made: int = 0
    used: int = 0
    """Replies that were played, or at least begun, unchanged."""
    dropped: int = 0
