"""Outbound call: its number, its validation, and the interface of a dialer."""

import re
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from agent.config.telephony import E164
from agent.errors import HalfsecError

NUMBER: Final = "a telephone number with its country, like +493012345"

_BETWEEN: Final = re.compile(r"[ ()/.\-]")


class DialError(HalfsecError):
    """The call was not placed, as far as known. The message says why."""

    def __init__(self, message: str, *, may_ring: bool = False) -> None:
        """`may_ring`: the carrier may have taken the order nevertheless."""
        super().__init__(message, code="call_not_placed")
        self.may_ring: Final = may_ring


@dataclass(frozen=True, slots=True)
class OutboundCall:
    """Order for an outbound call."""

    to: str
    shown_number: str
    """Caller number that the callee sees."""
    instructions: str
    """Instructions for the carrier once the call is answered."""
    status_url: str
    """Webhook to which the carrier reports the call's end, and that it was not answered."""
    ring_s: int
    """Longest ringing."""
    limit_s: int
    """Longest call on our side."""
    on_machine: Literal["talk", "hang_up", "message"] = "talk"
    """Action where an answering machine answers. Except for "talk", the carrier detects machines
    during the call, and reports to `status_url`."""


@dataclass(frozen=True, slots=True)
class PlacedCall:
    """Order that the carrier has taken."""

    call_id: str
    """The carrier's id of the call."""
    status: str
    """The carrier's status: "queued"."""


class Dialer(Protocol):
    """Interface of a carrier that places calls."""

    @property
    def problem(self) -> str | None:
        """The missing library or setting, as a sentence; None: ready."""
        ...

    async def place(self, order: OutboundCall) -> PlacedCall:
        """Place a call, which takes seconds at worst. Raises DialError."""
        ...


def number_of(value: object) -> str | None:
    """A number in E.164 form; spaces and punctuation are removed. None if it is invalid."""
    text = _BETWEEN.sub("", value) if isinstance(value, str) else ""
    return text if re.fullmatch(E164, text) else None
