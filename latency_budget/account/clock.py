"""Clocks: the only module that reads time.

Everything else takes `now_ns` as an argument or a `Clock` at construction, so that tests turn the
clock by hand and a recorded session replays exactly.

A `Deadline` is absolute: it is passed down the call chain and never restarted.
"""

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol

NS_PER_S: Final = 10**9


@dataclass(frozen=True, slots=True, order=True)
class Deadline:
    """A point on the session's monotonic clock by which something must have happened."""

    at_ns: int

    @classmethod
    def after_ms(cls, ms: float, *, now_ns: int) -> "Deadline":
        return cls(now_ns + round(ms * 1_000_000))


class Clock(Protocol):
    """Source of monotonic time. Any thread may call it."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds from an arbitrary origin."""
        ...


class SystemClock:
    """The machine's monotonic clock."""

    def now_ns(self) -> int:
        return time.monotonic_ns()


class ManualClock:
    """A clock that tests move. Not for use across threads."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        return self._now_ns

    def advance_ms(self, ms: float) -> None:
        """Move forward. Raises ValueError when asked to go back."""
        if ms < 0:
            raise ValueError(f"a monotonic clock does not go back ({ms} ms)")
        self._now_ns += round(ms * 1_000_000)


def unix_ns() -> int:
    """Wall-clock nanoseconds since 1970, for headers, log lines and ages of files only: never for
    durations."""
    return time.time_ns()


def processor_ns() -> int:
    """Processor time that this process has used, on all cores."""
    return time.process_time_ns()


def iso_of(unix_ns: int) -> str:
    """A wall time as ISO 8601 in UTC, to the millisecond."""
    return datetime.fromtimestamp(unix_ns / 1e9, UTC).isoformat(timespec="milliseconds")
