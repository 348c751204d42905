"""Authentication of media streams by token, signature or bearer key.

A stream is authenticated by one of: a key, as `Authorization: Bearer KEY` or as the password of
Basic, which carriers derive from an address like wss://halfsec:KEY@host/...; a token that our
webhook gave the carrier for this one call, and that comes back in the stream's first message, or as
the password of Basic. A token is bound to the carrier's id of the call where webhook and stream
have the same one. Twilio's signature of the upgrade alone is enough only if the operator sets
`telephony.own_twiml`. A server that requires no keys requires none of carriers either.

A stream with a key may claim any id of a call, and so may a webhook with one. That is enough for a
call of its own, but not for a command to the carrier about the call with that id, which the carrier
carries out with the operator's account: it may be another caller's call (`may_transfer`).
"""

from dataclasses import replace

from agent.calls.stream_tokens import CallTokens, ExpectedCall
from agent.http.auth.principal import UNPROVEN, Principal
from agent.telephony.carriers.carrier import Carrier
from agent.telephony.carriers.media_stream import StreamStarted


def proven(
    principal: Principal,
    carrier: Carrier,
    started: StreamStarted,
    tokens: CallTokens,
    presented: str | None = None,
) -> ExpectedCall | None:
    """The call that a stream belongs to; None for an unauthenticated stream. `principal`: result of
    the authenticator, or of a signature. `presented`: a token that came with the handshake."""
    for token in offered_tokens(carrier, started, presented):
        if (found := tokens.redeem(token, carrier.name, started)) is not None:
            return found
    return None if principal is UNPROVEN else ExpectedCall(principal)


def may_transfer(principal: Principal, *, has_public_url: bool) -> bool:
    """True where the carrier may be told to transfer the call that a stream names. `principal`: of
    the stream's `ExpectedCall`. The id of the call is the carrier's own where a signed webhook or a
    signed upgrade says it, and where the call was ordered here, which takes the right to dial; a
    key with that right is trusted with the account. A server that asks for no key tells no client
    from another; with a public address it can tell the carrier by its signature."""
    if principal.kind == "open":
        return not has_public_url
    return principal.kind in ("carrier", "local") or principal.limits.dials


def offered_tokens(
    carrier: Carrier, started: StreamStarted, presented: str | None = None
) -> list[str]:
    """Tokens that a stream brings, that of the handshake first."""
    offered = [presented, *(started.parameters.get(name) for name in carrier.token_names)]
    return list(filter(None, offered))


def completed(started: StreamStarted, call: ExpectedCall) -> StreamStarted:
    """The stream's description of its call, completed by the webhook's."""
    return replace(
        started,
        caller=call.caller or started.caller,
        called=call.called or started.called,
        parameters={**started.parameters, **call.told},
    )
