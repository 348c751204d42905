"""Call transfer by the carrier's own means.

Twilio: the REST API gives the call in progress new instructions, and Twilio ends the stream
(https://www.twilio.com/docs/voice/api/call-resource#update-a-call-resource). If the target does not
answer, or once that conversation is over, Twilio asks our webhook how to continue
(https://www.twilio.com/docs/voice/twiml/dial#action): an unanswered caller returns to the agent, on
a new stream and in a new session, for the previous ones have ended. The other carriers take no
transfer command on the media stream.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

from agent.config.telephony import TelephonySettings
from agent.http.auth.telephony_credentials import PREFIX
from agent.telephony.carriers.phone_numbers import shown_numbers
from agent.telephony.carriers.twilio import CARRIER
from agent.tools.server_tool import one_line
from latency_budget.account.clock import unix_ns

from .twilio_account import TwilioAccount

REST_S: Final = 6.0
"""Time limit of Twilio's answer, which takes 0.2 to 1 s."""

CALL_ID: Final = re.compile(r"CA[0-9A-Za-z]{1,62}")

NOT_SET_UP: Final = "transferring calls is not set up on this server"
REFUSED: Final = "the call could not be transferred"

TRANSFER_OUTCOME: Final = "transfer"
"""Stream parameter of a call that returns from a transfer: the outcome of the transfer ("busy")."""
UNTIL: Final = "until"
"""Stream parameter of the same calls: end of the time limit, in seconds since 1970."""

_log = logging.getLogger(__name__)


class TransferError(Exception):
    """The call can't be transferred. The message is for the model, and perhaps the caller."""


@dataclass(frozen=True, slots=True)
class TransferOrder:
    """A transfer to carry out."""

    call_id: str
    """The carrier's id of the call."""
    number: str
    """Target: a telephone number, or a SIP address."""
    agent: str
    """Agent of the call, to which an unanswered call returns."""
    remaining_s: float
    """Rest of the call's time limit."""


TransferFunction = Callable[[TransferOrder], "asyncio.Future[None]"]
"""Transfers a call. The future is done when the carrier has taken the transfer, with a
TransferError if it refused. Cancelling the wait does not stop the transfer."""


class CallTransfer:
    """State of one call's transfer. Belongs to the event loop."""

    def __init__(self, transfer: TransferFunction | None) -> None:
        """`transfer`: of the call's carrier; None: the carrier can't transfer calls."""
        self._transfer = transfer
        self._running: asyncio.Future[None] | None = None

    async def start(self, order: TransferOrder) -> None:
        """Transfer the call. Raises TransferError: the call goes on. Cancelling the wait does not
        stop the transfer; there is no second one until it is over."""
        assert self._transfer is not None
        if self._running is None or self._running.done():
            self._running = self._transfer(order)
            self._running.add_done_callback(_retrieve_exception)
        await asyncio.wait({self._running})
        self._running.result()

    async def settle(self) -> None:
        """Wait for the carrier's answer to a transfer in progress, for some time: it may end the
        stream before it confirms."""
        if self._running is not None:
            await asyncio.wait({self._running}, timeout=2 * REST_S)

    @property
    def is_begun(self) -> bool:
        """True while a transfer is in progress, and once the carrier has taken it."""
        return self._running is not None and (not self._running.done() or self.is_done)

    @property
    def is_done(self) -> bool:
        """True if the carrier has taken the transfer; False too where it was never asked, because
        the process ended first."""
        running = self._running
        if running is None or not running.done() or running.cancelled():
            return False
        return running.exception() is None


class TwilioTransfer:
    """A `TransferFunction`. Belongs to the event loop."""

    def __init__(self, settings: TelephonySettings, account: TwilioAccount) -> None:
        self._settings = settings
        self._account = account

    def __call__(self, order: TransferOrder) -> "asyncio.Future[None]":
        return self._account.run(partial(self._update, order))

    def _update(self, order: TransferOrder) -> None:
        """Update the call by the REST API. Blocks. Raises TransferError."""
        if (problem := self._account.problem) is not None:
            _log.error("a call can't be transferred: %s", problem)
            raise TransferError(NOT_SET_UP)
        if not CALL_ID.fullmatch(order.call_id):  # it becomes part of a URL
            _log.error("a call can't be transferred: its id is none of Twilio's")
            raise TransferError(REFUSED)
        from twilio.base.exceptions import TwilioException
        from twilio.twiml.voice_response import VoiceResponse

        instructions = VoiceResponse()
        target, rules = order.number, self._rules(order)
        if target.startswith("sip"):
            instructions.dial(**rules).sip(target)
        else:
            instructions.dial(target, **rules)
        try:
            call = self._account.client(REST_S).calls(order.call_id)
            call.update(twiml=str(instructions))
        except (TwilioException, OSError) as error:
            said = shown_numbers(one_line(_said(error)), whole=self._settings.store_numbers)
            _log.error("Twilio did not transfer a call: %s", said)
            raise TransferError(REFUSED) from None

    def _rules(self, order: TransferOrder) -> dict[str, Any]:
        """Attributes of `Dial`: ringing time, time limit, and the webhook to ask afterwards."""
        remaining_s = max(1, int(order.remaining_s))
        rules: dict[str, Any] = {
            "timeout": self._settings.transfer_ring_s,
            "time_limit": remaining_s,
        }
        if self._settings.public_url:  # else Twilio can't reach the webhook
            returning = {"agent": order.agent, UNTIL: unix_ns() // 10**9 + remaining_s}
            rules["action"] = (
                f"{self._settings.address_of(f'{PREFIX}{CARRIER.key}/voice')}?{urlencode(returning)}"
            )
            rules["method"] = "POST"
        return rules


def transfers_by_carrier(
    settings: TelephonySettings, account: TwilioAccount
) -> Mapping[str, TransferFunction]:
    """Means of transfer by the carrier's name."""
    return {CARRIER.name: TwilioTransfer(settings, account)}


def _said(error: Exception) -> str:
    """Twilio's message, without the URL, which contains the account."""
    return str(getattr(error, "msg", "") or type(error).__name__)


def _retrieve_exception(transfer: "asyncio.Future[None]") -> None:
    """Mark the exception as retrieved: the wait may have been cancelled, and the error is
    logged."""
    if not transfer.cancelled():
        transfer.exception()
