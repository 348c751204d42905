"""Check of a client's playback reports against what the server has sent and when.

Theory of operation. A client reports samples, never times: "so much of this reply has come out of
the loudspeaker". With the time at which the report arrives, each one implies when the reply was
first heard: as long ago as it has been audible since. The client's clock is not involved, so that
it may jump. A report that was held up on its way implies a later time and none an earlier one, so
the earliest of the first second is the best of them. After that a sound card that runs fast would
pull it forward: two per cent are 20 ms a second.

The network's delay needs no estimate. The caller's speech came the same way, and its last voiced
sample was placed by its arrival: the delay is in both ends of the wait.

An impossible report is not adjusted until it fits. It is rejected, and with it all reports of this
reply: more than was sent, more than can have been played since it was sent, less than before.
"""

from collections.abc import Sequence
from typing import Final

from latency_budget.account.marks import MarkName
from latency_budget.account.turn_record import NS_PER_MS

SLACK_NS: Final = 50_000_000
"""Tolerance of reports, in either direction. Clients resample and count in blocks of 10 to 20 ms; a
fast sound card gains 1 ms in 10 s. Lower doubts honest ones, higher lets e2e be wrong by that
much."""

TRUSTED_NS: Final = 1_000_000_000
"""First part of a reply whose reports are used: later ones say nothing new about its beginning."""

STEP_NS: Final = 1_000_000
"""Smallest improvement that is recorded as a mark."""

MAX_MARKS: Final = 16
"""Limit of marks for one reply: more than the reports of its first second, and few for a client
that sends a thousand."""

Marks = Sequence[tuple[MarkName, int]]


class PlaybackReportCheck:
    """Check of the reports of one response. Pure: reads no clock."""

    def __init__(self) -> None:
        self._released: tuple[int, int] | None = None
        """The first audible sample, as ns from the reply's start, and when it left."""
        self._played_ns = 0
        """The most that was claimed."""
        self._heard_ns: int | None = None
        self._num_marks = 0
        self._is_doubted = False
        self._is_closed = False

    def released(self, offset_ns: int, at_ns: int) -> None:
        """The first audible sample, `offset_ns` from the reply's start, has left."""
        self._released = offset_ns, at_ns

    def claim(self, played_ms: int, sent_ns: int, now_ns: int) -> Marks:
        """The client says that it has played so much of what has a length of `sent_ns` by now.
        Returns what is to be marked."""
        if self._is_doubted or self._is_closed:
            return ()
        played_ns = played_ms * NS_PER_MS
        if not self._played_ns - SLACK_NS <= played_ns <= sent_ns + SLACK_NS:
            return self._doubt(now_ns)
        self._played_ns = max(self._played_ns, played_ns)
        if self._released is None or played_ns < self._released[0]:
            return ()  # of the silence before it
        offset_ns, released_ns = self._released
        heard_ns = now_ns - (played_ns - offset_ns)
        if heard_ns < released_ns - SLACK_NS:
            return self._doubt(now_ns)
        return self._heard(max(heard_ns, released_ns), played_ns - offset_ns)

    def close(self) -> None:
        """The client's connection is lost. What it reports by another one comes too late to say
        when that was played."""
        self._is_closed = True

    def _heard(self, at_ns: int, since_ns: int) -> Marks:
        known_ns = self._heard_ns
        if known_ns is not None and (at_ns > known_ns - STEP_NS or since_ns > TRUSTED_NS):
            return ()
        if self._num_marks == MAX_MARKS:
            return ()
        self._num_marks += 1
        self._heard_ns = at_ns
        return ((MarkName.HEARD, at_ns),)

    def _doubt(self, now_ns: int) -> Marks:
        self._is_doubted = True
        return ((MarkName.HEARD_DOUBTED, now_ns),)
