"""Absolute deadlines, which are passed down the call chain and never restarted."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Deadline:
    """A point on the session's monotonic clock by which something must have happened."""

    at_ns: int

    @classmethod
    def after_ms(cls, ms: float, *, now_ns: int) -> "Deadline":
        return cls(now_ns + round(ms * 1_000_000))

    def remaining_ns(self, now_ns: int) -> int:
        """Time left in ns; negative once the deadline has passed."""
        return self.at_ns - now_ns

    def passed(self, now_ns: int) -> bool:
        return now_ns >= self.at_ns
