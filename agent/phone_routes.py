"""What stands under `/telephony/`."""

from starlette.routing import BaseRoute, Route, WebSocketRoute

from latency_budget.clock import Clock

from .call_desk import CallDesk
from .call_order import CALLS_PATH
from .calls import Calls
from .config import Config
from .phone_dialing import Dialing
from .phone_signatures import PhoneSignatures
from .phone_socket import STREAMS, PhoneSocket
from .phone_webhooks import STATUS_PATHS, VOICE_PATHS, PhoneWebhooks
from .twilio_dialer import TwilioDialer
from .wire.webhooks import WEBHOOKS


def phone_routes(config: Config, calls: Calls, clock: Clock, desk: CallDesk) -> list[BaseRoute]:
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
