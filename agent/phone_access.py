"""Who may bring calls in: carriers, which present what clients do not.

A stream is believed by one of: a key, as `Authorization: Bearer KEY` or as the password of Basic,
which carriers make of an address like wss://halfsec:KEY@host/...; the carrier's signature
(`phone_signatures.py`); a token that our own webhook gave the carrier for this one call, and that
comes back in the stream's first message, or as the password of Basic. A server that asks nobody for
a key asks carriers for none either.
"""

import base64
import binascii
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from latency_budget.clock import Clock

from .principal import UNPROVEN, Principal
from .tokens import digest_of
from .wire.telephony.line import StreamStarted

PREFIX: Final = "/telephony/"
TOKEN_NAMES: Final = ("token", "x-telnyx-streaming-auth-token", "X-PH-token")
"""Of the parameter that holds a call's token, with whichever carrier."""
TOKEN: Final = re.compile("ct[0-9a-f]{48}")
"""Of letters and digits only: Plivo hands on nothing else."""
TOKEN_S: Final = 60
"""From our webhook's answer to the stream: carriers need one or two."""
MAX_TOKENS: Final = 4096

PRESENTED_KEY: Final = "halfsec.call_token"
"""Where the door puts into the ASGI scope what was presented as a call's token."""

SIGNED_BY_BEARER: Final = f"{PREFIX}vonage/voice"
"""There a web token in the Authorization header is the carrier's signature, and no key of ours."""


@dataclass(frozen=True, slots=True)
class ExpectedCall:
    """A stream that is believed, and what is known of its call from elsewhere."""

    principal: Principal
    """Whose call it is."""
    agent: str | None = None
    """Who was chosen to answer it; None: nobody yet."""
    caller: str = ""
    """Numbers, as the carrier's webhook told them: some streams do not."""
    called: str = ""
    told: Mapping[str, str] = field(default_factory=dict)
    """What counts as a parameter of the stream, whatever that says itself: `direction`, of calls
    that we placed "outbound"; `answered_by`, where the carrier listened for machines."""


@dataclass(frozen=True, slots=True)
class _Issued:
    call: ExpectedCall
    until_ns: int


class CallTokens:
    """Each good for one stream. Belongs to the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._issued: dict[bytes, _Issued] = {}

    def __len__(self) -> int:
        """Those that may still be used."""
        return len(self._issued)

    def issue(self, call: ExpectedCall, life_s: float = TOKEN_S) -> str:
        """For a call whose stream comes within that time."""
        now_ns = self._clock.now_ns()
        self._issued = {
            digest: each for digest, each in self._issued.items() if each.until_ns >= now_ns
        }
        while len(self._issued) >= MAX_TOKENS:
            del self._issued[next(iter(self._issued))]
        token = f"ct{secrets.token_hex(24)}"
        self._issued[digest_of(token)] = _Issued(call, now_ns + int(life_s * 1e9))
        return token

    def holds(self, token: str) -> bool:
        """Whether it may still be used."""
        issued = self._issued.get(digest_of(token))
        return issued is not None and issued.until_ns >= self._clock.now_ns()

    def redeem(self, token: str) -> ExpectedCall | None:
        """What call it was issued for; None for a token that is unknown, used or old."""
        issued = self._issued.pop(digest_of(token), None)
        if issued is None or issued.until_ns < self._clock.now_ns():
            return None
        return issued.call


def proven(
    principal: Principal, started: StreamStarted, tokens: CallTokens, presented: str | None = None
) -> ExpectedCall | None:
    """Whose call a stream is. None where nothing shows who sent it. `principal`: as the door, or a
    signature, made the carrier known. `presented`: a token that came with the handshake."""
    offered = [presented, *(started.parameters.get(name) for name in TOKEN_NAMES)]
    for token in filter(None, offered):
        if (found := tokens.redeem(token)) is not None:
            return found
    return None if principal is UNPROVEN else ExpectedCall(principal)


def completed(started: StreamStarted, call: ExpectedCall) -> StreamStarted:
    """What a stream says of its call, with what is known of it from elsewhere."""
    return replace(
        started,
        caller=call.caller or started.caller,
        called=call.called or started.called,
        parameters={**started.parameters, **call.told},
    )


def is_call_token(credential: str) -> bool:
    """By its looks."""
    return TOKEN.fullmatch(credential) is not None


def is_webhook(path: str) -> bool:
    """Whether carriers ask there about a call."""
    return path.startswith(PREFIX) and path.endswith("/voice")


def is_signature(path: str, header: str) -> bool:
    """Whether an Authorization header is a carrier's signature, to be checked by the endpoint."""
    scheme, _, token = header.strip().partition(" ")
    return path == SIGNED_BY_BEARER and scheme.lower() == "bearer" and token.count(".") == 2


def basic_password(header: str) -> str | None:
    """Of an Authorization header; None where it is of another scheme."""
    scheme, _, encoded = header.strip().partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        return ""
    return text.partition(":")[2]
