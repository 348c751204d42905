"""Routes below `/telephony/`."""

from functools import partial

from starlette.routing import BaseRoute, Route, WebSocketRoute

from agent.calls.registry import CallRegistry
from agent.calls.service import CallService
from agent.config.schema import Config
from agent.http.auth.telephony_credentials import CALLS_PATH, PREFIX
from agent.http.json_body import JsonBodies
from agent.telephony.carriers.table import CARRIERS
from agent.telephony.outbound.endpoint import OutboundCalls
from agent.telephony.outbound.transfer import transfers_by_carrier
from agent.telephony.outbound.twilio_account import TwilioAccount
from agent.telephony.outbound.twilio_dialer import TwilioDialer
from latency_budget.account.clock import Clock

from .endpoint import PhoneSocket
from .signatures import PhoneSignatures
from .webhooks import PhoneWebhooks


def phone_routes(
    config: Config,
    calls: CallRegistry,
    clock: Clock,
    service: CallService,
    twilio: TwilioAccount,
    bodies: JsonBodies,
) -> list[BaseRoute]:
    """Routes of all carriers' streams and webhooks, and of outbound calls."""
    tokens, signatures = service.tokens, PhoneSignatures(config.telephony)
    transfers = transfers_by_carrier(config.telephony, twilio)
    phones = PhoneSocket(config, calls, clock, service, tokens, signatures, transfers)
    hooks = PhoneWebhooks(config, calls, service, tokens, signatures, phones.answered)
    outbound = OutboundCalls(config, calls, service, tokens, TwilioDialer(twilio), bodies)
    routes: list[BaseRoute] = [Route(CALLS_PATH, outbound.serve, methods=["POST"])]
    for carrier in CARRIERS.values():
        path = f"{PREFIX}{carrier.key}"
        routes.append(WebSocketRoute(f"{path}/stream", partial(phones.serve, carrier=carrier)))
        if (webhook := carrier.webhook) is not None:
            for name, serve in (("voice", hooks.voice), ("status", hooks.status)):
                endpoint = partial(serve, carrier=carrier, webhook=webhook)
                routes.append(Route(f"{path}/{name}", endpoint, methods=list(webhook.methods)))
    return routes
