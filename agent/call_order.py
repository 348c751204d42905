"""What orders a call and what places it agree on: a number, and why there is none."""

import re
from dataclasses import dataclass
from typing import Final, Protocol

from .errors import HalfsecError
from .telephony_settings import E164

CALLS_PATH: Final = "/telephony/calls"
NUMBER: Final = "a telephone number with its country, like +493012345"

_BETWEEN: Final = re.compile(r"[ ()/.\-]")


class DialError(HalfsecError):
    """The call can't be placed. The message says why."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="call_not_placed")


@dataclass(frozen=True, slots=True)
class PlacedCall:
    call_id: str
    status: str
    """As the carrier calls it: "queued"."""


class Dialer(Protocol):
    """Who places calls."""

    @property
    def problem(self) -> str | None:
        """Why it can't: what is not installed, what is not set."""
        ...

    def place(self, to: str, shown_number: str, instructions: str, ring_s: int) -> PlacedCall:
        """Blocks, for seconds at worst. Raises DialError."""
        ...


def number_of(value: object) -> str | None:
    """As E.164 has it; spaces and the like in between are passed over. None for what is none."""
    text = _BETWEEN.sub("", value) if isinstance(value, str) else ""
    return text if re.fullmatch(E164, text) else None
