"""Figure: measured value beside the physical limit and the target."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Figure:
    """Measured value with its limit and target."""

    name: str
    value: float
    unit: str
    limit: float | None = None
    """Physical limit: lower bound of a time, upper bound of a rate. None: no limit is known."""
    bar: float | None = None
    """Target; None: none is set."""
    is_rate: bool = False
    """True if more is better."""
    note: str = ""

    @property
    def is_held(self) -> bool | None:
        """True if the target is met; None without a target. NaN misses it."""
        if self.bar is None:
            return None
        return self.value >= self.bar if self.is_rate else self.value <= self.bar

    @property
    def share(self) -> float | None:
        """Fraction of the physical limit that is reached: 1 at the limit."""
        if not self.limit or not self.value or math.isnan(self.value):
            return None
        return self.value / self.limit if self.is_rate else self.limit / self.value

    def as_data(self) -> dict[str, Any]:
        found = {
            "name": self.name,
            "value": _significant(self.value),
            "unit": self.unit,
            "limit": _significant(self.limit),
            "share": _significant(self.share),
            "bar": self.bar,
            "is_held": self.is_held,
            "note": self.note or None,
        }
        return {name: value for name, value in found.items() if value is not None}


def table(figures: Sequence[Figure]) -> str:
    """Format figures as a table."""
    width = max((len(figure.name) for figure in figures), default=0)
    return "\n".join(_line(figure, width) for figure in figures)


def _line(figure: Figure, width: int) -> str:
    parts = [f"  {figure.name:<{width}}  {_text(figure.value):>10} {figure.unit:<6}"]
    if figure.limit is not None:
        share = f"{figure.share:.0%}" if figure.share is not None else "?"
        parts.append(f"limit {_text(figure.limit):>8} ({share})")
    if figure.bar is not None:
        sign = ">=" if figure.is_rate else "<="
        parts.append(f"{'held' if figure.is_held else 'MISSED'}: {sign} {_text(figure.bar)}")
    if figure.note:
        parts.append(figure.note)
    return "  ".join(parts).rstrip()


def gaps_ms(instants_ns: Sequence[int]) -> list[float]:
    """Intervals in ms between successive instants."""
    return [(end - begin) / 1e6 for begin, end in pairwise(instants_ns)]


def percentile(values: Sequence[float], share: float) -> float:
    """Percentile, `share` in 0..1: a measured value; NaN without values."""
    return float(np.quantile(values, share, method="higher")) if values else math.nan


def _text(value: float) -> str:
    if math.isnan(value):
        return "nan"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _significant(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else float(f"{value:.5g}")
