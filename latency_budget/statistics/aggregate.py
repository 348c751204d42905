"""Aggregates of turns: counts of each time, from which percentiles are computed.

Percentiles are by nearest rank: the smallest value that at least p % of the values do not exceed.
Each is thus a time that some turn really took, and none is interpolated; with fewer than 100 turns
p99 is the slowest.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from latency_budget.account.turn import Stage
from latency_budget.account.turn_record import NS_PER_MS, Outcome, TurnRecord

from .histogram import charted_ms
from .intervals import wilson_interval

PERCENTILES = (50, 90, 95, 99)


def nearest_rank(num_values: int, percent: int) -> int:
    """Rank of a percentile among so many values in ascending order, from 1; `percent` in 1..100.
    Raises ValueError without values or out of range."""
    if num_values < 1 or not 1 <= percent <= 100:
        raise ValueError(f"no {percent}th percentile of {num_values} values")
    return -(-percent * num_values // 100)


Json = dict[str, Any]
Times = Counter[int]
"""Number of turns by time in ns."""


_COUNTS = (
    "turns",
    "answered",
    "openers",
    "cut_ins",
    "interrupted",
    "withdrawn",
    "timed",
    "heard",
)
"""Fields of a `TurnAggregate` that are plain numbers."""


def _by_stage() -> dict[Stage, Times]:
    return {stage: Counter() for stage in Stage}


@dataclass(slots=True)
class TurnAggregate:
    """Counts and times of a group of turns. Times are those of *timed* turns: answered, with a
    known end-to-end time."""

    turns: int = 0
    answered: int = 0
    openers: int = 0
    """Answered turns with an opener. Cut-ins are counted among the answered turns too."""
    cut_ins: int = 0
    interrupted: int = 0
    """Answered turns whose reply the caller stopped on purpose."""
    withdrawn: int = 0
    """Turns that the caller went on with before anything of the answer was audible: not answered.
    """
    timed: int = 0
    heard: int = 0
    """Timed turns whose time at the ear is known."""
    late: int | None = None
    """Timed turns beyond their budget. None: the budgets are not known."""
    at_ear: Times = field(default_factory=Counter)
    at_server: Times = field(default_factory=Counter)
    raw_at_ear: Times = field(default_factory=Counter)
    """Times less those in which replies were held back on purpose."""
    raw_at_server: Times = field(default_factory=Counter)
    spent: dict[Stage, Times] = field(default_factory=_by_stage)
    exposed: dict[Stage, Times] = field(default_factory=_by_stage)

    @classmethod
    def of(cls, records: Iterable[TurnRecord]) -> "TurnAggregate":
        turns = tuple(records)
        answered = [record for record in turns if record.answered]
        timed = [record for record in answered if record.e2e_ns is not None]
        heard = [(r.e2e_ear_ns, r.paced_ns) for r in timed if r.e2e_ear_ns is not None]
        released = [(r.e2e_server_ns, r.paced_ns) for r in timed if r.e2e_server_ns is not None]
        return cls(
            turns=len(turns),
            answered=len(answered),
            openers=sum(record.opener for record in answered),
            cut_ins=sum(record.cut_in for record in answered),
            interrupted=sum(record.interrupted for record in answered),
            withdrawn=sum(record.withdrawn for record in turns),
            timed=len(timed),
            heard=len(heard),
            at_ear=Counter([time for time, _ in heard]),
            at_server=Counter([time for time, _ in released]),
            raw_at_ear=Counter([time - paced for time, paced in heard]),
            raw_at_server=Counter([time - paced for time, paced in released]),
            spent={s: Counter([record.stages[s].spent_ns for record in timed]) for s in Stage},
            exposed={s: Counter([record.stages[s].exposed_ns for record in timed]) for s in Stage},
        )

    def add(self, other: "TurnAggregate") -> None:
        """Add the turns of another aggregate."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if other.late is not None:
            self.late = (self.late or 0) + other.late
        for name in ("at_ear", "at_server", "raw_at_ear", "raw_at_server"):
            getattr(self, name).update(getattr(other, name))
        for stage in Stage:
            self.spent[stage].update(other.spent[stage])
            self.exposed[stage].update(other.exposed[stage])

    def summary(self) -> Json:
        """The summary as JSON, documented at `report.summarize`."""
        all_heard = self._all_heard
        return {
            "turns": self.turns,
            "answered": self.answered,
            "measure": "e2e_ear_ms" if all_heard else "e2e_server_ms",
            **percentiles_ms(self.at_ear if all_heard else self.at_server),
            "e2e_raw_ms": percentiles_ms(self.raw_at_ear if all_heard else self.raw_at_server),
            "openers": self.openers,
            "cut_in_rate": self.cut_ins / self.answered if self.answered else None,
            "cut_in_interval": list(wilson_interval(self.cut_ins, self.answered))
            if self.answered
            else None,
            "outcomes": {
                Outcome.CUT_IN.value: self.cut_ins,
                Outcome.INTERRUPTED.value: self.interrupted,
                Outcome.REOPENED.value: self.withdrawn,
            },
            "within": None if self.late is None or not self.timed else 1 - self.late / self.timed,
            "stages": {
                stage.value: {
                    "spent_ms": percentiles_ms(self.spent[stage]),
                    "exposed_ms": percentiles_ms(self._exposed(stage, all_heard)),
                }
                for stage in Stage
            },
        }

    def histograms(self) -> Json:
        """Histograms of the end-to-end times and of each stage's exposed time, on the side that
        `summary` measures: `{e2e: [[upper_ms, count], ...], stages: {name: [...]}}`, without
        empty buckets."""
        all_heard = self._all_heard
        return {
            "e2e": charted_ms(self.at_ear if all_heard else self.at_server),
            "stages": {stage.value: charted_ms(self._exposed(stage, all_heard)) for stage in Stage},
        }

    @property
    def _all_heard(self) -> bool:
        return 0 < self.timed == self.heard

    def _exposed(self, stage: Stage, all_heard: bool) -> Times:
        """Exposed times on the side that is measured: at the server there is no transport."""
        if stage is Stage.TRANSPORT and not all_heard:
            return Counter({0: self.timed})
        return self.exposed[stage]


def percentiles_ms(times: Mapping[int, int]) -> dict[str, float | None]:
    """`{p50, p90, p95, p99}` in ms of counts by time in ns; null where there are none."""
    num_times = sum(times.values())
    if not num_times:
        return {f"p{percent}": None for percent in PERCENTILES}
    found: dict[str, float | None] = {}
    ordered = iter(sorted(times))
    time, passed = 0, 0
    for percent in PERCENTILES:  # ascending, as the times are
        rank = nearest_rank(num_times, percent)
        while passed < rank:
            time = next(ordered)
            passed += times[time]
        found[f"p{percent}"] = time / NS_PER_MS
    return found
