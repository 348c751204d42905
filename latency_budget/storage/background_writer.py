"""A bounded queue and the thread that empties it: how turns, traces and recordings leave a call.

Theory of operation
-------------------
The event loop must never wait for a disk or a collector. `BoundedQueue.put` costs a lock and an
append, and returns at once. `BackgroundWriter` owns a thread that runs one function, the pass,
repeatedly: the pass takes what waits and writes it, and returns how long to pause before the next.

Overflow policy: the newest entry is dropped and counted, because the oldest ones are those that the
pass is already working on, and because what is stored then has one gap and not many. A queue
reports its depth and its peak.

Errors: a pass handles those it expects and reports them with `report`, which logs once for each
change and keeps the text as `problem`. What it does not expect is logged with its traceback the
first time, counted in `failures`, and the pass runs again after `RETRY_S`: the thread ends with
`close` and for no other reason.

Used by the turn store (`TurnStore`), and by the trace exporter, the call recorder and the webhooks
of the agent. Three of them had a thread of their own each, alike but for the end:
`logging.handlers.QueueListener` and `ThreadPoolExecutor` of the standard library have neither a
bound with a drop policy, nor batches, nor a flush, nor an end with a time limit.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

Entry = TypeVar("Entry")

RETRY_S: Final = 1.0
"""The pause after an error that the pass did not expect. Shorter, and an error that stays keeps the
processor busy; longer, and more waits in the queue."""

_log = logging.getLogger(__name__)


class BoundedQueue(Generic[Entry]):
    """A first-in-first-out queue with an upper bound; an entry that does not fit is dropped and
    counted. Any thread may put; one thread takes."""

    def __init__(self, max_depth: float) -> None:
        """`max_depth`: the largest sum of the entries' costs, in any unit. At a cost of 1 each it
        is the number of entries."""
        self.dropped = 0
        """Entries that found the queue full."""
        self.dropped_cost = 0.0
        """The sum of their costs."""
        self._max_depth = max_depth
        self._entries: deque[tuple[Entry, float]] = deque()
        self._depth = 0.0
        self._peak = 0.0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def depth(self) -> float:
        """The sum of the costs of the entries that wait."""
        return self._depth

    @property
    def peak(self) -> float:
        """The largest depth so far."""
        return self._peak

    @property
    def is_full(self) -> bool:
        """True where an entry of cost 1 would be dropped."""
        return self._depth + 1 > self._max_depth

    def put(self, entry: Entry, cost: float = 1.0) -> bool:
        """Append an entry. Returns False where it was dropped."""
        with self._lock:
            if self._depth + cost > self._max_depth:
                self.dropped += 1
                self.dropped_cost += cost
                return False
            self._entries.append((entry, cost))
            self._depth += cost
            self._peak = max(self._peak, self._depth)
            return True

    def oldest(self, max_entries: int) -> list[Entry]:
        """Up to so many entries, oldest first. They stay in the queue until `drop_oldest`."""
        # Other threads append meanwhile, so that the deque can't be iterated.
        return [self._entries[place][0] for place in range(min(len(self._entries), max_entries))]

    def drop_oldest(self, num_entries: int) -> None:
        """Remove entries that are dealt with."""
        with self._lock:
            for _ in range(num_entries):
                _, cost = self._entries.popleft()
                # An empty queue has depth 0 exactly: sums of fractions drift.
                self._depth = self._depth - cost if self._entries else 0.0


class BackgroundWriter:
    """A thread that runs a pass repeatedly, until `close`. All methods may be called from any
    thread; `report` belongs to the pass."""

    def __init__(
        self,
        name: str,
        run_pass: Callable[[bool], float | None],
        *,
        recovered: str,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """Nothing runs before `start`.

        `name`: of the thread. `run_pass(is_closing)` writes what waits and returns the seconds
        until the next pass; None, which counts only when closing, ends the thread. `recovered`: the
        line that is logged when a problem is over. `on_end` runs on the thread after the last pass.
        """
        self.failures = 0
        """Passes that ended with an error that they did not expect."""
        self._name = name
        self._run_pass = run_pass
        self._recovered = recovered
        self._on_end = on_end
        self._problem: str | None = None
        self._is_closing = False
        self._is_abandoned = False
        self._wake = threading.Event()
        self._pass_over = threading.Condition()
        self._num_passes = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def problem(self) -> str | None:
        """Reason why the pass can't write, as a sentence; None: it can."""
        return self._problem

    @property
    def is_abandoned(self) -> bool:
        """True once `close` has stopped waiting: the pass writes no more."""
        return self._is_abandoned

    def start(self) -> None:
        """Start the thread and run a pass. Once."""
        self._thread.start()

    def wake(self) -> None:
        """Run a pass now instead of at the end of the pause."""
        self._wake.set()

    def pause(self, seconds: float) -> None:
        """Pause within a pass; `wake`, `flush` and `close` end it."""
        self._wake.wait(seconds)

    def flush(self, timeout_s: float) -> None:
        """Return when a pass that began after this call is over, at the latest after `timeout_s`.
        Blocks."""
        with self._pass_over:
            wanted = self._num_passes + 2  # a pass that is under way may have missed the newest
            self._pass_over.wait_for(
                lambda: self._has_passed(wanted) or not self._thread.is_alive(), timeout_s
            )

    def close(self, timeout_s: float) -> None:
        """End the thread after its last pass. One that hangs longer is left behind. Blocks."""
        self._is_closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._is_abandoned = True
        self._wake.set()

    def report(self, problem: str | None) -> None:
        """Set `problem`, and log it once for each change."""
        if problem is not None and problem != self._problem:
            _log.error("%s", problem)
        elif problem is None and self._problem is not None:
            _log.warning("%s", self._recovered)
        self._problem = problem

    def _has_passed(self, wanted: int) -> bool:
        """True after so many passes; wakes the thread for another where they are fewer."""
        if self._num_passes < wanted:
            self._wake.set()
        return self._num_passes >= wanted

    def _run(self) -> None:
        is_over = False
        while not is_over:
            is_closing = self._is_closing
            pause_s = self._guarded_pass(is_closing)
            with self._pass_over:
                self._num_passes += 1
                self._pass_over.notify_all()
            is_over = self._is_abandoned or (is_closing and pause_s is None)
            if not is_over:
                self._wake.wait(pause_s)
                self._wake.clear()
        if self._on_end is not None:
            self._on_end()

    def _guarded_pass(self, is_closing: bool) -> float | None:
        try:
            return self._run_pass(is_closing)
        except Exception as error:  # our own fault: it may cost a pass, never the thread
            self.failures += 1
            problem = f"{self._name}: a write failed: {error!r}; it is tried again"
            if problem != self._problem:
                _log.exception("%s", problem)
            self._problem = problem
            return None if is_closing else RETRY_S
