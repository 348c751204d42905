"""Server log: format, and a rate limit of repeated messages."""

import logging
from collections import Counter
from typing import Final

_MAX_MESSAGES: Final = 64
"""Number of different messages that are counted. The web server has a dozen."""

_COUNT_S: Final = 600
"""Period in seconds after which counting starts again, so that an operator who looks for a mistake
finds it in the log."""

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


def log_to_stderr(level: str) -> None:
    """Log to stderr: halfsec's packages from `level` on, libraries from WARNING on."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    for package in PACKAGES:
        logging.getLogger(package).setLevel(level.upper())
    for module in _TELL_OF_STRANGERS:
        logging.getLogger(module).addFilter(SELDOM)
