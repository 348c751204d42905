"""Twilio account: credentials from the environment, and the REST client.

Twilio's official library is the extra `phone`; it is imported at the first request to Twilio.
"""

import importlib.util
import logging
import os
from typing import Any, Final

from agent.config.telephony import TelephonySettings

INSTALL_PHONE: Final = "pip install 'halfsec[phone]'"


class TwilioAccount:
    """Account of Twilio. The constructor reads it from the environment."""

    def __init__(
        self, settings: TelephonySettings, timeout_s: float, http_client: Any = None
    ) -> None:
        """`timeout_s`: time limit of each request. `http_client`: an argument of
        `twilio.rest.Client`; None: the library's own."""
        self.names: Final = settings.twilio_account_sid_env, settings.twilio_auth_token_env
        self._account, self._token = (os.environ.get(name, "").strip() for name in self.names)
        self._timeout_s = timeout_s
        self._http = http_client
        self._client: Any = None

    @property
    def problem(self) -> str | None:
        """The missing library or setting, as a sentence; None: ready."""
        if importlib.util.find_spec("twilio") is None:
            return f"Calls are placed and transferred by Twilio's library: {INSTALL_PHONE}"
        pairs = zip(self.names, (self._account, self._token), strict=True)
        missing = [name for name, value in pairs if not value]
        if missing:
            return (
                f"The server's environment lacks {' and '.join(missing)} of your Twilio account; "
                "set it and start the server again."
            )
        return None

    def client(self) -> Any:
        """A `twilio.rest.Client`. Requires that there is no `problem`."""
        if self._client is None:
            from twilio.http.http_client import TwilioHttpClient
            from twilio.rest import Client

            # The library logs each request at INFO, and with it the call's token.
            logging.getLogger("twilio.http_client").setLevel(logging.WARNING)
            http = self._http or TwilioHttpClient(timeout=self._timeout_s)
            self._client = Client(self._account, self._token, http_client=http)
        return self._client
