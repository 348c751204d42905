"""DTMF aggregator: single keys to one entry such as "1234".

An entry ends with the terminator, at its largest length, or when no key has come for a while. Who
presses the terminator a little too late, or twice, means the entry that is over; at any other time
a terminator alone is an entry, for agents say "press pound to go on". Pure: whoever uses it says
what time it is.
"""

from typing import Final

MAX_KEYS: Final = 32
"""Of one entry: longer than an account number, shorter than an attack."""

LATE_NS: Final = 3_000_000_000
"""Behind an entry. An answer to what was said about it takes longer: that has to be said first."""


class Keypad:
    """Of one call."""

    def __init__(self, *, pause_ms: int = 2000, terminator: str = "#") -> None:
        """`terminator`: the key that ends an entry and is no part of it; empty: none."""
        self._pause_ns = pause_ms * 1_000_000
        self._terminator = terminator
        self._keys = ""
        self._due_ns: int | None = None
        self._ended_ns: int | None = None
        """The entry before."""

    def is_late_end(self, key: str, now_ns: int) -> bool:
        """Whether this key ends what is over already, so that it is none to `press`."""
        is_end = key == self._terminator and not self._keys
        return is_end and self._ended_ns is not None and now_ns - self._ended_ns < LATE_NS

    def press(self, key: str, now_ns: int) -> str | None:
        """What was entered, if this key ends it. A terminator alone is an entry of its own."""
        if key == self._terminator:
            return self._take(now_ns) or key
        self._keys += key
        self._due_ns = now_ns + self._pause_ns
        return self._take(now_ns) if len(self._keys) >= MAX_KEYS else None

    def next_deadline_ns(self) -> int | None:
        """When an entry is over though no key says so; None where none has begun."""
        return self._due_ns

    def on_timer(self, now_ns: int) -> str | None:
        """What was entered, if its time is up."""
        if self._due_ns is None or now_ns < self._due_ns:
            return None
        return self._take(now_ns)

    def _take(self, now_ns: int) -> str:
        self._ended_ns = now_ns
        keys, self._keys, self._due_ns = self._keys, "", None
        return keys
