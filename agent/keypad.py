"""Keys that a caller presses, gathered to what he entered: "1234".

An entry ends with the terminator, at its largest length, or when no key has come for a while. Pure:
whoever uses it says what time it is.
"""

from typing import Final

MAX_KEYS: Final = 32
"""Of one entry: longer than an account number, shorter than an attack."""


class Keypad:
    """Of one call."""

    def __init__(self, *, pause_ms: int = 2000, terminator: str = "#") -> None:
        """`terminator`: the key that ends an entry and is no part of it; empty: none."""
        self._pause_ns = pause_ms * 1_000_000
        self._terminator = terminator
        self._keys = ""
        self._due_ns: int | None = None

    def press(self, key: str, now_ns: int) -> str | None:
        """What was entered, if this key ends it. A terminator alone is an entry of its own."""
        if key == self._terminator:
            return self._take() or key
        self._keys += key
        self._due_ns = now_ns + self._pause_ns
        return self._take() if len(self._keys) >= MAX_KEYS else None

    def next_deadline_ns(self) -> int | None:
        """When an entry is over though no key says so; None where none has begun."""
        return self._due_ns

    def on_timer(self, now_ns: int) -> str | None:
        """What was entered, if its time is up."""
        if self._due_ns is None or now_ns < self._due_ns:
            return None
        return self._take()

    def _take(self) -> str:
        keys, self._keys, self._due_ns = self._keys, "", None
        return keys
