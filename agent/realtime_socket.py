"""WebSockets at `/v1/realtime`: who is admitted, with what a call begins, how its end is told.

What goes on between is `voice_call.py`'s.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope
from starlette.websockets import WebSocket, WebSocketDisconnect

from latency_budget.budget import budget_profile
from latency_budget.clock import Clock, unix_ns
from latency_budget.history import TurnEntry
from latency_budget.report import turn_json

from . import errors
from .access import Access
from .address_limits import CallsByAddress
from .beta_dialect import CLOSE_REASON, REFUSAL, asks_for_beta
from .call import Call
from .call_socket import CallSocket
from .calls import Calls, save_trace
from .config import Config
from .end_of_turn import IdleRules
from .first_clause import cutting
from .identifiers import new_session_id
from .mark_notices import MarkNotices
from .notices import Extension, Notice, Problem
from .outbox import SlowReader
from .ports import NO_RECORDING
from .principal import Principal, principal_of
from .reply_desk import Surroundings
from .resume_tokens import ResumeTokens
from .server_tools import ServerTools
from .session import Session
from .session_start import SessionStart, session_start
from .settings import SessionSettings
from .stages import Stages, check_tools
from .turn_log import TurnLog
from .unheard import OnTurn
from .visitors import Refusal, shown, turn_away
from .voice_call import CLIENT_LEFT, NOTHING_TO_RESUME, CallOver, Resuming, VoiceCall
from .voice_connection import CLOSE_TIMEOUT_S
from .wire.realtime import RealtimeProtocol

SILENT: Final = "nobody has spoken for too long"

IDLE: Final = "the client sent nothing for too long"

EXPIRED: Final = "reached its time limit"

WARMING: Final = Refusal(
    503, "The models are still loading; try again shortly.", "warming", "server_error", 2
)
BROKEN: Final = Refusal(
    503, "A part of the service is being restarted; try again.", "restarting", "server_error", 5
)
BUSY: Final = Refusal(503, "All lines are busy; try again later.", "busy", "server_error", 10)
LINES_OF_KEY: Final = Refusal(
    429, "All calls that this key may hold at once are in progress.", "rate_limit_exceeded",
    "rate_limit_error", 10,
)  # fmt: skip
LINES_OF_ADDRESS: Final = Refusal(
    429, "All calls that may come from your address at once are in progress.",
    "rate_limit_exceeded", "rate_limit_error", 10,
)  # fmt: skip
STOPPING: Final = Refusal(
    503, "The server is stopping; its successor takes calls.", "draining", "server_error", 5
)
SOCKET_WANTED: Final = Refusal(
    426, "A line is free. Calls are WebSockets: ask for an upgrade.", "upgrade_required"
)
CROWDED: Final = Refusal(503, "", "over_budget", "server_error", 15)

_log = logging.getLogger(__name__)


class RealtimeSocket:
    """Serves voice sockets. One instance for all of them."""

    def __init__(
        self,
        config: Config,
        stages: Stages,
        calls: Calls,
        clock: Clock,
        access: Access,
        tools: ServerTools,
    ) -> None:
        self._config = config
        self._tools = tools
        self._stages = stages
        self._calls = calls
        self._clock = clock
        self._access = access
        self._budget = budget_profile(config.agent.preset)
        self._num_held: Counter[str] = Counter()
        """Calls in progress, by the `key_id` of whose they are."""
        self._tokens: ResumeTokens[VoiceCall] = ResumeTokens()
        self._by_address = CallsByAddress(config.access)

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
        refusal = self._refusal(principal, websocket.scope, self._calls.waiting.give_way)
        if refusal is not None:
            if refusal.code in (BUSY.code, CROWDED.code):
                self._calls.refuse(refusal.code)
            await turn_away(websocket.scope, websocket.receive, websocket.send, refusal)
            return
        if asks_for_beta(websocket.headers, websocket.scope.get("subprotocols", [])):
            await self._refuse_beta(CallSocket(websocket, self._clock, self._config.access))
            return
        start = session_start(self._config, principal, query.get("model"), query.get("intent"))
        if isinstance(start, Refusal):
            await turn_away(websocket.scope, websocket.receive, websocket.send, start)
            return
        # Before any wait: others want a line too.
        call = self._calls.admit(new_session_id(), start.agent)
        place = _Place(
            call, principal.key_id, websocket.scope, self._calls, self._num_held, self._by_address
        )
        if start.model != start.agent:
            asked = shown(start.model)
            _log.info("call %s asks for %s: %s answers", call.session_id, asked, start.agent)
        socket = CallSocket(websocket, self._clock, self._config.access)
        try:
            await socket.accept()
            async with asyncio.TaskGroup() as group:
                group.create_task(socket.attend())
                await self._talk(socket, principal, call, place, start)
        finally:
            place.leave()
        await save_trace(call, self._config.agent.trace_dir)

    async def _refuse_beta(self, socket: CallSocket) -> None:
        _log.info("refused a call: %d %s", errors.CLOSE_BETA, CLOSE_REASON)
        await socket.accept()
        await socket.say_last(RealtimeProtocol(SessionSettings(), model="").send(REFUSAL))
        socket.let_go(errors.CLOSE_BETA, CLOSE_REASON)
        await socket.attend()

    async def _resume(self, websocket: WebSocket, principal: Principal, token: str) -> None:
        """A connection that wants to go on with a call."""
        socket = CallSocket(websocket, self._clock, self._config.access)
        await socket.accept()
        voice = self._tokens.find(token, principal.key_id) if socket.is_extended else None
        if voice is None:
            _log.info("refused to resume a call: %d", errors.CLOSE_NOT_RESUMED)
            socket.let_go(errors.CLOSE_NOT_RESUMED, NOTHING_TO_RESUME)
        else:
            voice.come_back(socket)
        await socket.attend()

    async def answer(self, request: Request) -> Response:
        """What a WebSocket would be refused with now, said to those who can't see that: browsers
        hide it from pages. 426 where it would not be refused."""
        principal = principal_of(request.scope)
        refusal = STOPPING if self._calls.draining else None
        refusal = refusal or self._refusal(
            principal, request.scope, self._calls.waiting.can_give_way
        )
        if refusal is None:
            wanted, intent = request.query_params.get("model"), request.query_params.get("intent")
            start = session_start(self._config, principal, wanted, intent)
            refusal = start if isinstance(start, Refusal) else SOCKET_WANTED
        response = refusal.response()
        if refusal is SOCKET_WANTED:
            response.headers["Upgrade"] = "websocket"
        return response

    def _refusal(
        self, principal: Principal, scope: Scope, give_way: Callable[[str | None], bool]
    ) -> Refusal | None:
        """Why there is no line for somebody. Calls that wait for their client give way to him."""
        if self._stages.status != "ready":
            return BROKEN if self._stages.status == "broken" else WARMING
        if self._has_all_its_calls(principal) and not give_way(principal.key_id):
            return LINES_OF_KEY
        if self._by_address.are_all_held(scope):
            return LINES_OF_ADDRESS
        if self._calls.full and not give_way(None):
            return BUSY
        if (crowd := self._calls.crowd()) is not None and not give_way(None):
            return replace(CROWDED, message=f"{crowd.reason} Try again later.")
        return None

    def _has_all_its_calls(self, principal: Principal) -> bool:
        most = principal.limits.max_calls
        return most is not None and self._num_held[principal.key_id] >= most

    async def _talk(
        self,
        socket: CallSocket,
        principal: Principal,
        call: Call,
        place: "_Place",
        start: SessionStart,
    ) -> None:
        """Runs the session, to the end of the call."""
        resuming = Resuming(self._tokens, self._config.agent.resume_s)
        can_resume = socket.is_extended and resuming.wait_s > 0
        protocol = RealtimeProtocol(
            start.settings, model=start.model, extensions=socket.is_extended, fixed=start.fixed
        )
        voice = VoiceCall(
            call,
            place,
            self._calls,
            protocol,
            resuming if can_resume else None,
            socket,
            self._clock,
        )

        def on_turn(entry: TurnEntry) -> None:
            entry = self._calls.turn_over(call, entry)
            turn = turn_json(entry.record, entry.caller_text, entry.agent_text, entry.reply_s)
            voice.notify(Extension("halfsec.turn", {"turn": turn}))

        last: tuple[Notice, ...] = ()
        code, reason = errors.CLOSE_NORMAL, CLIENT_LEFT
        try:
            session = await self._session(call, start, voice.notify, on_turn, socket.is_extended)
            async with asyncio.timeout(self._config.agent.session_limit_s):
                async with asyncio.TaskGroup() as group:
                    group.create_task(session.run())
                    group.create_task(voice.serve(session))
                    group.create_task(self._end_when_revoked(principal))
        except errors.StageError as error:
            _log.error("session %s can't begin: %s", call.session_id, error)
            code, reason = errors.CLOSE_OVERLOADED, "a part of the service is restarting; try again"
        except TimeoutError:
            last = (Problem(f"The session {EXPIRED}.", "session_expired"),)
            code, reason = errors.CLOSE_NORMAL, f"the session {EXPIRED}"
        except ExceptionGroup as group_error:
            code, reason = _close_for(group_error, call)
        finally:
            place.leave()
            _log_end(call, code, reason)
            said = "" if reason == CLIENT_LEFT else reason
            await voice.end(code, said, *last)
            socket.let_go(code, said)  # unless it has been, for another one

    async def _end_when_revoked(self, principal: Principal) -> None:
        await self._access.until_revoked(principal)
        raise errors.RevokedKeyError

    async def _session(
        self,
        call: Call,
        start: SessionStart,
        notify: Callable[[Notice], None],
        on_turn: OnTurn,
        extended: bool,
    ) -> Session:
        settings = start.settings
        around = Surroundings(
            clock=self._clock,
            open_chat=self._stages.open_chat,
            open_voice=self._stages.open_voice,
            lead_ms=self._config.agent.lead_ms,
            budget=self._budget,
            notify=notify,
            guesses=self._config.agent.guess,
            previews=self._config.agent.preview,
            ducks=extended,
            barge_ins=self._calls.barge_ins,
            guess_counts=self._calls.guesses,
            recording=call.recording or NO_RECORDING,
            on_state=partial(self._calls.changed, call),
            openers=self._config.agent.openers,
            cutting=cutting(by_clause=self._config.agent.first_clause),
            policy=self._calls.policy,
            idle=IdleRules(
                idle_after_ms=self._config.agent.idle_prompt_ms,
                idle_hangup_ms=self._config.agent.idle_hangup_ms,
            ),
            idle_prompt=self._config.agent.idle_prompt,
            expires_at_unix_s=unix_ns() // 10**9 + self._config.agent.session_limit_s,
            tools=await self._tools.for_call(
                call.agent,
                call.session_id,
                {str(each.get("name")) for each in settings.tools},
                partial(check_tools, self._stages, settings.instructions),
                notify,
            ),
            tool_wait=self._config.agent.tool_wait,
        )
        ears = await self._stages.new_ears(settings.turn_detection)
        marked = partial(self._calls.marked, call)
        told = MarkNotices(notify, self._clock, call.began.now_ns) if extended else None
        log = TurnLog(call.session_id, call.trace, on_turn, marked, told)
        return Session(call.session_id, start.profile, settings, around, ears, log)


class _Place:
    """What a call occupies: a line of the server, one of its key, and one of its address."""

    def __init__(
        self,
        call: Call,
        key_id: str,
        scope: Scope,
        calls: Calls,
        num_held: Counter[str],
        by_address: CallsByAddress,
    ) -> None:
        self.key_id = key_id
        self._call = call
        self._scope = scope
        self._calls = calls
        self._num_held = num_held
        self._by_address = by_address
        self._is_left = False
        num_held[key_id] += 1
        by_address.begun(scope)

    def leave(self) -> None:
        """Only the first time counts."""
        if not self._is_left:
            self._is_left = True
            self._calls.leave(self._call)
            self._num_held -= Counter([self.key_id])  # which forgets those at zero
            self._by_address.ended(self._scope)


def _close_for(group_error: ExceptionGroup[Exception], call: Call) -> tuple[int, str]:
    """What the end of a call's task group means to its client."""
    over, others = group_error.split(CallOver)
    if over is not None:
        if others is not None:
            _log.error("session %s failed at its end", call.session_id, exc_info=others)
        return errors.CLOSE_NORMAL, str(over.exceptions[0])
    if group_error.subgroup(errors.SilentCallError) is not None:
        return errors.CLOSE_NORMAL, SILENT
    if group_error.subgroup(errors.IdleClientError) is not None:
        return errors.CLOSE_NORMAL, IDLE
    if group_error.subgroup(errors.RevokedKeyError) is not None:
        return errors.CLOSE_POLICY, "the key of this call was revoked"
    if group_error.subgroup(SlowReader) is not None:
        return errors.CLOSE_POLICY, "the client does not read what it is sent"
    _log.error("session %s failed", call.session_id, exc_info=group_error)
    return errors.CLOSE_INTERNAL, "internal error"


def _log_end(call: Call, code: int, reason: str) -> None:
    p50_ms = "none" if call.p50_ms is None else f"{call.p50_ms:.0f}"
    _log.info(
        "call %s ended: agent=%s turns=%d p50_ms=%s close=%d (%s)",
        call.session_id, call.agent, call.num_turns, p50_ms, code, reason,
    )  # fmt: skip


async def _close(websocket: WebSocket, code: int, reason: str) -> None:
    with contextlib.suppress(RuntimeError, WebSocketDisconnect, TimeoutError):
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await websocket.close(code, reason)
