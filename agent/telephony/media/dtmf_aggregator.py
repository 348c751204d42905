"""DTMF aggregator: single keys to one entry such as "1234".

An entry ends with the terminator, at its maximum length, or after a pause. A terminator that comes
shortly after the end of an entry, or twice, belongs to that entry; at any other time a terminator
alone is an entry, for agents say "press pound to go on". Pure: time is an argument.
"""

from typing import Final

MAX_KEYS: Final = 32
"""Keys of one entry: more than an account number has, few enough to bound memory."""

LATE_NS: Final = 3_000_000_000
"""Time after an entry in which a terminator belongs to it. A key in reply to the agent's answer
comes later: the answer has to be spoken first."""


class DtmfAggregator:
    """Aggregator of one call."""

    def __init__(self, *, pause_ms: int = 2000, terminator: str = "#") -> None:
        """`pause_ms`: pause that ends an entry. `terminator`: key that ends an entry and is no part
        of it; empty: none."""
        self._pause_ns = pause_ms * 1_000_000
        self._terminator = terminator
        self._keys = ""
        self._due_ns: int | None = None
        self._ended_ns: int | None = None
        """End of the previous entry."""

    def is_late_end(self, key: str, now_ns: int) -> bool:
        """True for a terminator of the previous entry, which is not to be passed to `press`."""
        is_end = key == self._terminator and not self._keys
        return is_end and self._ended_ns is not None and now_ns - self._ended_ns < LATE_NS

    def press(self, key: str, now_ns: int) -> str | None:
        """Add a key. Return the entry if the key ends it. A terminator alone is an entry."""
        if key == self._terminator:
            return self._take(now_ns) or key
        self._keys += key
        self._due_ns = now_ns + self._pause_ns
        return self._take(now_ns) if len(self._keys) >= MAX_KEYS else None

    def next_deadline_ns(self) -> int | None:
        """Time at which a pause ends the entry; None without an entry in progress."""
        return self._due_ns

    def on_timer(self, now_ns: int) -> str | None:
        """Return the entry if a pause has ended it."""
        if self._due_ns is None or now_ns < self._due_ns:
            return None
        return self._take(now_ns)

    def _take(self, now_ns: int) -> str:
        self._ended_ns = now_ns
        keys, self._keys, self._due_ns = self._keys, "", None
        return keys
