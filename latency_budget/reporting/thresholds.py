"""Latency gate: conditions on a summary, such as `e2e.p95<=500 cutin<=0.02`.

For pipelines that must reject a slower version. A condition on a missing figure fails: a run
without turns is not a fast run.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import ge, gt, le, lt
from typing import Any, Final

from latency_budget.account.turn import Stage
from latency_budget.statistics.aggregate import PERCENTILES

_OPERATORS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<=": le,
    "<": lt,
    ">=": ge,
    ">": gt,
}

_CONDITION: Final = re.compile(
    r"(?P<name>[a-z_0-9.]+)\s*(?P<operator><=|>=|<|>)\s*(?P<limit>\d+(\.\d+)?)"
)


class GateError(ValueError):
    """The text is not a valid gate. The message shows a valid one."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of a gate."""

    name: str
    operator: str
    limit: float

    def __str__(self) -> str:
        return f"{self.name}{self.operator}{self.limit:g}"

    def holds(self, value: float | None) -> bool:
        return value is not None and _OPERATORS[self.operator](value, self.limit)


def read_gate(text: str) -> tuple[Condition, ...]:
    """Parse conditions, separated by spaces or commas. Raises GateError."""
    found = []
    left = text.strip()
    while left:
        match = _CONDITION.match(left)
        if match is None:
            raise GateError(
                f"{left!r} is no condition; one is NAME OPERATOR NUMBER, as in e2e.p95<=500"
            )
        name = match["name"]
        if name not in METRICS:
            raise GateError(
                f"no figure is called {name!r}; there are: {', '.join(sorted(METRICS))}"
            )
        found.append(Condition(name, match["operator"], float(match["limit"])))
        left = left[match.end() :].lstrip(" ,;\t\n")
    if not found:
        raise GateError("a gate has at least one condition, as in e2e.p95<=500")
    return tuple(found)


def misses(gate: tuple[Condition, ...], summary: Mapping[str, Any]) -> list[str]:
    """One line for each condition that a summary of `report.summarize` misses."""
    lines = []
    for condition in gate:
        value = METRICS[condition.name](summary)
        if not condition.holds(value):
            shown = "not known" if value is None else f"{value:g}"
            if condition.name == "cutin" and value is not None:
                low, high = summary["cut_in_interval"]
                shown += f", 95 % interval {low:.3f} to {high:.3f}"
            lines.append(f"GATE MISSED: {condition} ({condition.name} is {shown})")
    return lines


def _share(part: str) -> Callable[[Mapping[str, Any]], float | None]:
    return lambda summary: summary[part] / summary["turns"] if summary["turns"] else None


def _at(*path: str) -> Callable[[Mapping[str, Any]], float | None]:
    def value(summary: Mapping[str, Any]) -> float | None:
        found: Any = summary
        for key in path:
            found = found[key]
        return None if found is None else float(found)

    return value


def _cut_in_high(summary: Mapping[str, Any]) -> float | None:
    return None if summary["cut_in_interval"] is None else float(summary["cut_in_interval"][1])


def _per_answered(outcome: str) -> Callable[[Mapping[str, Any]], float | None]:
    def value(summary: Mapping[str, Any]) -> float | None:
        answered = summary["answered"]
        return summary["outcomes"][outcome] / answered if answered else None

    return value


METRICS: Final[dict[str, Callable[[Mapping[str, Any]], float | None]]] = {
    "turns": _at("turns"),
    "answered": _share("answered"),
    "cutin": _at("cut_in_rate"),
    "cutin.high": _cut_in_high,
    "interrupted": _per_answered("interrupted"),
    "reopened": _per_answered("reopened"),
    **{f"e2e.p{rank}": _at(f"p{rank}") for rank in PERCENTILES},
    **{f"raw.p{rank}": _at("e2e_raw_ms", f"p{rank}") for rank in PERCENTILES},
    **{
        f"{stage.value}.p{rank}": _at("stages", stage.value, "exposed_ms", f"p{rank}")
        for stage in Stage
        for rank in PERCENTILES
    },
}
"""Getters of a summary's figures by the names of a gate. `raw` is without the time in which replies
were held back on purpose; a stage's figure is its exposed time. `cutin.high` is the upper end of
the 95 % interval of `cutin`; `interrupted` and `reopened` are numbers of turns per answered one."""
