"""Carrier: all that the service knows of one telephone carrier or switchboard. Pure.

A new carrier is a module like `twilio.py`, which ends in its `Carrier`, and a row of the table in
`registry.py`. Paths, subprotocols, signatures and tokens follow from there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from .media_stream import MediaStreamProtocol
from .webhook import Webhook


class SignedUpgrade(NamedTuple):
    """Signature of a stream's WebSocket upgrade."""

    header: str
    """Name of the header that has it, in small letters."""
    check: Callable[[str, Mapping[str, str], str], None]
    """Takes the called address, the headers by names in small letters, and the secret. Raises
    SignatureError."""


@dataclass(frozen=True, slots=True)
class Carrier:
    """Telephone carrier or switchboard that streams its calls to this server."""

    stream: Callable[[], MediaStreamProtocol]
    """Makes the protocol of one media stream."""
    webhook: Webhook | None = None
    """None: calls are streamed without a question over HTTP."""
    subprotocols: tuple[str, ...] = ()
    """WebSocket subprotocols that are accepted where the carrier offers them."""
    token_parameters: tuple[str, ...] = ("token",)
    """Parameters of a stream's first message that may hold the call's token."""
    signs_by_bearer: bool = False
    """The Authorization header of its webhooks is a signed web token, not a key of this server;
    PyJWT is needed to check it."""
    signed_upgrade: SignedUpgrade | None = None
    """None: upgrades of streams are not signed."""
