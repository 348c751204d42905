"""One WebSocket at `/v1/realtime`: admission, the dialect, one session, two loops."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from starlette.websockets import WebSocket, WebSocketDisconnect

from latency_budget.budget import budget_profile
from latency_budget.clock import Clock, unix_ns
from latency_budget.history import TurnEntry
from latency_budget.report import turn_json

from . import errors
from .access import Access
from .address_limits import CallsByAddress
from .beta_dialect import CLOSE_REASON, REFUSAL, asks_for_beta
from .calls import Call, Calls, save_trace
from .config import AgentProfile, Config
from .end_of_turn import IdleRules
from .first_clause import cutting
from .identifiers import new_session_id
from .intake import Intake
from .notices import Extension, Notice, Problem
from .outbox import Outbox, SlowReader
from .principal import Principal, principal_of
from .reply_desk import Surroundings
from .server_tools import ServerTools
from .session import Session
from .session_start import SessionStart, session_start
from .settings import SessionSettings
from .stages import Stages, check_tools
from .turn_log import TurnLog
from .unheard import OnTurn
from .visitors import Refusal, shown, turn_away
from .voice_connection import CLOSE_TIMEOUT_S
from .wire.realtime import RealtimeProtocol

SEND_TIMEOUT_S: Final = 15.0
"""A peer that takes no data for so long has gone, or attacks."""

SILENT: Final = "nobody has spoken for too long"

IDLE: Final = "the client sent nothing for too long"

EXPIRED: Final = "reached its time limit"

CLIENT_LEFT: Final = "the client hung up"
"""Said to nobody but the log."""

PLAIN_PROTOCOL: Final = "realtime"
EXTENDED_PROTOCOL: Final = "halfsec.v1"

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
        self._by_address = CallsByAddress(config.access)

    async def serve(self, websocket: WebSocket) -> None:
        """One connection, from handshake to close."""
        principal = principal_of(websocket.scope)
        if await self._refused(websocket, principal):
            return
        offered = websocket.scope.get("subprotocols", [])
        extended = EXTENDED_PROTOCOL in offered
        chosen = EXTENDED_PROTOCOL if extended else None
        if chosen is None and PLAIN_PROTOCOL in offered:
            chosen = PLAIN_PROTOCOL
        if asks_for_beta(websocket.headers, offered):
            return await _refuse_beta(websocket, chosen)
        query = websocket.query_params
        start = session_start(self._config, principal, query.get("model"), query.get("intent"))
        if isinstance(start, Refusal):
            await turn_away(websocket.scope, websocket.receive, websocket.send, start)
            return
        # Before any wait: others want a line too.
        call = self._calls.admit(new_session_id(), start.agent)
        self._num_held[principal.key_id] += 1
        self._by_address.begun(websocket.scope)
        if start.model != start.agent:
            asked = shown(start.model)
            _log.info("call %s asks for %s: %s answers", call.session_id, asked, start.agent)
        code, reason = errors.CLOSE_NORMAL, CLIENT_LEFT
        try:
            await websocket.accept(subprotocol=chosen)
            code, reason = await self._talk(websocket, call, start, extended)
        finally:
            self._calls.leave(call)
            self._num_held -= Counter([principal.key_id])  # which forgets those at zero
            self._by_address.ended(websocket.scope)
            _log_end(call, code, reason)
        await _close(websocket, code, "" if reason == CLIENT_LEFT else reason)
        await save_trace(call, self._config.agent.trace_dir)

    async def _refused(self, websocket: WebSocket, principal: Principal) -> bool:
        refusal = None
        if self._calls.draining:
            _log.info("refused a call: %d the server is stopping", errors.CLOSE_DRAINING)
            await websocket.accept()
            await _close(websocket, errors.CLOSE_DRAINING, "the server is stopping")
            return True
        if self._stages.status != "ready":
            refusal = BROKEN if self._stages.status == "broken" else WARMING
        if refusal is None and self._has_all_its_calls(principal):
            refusal = LINES_OF_KEY
        if refusal is None and self._by_address.are_all_held(websocket.scope):
            refusal = LINES_OF_ADDRESS
        if refusal is None and self._calls.full:
            refusal = BUSY
            self._calls.refuse(refusal.code)
        if refusal is None and (crowd := self._calls.crowd()) is not None:
            refusal = replace(CROWDED, message=f"{crowd.reason} Try again later.")
            self._calls.refuse(refusal.code)
        if refusal is None:
            return False
        await turn_away(websocket.scope, websocket.receive, websocket.send, refusal)
        return True

    def _has_all_its_calls(self, principal: Principal) -> bool:
        most = principal.limits.max_calls
        return most is not None and self._num_held[principal.key_id] >= most

    async def _talk(
        self, websocket: WebSocket, call: Call, start: SessionStart, extended: bool
    ) -> tuple[int, str]:
        """Runs the session. Returns the close code and reason."""
        outbox = Outbox(self._clock)
        profile, settings = start.profile, start.settings
        protocol = RealtimeProtocol(
            settings, model=start.model, extensions=extended, fixed=start.fixed
        )

        def notify(notice: Notice) -> None:
            for frame in protocol.send(notice):
                outbox.put(frame)

        def on_turn(entry: TurnEntry) -> None:
            entry = self._calls.turn_over(call, entry)
            turn = turn_json(entry.record, entry.caller_text, entry.agent_text, entry.reply_s)
            notify(Extension("halfsec.turn", {"turn": turn}))

        try:
            session = await self._session(call, profile, settings, notify, on_turn, extended)
            async with asyncio.timeout(self._config.agent.session_limit_s):
                async with asyncio.TaskGroup() as group:
                    group.create_task(session.run())
                    group.create_task(_write(websocket, outbox))
                    intake = Intake(websocket, self._config.access, self._clock)
                    group.create_task(_read(intake, protocol, session, notify, outbox))
                    group.create_task(self._end_when_revoked(principal_of(websocket.scope)))
        except errors.StageError as error:
            _log.error("session %s can't begin: %s", call.session_id, error)
            return errors.CLOSE_OVERLOADED, "a part of the service is restarting; try again"
        except TimeoutError:
            expired = Problem(f"The session {EXPIRED}.", "session_expired")
            for frame in protocol.send(expired):
                await _send(websocket, frame)
            return errors.CLOSE_NORMAL, f"the session {EXPIRED}"
        except ExceptionGroup as group_error:
            return _close_for(group_error, call)
        return errors.CLOSE_NORMAL, CLIENT_LEFT

    async def _end_when_revoked(self, principal: Principal) -> None:
        await self._access.until_revoked(principal)
        raise errors.RevokedKeyError

    async def _session(
        self,
        call: Call,
        profile: AgentProfile,
        settings: SessionSettings,
        notify: Callable[[Notice], None],
        on_turn: OnTurn,
        ducks: bool,
    ) -> Session:
        around = Surroundings(
            clock=self._clock,
            open_chat=self._stages.open_chat,
            open_voice=self._stages.open_voice,
            lead_ms=self._config.agent.lead_ms,
            budget=self._budget,
            notify=notify,
            guesses=self._config.agent.guess,
            previews=self._config.agent.preview,
            ducks=ducks,
            barge_ins=self._calls.barge_ins,
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
        log = TurnLog(call.session_id, call.trace, on_turn, marked)
        return Session(call.session_id, profile, settings, around, ears, log)


async def _refuse_beta(websocket: WebSocket, subprotocol: str | None) -> None:
    _log.info("refused a call: %d %s", errors.CLOSE_BETA, CLOSE_REASON)
    await websocket.accept(subprotocol=subprotocol)
    for frame in RealtimeProtocol(SessionSettings(), model="").send(REFUSAL):
        await websocket.send_text(frame)
    await _close(websocket, errors.CLOSE_BETA, CLOSE_REASON)


async def _read(
    intake: Intake,
    protocol: RealtimeProtocol,
    session: Session,
    notify: Callable[[Notice], None],
    outbox: Outbox,
) -> None:
    """Client frames to the session, one at a time: a busy session is not read from."""
    while True:
        await outbox.room()
        for request in protocol.receive(await intake.frame()):
            if isinstance(request, Problem):
                notify(request)
            else:
                await session.handle(request)
                await intake.keep_pace(request)


async def _write(websocket: WebSocket, outbox: Outbox) -> None:
    while True:
        frame = await outbox.get()
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await websocket.send_text(frame)
        except TimeoutError:
            raise SlowReader from None


def _close_for(group_error: ExceptionGroup[Exception], call: Call) -> tuple[int, str]:
    """What the end of a call's task group means to its client."""
    if group_error.subgroup(WebSocketDisconnect) is not None:
        gone = group_error.split(WebSocketDisconnect)[1]
        if gone is not None:
            _log.error("session %s failed at its end", call.session_id, exc_info=gone)
        return errors.CLOSE_NORMAL, CLIENT_LEFT
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


async def _send(websocket: WebSocket, frame: str) -> None:
    """The last of a call, to a client that may be gone."""
    with contextlib.suppress(RuntimeError, WebSocketDisconnect, TimeoutError):
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await websocket.send_text(frame)


async def _close(websocket: WebSocket, code: int, reason: str) -> None:
    with contextlib.suppress(RuntimeError, WebSocketDisconnect, TimeoutError):
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await websocket.close(code, reason)
