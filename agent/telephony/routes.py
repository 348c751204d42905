"""Routes below `/telephony/`."""

from starlette.routing import BaseRoute, Route, WebSocketRoute

from agent.calls.registry import CallRegistry
from agent.calls.service import CallService
from agent.config.schema import Config
from agent.http.auth.telephony_credentials import CALLS_PATH, PREFIX
from agent.telephony.carriers.registry import CARRIERS, carrier_webhooks
from agent.telephony.outbound.endpoint import Dialing
from agent.telephony.outbound.twilio_dialer import TwilioDialer
from latency_budget.account.clock import Clock

from .endpoint import PhoneSocket
from .signatures import PhoneSignatures
from .webhooks import PhoneWebhooks


def phone_routes(
    config: Config, calls: CallRegistry, clock: Clock, desk: CallService
) -> list[BaseRoute]:
    """The webhooks and the streams of all carriers, and calls to others."""
    tokens, signatures = desk.tokens, PhoneSignatures(config.telephony)
    phones = PhoneSocket(config, calls, clock, desk, tokens, signatures)
    hooks = PhoneWebhooks(config, calls, desk, tokens, signatures, phones.answered)
    dialing = Dialing(config, calls, desk, tokens, TwilioDialer(config.telephony))
    return [
        *(WebSocketRoute(f"{PREFIX}{name}/stream", phones.serve) for name in CARRIERS),
        *(
            Route(f"{PREFIX}{name}/{kind}", serve, methods=list(hook.methods))
            for kind, serve in (("voice", hooks.serve), ("status", hooks.hear))
            for name, hook in carrier_webhooks().items()
        ),
        Route(CALLS_PATH, dialing.serve, methods=["POST"]),
    ]


def bearer_signed_paths() -> list[str]:
    """Paths of the webhooks whose Authorization header has the carrier's signature."""
    return [
        f"{PREFIX}{name}/{kind}"
        for name, carrier in CARRIERS.items()
        if carrier.signs_by_bearer
        for kind in ("voice", "status")
    ]
