"""Circuit breaker: while a store does not answer, operations fail at once instead of waiting. Pure.

Theory of operation. An operation on a store that hangs (a suspended Redis, a network that drops
packets) costs its whole time limit. A carrier's webhook makes three, one after the other, and
carriers wait 5 s for it. So the first that fails only after `SLOW_NS` opens the breaker: for
`PAUSE_NS` all others fail at once. Then one is let through, on trial; while it waits, the others
still fail at once. Any answer closes the breaker.

A failure that comes at once (a refused connection) costs nothing: it leaves the breaker closed, and
a store that is back is used with the next operation.
"""

from typing import Final

SLOW_NS: Final = 500_000_000
"""Least duration of a failure that opens the breaker. Shorter: a slow refusal counts as a hang.
Longer: as many operations in a row may cost that much each."""

PAUSE_NS: Final = 1_000_000_000
"""Time for which no operation is tried. Shorter: a webhook's next operation, which follows within
milliseconds, may be the trial and wait again. Longer: a store that is back is used later; calls
record their state anew at most 2 s after that anyway (`agent/calls/state_writer.py`)."""


class CircuitBreaker:
    """State of one store. Each admitted operation ends with `answered`, `failed` or `abandoned`."""

    def __init__(self) -> None:
        self._open_until_ns: int | None = None
        """None: closed."""
        self._on_trial = False
        """An operation is on its way although the breaker is open."""

    def admits(self, now_ns: int) -> bool:
        """True if an operation may begin now. False: it fails."""
        if self._open_until_ns is None:
            return True
        if self._on_trial or now_ns < self._open_until_ns:
            return False
        self._on_trial = True
        return True

    def answered(self) -> None:
        """The store has answered an operation."""
        self._open_until_ns = None
        self._on_trial = False

    def failed(self, began_ns: int, now_ns: int) -> None:
        """The store has not answered an operation that began at `began_ns`."""
        is_slow = now_ns - began_ns >= SLOW_NS
        self._open_until_ns = now_ns + PAUSE_NS if is_slow else None
        self._on_trial = False

    def abandoned(self) -> None:
        """An operation was cancelled: nothing is known of the store."""
        self._on_trial = False
