"""Discrete-event simulation of replicas under a load: refusals, replicas and their hours.

Theory of operation. A replica has a fixed number of lines. A call takes a free line of any running
replica; where there is none it waits, if that is allowed, or is refused. Refused callers do not
come back. The number of replicas follows the calls by the rule of Ray Serve's default policy
(`Autoscaler`): calls in progress, averaged over a window, divided by the target per replica, and a
delay for which the answer must stay the same. A replica that is added takes calls after its start
time. One that is removed takes no new calls, and goes when its calls have ended, or after the
drain, which ends them.

The simulation starts in the steady state of its first moment. With as many replicas from begin to
end it is the queue M/G/c/c, and its refusals those of `erlang_b`; a test compares them.

A heap holds what is to come: a day of a large fleet has millions of calls, for each of which simpy
would keep a generator and several event objects.
"""

import heapq
import math
import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from .load import HOUR_S, CallLoad

TICK_S: Final = 1.0
"""Interval between two decisions of the autoscaler. Ray Serve decides ten times a second, on
figures that come once a second (`ScalingRules.metrics_interval_s`)."""


@dataclass(frozen=True, slots=True)
class ReplicaFigures:
    """Measured figures of one replica on its machine."""

    calls: int
    """Calls at once whose 95th percentile is within the budget."""
    start_s: float
    """Seconds from the decision to add it until it takes calls."""
    drain_s: float = 3600.0
    """Longest time for which the calls of a removed replica may go on."""

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if self.calls < 1 or self.start_s < 0:
            raise ValueError("a replica holds at least one call, and takes some time to start")


@dataclass(frozen=True, slots=True)
class ScalingRules:
    """Settings of the autoscaler, named as Ray Serve names them."""

    min_replicas: int
    max_replicas: int
    target_ongoing_requests: float
    """Calls per replica that the autoscaler aims at; below the calls that it can hold, so that
    replicas are added while there are free lines."""
    upscale_delay_s: float = 1.0
    """Longer: a burst finds no free lines. 0: a single high reading adds replicas."""
    downscale_delay_s: float = 600.0
    """Shorter: replicas go and come back with every lull, each time for a start."""
    look_back_period_s: float = 5.0
    """Window of the average. Ray's own 30 s would react to a burst half a minute late."""
    metrics_interval_s: float = 1.0
    max_queued_requests: int = 0
    """Calls that may wait for a line, instead of being refused. They wait as long as it takes."""

    @property
    def is_fixed(self) -> bool:
        return self.min_replicas == self.max_replicas


class Autoscaler:
    """Ray Serve's default policy without scaling factors: the same numbers, decided by ticks."""

    def __init__(self, rules: ScalingRules) -> None:
        self._rules = rules
        self._num_ticks = 0
        """Consecutive ticks that asked for more replicas; negative: for fewer."""

    @property
    def rests(self) -> bool:
        """True if the last answer was the number that is there."""
        return not self._num_ticks

    def decide(self, average_calls: float, num_target: int) -> int:
        """Number of replicas to have from now on. `average_calls`: of all running replicas
        together. `num_target`: the number decided last."""
        rules = self._rules
        wanted = math.ceil(average_calls / rules.target_ongoing_requests)
        wanted = max(rules.min_replicas, min(rules.max_replicas, wanted))
        if wanted == num_target:
            self._num_ticks = 0
            return num_target
        is_up = wanted > num_target
        if is_up:
            self._num_ticks = max(0, self._num_ticks) + 1
            delay_s = rules.upscale_delay_s
        else:
            self._num_ticks = min(0, self._num_ticks) - 1
            delay_s = rules.downscale_delay_s
        if abs(self._num_ticks) <= int(delay_s / TICK_S):
            return num_target
        self._num_ticks = 0
        return wanted


class _Kind(Enum):
    CALL_ENDS = 1
    REPLICA_READY = 2
    DRAIN_ENDS = 3


class _State(Enum):
    STARTING = 1
    RUNNING = 2
    DRAINING = 3
    STOPPED = 4


@dataclass(eq=False, slots=True)
class _Replica:
    state: _State = _State.STARTING
    calls: int = 0
    free_at: int = -1
    """Position in the list of those with a free line; -1: not in it."""


@dataclass(frozen=True, slots=True)
class FleetResult:
    """Outcome of one simulation."""

    arrived: int
    refused: int
    ended_by_drain: int
    """Calls that were ended because the drain of their replica was over."""
    peak_calls: int
    peak_replicas: int
    """Most replicas at once, those that start or drain among them."""
    replica_hours: float
    arrived_by_hour: tuple[int, ...]
    """By hour of the day, 24 numbers."""
    refused_by_hour: tuple[int, ...]
    duration_s: float

    def refused_of(self, hours: Iterable[int]) -> tuple[int, int]:
        """Calls that were refused in these hours of the day, and those that arrived."""
        chosen = list(hours)
        return (
            sum(self.refused_by_hour[hour] for hour in chosen),
            sum(self.arrived_by_hour[hour] for hour in chosen),
        )

    @property
    def mean_replicas(self) -> float:
        return self.replica_hours * HOUR_S / self.duration_s


@dataclass(slots=True)
class _Counts:
    ended_by_drain: int = 0
    peak_calls: int = 0
    peak_replicas: int = 0
    replica_s: float = 0.0
    arrived_by_hour: list[int] = field(default_factory=lambda: [0] * 24)
    refused_by_hour: list[int] = field(default_factory=lambda: [0] * 24)


class FleetSimulation:
    """One run over a stretch of the day. The same seed gives the same run."""

    def __init__(self, figures: ReplicaFigures, rules: ScalingRules, seed: int = 0) -> None:
        self._figures = figures
        self._rules = rules
        self._rng = random.Random(seed)
        self._autoscaler = Autoscaler(rules)
        self._target = rules.min_replicas
        """Number of replicas that the autoscaler asks for."""
        self._replicas: list[_Replica] = []
        """Those that start or run, the newest last."""
        self._free: list[_Replica] = []
        """Running ones with a free line, in any order."""
        self._waiting: deque[float] = deque()
        """Lengths of the calls that wait for a line, in the order of their arrival."""
        self._num_draining = 0
        self._events: list[tuple[float, int, _Kind, _Replica]] = []
        """Heap of what is to come; the number keeps the order of entries of one time."""
        self._num_events = 0
        self._counts = _Counts()
        self._num_refused = 0
        self._calls = 0
        self._running_calls = 0
        """Calls without those of draining replicas, which the autoscaler does not see."""
        self._running_call_s = 0.0
        """Integral of that up to `_at_s`."""
        self._at_s = 0.0
        self._changed_s = 0.0
        """Time of the last change of `_running_calls`."""
        self._window: deque[tuple[float, float]] = deque()
        """Time and integral at each tick within the window of the average."""

    def run(
        self,
        load: CallLoad,
        begin_s: float,
        end_s: float,
        *,
        warm: bool = True,
        max_refused: float = math.inf,
    ) -> FleetResult:
        """Simulate from begin to end, or until more calls than `max_refused` are refused. `warm`:
        start with the calls of the steady state, and the replicas that they need; else with the
        fewest replicas and no call."""
        arrivals = load.arrivals(begin_s, end_s, self._rng)
        self._at_s = self._changed_s = begin_s
        self._begin(load, begin_s, warm=warm)
        tick_s = begin_s
        arrival = next(arrivals, None)
        while self._num_refused <= max_refused:
            arrival_s = math.inf if arrival is None else arrival.at_s
            event_s = self._events[0][0] if self._events else math.inf
            if min(tick_s, arrival_s, event_s) >= end_s:
                break
            if tick_s <= arrival_s and tick_s <= event_s:
                self._advance(tick_s)
                self._tick()
                next_s = min(arrival_s, self._events[0][0] if self._events else math.inf, end_s)
                tick_s = self._next_tick(tick_s, next_s)
            elif event_s <= arrival_s:
                self._advance(event_s)
                self._happen()
            else:
                assert arrival is not None
                self._advance(arrival_s)
                self._arrive(arrival.length_s)
                arrival = next(arrivals, None)
        if self._num_refused <= max_refused:
            self._advance(end_s)
        counts = self._counts
        return FleetResult(
            arrived=sum(counts.arrived_by_hour),
            refused=sum(counts.refused_by_hour),
            ended_by_drain=counts.ended_by_drain,
            peak_calls=counts.peak_calls,
            peak_replicas=counts.peak_replicas,
            replica_hours=counts.replica_s / HOUR_S,
            arrived_by_hour=tuple(counts.arrived_by_hour),
            refused_by_hour=tuple(counts.refused_by_hour),
            duration_s=self._at_s - begin_s,
        )

    def _next_tick(self, at_s: float, next_s: float) -> float:
        """Time of the next tick; where nothing changes before `next_s`, the last one before it."""
        rules = self._rules
        rests = at_s - self._changed_s > rules.look_back_period_s and self._autoscaler.rests
        if not (rules.is_fixed or rests) or next_s <= at_s + 2 * TICK_S:
            return at_s + TICK_S
        tick_s = at_s + math.floor((next_s - at_s) / TICK_S) * TICK_S
        # What the ticks between would have left in the window.
        before_s = tick_s - TICK_S
        call_s = self._running_call_s + self._running_calls * (before_s - at_s)
        self._window = deque([(before_s, call_s)])
        return tick_s

    def _begin(self, load: CallLoad, begin_s: float, *, warm: bool) -> None:
        rules = self._rules
        num_calls = _poisson(load.offered(begin_s), self._rng) if warm else 0
        wanted = math.ceil(num_calls / rules.target_ongoing_requests)
        self._target = max(rules.min_replicas, min(rules.max_replicas, wanted))
        for _ in range(self._target):
            replica = _Replica()
            self._replicas.append(replica)
            self._ready(replica)
        for _ in range(min(num_calls, self._target * self._figures.calls)):
            self._take(load.rest(self._rng))

    def _advance(self, at_s: float) -> None:
        """Move the time on."""
        passed_s = at_s - self._at_s
        self._counts.replica_s += (len(self._replicas) + self._num_draining) * passed_s
        self._running_call_s += self._running_calls * passed_s
        self._at_s = at_s

    def _arrive(self, length_s: float) -> None:
        hour = int(self._at_s // HOUR_S) % 24
        self._counts.arrived_by_hour[hour] += 1
        if self._free:
            self._take(length_s)
        elif len(self._waiting) < self._rules.max_queued_requests:
            self._waiting.append(length_s)
        else:
            self._num_refused += 1
            self._counts.refused_by_hour[hour] += 1

    def _take(self, length_s: float) -> None:
        """Give a call a line: of two replicas with a free one, that with fewer calls."""
        free = self._free
        replica = free[int(self._rng.random() * len(free))]
        other = free[int(self._rng.random() * len(free))]
        if other.calls < replica.calls:
            replica = other
        replica.calls += 1
        self._calls += 1
        self._running_calls += 1
        self._changed_s = self._at_s
        self._counts.peak_calls = max(self._counts.peak_calls, self._calls)
        if replica.calls == self._figures.calls:
            self._set_full(replica)
        self._enter(length_s, _Kind.CALL_ENDS, replica)

    def _happen(self) -> None:
        """Let the next event happen."""
        _, _, kind, replica = heapq.heappop(self._events)
        if kind is _Kind.CALL_ENDS:
            self._end_call(replica)
        elif kind is _Kind.REPLICA_READY:
            if replica.state is _State.STARTING:
                self._ready(replica)
        elif replica.state is _State.DRAINING:
            self._counts.ended_by_drain += replica.calls
            self._calls -= replica.calls
            self._stopped(replica)

    def _end_call(self, replica: _Replica) -> None:
        if replica.state is _State.STOPPED:  # its drain has ended the call
            return
        replica.calls -= 1
        self._calls -= 1
        if replica.state is _State.DRAINING:
            if not replica.calls:
                self._stopped(replica)
            return
        self._running_calls -= 1
        self._changed_s = self._at_s
        if replica.free_at < 0:
            self._set_free(replica)

    def _tick(self) -> None:
        counts = self._counts
        num_alive = len(self._replicas) + self._num_draining
        counts.peak_replicas = max(counts.peak_replicas, num_alive)
        if self._rules.is_fixed:
            return
        window = self._window
        while len(window) > 1 and window[1][0] <= self._at_s - self._rules.look_back_period_s:
            window.popleft()
        average = float(self._running_calls)
        if window:
            begin_s, before = window[0]
            average = (self._running_call_s - before) / (self._at_s - begin_s)
        window.append((self._at_s, self._running_call_s))
        self._target = self._autoscaler.decide(average, self._target)
        for _ in range(self._target - len(self._replicas)):
            replica = _Replica()
            self._replicas.append(replica)
            self._enter(self._figures.start_s, _Kind.REPLICA_READY, replica)
        for _ in range(len(self._replicas) - self._target):
            self._remove()

    def _remove(self) -> None:
        """Remove a replica: one that starts where there is one, else the newest."""
        starting = (each for each in reversed(self._replicas) if each.state is _State.STARTING)
        replica = next(starting, self._replicas[-1])
        self._replicas.remove(replica)
        if replica.free_at >= 0:
            self._set_full(replica)
        self._running_calls -= replica.calls
        self._changed_s = self._at_s
        replica.state = _State.DRAINING
        self._num_draining += 1
        if replica.calls:
            self._enter(self._figures.drain_s, _Kind.DRAIN_ENDS, replica)
        else:
            self._stopped(replica)

    def _stopped(self, replica: _Replica) -> None:
        replica.state = _State.STOPPED
        self._num_draining -= 1

    def _ready(self, replica: _Replica) -> None:
        replica.state = _State.RUNNING
        self._set_free(replica)

    def _set_free(self, replica: _Replica) -> None:
        replica.free_at = len(self._free)
        self._free.append(replica)
        while self._waiting and self._free:
            self._take(self._waiting.popleft())

    def _set_full(self, replica: _Replica) -> None:
        """Take it off the list; the last one moves to its place."""
        last = self._free.pop()
        if last is not replica:
            self._free[replica.free_at] = last
            last.free_at = replica.free_at
        replica.free_at = -1

    def _enter(self, after_s: float, kind: _Kind, replica: _Replica) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (self._at_s + after_s, self._num_events, kind, replica))


def _poisson(mean: float, rng: random.Random) -> int:
    """Draw from a Poisson distribution: arrivals of rate 1 within this time."""
    number, at = 0, rng.expovariate(1.0)
    while at <= mean:
        number += 1
        at += rng.expovariate(1.0)
    return number
