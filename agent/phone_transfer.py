"""Calls handed on to somebody else, by the ways that carriers have for it.

Twilio: the call in progress gets other instructions by the REST API, and Twilio ends the stream by
itself (https://www.twilio.com/docs/voice/api/call-resource#update-a-call-resource). Of the others
none takes an order to transfer on the media stream.
"""

import asyncio
import importlib.util
import logging
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from .phone_plan import Move, TransferError
from .served_tool import one_line
from .telephony_settings import TelephonySettings

if TYPE_CHECKING:
    from twilio.http import HttpClient

REST_S: Final = 6.0
"""For Twilio's answer, which takes 0.2 to 1 s. A tool has 15 s, and what was said comes first."""

CALL_ID: Final = re.compile(r"CA[0-9A-Za-z]{1,62}")

INSTALL_PHONE: Final = "pip install -e '.[phone]'"

NOT_SET_UP: Final = "transferring calls is not set up on this server"
REFUSED: Final = "the call could not be transferred"

_log = logging.getLogger(__name__)


class TwilioTransfer:
    """A `Move`. Belongs to the event loop."""

    def __init__(self, settings: TelephonySettings, http: "HttpClient | None" = None) -> None:
        """`http`: None for the library's own."""
        self._names = settings.twilio_account_sid_env, settings.twilio_auth_token_env
        self._http = http

    @property
    def problem(self) -> str | None:
        """What is not installed, or not set."""
        if importlib.util.find_spec("twilio") is None:
            return f"it takes Twilio's library: {INSTALL_PHONE}"
        missing = [name for name in self._names if not os.environ.get(name)]
        return f"the environment has no {' and no '.join(missing)}" if missing else None

    async def __call__(self, call_id: str, number: str) -> None:
        """Raises TransferError. Once begun it goes on, though this is cancelled."""
        await asyncio.to_thread(self._update, call_id, number)

    def _update(self, call_id: str, number: str) -> None:
        """Blocks."""
        if (problem := self.problem) is not None:
            _log.error("a call can't be transferred: %s", problem)
            raise TransferError(NOT_SET_UP)
        if not CALL_ID.fullmatch(call_id):  # it becomes part of an address
            _log.error("a call can't be transferred: its id is none of Twilio's")
            raise TransferError(REFUSED)
        from twilio.base.exceptions import TwilioException
        from twilio.http.http_client import TwilioHttpClient
        from twilio.rest import Client
        from twilio.twiml.voice_response import VoiceResponse

        account, token = (os.environ[name] for name in self._names)
        instructions = VoiceResponse()
        instructions.dial(number)
        http = self._http or TwilioHttpClient(timeout=REST_S)
        try:
            client = Client(account, token, http_client=http)
            client.calls(call_id).update(twiml=str(instructions))
        except (TwilioException, OSError) as error:
            _log.error("Twilio did not transfer a call: %s", one_line(_said(error)))
            raise TransferError(REFUSED) from None


def transfers_by_carrier(settings: TelephonySettings) -> Mapping[str, Move]:
    """By the name of the dialect."""
    return {"Twilio": TwilioTransfer(settings)}


def _said(error: Exception) -> str:
    """Without the address, which has the account in it."""
    return str(getattr(error, "msg", "") or type(error).__name__)
