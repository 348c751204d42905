"""Call transfer by each carrier's own means.

Twilio: the call in progress gets other instructions by the REST API, and Twilio ends the stream by
itself (https://www.twilio.com/docs/voice/api/call-resource#update-a-call-resource). Once nobody has
answered, or the talk is over, it asks our webhook how to go on
(https://www.twilio.com/docs/voice/twiml/dial#action): who was not answered is back with the agent,
on a stream and in a session of its own, for those that the call had before are gone. Of the other
carriers none takes an order to transfer on the media stream.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from agent.config.telephony import TelephonySettings
from agent.http.auth.telephony_credentials import PREFIX
from agent.telephony.carriers.phone_numbers import shown_numbers
from agent.telephony.carriers.twilio import CARRIER
from agent.tools.server_tool import one_line
from latency_budget.account.clock import unix_ns

from .twilio_account import TwilioAccount

if TYPE_CHECKING:
    from twilio.http import HttpClient

REST_S: Final = 6.0
"""For Twilio's answer, which takes 0.2 to 1 s. A tool has 15 s, and what was said comes first."""

CALL_ID: Final = re.compile(r"CA[0-9A-Za-z]{1,62}")

NOT_SET_UP: Final = "transferring calls is not set up on this server"
REFUSED: Final = "the call could not be transferred"

WENT: Final = "transfer"
"""A parameter of streams: how the transfer went from which the call comes back ("busy")."""
UNTIL: Final = "until"
"""When the longest call is over, in seconds since 1970; a parameter of the same streams."""

_log = logging.getLogger(__name__)


class TransferError(Exception):
    """The call can't be transferred. The message is for the model, and perhaps the caller."""


@dataclass(frozen=True, slots=True)
class Handover:
    """A call that is to be handed on."""

    call_id: str
    """The carrier's."""
    number: str
    """Or an address of SIP."""
    agent: str
    """Who has it, and gets it back if nobody answers there."""
    left_s: float
    """Of the longest call."""


Move = Callable[[Handover], "asyncio.Future[None]"]
"""Hands a call on. Over when the carrier has it, with a TransferError where it has not. Whoever
gives up waiting has not stopped it."""


class CallTransfer:
    """Of one call: whether it is being handed on, and whether it was. Belongs to the event loop."""

    def __init__(self, move: Move | None) -> None:
        """`move`: its carrier's; None: it has none."""
        self._move = move
        self._moving: asyncio.Future[None] | None = None

    async def to(self, handover: Handover) -> None:
        """Raises TransferError: the call goes on then. Whoever gives up waiting has not stopped it;
        until it is over there is no second one."""
        assert self._move is not None
        if self._moving is None or self._moving.done():
            self._moving = self._move(handover)
            self._moving.add_done_callback(_noted)
        await asyncio.wait({self._moving})
        self._moving.result()

    async def is_done(self) -> bool:
        """Whether the carrier has the call. It may take it away before it says so."""
        if self._moving is None:
            return False
        await asyncio.wait({self._moving}, timeout=2 * REST_S)
        return self._moving.done() and self._moving.exception() is None


class TwilioTransfer:
    """A `Move`. Belongs to the event loop."""

    def __init__(self, settings: TelephonySettings, http: "HttpClient | None" = None) -> None:
        """`http`: None for the library's own."""
        self._settings = settings
        self._account = TwilioAccount(settings, REST_S, http)

    @property
    def problem(self) -> str | None:
        """What is not installed, or not set."""
        return self._account.problem

    def __call__(self, handover: Handover) -> "asyncio.Future[None]":
        return asyncio.get_running_loop().run_in_executor(None, self._update, handover)

    def _update(self, handover: Handover) -> None:
        """Blocks."""
        if (problem := self.problem) is not None:
            _log.error("a call can't be transferred: %s", problem)
            raise TransferError(NOT_SET_UP)
        if not CALL_ID.fullmatch(handover.call_id):  # it becomes part of an address
            _log.error("a call can't be transferred: its id is none of Twilio's")
            raise TransferError(REFUSED)
        from twilio.base.exceptions import TwilioException
        from twilio.twiml.voice_response import VoiceResponse

        instructions = VoiceResponse()
        target, rules = handover.number, self._rules(handover)
        if target.startswith("sip"):
            instructions.dial(**rules).sip(target)
        else:
            instructions.dial(target, **rules)
        try:
            call = self._account.client().calls(handover.call_id)
            call.update(twiml=str(instructions))
        except (TwilioException, OSError) as error:
            said = shown_numbers(one_line(_said(error)), whole=self._settings.store_numbers)
            _log.error("Twilio did not transfer a call: %s", said)
            raise TransferError(REFUSED) from None

    def _rules(self, handover: Handover) -> dict[str, Any]:
        """Of the talk: how long it rings, how long it lasts, who is asked afterwards."""
        left_s = max(1, int(handover.left_s))
        rules: dict[str, Any] = {"timeout": self._settings.transfer_ring_s, "time_limit": left_s}
        if self._settings.public_url:  # else nobody knows where to ask
            back = {"agent": handover.agent, UNTIL: unix_ns() // 10**9 + left_s}
            rules["action"] = (
                f"{self._settings.address_of(f'{PREFIX}{CARRIER.key}/voice')}?{urlencode(back)}"
            )
            rules["method"] = "POST"
        return rules


def transfers_by_carrier(settings: TelephonySettings) -> Mapping[str, Move]:
    """Means of transfer by the carrier's name."""
    return {CARRIER.name: TwilioTransfer(settings)}


def _said(error: Exception) -> str:
    """Without the address, which has the account in it."""
    return str(getattr(error, "msg", "") or type(error).__name__)


def _noted(moving: "asyncio.Future[None]") -> None:
    """Perhaps nobody waits for it any longer, and what went wrong is in the log."""
    moving.exception()
