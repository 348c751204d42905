"""Admission control: reject a call that would push the p95 of the current calls over budget.

Theory of operation. Calls share the processor, and the chain of stages that a reply needs
(`stage_latencies.py`) takes longer the more of it others use. On a processor that is shared evenly,
work takes 1 / (1 - u) as long as alone, where u is the part that is in use. A call uses r of it, so
that a chain that took c ms among n calls takes

    c (1 - n r) / (1 - (n + 1) r)

among one more. r is measured: processor time over the time of calls, for the latest MEASURED_NS.
With the embedded models on two cores r is 0.2, so that the second caller makes chains 1.33 times as
long; measured whole, with the wait that does not grow, answers to two callers took 1.21 times as
long in the middle and 1.28 times at the 95th percentile.

A call is rejected where more than one in twenty of the chains predicted in this way would end after
its budget. The wait for the end of the turn is not part of the chain: one call less does not
shorten it. No call is rejected while none is in progress, nor on fewer than MIN_TURNS turns; and
after a rejection calls are admitted again when the prediction is below REOPENS of the budget, so
that the decision does not flap. Processor time that is used while no call is in progress counts for
none.

Not measured: a device that is busy while the processor is not. Pure; one thread.
"""

import math
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from .stage_latencies import StageLatencies

SAMPLE_NS: Final = 10**9
"""Least time between samples of the processor time, where no call begins or ends. Each refused
client asks for a forecast, which goes through all samples: without this, a storm of clients that
try again makes each refusal dearer than the one before."""

MEASURED_NS: Final = 60 * 10**9
"""Window of the processor time: some seven turns of a call. A shorter one depends on who happens to
speak."""

MIN_CALL_S: Final = 20.0
"""Fewest seconds of calls within that window from which r is taken."""

EVIDENCE_NS: Final = 600 * 10**9
"""Greatest age of a chain that counts."""

MIN_TURNS: Final = 40
"""Fewest turns for a decision: with fewer, the 95th percentile is the slowest or second slowest."""

MAX_TURNS: Final = 400

FULL: Final = 0.95
"""Utilization of the processor beyond which queues only grow."""

SHARE: Final = 0.95
"""Share of the turns of current calls that must be in time."""

REOPENS: Final = 0.9
"""Share of the budget below which calls are admitted again."""


@dataclass(frozen=True, slots=True)
class OverloadForecast:
    """Forecast of the wait among one more call."""

    predicted_ms: float
    """95th percentile of the wait of current calls; infinite where the processor would be full."""
    total_ms: int
    """The budget of the turn at that percentile."""

    @property
    def reason(self) -> str:
        """Sentence for the client that is rejected."""
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
    """Time until the reply was ready: it grows with the load."""
    after_ms: float
    """Time of playback and transport behind that, which does not."""


class Admission:
    """Admission control of one service."""

    def __init__(self, cores: float) -> None:
        """`cores`: the processor time per second that can be used."""
        self._cores = cores
        self._chains: deque[_Chain] = deque(maxlen=MAX_TURNS)
        self._usage: deque[tuple[int, int, int]] = deque()
        """Time, the process's processor time at it, and the number of calls from then on."""
        self._is_closed = False

    def used(self, at_ns: int, cpu_ns: int, calls: int) -> None:
        """Record the processor time of the process so far, and the number of calls from now on.
        Call it whenever a call begins or ends, and from time to time between."""
        usage = self._usage
        if len(usage) > 1:
            before, newest = usage[-2], usage[-1]
            if before[2] == newest[2] == calls and at_ns - before[0] < SAMPLE_NS:
                usage.pop()  # the newest sample would only divide one interval into two
        usage.append((at_ns, cpu_ns, calls))
        while len(self._usage) > 2 and self._usage[1][0] < at_ns - MEASURED_NS:
            self._usage.popleft()

    def turn_over(self, latencies: StageLatencies, calls: int, total_ms: int, at_ns: int) -> None:
        """Record the chain of a finished turn with this budget, answered among so many calls."""
        if latencies.ready_ms is not None:
            after_ms = latencies.after_ms or 0.0
            self._chains.append(_Chain(at_ns, calls, total_ms, latencies.ready_ms, after_ms))

    def refuses(self, calls: int, now_ns: int) -> OverloadForecast | None:
        """The forecast that forbids one more call than these; None where it may be admitted."""
        forecast = self.predicted(calls + 1, now_ns) if calls else None
        if forecast is None:
            self._is_closed = False
            return None
        limit_ms = forecast.total_ms * (REOPENS if self._is_closed else 1.0)
        self._is_closed = forecast.predicted_ms > limit_ms
        return forecast if self._is_closed else None

    def predicted(self, calls: int, now_ns: int) -> OverloadForecast | None:
        """Forecast of the 95th percentile of the chain among so many calls. None: too little is
        known."""
        self._forget(now_ns)
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

    def _forget(self, now_ns: int) -> None:
        """Drop the chains that are too old to count."""
        while self._chains and self._chains[0].at_ns < now_ns - EVIDENCE_NS:
            self._chains.popleft()

    def capacity(self, now_ns: int) -> int | None:
        """Most calls of which `SHARE` of the chains are predicted within their budgets; 0: not even
        one call's. None: too little is known. It is the greatest number whose forecast
        (`predicted`) is within the budget, found without trying each."""
        self._forget(now_ns)
        per_call = self.per_call()
        if not per_call or len(self._chains) < MIN_TURNS:
            return None
        found = sorted((self._fitting(each, per_call) for each in self._chains), reverse=True)
        # A count that is whole but for the last bits of its fraction is whole.
        return math.floor(max(0.0, found[math.ceil(SHARE * len(found)) - 1]) + 1e-9)

    @staticmethod
    def _fitting(chain: _Chain, per_call: float) -> float:
        """Number of calls, as a fraction, among which this chain ends just within its budget."""
        left_ms = chain.total_ms - chain.after_ms
        if left_ms <= 0:
            return 0.0
        alone_ms = chain.ready_ms * max(1 - FULL, 1 - chain.calls * per_call)
        return min(FULL, 1 - alone_ms / left_ms) / per_call

    def per_call(self) -> float | None:
        """Share of the processor that one call uses (r). None: too little is known."""
        call_s = cpu_s = 0.0
        for (at_ns, used_ns, calls), (until_ns, used_then_ns, _) in pairwise(self._usage):
            if calls:
                call_s += calls * (until_ns - at_ns) / 1e9
                cpu_s += (used_then_ns - used_ns) / 1e9
        return None if call_s < MIN_CALL_S else cpu_s / (call_s * self._cores)
