"""Server log: format, a rate limit of repeated messages, and lines that can't be written."""

import contextlib
import logging
import sys
from collections import Counter
from typing import Final, TextIO

_MAX_MESSAGES: Final = 64
"""Number of different messages that are counted. The web server has a dozen."""

_COUNT_S: Final = 600
"""Period in seconds after which counting starts again, so that an operator who looks for a mistake
finds it in the log."""

FAILURE_EVERY_S: Final = 60
"""Shortest interval in seconds between two lines about lines that can't be written. A full disk
refuses each of them; one line says it, and the next minute whether it lasts."""

_TELL_OF_STRANGERS: Final = (
    "agent.telephony.signatures",
    "agent.telephony.endpoint",
    "agent.telephony.webhooks",
)
"""Modules that log unauthenticated input: carriers' webhooks and streams."""


PACKAGES: Final = ("agent", "asr", "llm_engine", "tts", "latency_budget")
"""halfsec's own packages."""


class Seldom(logging.Filter):
    """Log filter that passes a warning at its 1st, 2nd, 4th, 8th ... occurrence in ten minutes.

    For loggers that unauthenticated peers can trigger. Records with a traceback always pass: they
    are faults of the server.
    """

    def __init__(self) -> None:
        super().__init__()
        self._numbers: Counter[str] = Counter()
        self._since_s = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info or record.levelno < logging.WARNING:
            return True
        text = record.getMessage()
        if "without completing handshake" in text:
            return False  # uvicorn logs it also for a WebSocket refused with a status
        if len(self._numbers) >= _MAX_MESSAGES or record.created - self._since_s >= _COUNT_S:
            self._numbers.clear()
            self._since_s = record.created
        self._numbers[text] += 1
        number = self._numbers[text]
        if number > 1:
            record.msg, record.args = f"{text} ({number} in ten minutes)", ()
        return number & (number - 1) == 0


SELDOM: Final = Seldom()


class LogHandler(logging.StreamHandler[TextIO]):
    """Handler of the server log on stderr, which may be a file on a full disk. For what it can't
    write it says one line a minute at most, on the same stream, where Python's own handlers print
    two tracebacks for each."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """`stream`: stderr where it is None."""
        super().__init__(stream)
        self.num_failed = 0
        """Lines that could not be written."""
        self._told_s: float | None = None

    def handleError(self, record: logging.LogRecord) -> None:
        """Count a line that could not be written, and say so where that is due."""
        error = sys.exc_info()[1]
        self.num_failed += 1
        told_s = self._told_s
        if told_s is not None and 0 <= record.created - told_s < FAILURE_EVERY_S:
            return
        self._told_s = record.created
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        line = (
            f"Lines of the log can't be written ({self.num_failed} so far), the last one from"
            f" {record.pathname}:{record.lineno}: {reason}"
        )
        with contextlib.suppress(OSError, ValueError):  # as full as before, or closed
            self.stream.write(f"{line}{self.terminator}")
            self.flush()


def log_to_stderr(level: str) -> None:
    """Log to stderr: halfsec's packages from `level` on, libraries from WARNING on."""
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(message)s",
        level=logging.WARNING,
        handlers=[LogHandler()],
    )
    logging.raiseExceptions = False  # handlers of libraries print no traceback either
    for package in PACKAGES:
        logging.getLogger(package).setLevel(level.upper())
    for module in _TELL_OF_STRANGERS:
        logging.getLogger(module).addFilter(SELDOM)
