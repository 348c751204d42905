"""Errors of the Python client, with the reason and the remedy."""

import json
import ssl
from urllib.parse import urlsplit

from websockets.exceptions import InvalidMessage, InvalidStatus, InvalidURI

from agent.config.local_urls import VOICE_PATH


class ConnectError(RuntimeError):
    """The call could not be opened. The message has the reason and the remedy."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retry_after_s: float | None = None,
        passes: bool = False,
    ):
        super().__init__(message)
        self.status = status
        """Status of the HTTP answer, where there was one."""
        self.retry_after_s = retry_after_s
        self.passes = passes
        """True where the same attempt may succeed a little later: the server starts, warms up or is
        full."""

    @property
    def may_pass(self) -> bool:
        """True where a client that was in a call just now should try again: networks come back, and
        servers are replaced. A refused key stays refused."""
        return self.status is None or self.status >= 500 or self.status in (408, 429)


class NothingToResumeError(ConnectError):
    """The server has no call to resume, and would accept a new one."""


class CallEndedError(RuntimeError):
    """The call is over: nothing can be sent."""


def handshake_error(address: str, error: Exception) -> ConnectError:
    """The error of a failed handshake with the socket at `address`."""
    if isinstance(error, InvalidStatus):
        return _http_refusal(address, error)
    if isinstance(error, InvalidURI):
        return ConnectError(f"{address!r} is no address of a voice socket: use ws://HOST:PORT.")
    if isinstance(error, TimeoutError):
        return ConnectError(f"{address} does not answer. Is it the right host and port?")
    if isinstance(error, ConnectionRefusedError) or "Connect call failed" in str(error):
        return ConnectError(
            f"Nothing listens at {address}. Is the server running (`halfsec serve`)? For another "
            "host or port: --url ws://HOST:PORT.",
            passes=True,
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConnectError(
            f"The certificate of {address} is not to be trusted: {error}. If it is your own, "
            "pass it as `tls` (halfsec talk: --ca FILE)."
        )
    if isinstance(error, ssl.SSLError | ConnectionError) and address.startswith("wss:"):
        return ConnectError(
            f"No secure connection to {address}: {error}. A server without TLS is reached by ws://."
        )
    if isinstance(error, InvalidMessage):
        return ConnectError(
            f"{address} does not speak HTTP. A server with TLS is reached by wss://."
        )
    return ConnectError(f"No connection to {address}: {error}.")


def _http_refusal(address: str, error: InvalidStatus) -> ConnectError:
    response = error.response
    status = response.status_code
    said = _error_message(response.body or b"")
    retry_after_s = _seconds(response.headers.get("Retry-After"))
    if status == 503:
        again = f" Try again in {retry_after_s:g} s." if retry_after_s is not None else ""
        message = f"{address} can't take the call now: {said or 'not ready.'}{again}"
    elif status == 401:
        message = f"{address} refuses the call: {said or 'the key is missing or wrong.'}"
    elif status in (403, 404):
        # Servers answer 403 or 404 to a socket at an unknown path, mostly without a message.
        message = f"{address} refuses the call with HTTP {status}. {said or _path_hint(address)}"
    else:
        message = f"{address} answers with HTTP {status} instead of a call. {said}".strip()
    passes = status == 503
    return ConnectError(message, status=status, retry_after_s=retry_after_s, passes=passes)


def _path_hint(address: str) -> str:
    path = urlsplit(address).path
    if path == VOICE_PATH:
        return "Is a halfsec server there, and does every proxy in front of it let you in?"
    return f"Is the path {path} right? The voice socket is {VOICE_PATH}."


def _error_message(body: bytes) -> str:
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return str(message)


def _seconds(text: str | None) -> float | None:
    """Parse a Retry-After in seconds. None for a date, which servers that warm up do not send."""
    return float(text) if text is not None and text.isdecimal() else None
