"""Outbound call: its number, its validation, and the interface of a dialer."""

import re
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from agent.config.telephony import E164
from agent.errors import HalfsecError

NUMBER: Final = "a telephone number with its country, like +493012345"

_BETWEEN: Final = re.compile(r"[ ()/.\-]")


class DialError(HalfsecError):
    """The call was not placed, as far as is known. The message says why."""

    def __init__(self, message: str, *, may_ring: bool = False) -> None:
        """`may_ring`: the carrier may have taken the order all the same."""
        super().__init__(message, code="call_not_placed")
        self.may_ring: Final = may_ring


@dataclass(frozen=True, slots=True)
class OutboundCall:
    to: str
    shown_number: str
    instructions: str
    """For the carrier, when somebody answers."""
    status_url: str
    """Where it tells that the call is over, also where nobody answered."""
    ring_s: int
    limit_s: int
    """The longest that our side of the call lasts."""
    on_machine: Literal["talk", "hang_up", "message"] = "talk"
    """What we do where one answers: if anything, the carrier listens for them too, while the call
    goes on, and tells of it at `status_url`."""


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

    def place(self, order: OutboundCall) -> PlacedCall:
        """Blocks, for seconds at worst. Raises DialError."""
        ...


def number_of(value: object) -> str | None:
    """As E.164 has it; spaces and the like in between are passed over. None for what is none."""
    text = _BETWEEN.sub("", value) if isinstance(value, str) else ""
    return text if re.fullmatch(E164, text) else None
