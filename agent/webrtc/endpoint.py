"""`/v1/realtime/calls`: opens and ends calls by WebRTC, as OpenAI's API does.

A POST brings an SDP offer, as the body (`application/sdp`) or as the field `sdp` of a form, whose
field `session` configures the session. The answer is 201 with the SDP answer and the call's path in
`Location`. The call itself goes on beside the request: it belongs to `run`. Its session begins,
with the greeting, when the client is connected; until then, `webrtc.connect_s` at most, the call
holds its line.

What there is no line for is refused before its body is read, and again before it takes the line.
"""

import asyncio
import contextlib
import importlib.util
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from starlette.datastructures import UploadFile
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from agent.calls.registry import CallRegistry, save_trace
from agent.calls.service import HUNG_UP, AdmittedCall, CallService
from agent.calls.session_start import SessionStart, session_start
from agent.calls.suspended import GiveWay
from agent.codec.json_frame import read_frame
from agent.config.schema import Config
from agent.errors import CLOSE_TIMEOUT_S, ClientError
from agent.http.auth.middleware import WEBRTC_PATH
from agent.http.auth.origin_check import OriginCheck
from agent.http.auth.principal import Principal, client_of, principal_of
from agent.http.json_body import BODY_TIMEOUT_S, RefusedError, read_body
from agent.http.multipart import read_form
from agent.http.openai.concurrency_limit import ConcurrencyLimit
from agent.http.refusal import STOPPING, HttpRefusal, shown
from agent.http.responses import CLIENT_GONE, client_error
from agent.realtime.protocol.fields import Fields
from agent.realtime.protocol.fixed_fields import without_fixed
from agent.realtime.protocol.protocol import RealtimeProtocol
from agent.realtime.protocol.session_update import merge_session
from agent.realtime.socket import ClientPace
from agent.session.api.settings import SessionSettings
from latency_budget.account.clock import Clock
from llm_engine.errors import RequestError

from .offer import MAX_SDP_BYTES, Offer, read_offer
from .opus import OpusError, library
from .peer import IncompatibleLibraryError, Peer, load
from .transport import WebRtcTransport

MAX_BODY_BYTES: Final = 1 << 20
"""Largest request: an offer, and a session with its tools."""

LOOK_S: Final = 1.0
"""Interval of looks at whether the models are loaded, after which the library is."""

NOT_INSTALLED: Final = HttpRefusal(
    501,
    'Calls by WebRTC need the extra "webrtc": pip install "halfsec[webrtc]". '
    "Calls by WebSocket are taken at /v1/realtime.",
    "webrtc_not_installed",
    "server_error",
)
INCOMPATIBLE: Final = HttpRefusal(
    501,
    "Calls by WebRTC do not work with the versions of aiortc and aioice that are installed: "
    'pip install --upgrade "halfsec[webrtc]" brings those that do. '
    "Calls by WebSocket are taken at /v1/realtime.",
    "webrtc_incompatible",
    "server_error",
)
NO_OPUS: Final = HttpRefusal(
    501,
    "Calls by WebRTC need libopus, which is neither in PyAV's package here nor on this system: "
    "install libopus0. Calls by WebSocket are taken at /v1/realtime.",
    "opus_not_installed",
    "server_error",
)
NO_SUCH_CALL: Final = HttpRefusal(
    404, "There is no call with this id; it may be over.", "call_id_not_found"
)

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1", "0.0.0.0", "::", "")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _OpenCall:
    key_id: str
    transport: WebRtcTransport


class _Asked(NamedTuple):
    """What a request asks for."""

    offer: Offer
    session: dict[str, Any] | None


class WebRtcCalls:
    """Endpoint and owner of all WebRTC calls. Belongs to the event loop."""

    def __init__(
        self,
        config: Config,
        calls: CallRegistry,
        clock: Clock,
        service: CallService,
        visitors: OriginCheck,
        check: Callable[[SessionSettings], Awaitable[None]],
    ) -> None:
        """`check` raises ClientError for a session that could have no reply."""
        self._calls = calls
        self._clock = clock
        self._service = service
        self._visitors = visitors
        self._check = check
        self._open: dict[str, _OpenCall] = {}
        self._bodies = ConcurrencyLimit()
        """Requests whose body is being read."""
        self._is_loaded = False
        """The WebRTC library is imported, and libopus loaded."""
        self._closed: HttpRefusal | None = None
        self._group: asyncio.TaskGroup | None = None

    @property
    def _config(self) -> Config:
        """The settings of calls that begin now."""
        return self._service.config

    def __len__(self) -> int:
        """Calls that are open, those that are being connected among them."""
        return len(self._open)

    def routes(self) -> list[Route]:
        """Routes of calls and of the actions on them."""
        return [
            Route(WEBRTC_PATH, self.serve, methods=["POST", "OPTIONS"]),
            Route(f"{WEBRTC_PATH}/{{call_id}}/hangup", self.hang_up, methods=["POST"]),
        ]

    def close(self, refusal: HttpRefusal) -> None:
        """Refuse all calls from now on."""
        self._closed = refusal

    async def run(self) -> None:
        """Carry the calls until this is cancelled, which ends them."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                while not self._service.is_ready:  # noqa: ASYNC110  # there is no event for it
                    await asyncio.sleep(LOOK_S)
                await self._unavailable()  # now, so that the first call does not wait for it
                await asyncio.Event().wait()
            finally:
                self._group = None  # before the calls have ended: no other begins
                if self._calls.stopping.is_set():
                    await self._ended()

    async def _ended(self) -> None:
        """Wait until calls that are being ended have said so to their clients."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                while self._open:  # noqa: ASYNC110  # an event would serve this alone
                    await asyncio.sleep(0.02)

    async def serve(self, request: Request) -> Response:
        """Open a call; OPTIONS is a browser's question whether another origin's page may."""
        if request.method == "OPTIONS":
            return self._preflight(request)
        return await self._opened(request)

    def _preflight(self, request: Request) -> Response:
        refusal = self._visitors.refuse_origin(
            request.headers.get("origin"), request.headers.get("host")
        )
        if refusal is not None:
            return refusal.response()
        asked = request.headers.get("access-control-request-headers", "")
        allowed = {
            "Access-Control-Allow-Methods": "POST",
            "Access-Control-Allow-Headers": asked or "authorization, content-type",
            "Access-Control-Max-Age": "600",
        }
        return Response(status_code=204, headers=allowed)

    async def hang_up(self, request: Request) -> Response:
        """End a call of the same key."""
        call = self._open.get(request.path_params["call_id"])
        if call is None or call.key_id != principal_of(request.scope).key_id:
            return NO_SUCH_CALL.response()
        call.transport.hang_up(HUNG_UP)
        return Response(status_code=200)

    async def _opened(self, request: Request) -> Response:
        principal = principal_of(request.scope)
        refusal = await self._unavailable()
        if refusal is None:
            refusal = self._refusal(request, principal, self._calls.waiting.can_give_way)
        if refusal is not None:
            return refusal.response()
        try:
            with self._bodies.take(client_of(request.scope)):
                asked = await _asked(request)
            start = self._start(request, principal, asked.session)
            if not isinstance(start, HttpRefusal):
                await self._check(start.settings)
                return await self._admitted(request, principal, asked.offer, start)
        except RefusedError as error:
            return client_error(error.status, str(error), "invalid_request")
        except RequestError as error:
            return client_error(400, str(error), "invalid_request")
        except ClientError as error:
            status = 503 if error.code == "no_port" else error.http_status
            return client_error(status, error.message, error.code, error.param)
        except ClientDisconnect:
            return Response(status_code=CLIENT_GONE)
        return start.response()

    async def _unavailable(self) -> HttpRefusal | None:
        """Why no call can be taken here at all; None: they can. The first question loads the
        library, on a thread."""
        if self._closed is None and not self._is_loaded:
            refusal = await asyncio.to_thread(_loaded)
            self._is_loaded = refusal is None
            return refusal
        return self._closed

    def _refusal(
        self, request: Request, principal: Principal, give_way: GiveWay
    ) -> HttpRefusal | None:
        """Why there is no line for a call now; None: there is one."""
        refusal = STOPPING if self._calls.draining or self._group is None else None
        refusal = refusal or self._service.refusal(principal, request.scope, give_way)
        if refusal is not None:
            self._service.count_load_refusal(refusal)
            _log.info("refused a WebRTC call: %d %s", refusal.status, refusal.code)
        return refusal

    def _start(
        self, request: Request, principal: Principal, session: dict[str, Any] | None
    ) -> SessionStart | HttpRefusal:
        """Session of the call. Raises ClientError. What a client secret binds stays so."""
        query = request.query_params
        wanted = (session or {}).get("model") or query.get("model")
        wanted = wanted if isinstance(wanted, str) else None
        start = session_start(self._config, principal, wanted, query.get("intent"))
        if isinstance(start, HttpRefusal) or session is None:
            return start
        kind = "transcription" if start.settings.transcribes_only else "realtime"
        event = {"type": "session.update", "session": session}
        asked = without_fixed(event, start.fixed, kind)["session"]
        return replace(start, settings=merge_session(start.settings, Fields(asked, "session")))

    async def _admitted(
        self, request: Request, principal: Principal, offer: Offer, start: SessionStart
    ) -> Response:
        """Take a line, and answer the offer."""
        refusal = self._refusal(request, principal, self._calls.waiting.give_way)
        if refusal is not None:
            return refusal.response()
        held = self._service.admit(principal, request.scope, start, self._service.socket_rules)
        if start.model != start.agent:
            asked = shown(start.model)
            _log.info("call %s asks for %s: %s answers", held.call.session_id, asked, start.agent)
        try:
            transport = self._transport(start)
            answer = await transport.peer.answer(offer)
            if self._group is None or self._calls.draining:
                await transport.peer.close()
                held.reservation.leave()
                return STOPPING.response()
        except BaseException:
            held.reservation.leave()
            raise
        call_id = f"rtc_{secrets.token_hex(12)}"
        self._open[call_id] = _OpenCall(principal.key_id, transport)
        self._group.create_task(self._carry(call_id, held, transport))
        location = {"Location": f"{WEBRTC_PATH}/{call_id}", "Cache-Control": "no-store"}
        return Response(answer, 201, location, media_type="application/sdp")

    def _transport(self, start: SessionStart) -> WebRtcTransport:
        protocol = RealtimeProtocol(
            start.settings, model=start.model, fixed=start.fixed, holds_audio=True
        )
        pace = ClientPace(self._config.access, self._clock)
        transport = WebRtcTransport(protocol, pace, self._clock, self._config.access.idle_s)
        transport.peer = Peer(
            self._config.webrtc,
            transport.packet_arrived,
            transport.message_arrived,
            transport.stream_restarted,
            on_loopback=self._config.agent.host in _LOOPBACK,
        )
        return transport

    async def _carry(self, call_id: str, held: AdmittedCall, transport: WebRtcTransport) -> None:
        """One call, from its answer to its end. An error ends this call and no other."""
        session_id = held.call.session_id
        try:
            try:
                if not await transport.wait_connected():
                    _log.info(
                        "call %s: the client did not connect (%s)",
                        session_id,
                        transport.peer.progress,
                    )
                    return
                await self._service.hold(held, transport)
            finally:
                del self._open[call_id]
                held.reservation.leave()
                self._calls.report_end(held.call)
                _log.info("call %s: %s", session_id, transport.counts())
                await transport.peer.close()
            await save_trace(held.call, self._config.agent.trace_dir)
        except Exception:
            _log.exception("call %s failed", session_id)


def _loaded() -> HttpRefusal | None:
    """Load what calls need, which takes a while. Returns what is missing."""
    if importlib.util.find_spec("aiortc") is None:
        return NOT_INSTALLED
    try:
        load()
        library()
    except OpusError:
        return NO_OPUS
    except IncompatibleLibraryError as error:
        _log.error("calls by WebRTC can't be taken: aiortc or aioice lacks %s", error)
        return INCOMPATIBLE
    except Exception as error:  # a package that is damaged raises anything
        _log.error("calls by WebRTC can't be taken: %r", error)
        return NOT_INSTALLED
    return None


async def _asked(request: Request) -> _Asked:
    """Read a request. Raises RequestError, ClientError, ClientDisconnect."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/sdp":
        text = (await read_body(request, MAX_SDP_BYTES, BODY_TIMEOUT_S)).decode(errors="replace")
        return _Asked(read_offer(text), None)
    if kind != "multipart/form-data":
        problem = "must have Content-Type: application/sdp or multipart/form-data"
        raise RefusedError(415, "body", problem)
    async with read_form(request, MAX_BODY_BYTES, BODY_TIMEOUT_S) as form:
        texts = {}
        for name in ("sdp", "session"):
            value = form.get(name)
            if isinstance(value, UploadFile):
                value = (await value.read()).decode(errors="replace")
            texts[name] = value
    if not texts["sdp"]:
        raise ClientError("The form has no field 'sdp'.", code="invalid_offer", param="sdp")
    session = texts["session"]
    return _Asked(read_offer(texts["sdp"]), None if not session else read_frame(session))
