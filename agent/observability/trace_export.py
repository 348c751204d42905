"""Traces on their way to a collector: a bounded queue, and a thread that empties it.

Theory of operation
-------------------
`add` puts a finished turn or call into the queue and returns; what a backend is shown of it is made
on the thread, which wakes every EXPORT_EVERY_S and sends what has come, MAX_BATCH at once.

A collector harms no call. One that can't be reached, or asks for patience, is tried again, less and
less often, with the same batch; meanwhile the queue grows, and where it is full the newest are
dropped and counted. What a collector refuses for good (OTLP: every status but 429, 502, 503, 504)
is refused again if it is sent again: it is counted, and the next batch is tried. One that hangs
holds up this thread and nothing else. `problem` says what is wrong, for whoever reports how the
service is, until something has arrived again.

`close` gives what waits a short time to leave. A thread that hangs then is left behind.
"""

import logging
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from .spans import Finished, SpanData, spans_of

EXPORT_EVERY_S: Final = 1.0
"""A trace is seen so soon. Shorter makes more requests of fewer turns."""

MAX_BATCH: Final = 64
"""Turns, of some ten spans each: as many as OpenTelemetry's own 512 spans, and some 200 kB."""

MAX_WAITING: Final = 4096
"""Turns, at some 2 kB each: half an hour of two a second."""

MAX_PAUSE_S: Final = 30.0
"""Between two attempts at a collector that does not answer. Longer, and its return goes unseen."""

MAX_ASKED_PAUSE_S: Final = 300.0
"""The longest that a collector's Retry-After is obeyed."""

BREATH_S: Final = 0.1
"""Between two full batches. Making one keeps the interpreter busy for some 30 ms, and thousands may
wait when a collector comes back: calls are to get their share of it."""

CLOSING_PAUSE_S: Final = 0.2

CLOSE_TIMEOUT_S: Final = 3.0
"""What shutting down may wait for a collector. Supervisors kill after ten."""

_log = logging.getLogger(__name__)


class CollectorError(Exception):
    """A batch did not arrive. The message says why, as a sentence without its full stop."""

    def __init__(self, message: str, *, is_final: bool = False, after_s: float = 0.0) -> None:
        """`is_final`: it would not arrive another time either. `after_s`: the collector asked not
        to be tried before."""
        super().__init__(message)
        self.message = message
        self.is_final = is_final
        self.after_s = after_s


class Sender(Protocol):
    """The way to a collector. Belongs to the thread that sends, but for `close`."""

    def send(self, spans: Sequence[SpanData]) -> None:
        """Blocks until they arrived. Raises CollectorError where they did not."""
        ...

    def close(self) -> None:
        """Give up what is under way. From any thread."""
        ...


class TraceExporter:
    """Owns the queue and the thread. Its methods and figures belong to any thread."""

    def __init__(self, sender: Sender) -> None:
        """Nothing is sent before `start`."""
        self.exported = 0
        """Turns and calls that arrived."""
        self.dropped = 0
        """That found the queue full."""
        self.refused = 0
        """That the collector would not take."""
        self.failures = 0
        """Attempts that failed; the same batch counts each time."""
        self._sender = sender
        self._waiting: deque[Finished] = deque()
        self._problem: str | None = None
        self._pause_s = EXPORT_EVERY_S
        self._is_closing = False
        self._is_closed = False
        self._asked = threading.Event()
        self._done = threading.Condition()
        self._num_passes = 0
        self._thread = threading.Thread(target=self._run, name="trace-export", daemon=True)

    @property
    def problem(self) -> str | None:
        """What keeps traces from arriving, in words; None where nothing does."""
        if self._problem is None and len(self._waiting) >= MAX_WAITING:
            return "the collector takes traces more slowly than they come"
        return self._problem

    @property
    def waiting(self) -> int:
        """Turns and calls that have not arrived yet."""
        return len(self._waiting)

    def start(self) -> None:
        """Begin to send. Once."""
        self._thread.start()

    def add(self, finished: Finished) -> None:
        """Send this. Returns at once; where the queue is full it is dropped and counted."""
        if len(self._waiting) >= MAX_WAITING:
            self.dropped += 1
        else:
            self._waiting.append(finished)

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Try now to send what was added before. False where it has not arrived within the time.
        Blocks."""
        with self._done:
            wanted = self._num_passes + 2  # a pass that is under way may have missed the newest
            self._done.wait_for(
                lambda: self._again(wanted) or not self._thread.is_alive(), timeout_s
            )
        return not self._waiting

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Send what is left, as far as that goes within the time, and end. Blocks."""
        self._is_closing = True
        self._asked.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._is_closed = True
        self._asked.set()
        self._sender.close()
        if self._waiting:
            _log.error("%d traces were not exported: %s", len(self._waiting), self._problem)

    def _again(self, wanted: int) -> bool:
        """Whether enough passes are over; asks for another where they are not."""
        if self._num_passes < wanted:
            self._asked.set()
        return self._num_passes >= wanted

    def _run(self) -> None:
        while not self._is_closed and not (self._is_closing and not self._waiting):
            self._asked.wait(CLOSING_PAUSE_S if self._is_closing else self._pause_s)
            self._asked.clear()
            self._pass()
            with self._done:
                self._num_passes += 1
                self._done.notify_all()

    def _pass(self) -> None:
        """Send what waits, until something goes wrong that may pass."""
        while self._waiting and not self._is_closed:
            # Another thread appends meanwhile, so that the deque can't be walked.
            number = min(len(self._waiting), MAX_BATCH)
            batch = [self._waiting[place] for place in range(number)]
            try:
                self._sender.send([span for each in batch for span in spans_of(each)])
            except CollectorError as error:
                self.failures += 1
                self._say(error.message)
                if not error.is_final:
                    longer_s = min(2 * self._pause_s, MAX_PAUSE_S)
                    self._pause_s = max(longer_s, min(error.after_s, MAX_ASKED_PAUSE_S))
                    return
                self.refused += number
            except Exception as error:  # our own fault: it may cost a batch, not the thread
                self.failures += 1
                self.refused += number
                _log.exception("%d traces can't be exported", number)
                self._say(f"traces can't be exported: {error}")
            else:
                self.exported += number
                self._say(None)
            self._pause_s = EXPORT_EVERY_S
            for _ in range(number):
                self._waiting.popleft()
            if self._waiting:
                self._asked.wait(BREATH_S)  # at once where somebody wants them gone

    def _say(self, problem: str | None) -> None:
        """Once for each change."""
        if problem is not None and problem != self._problem:
            _log.error("%s", problem)
        elif problem is None and self._problem is not None:
            _log.warning("traces arrive again")
        self._problem = problem
