"""Application: routes and middleware over the calls, the stages and the endpoints."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from agent.calls.recording import Recorder
from agent.calls.registry import CallRegistry
from agent.calls.service import CallService
from agent.calls.session_check import check_session
from agent.calls.state_store.memory import MemoryStateStore
from agent.calls.state_store.store import StateStore
from agent.config.local_urls import RELOAD_PATH
from agent.config.schema import Config
from agent.http.auth.authenticator import Authenticator
from agent.http.auth.keys import KeyFile, keys_path
from agent.http.auth.middleware import AuthMiddleware, open_paths
from agent.http.auth.origin_check import HostCheck, OriginCheck
from agent.http.auth.principal import client_of
from agent.http.endpoints.client_secrets import SecretEndpoint
from agent.http.endpoints.health_and_sessions import Endpoints
from agent.http.endpoints.latency import LatencyEndpoints
from agent.http.endpoints.metrics import Metrics
from agent.http.endpoints.openapi import openapi_json
from agent.http.endpoints.reload import ReloadEndpoint
from agent.http.hardening.header_limits import HeadCheck
from agent.http.hardening.shutdown_middleware import LastAnswers
from agent.http.json_body import JsonBodies
from agent.http.not_found import with_refusals
from agent.http.openai.models import ModelList
from agent.http.openai.routes import openai_routes
from agent.http.refusal import HttpRefusal, turn_away
from agent.http.static_files import WEB_DEMO, Pages
from agent.observability.trace_export import TraceExporter
from agent.realtime.endpoint import RealtimeSocket
from agent.stages.registry import Stages
from agent.telephony.audiosocket_listener import AudioSockets
from agent.telephony.outbound.twilio_account import TwilioAccount
from agent.telephony.routes import phone_routes
from agent.tools.server_tools import ServerTools
from agent.webrtc.endpoint import WebRtcCalls
from latency_budget.account.clock import Clock
from latency_budget.storage.store import TurnStore

from .reloader import Reloader

if TYPE_CHECKING:
    from agent.calls.call_webhooks import CallWebhooks

CONTENT_POLICY: Final = (
    "default-src 'self'; connect-src 'self' ws: wss:; img-src 'self' data:; "
    "media-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

NO_SOCKET: Final = HttpRefusal(
    404, "There is no WebSocket at this path; calls are taken at /v1/realtime.", "not_found"
)


@dataclass(frozen=True, slots=True)
class Application:
    """The ASGI application, and what the server process runs beside it."""

    asgi: Starlette
    calls: CallRegistry
    audio_sockets: AudioSockets
    """AudioSocket calls, which come through a port of their own."""
    metrics: Metrics
    webrtc: WebRtcCalls
    """WebRTC calls, which go on after the request that opened them."""
    twilio: TwilioAccount
    """Account for outbound calls and transfers; closed at the service's end."""
    reloader: Reloader


def create_app(  # noqa: PLR0913
    config: Config,
    stages: Stages,
    clock: Clock,
    store: TurnStore | None = None,
    exporter: TraceExporter | None = None,
    access: Authenticator | None = None,
    tools: ServerTools | None = None,
    recorder: Recorder | None = None,
    state_store: StateStore | None = None,
    webhooks: "CallWebhooks | None" = None,
    read: Callable[[], Config] | None = None,
) -> Application:
    """Build the application; `agent/server/server.py` runs it. `access` defaults to an
    authenticator of the keys in HALFSEC_HOME, `state_store` to one in memory. `read`: reads the
    settings anew."""
    access = access or Authenticator(config, KeyFile(keys_path()), clock)
    calls = CallRegistry(config, clock, store, exporter, recorder)
    access.on_news = calls.events.look_up
    if state_store is None:
        state_store = MemoryStateStore(clock)
    tools = tools or ServerTools(config, clock)
    latency = LatencyEndpoints(calls, access)
    endpoints = Endpoints(
        stages, calls, access, tools, config.answering_model(), state_store, webhooks
    )
    check = partial(check_session, stages)
    bodies = JsonBodies(client_of)
    secrets = SecretEndpoint(config, access.secrets, clock, check, access.publish_secret, bodies)
    visitors = OriginCheck(config.agent, config.telephony.public_host)
    call_service = CallService(config, stages, calls, clock, access, tools, state_store)
    voice = RealtimeSocket(config, calls, clock, call_service)
    metrics = Metrics(stages, calls, tools, webhooks)
    models = ModelList(config)
    parts = (calls, call_service, secrets, models)
    reloader = Reloader(config, read, tools, calls, parts)
    webrtc = WebRtcCalls(config, calls, clock, call_service, visitors, check)
    twilio = TwilioAccount(config.telephony)
    routes = [
        WebSocketRoute("/v1/realtime", voice.serve),
        Route("/v1/realtime", voice.answer),
        *phone_routes(config, calls, clock, call_service, twilio, bodies),
        *webrtc.routes(),
        Route("/v1/realtime/client_secrets", secrets.serve, methods=["POST"]),
        Route("/healthz", endpoints.healthz),
        Route("/readyz", endpoints.readyz),
        Route("/metrics", metrics.serve),
        Route("/health", endpoints.readyz),  # the path of vLLM and llama.cpp
        Route("/openapi.json", openapi_json),
        Route(RELOAD_PATH, ReloadEndpoint(reloader.reload).serve, methods=["POST"]),
        *openai_routes(config, stages, models, bodies),
        Route("/v1/sessions", endpoints.sessions),
        Route("/v1/sessions/{session_id}/trace", endpoints.trace),
        Route("/v1/sessions/{session_id}/recording", endpoints.recording),
        Route("/v1/calls", latency.calls),
        Route("/v1/calls/{session_id}", latency.call),
        Route("/v1/latency/summary", latency.summary),
        Route("/v1/latency/turns", latency.turns),
        Route("/v1/latency/refusals", latency.refusals),
        Route("/v1/latency/events", latency.events),
    ]
    rest = [
        WebSocketRoute("/{path:path}", _no_socket),
        Mount("/", Pages()),
    ]
    asgi = Starlette(
        routes=[*with_refusals(routes), *rest],
        middleware=[
            Middleware(SecurityHeaders),
            Middleware(LastAnswers),
            Middleware(HeadCheck),
            Middleware(HostCheck, visitors=visitors),
            Middleware(AuthMiddleware, access, visitors, clock, open_paths(WEB_DEMO)),
        ],
    )
    audio_sockets = AudioSockets(config, calls, clock, call_service)
    return Application(asgi, calls, audio_sockets, metrics, webrtc, twilio, reloader)


async def _no_socket(websocket: WebSocket) -> None:
    await turn_away(websocket.scope, websocket.receive, websocket.send, NO_SOCKET)


class SecurityHeaders:
    """Middleware that adds the security headers to every HTTP response."""

    HEADERS: Final = (
        (b"content-security-policy", CONTENT_POLICY.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"cache-control", b"no-cache"),
    )

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *self.HEADERS]
            await send(message)

        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)
