"""Refusal of clients of OpenAI's beta protocol, which are recognized by their handshake.

That protocol has other names for half of the events, so a client of it would wait for ever for what
it knows. OpenAI itself switched it off: it accepts the connection, sends an `error` event (which is
what such clients show their users; the status of a handshake they don't) and closes with 4000.
"""

from collections.abc import Sequence
from typing import Final

from starlette.datastructures import Headers

from agent.session.api.server_events import Problem

CODE: Final = "beta_api_shape_disabled"

CLOSE_REASON: Final = f"invalid_request_error.{CODE}"

REFUSAL: Final = Problem(
    "The beta of this API is not served. Use a client of the general release: one that sends "
    "neither the header 'OpenAI-Beta: realtime=v1' nor the subprotocol "
    '\'openai-beta.realtime-v1\', and configures the session with "type": "realtime".',
    CODE,
)


def asks_for_beta(headers: Headers, offered: Sequence[str]) -> bool:
    """True if a handshake with these subprotocols is that of a beta client."""
    betas = ",".join(headers.getlist("openai-beta")).split(",")
    return (
        any(beta.strip().lower() == "realtime=v1" for beta in betas)
        or "openai-beta.realtime-v1" in offered
    )
