"""Circuit breaker: while a store does not answer, operations fail at once instead of waiting. Pure.

Theory of operation. An operation on a store that hangs (a suspended Redis, a network that drops
packets) costs its whole time limit. A carrier's webhook makes three, one after the other, and
carriers wait 5 s for it. So the first that fails only after `SLOW_NS` opens the breaker: for
`PAUSE_NS` all others fail at once. Then one is let through, on trial; while it waits, the others
still fail at once. Its answer closes the breaker.

Ends of operations that began before the breaker last opened or closed count nothing: they tell of
the store as it was. Such a one that fails late would open the breaker on a store that has answered
since, and its end beside a trial would let a second one wait.

A failure that comes at once (a refused connection) costs nothing: it leaves the breaker closed, and
a store that is back is used with the next operation.
"""

from dataclasses import dataclass
from typing import Final

SLOW_NS: Final = 500_000_000
"""Least duration of a failure that opens the breaker. Shorter: a slow refusal counts as a hang.
Longer: as many operations in a row may cost that much each."""

PAUSE_NS: Final = 1_000_000_000
"""Time for which no operation is tried. Shorter: a webhook's next operation, which follows within
milliseconds, may be the trial and wait again. Longer: a store that is back is used later; calls
record their state anew at most 2 s after that anyway (`agent/calls/state_writer.py`)."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation that was admitted."""

    began_ns: int
    num_changes: int
    """How often the breaker had opened or closed when it began."""


class CircuitBreaker:
    """State of one store. Each admitted operation ends with `answered`, `failed` or `abandoned`."""

    def __init__(self) -> None:
        self._open_until_ns: int | None = None
        """None: closed."""
        self._on_trial = False
        """An operation is on its way although the breaker is open."""
        self._num_changes = 0

    def admit(self, now_ns: int) -> Operation | None:
        """The operation that may begin now. None: it fails."""
        if self._open_until_ns is not None:
            if self._on_trial or now_ns < self._open_until_ns:
                return None
            self._on_trial = True
        return Operation(now_ns, self._num_changes)

    def answered(self, operation: Operation) -> None:
        """The store has answered an operation."""
        if self._counts(operation) and self._open_until_ns is not None:
            self._change(None)

    def failed(self, operation: Operation, now_ns: int) -> None:
        """The store has not answered an operation."""
        if not self._counts(operation):
            return
        if now_ns - operation.began_ns >= SLOW_NS:
            self._change(now_ns + PAUSE_NS)
        elif self._open_until_ns is not None:
            self._change(None)

    def abandoned(self, operation: Operation) -> None:
        """An operation was cancelled: nothing is known of the store."""
        if self._counts(operation):
            self._on_trial = False

    def _counts(self, operation: Operation) -> bool:
        """True if the breaker has neither opened nor closed since it began: while it is open, for
        the trial alone."""
        return operation.num_changes == self._num_changes

    def _change(self, open_until_ns: int | None) -> None:
        self._open_until_ns = open_until_ns
        self._on_trial = False
        self._num_changes += 1
