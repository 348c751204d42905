"""Export of finished turns and calls to a trace collector, in batches and with retries.

Theory of operation
-------------------
`add` puts a finished turn or call into a bounded queue and returns; its spans are made on the
thread of a `BackgroundWriter`, which wakes every EXPORT_EVERY_S and sends what has come, MAX_BATCH
at once.

A collector's failure affects no call. If the collector can't be reached, or asks for a retry, the
same batch is sent again after pauses that double; meanwhile the queue grows, and when it is full
the newest entries are dropped and counted. A batch that the collector rejects finally (OTLP: every
status but 429, 502, 503, 504) would be rejected again: it is counted, and the next batch is sent. A
collector that hangs blocks this thread and nothing else. `problem` has the reason until a batch
arrives again, for the readiness report and the metrics.

`close` sends the queue within a short time limit. A thread that still hangs then is abandoned.
"""

import logging
from collections.abc import Sequence
from typing import Final, Protocol

from latency_budget.storage.background_writer import BackgroundWriter, BoundedQueue

from .spans import Finished, SpanData, spans_of

EXPORT_EVERY_S: Final = 1.0
"""Maximum wait of a finished turn in seconds. A shorter wait makes more and smaller requests."""

MAX_BATCH: Final = 64
"""Turns in a request, with some ten spans each: about OpenTelemetry's default of 512 spans, and
some 200 kB."""

MAX_WAITING: Final = 4096
"""Capacity of the queue in turns, of some 2 kB each: half an hour of two turns a second."""

MAX_PAUSE_S: Final = 30.0
"""Maximum pause in seconds between two attempts at a collector that does not respond. A longer
pause would delay the detection of its return."""

MAX_ASKED_PAUSE_S: Final = 300.0
"""Upper limit in seconds of a collector's Retry-After."""

BATCH_PAUSE_S: Final = 0.1
"""Pause in seconds between two full batches. Encoding one keeps the interpreter busy for some 30
ms, and thousands of turns may wait when a collector returns: calls get the processor in between."""

CLOSING_PAUSE_S: Final = 0.2
"""Pause in seconds between two attempts while closing."""

CLOSE_TIMEOUT_S: Final = 3.0
"""Time limit in seconds of the export at shutdown. Supervisors kill the process after ten."""

_log = logging.getLogger(__name__)


class CollectorError(Exception):
    """A batch did not arrive. The message gives the reason, as a sentence without its full stop."""

    def __init__(self, message: str, *, is_final: bool = False, after_s: float = 0.0) -> None:
        """`is_final`: a retry would fail too. `after_s`: the pause in seconds that the collector
        asked for."""
        super().__init__(message)
        self.message = message
        self.is_final = is_final
        self.after_s = after_s


class Sender(Protocol):
    """Transport to a collector. Used by the exporter's thread only, except for `close`."""

    def send(self, spans: Sequence[SpanData]) -> None:
        """Send spans, and block until they arrived. Raises CollectorError if they did not."""
        ...

    def close(self) -> None:
        """Abort a request in progress. From any thread."""
        ...


class TraceExporter:
    """Batches finished turns and calls for a collector; owns the queue and the thread. Methods and
    figures may be used from any thread."""

    def __init__(self, sender: Sender) -> None:
        """`sender` is closed by `close`. Nothing is sent before `start`."""
        self.exported = 0
        """Turns and calls that arrived."""
        self.refused = 0
        """Turns and calls that the collector rejected finally."""
        self.failures = 0
        """Attempts that failed; the same batch counts each time."""
        self._sender = sender
        self._queue = BoundedQueue[Finished](MAX_WAITING)
        self._pause_s = EXPORT_EVERY_S
        self._writer = BackgroundWriter("trace-export", self._pass, recovered="traces arrive again")

    @property
    def problem(self) -> str | None:
        """Reason why traces do not arrive, as a sentence; None if they do."""
        if self._writer.problem is None and self._queue.is_full:
            return "the collector takes traces more slowly than they come"
        return self._writer.problem

    @property
    def dropped(self) -> int:
        """Turns and calls that were dropped because the queue was full."""
        return self._queue.dropped

    @property
    def waiting(self) -> int:
        """Turns and calls that have not arrived yet."""
        return len(self._queue)

    @property
    def peak_waiting(self) -> int:
        """Maximum number of turns and calls that waited at one time."""
        return int(self._queue.peak)

    def start(self) -> None:
        """Start the thread. Call it once."""
        self._writer.start()

    def add(self, finished: Finished) -> None:
        """Queue a turn or a call. Returns at once; a full queue drops it and counts it."""
        self._queue.put(finished)

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Send the queue now. Blocks for at most `timeout_s`; returns False if entries are left."""
        self._writer.flush(timeout_s)
        return not self.waiting

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Send the queue within `timeout_s`, then stop the thread. Blocks."""
        self._writer.close(timeout_s)
        self._sender.close()
        if self.waiting:
            _log.error("%d traces were not exported: %s", self.waiting, self._writer.problem)

    def _pass(self, is_closing: bool) -> float | None:
        """Send the queue until it is empty or an attempt fails that can be retried.

        Returns the pause in seconds before the next pass; None if closing is done.
        """
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
            except Exception as error:  # a fault of the server: it costs a batch, not the thread
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
