"""Histograms of turns and stages since the start of the service, for a monitoring system.

Bounds lie close together around the target of 500 ms, where an answer becomes late. Of stages the
exposed time is counted: a caller does not wait for work behind other work.
"""

from collections import defaultdict
from typing import Final

from latency_budget.account.turn import Stage
from latency_budget.account.turn_record import NS_PER_MS, TurnRecord

from .histogram import Buckets

TURN_BOUNDS_MS: Final = (
    *(100, 200, 250, 300, 350, 400, 425, 450, 475, 500, 525, 550, 600, 650, 700, 800, 1000),
    *(1250, 1500, 2000, 3000, 5000, 10_000),
)

STAGE_BOUNDS_MS: Final = (
    0,
    1,
    2,
    5,
    10,
    20,
    30,
    50,
    75,
    100,
    150,
    200,
    300,
    400,
    500,
    750,
    1000,
    2000,
)


class TurnHistograms:
    """Histograms by profile and by stage. One thread: the service's loop."""

    def __init__(self) -> None:
        self.turns: Final[dict[str, Buckets]] = defaultdict(lambda: Buckets(TURN_BOUNDS_MS))
        """Time from the caller's last word to the answer, at the ear where that is known, by
        profile."""
        self.stages: Final = {stage: Buckets(STAGE_BOUNDS_MS) for stage in Stage}
        """Exposed time by stage."""
        self.wasted_ms = 0.0
        """Stage time of discarded speculative replies, in ms."""
        self.wasted_prompt_tokens = 0
        self.wasted_output_tokens = 0

    def add(self, profile: str, record: TurnRecord) -> None:
        """Count a finished turn. One without an end-to-end time is counted in no histogram."""
        self.wasted_ms += record.wasted_ms
        self.wasted_prompt_tokens += record.wasted_prompt_tokens
        self.wasted_output_tokens += record.wasted_output_tokens
        if record.e2e_ns is None:
            return
        self.turns[profile].record(record.e2e_ns / NS_PER_MS)
        for stage, time in record.stages.items():
            self.stages[stage].record(time.exposed_ms)
