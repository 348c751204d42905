"""Statistics of benches: speculation, reply times, stage medians, intervals of rates."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from latency_budget.account.ledger import records_of
from latency_budget.account.marks import Mark, MarkName
from latency_budget.enforcement.stage_latencies import stage_latencies_of
from latency_budget.statistics.intervals import wilson_interval as wilson_interval


@dataclass(frozen=True, slots=True)
class Speculation:
    """Gain and cost of preparing replies in the caller's pauses."""

    turns: int = 0
    """Spoken turns that got a reply."""
    guesses: int = 0
    """Replies begun before the endpoint."""
    adopted: int = 0
    """Guesses that became the reply."""
    wasted_ns: int = 0
    """Stage time of all discarded work in ns, final passes included."""
    wasted_prompt_tokens: int = 0
    """Tokens prefilled for discarded guesses that reached a first token."""
    wasted_output_tokens: int = 0
    """Tokens generated for discarded guesses and handed on."""

    def __add__(self, other: "Speculation") -> "Speculation":
        return Speculation(
            self.turns + other.turns,
            self.guesses + other.guesses,
            self.adopted + other.adopted,
            self.wasted_ns + other.wasted_ns,
            self.wasted_prompt_tokens + other.wasted_prompt_tokens,
            self.wasted_output_tokens + other.wasted_output_tokens,
        )

    def as_json(self) -> dict[str, Any]:
        """JSON form. Rates are per turn; None without turns."""
        return {
            "turns": self.turns,
            "guesses": self.guesses,
            "adopted": self.adopted,
            "hit_rate": self._per_turn(self.adopted),
            "wasted_ms_per_turn": self._per_turn(self.wasted_ns / 1e6),
            "wasted_prompt_tokens_per_turn": self._per_turn(self.wasted_prompt_tokens),
            "wasted_output_tokens_per_turn": self._per_turn(self.wasted_output_tokens),
        }

    def _per_turn(self, amount: float) -> float | None:
        return amount / self.turns if self.turns else None


def speculation(marks: Sequence[Mark]) -> Speculation:
    """Speculation in one call, from its marks: a reply requested before the endpoint is a guess,
    and it is adopted where no later request replaced it."""
    endpoints: dict[int, int] = {}
    requests: dict[int, list[int]] = {}
    for mark in marks:
        if mark.name is MarkName.ENDPOINT:
            endpoints[mark.turn] = max(mark.at_ns, endpoints.get(mark.turn, mark.at_ns))
        elif mark.name is MarkName.REPLY_REQUESTED:
            requests.setdefault(mark.turn, []).append(mark.at_ns)
    records = records_of(marks)
    found = Speculation(
        wasted_ns=sum(record.wasted_ns for record in records),
        wasted_prompt_tokens=sum(record.wasted_prompt_tokens for record in records),
        wasted_output_tokens=sum(record.wasted_output_tokens for record in records),
    )
    for turn, asked in requests.items():
        if turn in endpoints:
            early = sum(at_ns <= endpoints[turn] for at_ns in asked)
            found += Speculation(1, early, int(early == len(asked)))
    return found


def chains_ms(marks: Sequence[Mark]) -> list[float]:
    """Time in ms from the caller's last word to each reply's first possible sound, without the
    wait for the endpoint; one call, from its marks."""
    found = [stage_latencies_of(record) for record in records_of(marks)]
    return [
        lags.ready_ms + (lags.after_ms or 0.0)
        for lags in found
        if lags is not None and lags.ready_ms is not None
    ]


def actions_of(marks: Sequence[Mark]) -> list[str]:
    """Actions of the budget's enforcement against late answers in one call, one entry per turn."""
    return [taken.action.value for record in records_of(marks) for taken in record.actions]


def median_stages(turns: Iterable[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Median ms spent and exposed of each stage. `turns`: JSON with a `stages` member."""
    collected: dict[str, dict[str, list[float]]] = {}
    for turn in turns:
        for stage, times in turn["stages"].items():
            for kind, value in times.items():
                collected.setdefault(stage, {}).setdefault(kind, []).append(value)
    return {
        stage: {kind: statistics.median(values) for kind, values in kinds.items()}
        for stage, kinds in collected.items()
    }
