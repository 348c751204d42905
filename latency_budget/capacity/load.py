"""Load of a service: calls an hour by time of day, their lengths, and bursts of calls."""

import heapq
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

HOUR_S: Final = 3600.0
DAY_S: Final = 24 * HOUR_S

Distribution = Literal["exponential", "fixed"]
"""Distribution of the lengths of calls."""


class Arrival(NamedTuple):
    """A call that arrives; a tuple because a simulation has millions."""

    at_s: float
    """Seconds since midnight."""
    length_s: float


@dataclass(frozen=True, slots=True)
class CallBurst:
    """Calls that arrive within a short time beside the ordinary ones."""

    at_s: float
    """Begin, in seconds since midnight."""
    num_calls: int
    over_s: float
    """Seconds within which they arrive, evenly."""


@dataclass(frozen=True, slots=True)
class CallLoad:
    """Calls of a day, each day the same."""

    per_hour: tuple[float, ...]
    """Calls an hour: 24 numbers by hour of the day, or one for all."""
    length_s: float
    """Mean length of a call, in seconds."""
    distribution: Distribution = "exponential"
    bursts: tuple[CallBurst, ...] = ()

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if len(self.per_hour) not in (1, 24):
            raise ValueError(f"a day has 24 hours, and {len(self.per_hour)} were given")
        if min(self.per_hour) < 0 or self.length_s <= 0:
            raise ValueError("calls an hour can't be below 0, nor calls shorter than that")

    @property
    def varies(self) -> bool:
        """True unless the load is the same at all times."""
        return bool(self.bursts) or len(set(self.per_hour)) > 1

    def rate(self, at_s: float) -> float:
        """Arrivals a second, bursts left out."""
        hour = int(at_s // HOUR_S) % len(self.per_hour)
        return self.per_hour[hour] / HOUR_S

    def offered(self, at_s: float) -> float:
        """Calls in progress on average at this rate, if none are refused; bursts left out."""
        return self.rate(at_s) * self.length_s

    @property
    def least_offered(self) -> float:
        """Calls in progress in the quietest hour."""
        return min(self.per_hour) / HOUR_S * self.length_s

    @property
    def most_offered(self) -> float:
        """Calls in progress at the busiest moment: in the busiest hour, or at the end of a
        burst."""
        found = [max(self.per_hour) / HOUR_S * self.length_s]
        for burst in self.bursts:
            stay = self.length_s / burst.over_s * -math.expm1(-burst.over_s / self.length_s)
            found.append(self.offered(burst.at_s) + burst.num_calls * stay)
        return max(found)

    def arrivals(self, begin_s: float, end_s: float, rng: random.Random) -> Iterator[Arrival]:
        """Calls that arrive in this time, in order. The same generator gives the same calls."""
        times = heapq.merge(
            self._ordinary(begin_s, end_s, random.Random(rng.getrandbits(64))),
            self._in_bursts(begin_s, end_s, random.Random(rng.getrandbits(64))),
        )
        lengths = random.Random(rng.getrandbits(64))
        for at_s in times:
            yield Arrival(at_s, self.length(lengths))

    def length(self, rng: random.Random) -> float:
        """Draw a call's length, in seconds."""
        return self.length_s if self.distribution == "fixed" else rng.expovariate(1 / self.length_s)

    def rest(self, rng: random.Random) -> float:
        """Draw what is left of a call that is in progress, in seconds."""
        if self.distribution == "fixed":
            return self.length_s * rng.random()
        return rng.expovariate(1 / self.length_s)

    def _ordinary(self, begin_s: float, end_s: float, rng: random.Random) -> Iterator[float]:
        """Poisson arrivals, hour by hour: they have no memory, so each hour begins anew."""
        while begin_s < end_s:
            until_s = min(end_s, (begin_s // HOUR_S + 1) * HOUR_S)
            rate, at_s = self.rate(begin_s), begin_s
            while rate and (at_s := at_s + rng.expovariate(rate)) < until_s:
                yield at_s
            begin_s = until_s

    def _in_bursts(self, begin_s: float, end_s: float, rng: random.Random) -> Iterator[float]:
        times: list[float] = []
        for day in range(int(begin_s // DAY_S), math.ceil(end_s / DAY_S)):
            for burst in self.bursts:
                first_s = day * DAY_S + burst.at_s
                times += (first_s + burst.over_s * rng.random() for _ in range(burst.num_calls))
        return iter(sorted(at_s for at_s in times if begin_s <= at_s < end_s))
