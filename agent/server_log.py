"""What is written to the service's log, and how often."""

import logging
from collections import Counter
from typing import Final

_MAX_MESSAGES: Final = 64
"""Whose numbers are kept. The web server has a dozen."""


class Seldom(logging.Filter):
    """Lets each message of the web server through when it comes for the 1st, 2nd, 4th, 8th time...

    Any stranger makes it write a line with a request that is none. What has a traceback is let
    through always: it is a mistake of ours.
    """

    def __init__(self) -> None:
        super().__init__()
        self._numbers: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info:
            return True
        text = record.getMessage()
        if "without completing handshake" in text:
            return False  # it takes a socket that was answered with a status for a forgotten one
        if len(self._numbers) >= _MAX_MESSAGES:
            self._numbers.clear()
        self._numbers[text] += 1
        number = self._numbers[text]
        if number > 1:
            record.msg, record.args = f"{text} ({number} so far)", ()
        return number & (number - 1) == 0


SELDOM: Final = Seldom()


def log_to_stderr(level: str) -> None:
    """Our own packages as the setting says; of the libraries what is wrong."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    for package in ("agent", "asr", "llm_engine", "tts", "latency_budget"):
        logging.getLogger(package).setLevel(level.upper())
