"""Authentication of media streams by token, signature or bearer key.

A stream is authenticated by one of: a key, as `Authorization: Bearer KEY` or as the password of
Basic, which carriers derive from an address like wss://halfsec:KEY@host/...; a token that our
webhook gave the carrier for this one call, and that comes back in the stream's first message, or as
the password of Basic. A token is bound to the carrier's id of the call where webhook and stream
have the same one. Twilio's signature of the upgrade alone is enough only if the operator sets
`telephony.own_twiml`. A server that requires no keys requires none of carriers either.
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
