"""WebSocket endpoint `/v1/realtime`: admission and start of calls, resumption, refusals.

`transport.py` carries the call.
"""

import asyncio
import contextlib
import logging
import secrets
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from agent import errors
from agent.calls.registry import CallRegistry, save_trace
from agent.calls.service import AdmittedCall, CallService
from agent.calls.session_start import session_start
from agent.calls.state_store.store import StateStoreError, UnreadableStateError
from agent.config.schema import Config
from agent.errors import CLOSE_TIMEOUT_S
from agent.http.auth.principal import Principal, principal_of
from agent.http.refusal import STOPPING, HttpRefusal, shown, turn_away
from agent.realtime.protocol.ids import CountingIds
from agent.realtime.protocol.protocol import RealtimeProtocol
from agent.session.api.settings import SessionSettings
from latency_budget.account.clock import Clock

from .beta_refusal import CLOSE_REASON, REFUSAL, asks_for_beta
from .resume_tokens import ResumeTokens
from .socket import PROTOCOLS, CallSocket
from .transport import NOTHING_TO_RESUME, RealtimeTransport, Resuming

STORE_FAILS: Final = "the state of calls can't be reached now; try again"

SOCKET_WANTED: Final = HttpRefusal(
    426, "A line is free. Calls are WebSockets: ask for an upgrade.", "upgrade_required"
)

_log = logging.getLogger(__name__)


class RealtimeSocket:
    """Serves voice sockets. One instance for all of them."""

    def __init__(
        self, config: Config, calls: CallRegistry, clock: Clock, service: CallService
    ) -> None:
        self._calls = calls
        self._clock = clock
        self._service = service
        self._tokens: ResumeTokens[RealtimeTransport] = ResumeTokens()

    @property
    def _config(self) -> Config:
        """The settings of calls that begin now."""
        return self._service.config

    async def serve(self, websocket: WebSocket) -> None:
        """One connection, from handshake to close; of the one that opens a call, to its end."""
        principal = principal_of(websocket.scope)
        if self._calls.draining:
            _log.info("refused a call: %d the server is stopping", errors.CLOSE_DRAINING)
            await websocket.accept()
            await _close(websocket, errors.CLOSE_DRAINING, "the server is stopping")
            return
        query = websocket.query_params
        if (token := query.get("resume")) is not None:
            await self._resume(websocket, principal, token)
            return
        scope, waiting = websocket.scope, self._calls.waiting
        refusal = self._service.refusal(principal, scope, waiting.can_give_way)
        if refusal is not None:
            self._service.count_load_refusal(refusal)
            await turn_away(scope, websocket.receive, websocket.send, refusal)
            return
        if asks_for_beta(websocket.headers, websocket.scope.get("subprotocols", [])):
            await self._refuse_beta(self._socket_of(websocket))
            return
        start = session_start(self._config, principal, query.get("model"), query.get("intent"))
        if isinstance(start, HttpRefusal):
            await turn_away(scope, websocket.receive, websocket.send, start)
            return
        # Only now does a waiting call give way: nothing else refuses this client.
        self._service.refusal(principal, scope, waiting.give_way)
        held = self._service.admit(principal, scope, start, self._service.socket_rules)
        if start.model != start.agent:
            asked = shown(start.model)
            _log.info("call %s asks for %s: %s answers", held.call.session_id, asked, start.agent)
        await self._hold(held, self._socket_of(websocket))

    async def _hold(self, held: AdmittedCall, socket: CallSocket) -> None:
        """Serve an admitted call from its first socket on."""
        resuming = self._resuming(held, socket)
        try:
            await socket.accept(*PROTOCOLS)
            async with asyncio.TaskGroup() as group:
                group.create_task(socket.attend())
                await self._service.hold(held, self._transport(held, socket, resuming))
        finally:
            held.reservation.leave()
            self._calls.report_end(held.call)
            if resuming is not None and resuming.writer is not None:
                await resuming.writer.close(keeps=True)  # unless the transport has, at its end
        await save_trace(held.call, self._config.agent.trace_dir)

    def _resuming(self, held: AdmittedCall, socket: CallSocket) -> Resuming | None:
        wait_s = self._config.agent.resume_s
        if not (socket.is_extended and wait_s):
            return None
        writer = None
        if held.taken_over is not None:
            writer = held.taken_over.writer
        elif self._service.fleet is not None:
            writer = self._service.fleet.begin(
                held.call.session_id, held.start, held.reservation.key_id, held.rules.limit_s
            )
        return Resuming(self._tokens, wait_s, writer)

    def _transport(
        self, held: AdmittedCall, socket: CallSocket, resuming: Resuming | None
    ) -> RealtimeTransport:
        start = held.start
        # Ids of another server's events and items are not given out again.
        seed = "" if held.taken_over is None else f"{secrets.token_hex(4)}_"
        protocol = RealtimeProtocol(
            start.settings,
            model=start.model,
            extensions=socket.is_extended,
            new_id=CountingIds(seed),
            fixed=start.fixed,
        )
        return RealtimeTransport(
            held.call,
            held.reservation,
            self._calls,
            protocol,
            resuming,
            socket,
            self._clock,
            held.taken_over,
        )

    def _socket_of(self, websocket: WebSocket) -> CallSocket:
        return CallSocket(websocket, self._clock, self._config.access)

    async def _refuse_beta(self, socket: CallSocket) -> None:
        _log.info("refused a call: %d %s", errors.CLOSE_BETA, CLOSE_REASON)
        await socket.accept(*PROTOCOLS)
        await socket.send_last(RealtimeProtocol(SessionSettings(), model="").send(REFUSAL))
        socket.release(errors.CLOSE_BETA, CLOSE_REASON)
        await socket.attend()

    async def _resume(self, websocket: WebSocket, principal: Principal, token: str) -> None:
        """A connection that resumes a call."""
        socket = self._socket_of(websocket)
        transport = self._tokens.find(token, principal.key_id) if socket.is_extended else None
        if transport is not None and not await transport.holds():
            transport = None
        code, reason = errors.CLOSE_NOT_RESUMED, NOTHING_TO_RESUME
        if transport is None and socket.is_extended and self._service.fleet is not None:
            try:
                if await self._take_over(websocket, socket, principal, token):
                    return
            except StateStoreError as error:
                _log.warning("a call can't be resumed now: %s", error)
                code, reason = errors.CLOSE_OVERLOADED, STORE_FAILS
            except UnreadableStateError as error:
                _log.warning("a call can't be resumed: %s", error)
                reason = f"the call can't be resumed here: {error}"
        await socket.accept(*PROTOCOLS)
        if transport is None:
            _log.info("refused to resume a call: %d %s", code, reason)
            socket.release(code, reason)
        else:
            transport.come_back(socket)
        await socket.attend()

    async def _take_over(
        self, websocket: WebSocket, socket: CallSocket, principal: Principal, token: str
    ) -> bool:
        """Go on with a call of another server. Returns False where the token resumes none.

        Raises StateStoreError, UnreadableStateError.
        """
        fleet, scope = self._service.fleet, websocket.scope
        assert fleet is not None
        found = await fleet.find(token, principal.key_id)
        if found is None:
            return False
        taken_over, waiting = None, self._calls.waiting
        refusal = self._service.refusal(principal, scope, waiting.can_give_way)
        if refusal is None:
            taken_over = await fleet.take_over(found)
            if taken_over is None:
                return False
            refusal = STOPPING if self._calls.draining else None
            refusal = refusal or self._service.refusal(principal, scope, waiting.give_way)
        if refusal is not None or taken_over is None:  # the record stays, for another try
            if taken_over is not None:
                await taken_over.writer.close(keeps=True)
            assert refusal is not None
            self._service.count_load_refusal(refusal)
            await turn_away(scope, websocket.receive, websocket.send, refusal)
            return True
        _log.info("call %s is taken over from another server", taken_over.state.head.session_id)
        await self._hold(self._service.admit_taken_over(principal, scope, taken_over), socket)
        return True

    async def answer(self, request: Request) -> Response:
        """The refusal that a WebSocket would get now, as plain HTTP: browsers hide that of a
        handshake from pages. 426 where it would not be refused."""
        principal = principal_of(request.scope)
        refusal = STOPPING if self._calls.draining else None
        refusal = refusal or self._service.refusal(
            principal, request.scope, self._calls.waiting.can_give_way
        )
        if refusal is None:
            wanted, intent = request.query_params.get("model"), request.query_params.get("intent")
            start = session_start(self._config, principal, wanted, intent)
            refusal = start if isinstance(start, HttpRefusal) else SOCKET_WANTED
        response = refusal.response()
        if refusal is SOCKET_WANTED:
            response.headers["Upgrade"] = "websocket"
        return response


async def _close(websocket: WebSocket, code: int, reason: str) -> None:
    with contextlib.suppress(RuntimeError, WebSocketDisconnect, TimeoutError):
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await websocket.close(code, reason)
