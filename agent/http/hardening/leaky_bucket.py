"""Leaky bucket: a rate a second and a burst.

Pure: time is an argument, in seconds on any clock that never goes back.
"""


class LeakyBucket:
    """Leaky bucket: drains at `per_s` a second, and holds up to `burst`."""

    __slots__ = ("_burst", "_level", "_per_s", "_then_s")

    def __init__(self, per_s: float, burst: float, now_s: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._level = 0.0
        self._then_s = now_s

    def fits(self, amount: float, now_s: float) -> bool:
        """True if this much could be taken now."""
        return self._leaked(now_s) + amount <= self._burst

    def take(self, amount: float, now_s: float) -> bool:
        """True if this much still fits, and is added. Otherwise nothing changes: trying too often
        does not prolong the wait."""
        level = self._leaked(now_s)
        if level + amount > self._burst:
            return False
        self._level = level + amount
        return True

    def add(self, amount: float, now_s: float) -> float:
        """Put this much in, whether it fits or not. Seconds until no more is in than fits."""
        self._level = self._leaked(now_s) + amount
        return max(0.0, (self._level - self._burst) / self._per_s)

    def _leaked(self, now_s: float) -> float:
        level = max(0.0, self._level - (now_s - self._then_s) * self._per_s)
        self._level, self._then_s = level, now_s
        return level
