"""Who may bring calls in: carriers, which present what clients do not.

A stream is believed by one of: a key, as `Authorization: Bearer KEY` or as the password of Basic,
which carriers make of an address like wss://halfsec:KEY@host/...; a token that our own webhook gave
the carrier for this one call, and that comes back in the stream's first message. A server that asks
nobody for a key asks carriers for none either.
"""

import base64
import binascii
from dataclasses import dataclass
from typing import Final

from latency_budget.clock import Clock

from .principal import UNPROVEN, Principal
from .tokens import digest_of, new_token
from .wire.telephony.line import StreamStarted

PREFIX: Final = "/telephony/"
TOKEN_NAMES: Final = ("token", "x-telnyx-streaming-auth-token", "X-PH-token")
"""Of the parameter that holds a call's token, with whichever carrier."""
TOKEN_PREFIX: Final = "ct_"
TOKEN_S: Final = 60
"""From our webhook's answer to the stream: carriers need one or two."""
MAX_TOKENS: Final = 4096


@dataclass(frozen=True, slots=True)
class _Issued:
    principal: Principal
    agent: str
    until_ns: int


class CallTokens:
    """Each good for one stream. Belongs to the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._issued: dict[bytes, _Issued] = {}

    def __len__(self) -> int:
        """Those that may still be used."""
        return len(self._issued)

    def issue(self, principal: Principal, agent: str) -> str:
        """For a call that `agent` is to answer."""
        now_ns = self._clock.now_ns()
        while self._issued and (
            len(self._issued) >= MAX_TOKENS or next(iter(self._issued.values())).until_ns < now_ns
        ):
            del self._issued[next(iter(self._issued))]
        token = new_token(TOKEN_PREFIX)
        self._issued[token.digest] = _Issued(principal, agent, now_ns + TOKEN_S * 10**9)
        return token.text

    def redeem(self, token: str) -> tuple[Principal, str] | None:
        """Whose call it is, and who answers it; None for a token that is unknown, used or old."""
        issued = self._issued.pop(digest_of(token), None)
        if issued is None or issued.until_ns < self._clock.now_ns():
            return None
        return issued.principal, issued.agent


def proven(
    principal: Principal, started: StreamStarted, tokens: CallTokens
) -> tuple[Principal, str | None] | None:
    """Whose call a stream is, and which agent was chosen for it. None where nothing shows who sent
    it. `principal`: as the door knows the carrier."""
    for name in TOKEN_NAMES:
        if (token := started.parameters.get(name)) and (found := tokens.redeem(token)) is not None:
            return found
    return None if principal is UNPROVEN else (principal, None)


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
