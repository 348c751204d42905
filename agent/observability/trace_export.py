"""Export of finished turns and calls to a trace collector, in batches and with retries.

Theory of operation
-------------------
`add` puts a finished turn or call into a bounded queue and returns; its spans are made on the
thread of a `BackgroundWriter`, which wakes every EXPORT_EVERY_S and sends what has come, MAX_BATCH
at once.

A collector harms no call. One that can't be reached, or asks to be tried later, is tried again with
the same batch after pauses that double; meanwhile the queue grows, and where it is full the newest
are dropped and counted. What a collector refuses for good (OTLP: every status but 429, 502, 503,
504) is refused again if it is sent again: it is counted, and the next batch is tried. One that
hangs holds up this thread and nothing else. `problem` has the reason until a batch arrives again,
for the readiness report and the metrics.

`close` gives what waits a short time to leave. A thread that hangs then is left behind.
"""

import logging
from collections.abc import Sequence
from typing import Final, Protocol

from latency_budget.storage.background_writer import BackgroundWriter, BoundedQueue

from .spans import Finished, SpanData, spans_of

EXPORT_EVERY_S: Final = 1.0
"""The longest that a finished turn waits for its export. Shorter makes more, smaller requests."""

MAX_BATCH: Final = 64
"""Turns, of some ten spans each: as many as OpenTelemetry's own 512 spans, and some 200 kB."""

MAX_WAITING: Final = 4096
"""Turns, at some 2 kB each: half an hour of two a second."""

MAX_PAUSE_S: Final = 30.0
"""Between two attempts at a collector that does not answer. Longer, and its return goes unseen."""

MAX_ASKED_PAUSE_S: Final = 300.0
"""The longest that a collector's Retry-After is obeyed."""

BATCH_PAUSE_S: Final = 0.1
"""Between two full batches. Making one keeps the interpreter busy for some 30 ms, and thousands may
wait when a collector comes back: calls get their share of the processor in between."""

CLOSING_PAUSE_S: Final = 0.2
"""Between two attempts while closing."""

CLOSE_TIMEOUT_S: Final = 3.0
"""What shutting down may wait for a collector. Supervisors kill after ten."""

_log = logging.getLogger(__name__)


class CollectorError(Exception):
    """A batch did not arrive. The message says why, as a sentence without its full stop."""

    def __init__(self, message: str, *, is_final: bool = False, after_s: float = 0.0) -> None:
        """`is_final`: it would not arrive another time either. `after_s`: the pause that the
        collector asked for."""
        super().__init__(message)
        self.message = message
        self.is_final = is_final
        self.after_s = after_s


class Sender(Protocol):
    """Transport to a collector. Used by the exporter's thread, but for `close`."""

    def send(self, spans: Sequence[SpanData]) -> None:
        """Blocks until they arrived. Raises CollectorError where they did not."""
        ...

    def close(self) -> None:
        """Give up what is under way. From any thread."""
        ...


class TraceExporter:
    """Batches finished turns and calls for a collector; owns the queue and the thread. Methods and
    figures may be used from any thread."""

    def __init__(self, sender: Sender) -> None:
        """Nothing is sent before `start`."""
        self.exported = 0
        """Turns and calls that arrived."""
        self.refused = 0
        """Turns and calls that the collector refused for good."""
        self.failures = 0
        """Attempts that failed; the same batch counts each time."""
        self._sender = sender
        self._queue = BoundedQueue[Finished](MAX_WAITING)
        self._pause_s = EXPORT_EVERY_S
        self._writer = BackgroundWriter("trace-export", self._pass, recovered="traces arrive again")

    @property
    def problem(self) -> str | None:
        """What keeps traces from arriving, as a sentence; None where nothing does."""
        if self._writer.problem is None and self._queue.is_full:
            return "the collector takes traces more slowly than they come"
        return self._writer.problem

    @property
    def dropped(self) -> int:
        """Turns and calls that found the queue full."""
        return self._queue.dropped

    @property
    def waiting(self) -> int:
        """Turns and calls that have not arrived yet."""
        return len(self._queue)

    @property
    def peak_waiting(self) -> int:
        """The most that ever waited at a time."""
        return int(self._queue.peak)

    def start(self) -> None:
        """Begin to send. Once."""
        self._writer.start()

    def add(self, finished: Finished) -> None:
        """Queue a turn or a call. Returns at once; a full queue drops and counts it."""
        self._queue.put(finished)

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Try now to send what was added before. Returns False where it has not arrived within the
        time. Blocks."""
        self._writer.flush(timeout_s)
        return not self.waiting

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Send what is left, as far as that goes within the time, and end. Blocks."""
        self._writer.close(timeout_s)
        self._sender.close()
        if self.waiting:
            _log.error("%d traces were not exported: %s", self.waiting, self._writer.problem)

    def _pass(self, is_closing: bool) -> float | None:
        """Send what waits, until an attempt fails that may succeed later."""
        while self._queue and not self._writer.is_abandoned:
            batch = self._queue.oldest(MAX_BATCH)
            try:
                self._sender.send([span for each in batch for span in spans_of(each)])
            except CollectorError as error:
                self.failures += 1
                self._writer.report(error.message)
                if not error.is_final:
                    longer_s = min(2 * self._pause_s, MAX_PAUSE_S)
                    self._pause_s = max(longer_s, min(error.after_s, MAX_ASKED_PAUSE_S))
                    return CLOSING_PAUSE_S if is_closing else self._pause_s
                self.refused += len(batch)
            except Exception as error:  # our own fault: it may cost a batch, not the thread
                self.failures += 1
                self.refused += len(batch)
                _log.exception("%d traces can't be exported", len(batch))
                self._writer.report(f"traces can't be exported: {error}")
            else:
                self.exported += len(batch)
                self._writer.report(None)
            self._pause_s = EXPORT_EVERY_S
            self._queue.drop_oldest(len(batch))
            if self._queue:
                self._writer.pause(BATCH_PAUSE_S)
        return None if is_closing else self._pause_s
