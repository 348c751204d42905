"""Description of one carrier: everything that the rest of the package knows of it by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from .media_stream import MediaStreamProtocol
from .webhook import Webhook

TOKEN: Final = "token"
"""Stream parameter in which a webhook's answer passes the call's token to the stream."""


@dataclass(frozen=True, slots=True)
class SignedUpgrade:
    """Signature of the WebSocket upgrade, for a carrier that signs its stream's handshake."""

    header: str
    """Request header with the signature, in lower case."""
    check: Callable[[str, Mapping[str, str], str], None]
    """Checks address (wss), headers (by names in lower case) and secret. Raises SignatureError."""
    trust_setting: str
    """Setting of `[telephony]`, a boolean: the signature alone, without a token, is enough."""


@dataclass(frozen=True, slots=True)
class Library:
    """Optional library that a carrier's signatures need."""

    module: str
    package: str
    extra: str
    """Extra of this project that installs it."""


@dataclass(frozen=True, slots=True)
class Carrier:
    """One carrier: its media stream, its webhook, and the facts that both need."""

    key: str
    """Segment of its paths: `/telephony/KEY/stream`, `/telephony/KEY/voice`."""
    name: str
    """Name in messages, and of its calls' tokens; equal to the media stream's `name`."""
    media_stream: Callable[[], MediaStreamProtocol]
    """Makes the protocol of one stream."""
    webhook: Webhook | None = None
    """None: the carrier sends no webhooks; its stream shows a key."""
    secret_setting: str = ""
    """Setting of `[telephony]` with the secret of its signatures: the secret, or, with a name that
    ends in `_env`, the environment variable that has it. Empty: the carrier signs nothing."""
    is_signed_by_bearer: bool = False
    """Its webhooks' `Authorization: Bearer` is a signature (a JSON web token), not a key."""
    signed_upgrade: SignedUpgrade | None = None
    """None: the stream's handshake is not signed."""
    subprotocols: tuple[str, ...] = ()
    """WebSocket subprotocols to accept where the carrier offers them."""
    token_names: tuple[str, ...] = (TOKEN,)
    """Stream parameters that may hold the call's token."""
    library: Library | None = None
    """None: its signatures need no optional library."""
