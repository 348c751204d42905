"""Routes below `/telephony/`."""

from starlette.routing import BaseRoute, Route, WebSocketRoute

from agent.calls.registry import CallRegistry
from agent.calls.service import CallService
from agent.config.schema import Config
from agent.http.auth.telephony_credentials import CALLS_PATH
from agent.telephony.carriers.webhooks import WEBHOOKS
from agent.telephony.outbound.endpoint import Dialing
from agent.telephony.outbound.twilio_dialer import TwilioDialer
from latency_budget.account.clock import Clock

from .endpoint import STREAMS, PhoneSocket
from .signatures import PhoneSignatures
from .webhooks import STATUS_PATHS, VOICE_PATHS, PhoneWebhooks


def phone_routes(
    config: Config, calls: CallRegistry, clock: Clock, desk: CallService
) -> list[BaseRoute]:
    """The webhooks and the streams of all carriers, and calls to others."""
    tokens, signatures = desk.tokens, PhoneSignatures(config.telephony)
    phones = PhoneSocket(config, calls, clock, desk, tokens, signatures)
    hooks = PhoneWebhooks(config, calls, desk, tokens, signatures, phones.answered)
    dialing = Dialing(config, calls, desk, tokens, TwilioDialer(config.telephony))
    return [
        *(WebSocketRoute(path, phones.serve) for path in STREAMS),
        *(
            Route(path, answer, methods=list(WEBHOOKS[name].methods))
            for paths, answer in ((VOICE_PATHS, hooks.serve), (STATUS_PATHS, hooks.hear))
            for path, name in paths.items()
        ),
        Route(CALLS_PATH, dialing.serve, methods=["POST"]),
    ]
