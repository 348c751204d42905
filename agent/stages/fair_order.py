"""Order of a stage's jobs by caller: one with many jobs delays another by one of them.

Start-time fair queuing (Goyal, Vin and Cheng, 1996) for one server whose jobs' durations are known
afterwards. Each job has a start tag, in seconds of work: the later of the virtual time, which is
the tag of the job in service, and the end of its caller's job before. Jobs are served by tag. So a
caller who speaks twenty times as fast as people do waits behind itself: the tags of its recognizer
passes run ahead of the virtual time, and those of others do not. A stage that is idle owes nothing:
what a caller used while nobody else waited is not held against it.
"""

import threading
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

FIRST_GUESS_S: Final = 0.05
"""Duration of a caller's first job, until one is known."""

MAX_CALLERS: Final = 1024
"""Callers that are remembered before those without debt are forgotten."""


@dataclass(slots=True)
class _Caller:
    ends: float = 0.0
    """End of its last job, in virtual time."""
    guess_s: float = FIRST_GUESS_S
    """Duration of its last job."""


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """Place of one job."""

    tag: float
    """Start tag: the smaller one is served first."""
    caller: Hashable
    guess_s: float
    """Duration that was counted for it."""


class FairOrder:
    """Fair queue order of one stage's jobs, by caller. Thread-safe."""

    def __init__(self) -> None:
        self._now = 0.0
        """Virtual time."""
        self._open: set[Ticket] = set()
        """Jobs that wait or run."""
        self._callers: dict[Hashable, _Caller] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Callers that are remembered."""
        return len(self._callers)

    def queued(self, caller: Hashable) -> Ticket:
        """Place of a new job of this caller."""
        with self._lock:
            state = self._callers.get(caller)
            if state is None:
                self._forget()
                state = self._callers[caller] = _Caller()
            tag = max(self._now, state.ends)
            state.ends = tag + state.guess_s
            ticket = Ticket(tag, caller, state.guess_s)
            self._open.add(ticket)
            return ticket

    def begun(self, ticket: Ticket) -> None:
        """A job begins."""
        with self._lock:
            self._now = max(self._now, ticket.tag)

    def done(self, ticket: Ticket, took_s: float | None) -> None:
        """A job is over. `took_s`: None where it did not run. Does nothing the second time."""
        with self._lock:
            if ticket not in self._open:
                return
            self._open.remove(ticket)
            state = self._callers.get(ticket.caller)
            if state is not None:
                state.ends += (took_s or 0.0) - ticket.guess_s
                state.guess_s = state.guess_s if took_s is None else took_s
            if not self._open:
                self._callers.clear()  # idle: nobody owes anything

    def _forget(self) -> None:
        if len(self._callers) >= MAX_CALLERS:
            self._callers = {
                caller: state for caller, state in self._callers.items() if state.ends > self._now
            }
