"""Places calls by Twilio, through its official library (the extra `phone`), which is imported when
the first call is placed."""

import importlib.util
import logging
import os
from typing import Any, Final

from .call_order import DialError, PlacedCall
from .telephony_settings import TelephonySettings

INSTALL_PHONE: Final = "pip install -e '.[phone]'"
TIMEOUT_S: Final = 15.0
"""For Twilio's answer; it takes half a second."""

_ERRORS: Final = "https://www.twilio.com/docs/errors/"


class TwilioDialer:
    """Reads its account from the environment when it is made."""

    def __init__(self, settings: TelephonySettings, http_client: Any = None) -> None:
        """`http_client`: as `twilio.rest.Client` takes one; None: its own."""
        self._names = settings.twilio_account_sid_env, settings.twilio_auth_token_env
        self._account, self._token = (os.environ.get(name, "").strip() for name in self._names)
        self._http = http_client
        self._client: Any = None

    @property
    def problem(self) -> str | None:
        """What is not installed, or not set."""
        if importlib.util.find_spec("twilio") is None:
            return f"Calls are placed by Twilio's library: {INSTALL_PHONE}"
        missing = [
            name
            for name, value in zip(self._names, (self._account, self._token), strict=True)
            if not value
        ]
        if missing:
            return (
                f"The server's environment lacks {' and '.join(missing)} of your Twilio account; "
                "set it and start the server again."
            )
        return None

    def place(self, to: str, shown_number: str, instructions: str, ring_s: int) -> PlacedCall:
        """Blocks. Raises DialError."""
        from twilio.base.exceptions import TwilioException, TwilioRestException

        try:
            call = self._connected().calls.create(
                to=to, from_=shown_number, twiml=instructions, timeout=ring_s
            )
        except TwilioRestException as error:
            raise DialError(self._refusal(error.status, error.code, error.msg)) from None
        except (TwilioException, OSError) as error:  # those of `requests` are OSErrors
            raise DialError(f"Twilio can't be reached: {_line(_cause(error))}") from None
        return PlacedCall(str(call.sid), str(call.status))

    def _connected(self) -> Any:
        if self._client is None:
            from twilio.http.http_client import TwilioHttpClient
            from twilio.rest import Client

            # It would log each request, and with it the call's token.
            logging.getLogger("twilio.http_client").setLevel(logging.WARNING)
            http = self._http or TwilioHttpClient(timeout=TIMEOUT_S)
            self._client = Client(self._account, self._token, http_client=http)
        return self._client

    def _refusal(self, status: int, code: int | None, message: str) -> str:
        if status == 401:
            return (
                f"Twilio does not know this account: look at {' and '.join(self._names)} in the "
                "server's environment."
            )
        where = f" ({_ERRORS}{code})" if code and code != status else f" (status {status})"
        return f"Twilio refused the call: {_line(message)}{where}"


def _cause(error: Exception) -> object:
    """What is behind an error of `requests`, which tells of every try as well."""
    return getattr(error.args[0], "reason", error) if error.args else error


def _line(problem: object) -> str:
    return " ".join(str(problem).split())[:300] or type(problem).__name__
