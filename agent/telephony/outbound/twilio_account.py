"""Twilio account: credentials from the environment, the REST client, and the threads it blocks.

Twilio's official library is the extra `phone`; it is imported at the first request to Twilio.
"""

import asyncio
import importlib.util
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from agent.config.telephony import TelephonySettings

INSTALL_PHONE: Final = "pip install 'halfsec[phone]'"

MAX_THREADS: Final = 8
"""Requests to Twilio at once. Further ones wait for a thread: at most one for each line, for an
order holds one and a transfer is of a call. They are not asyncio's default threads, of which a
machine with two cores has six: replies need those, and Twilio may keep a request for seconds."""

Result = TypeVar("Result")


class TwilioAccount:
    """Account of Twilio, with threads for blocking requests. The constructor reads it from the
    environment."""

    def __init__(self, settings: TelephonySettings, http_client: Any = None) -> None:
        """`http_client`: an argument of `twilio.rest.Client`; None: the library's own."""
        self.names: Final = settings.twilio_account_sid_env, settings.twilio_auth_token_env
        self._account, self._token = (os.environ.get(name, "").strip() for name in self.names)
        self._http = http_client
        self._clients: dict[float, Any] = {}
        """REST clients by time limit, in s."""
        self._threads = ThreadPoolExecutor(MAX_THREADS, "halfsec-twilio")

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

    def run(self, request: Callable[[], Result]) -> "asyncio.Future[Result]":
        """Run a blocking request on a thread. Cancelling the future does not stop a request that
        has begun. Event loop."""
        return asyncio.get_running_loop().run_in_executor(self._threads, request)

    def close(self) -> None:
        """Begin no further request. Does not wait for those that have begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def client(self, timeout_s: float) -> Any:
        """A `twilio.rest.Client` with this time limit of each request. Requires that there is no
        `problem`. Any thread."""
        if (client := self._clients.get(timeout_s)) is None:
            from twilio.http.http_client import TwilioHttpClient
            from twilio.rest import Client

            # The library logs each request at INFO, and with it the call's token.
            logging.getLogger("twilio.http_client").setLevel(logging.WARNING)
            http = self._http or TwilioHttpClient(timeout=timeout_s)
            client = Client(self._account, self._token, http_client=http)
            self._clients[timeout_s] = client
        return client
