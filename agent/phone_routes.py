"""What stands under `/telephony/`."""

from starlette.routing import BaseRoute, WebSocketRoute

from latency_budget.clock import Clock

from .call_desk import CallDesk
from .calls import Calls
from .config import Config
from .phone_access import CallTokens
from .phone_socket import STREAMS, PhoneSocket


def phone_routes(config: Config, calls: Calls, clock: Clock, desk: CallDesk) -> list[BaseRoute]:
    """The streams of all carriers."""
    phones = PhoneSocket(config, calls, clock, desk, CallTokens(clock))
    return [WebSocketRoute(path, phones.serve) for path in STREAMS]
