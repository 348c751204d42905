"""Whether one more caller fits: the promise to those inside comes first.

Theory of operation. What callers share is the processor, and the chain of links that a reply needs
(`stage_latencies.py`) takes longer the more of it others use. Of a machine whose processor is
shared evenly,
work takes 1 / (1 - u) as long as alone, where u is the part that is in use. A call uses r of it, so
that a chain that took c ms among n calls takes

    c (1 - n r) / (1 - (n + 1) r)

among one more. r is measured: processor time over the time of calls, for the latest MEASURED_NS.
With the embedded models on two cores r is 0.2, so that the second caller makes chains 1.33 times as
long; measured whole, with the wait that does not grow, answers to two callers took 1.21 times as
long in the middle and 1.28 times at the 95th percentile.

A caller is refused where more than one in twenty of the chains that are predicted so would end
after its budget. The wait for the end of the turn is not in it: no caller shortens it by staying
away. Nobody is refused while no call is in progress, nor on less evidence than MIN_TURNS; and once
somebody was, the door opens when the prediction is below REOPENS of the budget, so that it does not
flap. Processor time that is used while nobody calls is nobody's.

What is not seen: a device that is busy while the processor is not. Pure; one thread.
"""

import math
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from .stage_latencies import StageLatencies

MEASURED_NS: Final = 60 * 10**9
"""Of processor time: some seven turns of a call. Shorter is the luck of who is speaking."""

MIN_CALL_S: Final = 20.0
"""Seconds of calls within that, for r to be believed."""

EVIDENCE_NS: Final = 600 * 10**9
"""Older chains say nothing about now."""

MIN_TURNS: Final = 40
"""Of fewer the 95th percentile is the slowest or the second slowest turn."""

MAX_TURNS: Final = 400

FULL: Final = 0.95
"""Of the processor: beyond it queues only grow."""

SHARE: Final = 0.95
"""Of the turns inside that are to be in time."""

REOPENS: Final = 0.9
"""Of the budget."""


@dataclass(frozen=True, slots=True)
class OverloadForecast:
    """Why a caller is refused."""

    predicted_ms: float
    """What 95 % of those inside would wait at most; infinite where the processor would be full."""
    total_ms: int

    @property
    def reason(self) -> str:
        """For the caller who is refused."""
        if math.isinf(self.predicted_ms):
            return "The processor is busy with the calls in progress."
        return (
            f"With one more call, answers inside would take up to {self.predicted_ms:.0f} ms, and"
            f" {self.total_ms} ms are promised."
        )


@dataclass(frozen=True, slots=True)
class _Chain:
    at_ns: int
    calls: int
    total_ms: int
    ready_ms: float
    after_ms: float


class Admission:
    """Of one service."""

    def __init__(self, cores: float) -> None:
        """`cores`: what processor time is a part of."""
        self._cores = cores
        self._chains: deque[_Chain] = deque(maxlen=MAX_TURNS)
        self._usage: deque[tuple[int, int, int]] = deque()
        """When, the process's processor time, and the calls from then on."""
        self._is_closed = False

    def used(self, at_ns: int, cpu_ns: int, calls: int) -> None:
        """Told whenever a call begins or ends, and now and then between: the processor time of the
        process so far, and how many calls there are from now on."""
        self._usage.append((at_ns, cpu_ns, calls))
        while len(self._usage) > 2 and self._usage[1][0] < at_ns - MEASURED_NS:
            self._usage.popleft()

    def turn_over(self, lags: StageLatencies, calls: int, total_ms: int, at_ns: int) -> None:
        """A turn with this budget ended, which was answered among so many calls."""
        if lags.ready_ms is not None:
            after_ms = lags.after_ms or 0.0
            self._chains.append(_Chain(at_ns, calls, total_ms, lags.ready_ms, after_ms))

    def refuses(self, calls: int, now_ns: int) -> OverloadForecast | None:
        """Whether one more than so many calls is one too many."""
        crowd = self.predicted(calls + 1, now_ns) if calls else None
        if crowd is None:
            self._is_closed = False
            return None
        limit_ms = crowd.total_ms * (REOPENS if self._is_closed else 1.0)
        self._is_closed = crowd.predicted_ms > limit_ms
        return crowd if self._is_closed else None

    def predicted(self, calls: int, now_ns: int) -> OverloadForecast | None:
        """The turn than which 95 % would be better off among so many calls, but for the wait for
        their ends. None: too little is known."""
        while self._chains and self._chains[0].at_ns < now_ns - EVIDENCE_NS:
            self._chains.popleft()
        per_call = self.per_call()
        if per_call is None or len(self._chains) < MIN_TURNS:
            return None
        free = 1 - calls * per_call
        if free < 1 - FULL:
            return OverloadForecast(math.inf, self._chains[-1].total_ms)
        found = [
            (each.ready_ms * max(1 - FULL, 1 - each.calls * per_call) / free + each.after_ms, each)
            for each in self._chains
        ]
        found.sort(key=lambda one: one[0] / one[1].total_ms)
        predicted_ms, chain = found[math.ceil(SHARE * len(found)) - 1]
        return OverloadForecast(predicted_ms, chain.total_ms)

    def per_call(self) -> float | None:
        """The part of the processor that a call uses. None: too little is known."""
        call_s = cpu_s = 0.0
        for (at_ns, used_ns, calls), (until_ns, used_then_ns, _) in pairwise(self._usage):
            if calls:
                call_s += calls * (until_ns - at_ns) / 1e9
                cpu_s += (used_then_ns - used_ns) / 1e9
        return None if call_s < MIN_CALL_S else cpu_s / (call_s * self._cores)
