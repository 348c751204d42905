"""`/telephony/CARRIER/stream`: WebSocket endpoint of carriers' media streams.

The stream's first messages describe its call. Until they have come (at most `OPEN_S`) there is no
session, and no line is held except one that a webhook has reserved; the number of such streams is
limited (`pending_streams.py`). A refused stream is closed with the reason; what the caller then
hears depends on the carrier's instructions after the stream.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple

from starlette.types import Scope
from starlette.websockets import WebSocket, WebSocketDisconnect

from agent import errors
from agent.calls.registry import CallRegistry, save_trace
from agent.calls.service import AdmittedCall, CallService
from agent.calls.session_start import SessionStart, session_start
from agent.calls.stream_tokens import CallTokens, ExpectedCall
from agent.config.schema import Config
from agent.http.auth.principal import UNPROVEN, Principal, principal_of
from agent.http.auth.telephony_credentials import PRESENTED_KEY
from agent.http.peer_address import NOWHERE
from agent.http.refusal import STOPPING, HttpRefusal, shown, turn_away
from agent.realtime.socket import CallSocket
from agent.telephony.carriers.carrier import Carrier
from agent.telephony.carriers.media_stream import StreamError, StreamStarted
from agent.telephony.carriers.phone_numbers import shown_number
from agent.telephony.media.amd import AnsweringMachineDetector
from agent.telephony.outbound.transfer import (
    REFUSED,
    TransferError,
    TransferFunction,
    TransferOrder,
)
from agent.tools.server_tool import one_line
from latency_budget.account.clock import Clock

from .call_detail_record import log_call, record_of, settle
from .call_plan import planned
from .media_session import HungUp, PhoneLine
from .pending_streams import PendingStreams
from .signatures import PhoneSignatures
from .stream_auth import completed, may_transfer, offered_tokens, proven
from .transport import STREAM_CLOSED, PhoneCall

OPEN_S: Final = 5.0
"""Time limit from the handshake to the message that describes the call; carriers send it at
once."""

MAX_OPENING: Final = 64
"""Most messages up to that one. Carriers send one or two."""

MAX_OPENING_CHARS: Final = 16 * 1024
"""Most characters and bytes of these messages together: strangers send them, and nothing paces
them. Carriers send 1 kB, and up to 1 kB more for each parameter of the call."""

NOT_AUTHENTICATED: Final = (
    "nothing shows that this stream is of a call that was expected here: no key, and no token of "
    "this server's for this call"
)

NOT_THE_CARRIERS: Final = (
    "its stream or webhook shows no signature of the carrier's, and may name any call; without one "
    "it takes a key that may order calls (halfsec keys add NAME --dials)"
)

_log = logging.getLogger(__name__)


class _Stream(NamedTuple):
    """Identity of a call's stream. A client with a key can claim any call id, without affecting
    other keys: its stream transfers nothing (`may_transfer`)."""

    key_id: str
    carrier: str
    call_id: str


class PhoneSocket:
    """Stream endpoint. One instance for all carriers. Belongs to the event loop."""

    def __init__(
        self,
        config: Config,
        calls: CallRegistry,
        clock: Clock,
        service: CallService,
        tokens: CallTokens,
        signatures: PhoneSignatures,
        transfers: Mapping[str, TransferFunction] = MappingProxyType({}),
    ) -> None:
        """`transfers`: means of transfer by the carrier's name."""
        self._calls = calls
        self._clock = clock
        self._service = service
        self._tokens = tokens
        self._signatures = signatures
        self._access = replace(config.access, idle_s=config.telephony.silent_s)
        self._transfers = transfers
        self._opening = PendingStreams()
        self._streamed: dict[_Stream, AnsweringMachineDetector | None] = {}
        """Calls that have a stream, with their answering machine detectors."""

    @property
    def _config(self) -> Config:
        """The settings of calls that begin now."""
        return self._service.config

    async def serve(self, websocket: WebSocket, carrier: Carrier) -> None:
        """Serve one stream of a carrier, from handshake to close."""
        scope = websocket.scope
        principal = self._admitted(scope, carrier)
        if isinstance(principal, HttpRefusal):
            await turn_away(scope, websocket.receive, websocket.send, principal)
            return
        line = PhoneLine(carrier.media_stream(), detects_keys=self._config.telephony.key_tones)
        # Where silence is not sent, the connection itself shows whether the peer is alive.
        access = self._access if line.sends_silence else replace(self._access, idle_s=0)
        socket = CallSocket(websocket, self._clock, access)
        await socket.accept(*carrier.subprotocols)
        async with asyncio.TaskGroup() as group:
            group.create_task(socket.attend())
            await self._answer(socket, principal, scope, carrier, line)

    def answered(self, carrier: str, call_id: str, answered_by: str) -> None:
        """Take a carrier's result of answering machine detection. The call may be over."""
        for stream, amd in self._streamed.items():
            if amd is not None and (stream.carrier, stream.call_id) == (carrier, call_id):
                amd.carrier_reported(answered_by)

    def _admitted(self, scope: Scope, carrier: Carrier) -> Principal | HttpRefusal:
        """Principal of the stream, as far as the handshake shows."""
        principal = self._signatures.of_stream(scope, carrier, principal_of(scope))
        if isinstance(principal, HttpRefusal):
            return principal
        if self._calls.draining:
            return STOPPING
        # No waiting call is ended for a stream that may be no call.
        give_way = self._calls.waiting.can_give_way
        refusal = self._service.refusal(principal, None, give_way, may_be_due=True)
        return refusal or principal

    def _no_line(self, principal: Principal) -> HttpRefusal | None:
        """Refusal of an authenticated call without a free line. Calls that wait for their client
        are ended for it."""
        if self._calls.draining:
            return STOPPING
        refusal = self._service.refusal(principal, None, self._calls.waiting.give_way)
        if refusal is not None:
            self._service.count_load_refusal(refusal)
        return refusal

    async def _answer(
        self,
        socket: CallSocket,
        principal: Principal,
        scope: Scope,
        carrier: Carrier,
        line: PhoneLine,
    ) -> None:
        """Serve a stream to its end. Only the socket's close remains when this returns."""
        code, reason = errors.CLOSE_NORMAL, ""
        try:
            started = await self._opened(socket, principal, scope, line)
            await self._serve_stream(socket, principal, scope, carrier, line, started)
        except (HungUp, WebSocketDisconnect) as gone:
            why = gone if isinstance(gone, HungUp) else STREAM_CLOSED
            _log.info("%s: a stream ended before its call began: %s", carrier.name, why)
        except (StreamError, errors.IdleClientError, TimeoutError) as error:
            code = errors.CLOSE_POLICY
            reason = one_line(error) or "the stream does not say what call it is"
            _log.warning("%s: refused a stream: %s", carrier.name, reason)
        finally:
            socket.release(code, reason)

    async def _opened(
        self, socket: CallSocket, principal: Principal, scope: Scope, line: PhoneLine
    ) -> StreamStarted:
        """Wait for the stream's description of its call. Raises as `_described`, and
        TimeoutError."""
        if principal is UNPROVEN:
            address, _ = scope["client"] or (NOWHERE, 0)
            async with self._opening.wait(address, OPEN_S):
                return await _described(socket, line)
        async with asyncio.timeout(OPEN_S):
            return await _described(socket, line)

    async def _serve_stream(
        self,
        socket: CallSocket,
        principal: Principal,
        scope: Scope,
        carrier: Carrier,
        line: PhoneLine,
        started: StreamStarted,
    ) -> None:
        """Admit and serve one call. Raises StreamError for a refused one."""
        presented = scope.get(PRESENTED_KEY)
        offered = offered_tokens(carrier, started, presented)
        await self._service.fleet_tokens.claim(self._tokens, offered)
        expected = proven(principal, carrier, started, self._tokens, presented)
        await self._service.fleet_tokens.publish(self._tokens, offered)  # what was another call's
        if expected is None:
            raise StreamError(NOT_AUTHENTICATED)
        principal = expected.principal
        started = completed(started, expected)
        stream = _Stream(principal.key_id, line.carrier, started.call_id)
        if started.call_id and stream in self._streamed:
            raise StreamError(f"call {shown(started.call_id)} has a stream already")
        if (refusal := self._no_line(principal)) is not None:
            raise StreamError(refusal.message)
        start = self._start(expected, started)
        if isinstance(start, HttpRefusal):
            raise StreamError(start.message)
        held = self._service.admit(principal, None, start, self._service.phone_rules)
        with contextlib.ExitStack() as resources:
            resources.callback(held.reservation.leave)
            self._streamed[stream] = None
            resources.callback(self._streamed.pop, stream, None)
            await self._serve_call(socket, line, started, held, stream, resources)
        await save_trace(held.call, self._config.agent.trace_dir)

    async def _serve_call(
        self,
        socket: CallSocket,
        line: PhoneLine,
        started: StreamStarted,
        held: AdmittedCall,
        stream: _Stream,
        resources: contextlib.ExitStack,
    ) -> None:
        """Serve an admitted call. `resources`: of the call, released before its record is made:
        the call may return before that."""
        whole = self._config.telephony.store_numbers
        numbers = (shown_number(each, whole=whole) for each in (started.caller, started.called))
        _log.info(
            "call %s by %s from %s to %s: %s answers",
            held.call.session_id, line.carrier, *map(shown, numbers), held.start.agent,
        )  # fmt: skip
        held, plan = planned(
            self._config.telephony_in(held.start.settings.language),
            held,
            started,
            self._transfer_of(line, held),
            self._clock.now_ns(),
        )
        plan = replace(plan, ahead_s=self._access.burst_s)
        self._streamed[stream] = plan.amd
        phone = PhoneCall(line, socket, self._clock, plan)
        try:
            await self._service.hold(held, phone)
        finally:
            resources.close()
            record = None
            try:
                await settle(phone)
            finally:  # also where the web server ends, and waits no longer
                try:
                    record = record_of(held.call, phone, started, self._clock, whole_numbers=whole)
                    log_call(record)
                    if self._calls.store is not None:
                        self._calls.store.add(record)
                finally:
                    self._calls.report_end(held.call, record)

    def _transfer_of(self, line: PhoneLine, held: AdmittedCall) -> TransferFunction | None:
        """Means to transfer the call by its carrier; None: there is none. It refuses where the call
        that the stream names may be another's."""
        transfer, settings = self._transfers.get(line.carrier), self._config.telephony
        if transfer is None or may_transfer(
            held.principal, has_public_url=bool(settings.public_url)
        ):
            return transfer
        return _refuse_transfer

    def _start(self, expected: ExpectedCall, started: StreamStarted) -> SessionStart | HttpRefusal:
        """Session of the call. Its agent is that of the webhook, else of the stream's parameter,
        else of the called number."""
        wanted = expected.agent or started.parameters.get("agent")
        wanted = wanted or self._config.telephony.agent_at(started.called)
        start = session_start(self._config, expected.principal, wanted)
        if isinstance(start, HttpRefusal):
            return start
        media = started.media
        settings = start.settings.changed(
            input_encoding=media.encoding,
            output_encoding=media.encoding,
            line_rate_hz=media.rate_hz,
        )
        return replace(start, settings=settings)


def _refuse_transfer(order: TransferOrder) -> "asyncio.Future[None]":
    """A `TransferFunction` that transfers nothing."""
    _log.error("a call can't be transferred: %s", NOT_THE_CARRIERS)
    refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    refused.set_exception(TransferError(REFUSED))
    return refused


async def _described(socket: CallSocket, line: PhoneLine) -> StreamStarted:
    """Read the stream's description of its call. Raises StreamError, HungUp, WebSocketDisconnect,
    IdleClientError."""
    num_chars = 0
    for _ in range(MAX_OPENING):
        frame = await socket.frame()
        num_chars += len(frame)
        if num_chars > MAX_OPENING_CHARS:
            raise StreamError(
                f"{num_chars} characters, and none of them says what call it is; at most "
                f"{MAX_OPENING_CHARS} are taken before"
            )
        if line.open(frame) and line.started is not None:
            return line.started
    raise StreamError(f"{MAX_OPENING} messages, and none of them says what call it is")
