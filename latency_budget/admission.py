"""Whether one more caller fits: the promise to those inside comes first.

Theory of operation. What callers share is the processor, and the chain of links that a reply needs
(`lags.py`) takes longer the more of it others use. Of a machine whose processor is shared evenly,
work takes 1 / (1 - u) as long as alone, where u is the part that is in use. A call uses r of it, so
that a chain that took c ms among n calls takes

    c (1 - n r) / (1 - (n + 1) r)

among one more. r is measured: processor time over the time of calls, for the latest MEASURED_NS.
With the embedded models on two cores r is 0.2, so that the second caller makes chains 1.33 times as
long; measured whole, with the wait that does not grow, answers to two callers took 1.21 times as
long in the middle and 1.28 times at the 95th percentile.

A caller is refused where the 95th percentile of the chains that are predicted so lies above the
budget. The wait for the end of the turn is not in it: no caller shortens it by staying away. Nobody
is refused while no call is in progress, nor on less evidence than MIN_TURNS; and once somebody was,
the door opens when the prediction is below REOPENS of the budget, so that it does not flap.

What is not seen: a device that is busy while the processor is not. Pure; one thread.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

from .lags import Lags
from .recent import quantile

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
class Crowd:
    """Why a caller is refused."""

    predicted_ms: float
    """What 95 % of those inside would wait at most; infinite where the processor would be full."""
    total_ms: int

    @property
    def reason(self) -> str:
        """For the caller who is refused."""
        if self.predicted_ms == float("inf"):
            return "The processor is busy with the calls in progress."
        return (
            f"With one more call, answers inside would take up to {self.predicted_ms:.0f} ms, and"
            f" {self.total_ms} ms are promised."
        )


@dataclass(frozen=True, slots=True)
class _Chain:
    at_ns: int
    calls: int
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

    def turn_over(self, lags: Lags, calls: int, at_ns: int) -> None:
        """A turn ended, among so many calls."""
        if lags.ready_ms is not None:
            self._chains.append(_Chain(at_ns, calls, lags.ready_ms, lags.after_ms or 0.0))

    def refuses(self, calls: int, total_ms: int, now_ns: int) -> Crowd | None:
        """Whether one more than so many calls is one too many, with this budget."""
        predicted_ms = self.predicted_ms(calls + 1, now_ns) if calls else None
        limit_ms = total_ms * (REOPENS if self._is_closed else 1.0)
        self._is_closed = predicted_ms is not None and predicted_ms > limit_ms
        if predicted_ms is None or not self._is_closed:
            return None
        return Crowd(predicted_ms, total_ms)

    def predicted_ms(self, calls: int, now_ns: int) -> float | None:
        """What 95 % of turns would take at most among so many calls, but for the wait for their
        ends. None: too little is known."""
        while self._chains and self._chains[0].at_ns < now_ns - EVIDENCE_NS:
            self._chains.popleft()
        per_call = self.per_call()
        if per_call is None or len(self._chains) < MIN_TURNS:
            return None
        free = 1 - calls * per_call
        if free < 1 - FULL:
            return float("inf")
        return quantile(
            (
                each.ready_ms * max(1 - FULL, 1 - each.calls * per_call) / free + each.after_ms
                for each in self._chains
            ),
            SHARE,
        )

    def per_call(self) -> float | None:
        """The part of the processor that a call uses. None: too little is known."""
        call_s = 0.0
        for (at_ns, _, calls), (until_ns, _, _) in zip(
            self._usage, list(self._usage)[1:], strict=False
        ):
            call_s += calls * (until_ns - at_ns) / 1e9
        if call_s < MIN_CALL_S:
            return None
        cpu_s = (self._usage[-1][1] - self._usage[0][1]) / 1e9
        return cpu_s / (call_s * self._cores)
