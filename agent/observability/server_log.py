"""Server log: format, and a rate limit of repeated messages."""

import logging
from collections import Counter
from typing import Final

_MAX_MESSAGES: Final = 64
"""Whose numbers are kept. The web server has a dozen."""

_COUNT_S: Final = 600
"""Then counting begins anew: who looks for a mistake of his own is to find it told."""

_TELL_OF_STRANGERS: Final = (
    "agent.telephony.signatures",
    "agent.telephony.endpoint",
    "agent.telephony.webhooks",
)
"""Modules that log what anybody may send at any time: carriers' webhooks and streams."""


PACKAGES: Final = ("agent", "asr", "llm_engine", "tts", "latency_budget")
"""Our own."""


class Seldom(logging.Filter):
    """Lets each warning through when it comes for the 1st, 2nd, 4th, 8th time in ten minutes.

    For loggers that any stranger makes write a line. What has a traceback is let through always: it
    is a mistake of ours.
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
            return False  # it takes a socket that was answered with a status for a forgotten one
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
    """Our own packages as the setting says; of the libraries what is wrong."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    for package in PACKAGES:
        logging.getLogger(package).setLevel(level.upper())
    for module in _TELL_OF_STRANGERS:
        logging.getLogger(module).addFilter(SELDOM)
