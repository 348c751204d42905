"""How a telephone call is to be conducted, as the operator wants it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from .answering_machine import MachineWatch

Cause = Literal[
    "caller_hung_up",
    "agent_hung_up",
    "transferred",
    "time_limit",
    "silent",
    "machine",
    "lost",
    "bad_stream",
    "revoked",
    "failed",
]
"""Of a call's end. "lost": the carrier sent nothing any more, or did not read; "bad_stream": it
sent what can't be served; "machine": one had answered our call; "failed": something of ours."""

Move = Callable[[str, str], Awaitable[None]]
"""Transfers a call: the carrier's id of it, and the number. Raises TransferError."""


class TransferError(Exception):
    """The call can't be transferred. The message is for the model, and perhaps the caller."""


@dataclass(frozen=True, slots=True)
class CallPlan:
    transfers: Mapping[str, str] = field(default_factory=dict)
    """Numbers to which the agent may transfer the call, by the names that it knows them by."""
    move: Move | None = None
    """None: this carrier has no way to transfer a call."""
    limit_s: float | None = None
    """The longest call; None: whoever holds it knows."""
    limit_notice: str = ""
    """Said some time before that."""
    record: Callable[[], None] | None = None
    """Begins to record the call, once the caller knows of it. None: there is nothing to announce.
    """
    announcement: str = ""
    """How he gets to know of it. Empty: by a tone."""
    greeting: str = ""
    """Said behind that."""
    watch: MachineWatch | None = None
    """Whether a machine has answered; None: nobody wants to know."""
    machine_message: str = ""
    """Left there. Empty: it is hung up on."""


PLAIN: Final = CallPlan()
