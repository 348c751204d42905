"""Lossy line: which packets are lost on their way, and when the others arrive. Pure.

`LineQuality` is shared: the simulated carrier delays frames that keep their order, since a stream
carries them (`simulated_carrier.py`); here they are datagrams of their own. Each has a delay of its
own, uniform up to `jitter_ms`, and overtakes earlier ones whose delay is longer, as with Linux's
`tc netem delay`. Most networks reorder less: their jitter comes of queues. With 60 ms and a packet
each 20 ms every second packet or so overtakes another, so what waits for packets in order is
tested harder than by them.
"""

import random
from dataclasses import dataclass
from typing import Final

NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class LineQuality:
    """Quality of the path of a caller's packets."""

    name: str
    loss: float = 0.0
    """Share of the packets that are lost, 0..1, each by itself."""
    jitter_ms: float = 0.0
    """Greatest delay of a packet in ms."""


class DatagramPath:
    """One direction of a line. The same seed loses the same packets, whatever the jitter is, and a
    line with more loss loses these and others."""

    def __init__(self, line: LineQuality, seed: int | str) -> None:
        self.num_packets = 0
        self.num_lost = 0
        self.num_overtaken = 0
        """Packets that arrive after one that was sent later."""
        self._line = line
        self._random = random.Random(seed)
        self._in_flight: list[int] = []
        """Arrivals of packets that were sent, in order of sending; those that have arrived go."""

    def arrival_ns(self, now_ns: int) -> int | None:
        """Arrival of a packet that is sent now; None: it is lost. Called in order of time."""
        chance, share = self._random.random(), self._random.random()
        self.num_packets += 1
        if chance < self._line.loss:
            self.num_lost += 1
            return None
        due_ns = now_ns + round(share * self._line.jitter_ms * NS_PER_MS)
        self._in_flight = [other for other in self._in_flight if other > now_ns]
        overtaken = [other for other in self._in_flight if other > due_ns]
        self.num_overtaken += len(overtaken)
        self._in_flight = [other for other in self._in_flight if other <= due_ns] + [due_ns]
        return due_ns
