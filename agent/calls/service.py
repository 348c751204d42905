"""Call service: admission, session and end of every call, whatever its transport.

A *transport* carries a call: WebSockets of clients (`agent/realtime/transport.py`), WebRTC
(`agent/webrtc/transport.py`), or the media stream of a telephone call
(`agent/telephony/transport.py`).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

from starlette.types import Scope

from agent import errors
from agent.config.remote_models import shown_model
from agent.config.schema import AgentProfile, Config
from agent.errors import SlowReader
from agent.http.auth.authenticator import Authenticator
from agent.http.auth.principal import Principal
from agent.http.hardening.address_limits import CallsByAddress
from agent.http.refusal import HttpRefusal
from agent.observability.live_marks import LiveMarks
from agent.observability.turn_recorder import TurnRecorder
from agent.session.api.ids import new_session_id
from agent.session.api.server_events import Extension, Notice, Problem
from agent.session.api.settings import SessionSettings
from agent.session.ports.stage_ports import NO_RECORDING, RecordingPort, ToolsPort
from agent.session.response.dependencies import (
    SessionOptions,
    SessionOutputs,
    SessionStages,
    SharedState,
)
from agent.session.response.handoff import AgentSwitch
from agent.session.response.opening_clause import cutting
from agent.session.session import Session
from agent.session.spoken_voice import with_spoken_voice
from agent.stages.registry import Stages, check_tools
from agent.telephony.carriers.media_stream import StreamError
from agent.tools.offered import NO_TOOLS
from agent.tools.server_tool import ServerTool, one_line
from agent.tools.server_tools import LoadedTools, ServerTools
from agent.turn_taking.end_of_turn import IdleRules
from latency_budget.account.budget import Budget, budget_profile
from latency_budget.account.clock import Clock, unix_ns
from latency_budget.account.turn import SessionId
from latency_budget.statistics.report import turn_json
from latency_budget.storage.history import TurnEntry

from .call import ActiveCall
from .fleet_lines import FleetLine
from .fleet_tokens import FleetTokens
from .registry import CallRegistry
from .session_start import SessionStart, instructions_in, localized, resumed_start
from .state_store.store import StateStore
from .stream_tokens import CallTokens
from .suspended import GiveWay

if TYPE_CHECKING:
    from .state_writer import FleetCalls, TakenOverCall

CLIENT_LEFT: Final = "the client hung up"
"""Reason of the end of a call; logged only, never sent."""

HUNG_UP: Final = "hung up by request"

CLIENT_LOST: Final = "the client was lost"
"""Beginning of the reason of a call whose client did not come back."""

SILENT: Final = "nobody has spoken for too long"

IDLE: Final = "the client sent nothing for too long"

EXPIRED: Final = "reached its time limit"

TIME_IS_UP: Final = f"the session {EXPIRED}"

REVOKED: Final = "the key of this call was revoked"

STOPPED: Final = "the server is being stopped"

ELSEWHERE: Final = "the call goes on at another server"

FAILED: Final = "internal error"

CANT_BEGIN: Final = "the session can't begin as it was asked for"

WARMING: Final = HttpRefusal(
    503, "The models are still loading; try again shortly.", "warming", "server_error", 2
)
BROKEN: Final = HttpRefusal(
    503, "A part of the service is being restarted; try again.", "restarting", "server_error", 5
)
BUSY: Final = HttpRefusal(503, "All lines are busy; try again later.", "busy", "server_error", 10)
LINES_OF_KEY: Final = HttpRefusal(
    429, "All calls that this key may hold at once are in progress.", "rate_limit_exceeded",
    "rate_limit_error", 10,
)  # fmt: skip
LINES_OF_ADDRESS: Final = HttpRefusal(
    429, "All calls that may come from your address at once are in progress.",
    "rate_limit_exceeded", "rate_limit_error", 10,
)  # fmt: skip
CROWDED: Final = HttpRefusal(503, "", "over_budget", "server_error", 15)

_CAUSES: Final = {
    CLIENT_LEFT: "caller_hung_up",
    HUNG_UP: "hung_up",
    SILENT: "silent",
    IDLE: "lost",
    TIME_IS_UP: "time_limit",
    REVOKED: "revoked",
    STOPPED: "stopped",
    LINES_OF_KEY.message: "refused",
}
"""Causes of the end, as in call detail records, by reason."""

_CAUSES_OF_CODES: Final = {errors.CLOSE_NORMAL: "bad_stream", errors.CLOSE_POLICY: "bad_stream"}
"""Causes of other reasons, by close code; of other codes "failed"."""

_log = logging.getLogger(__name__)


class CallOver(Exception):
    """The peer has gone, and the call does not wait for it any longer."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class CallTransport(Protocol):
    """Transport of one call. Belongs to the event loop."""

    @property
    def is_extended(self) -> bool:
        """The peer knows `halfsec.*` events, and turns a response down on `halfsec.duck`."""
        ...

    @property
    def tools(self) -> Mapping[str, ServerTool]:
        """Tools that act on the call itself, by their names in `server_tools`."""
        ...

    def notify(self, notice: Notice) -> None:
        """Send a notice to the peer, if it is connected. Never waits."""
        ...

    async def serve(self, session: Session) -> NoReturn:
        """Carry the call to its end, which is raised: CallOver and what else `close_for` knows."""
        ...

    async def end(self, code: int, reason: str, *last: Notice) -> None:
        """Once `serve` has ended: send the last notices and close the connection."""
        ...


@dataclass(frozen=True, slots=True)
class CallPolicy:
    """Limits and timing of one kind of line: WebSocket or telephone."""

    lead_ms: int
    """Audio that is sent ahead of real time, in ms."""
    limit_s: int
    """Longest call, in s."""
    budget: Budget
    """Division of the latency budget among the stages, whatever total the session sets."""
    idle: IdleRules
    """Times after which a silent caller is prompted and the call ends."""
    leg_ms: int = 0
    """Additional latency of the telephone network, in ms. It is added to the budget, which is meant
    for the agent's own part."""
    records: bool = True
    """Calls of this kind are recorded, where a recorder is configured."""


class LineReservation:
    """Lines that a call occupies: one of the server, one of its key, one of its address."""

    def __init__(
        self,
        call: ActiveCall,
        key_id: str,
        scope: Scope | None,
        calls: CallRegistry,
        num_held: Counter[str],
        by_address: CallsByAddress,
    ) -> None:
        """`scope`: None for a call that counts for no address."""
        self.key_id = key_id
        self._call = call
        self._scope = scope
        self._calls = calls
        self._num_held = num_held
        self._by_address = by_address
        self._is_left = False
        num_held[key_id] += 1
        if scope is not None:
            by_address.begun(scope)

    def leave(self) -> None:
        """Release the lines. Only the first call counts."""
        if not self._is_left:
            self._is_left = True
            self._calls.leave(self._call)
            self._num_held -= Counter([self.key_id])  # which forgets those at zero
            if self._scope is not None:
                self._by_address.ended(self._scope)


@dataclass(frozen=True, slots=True)
class AdmittedCall:
    """One call that was admitted."""

    call: ActiveCall
    reservation: LineReservation
    principal: Principal
    start: SessionStart
    rules: CallPolicy
    recording: RecordingPort
    tools: LoadedTools
    """The settings when it was admitted, with the tools of the server."""
    taken_over: "TakenOverCall | None" = None
    """The call as another server left it; None for a call that begins here."""


class CallService:
    """One instance for all calls. Belongs to the event loop."""

    def __init__(
        self,
        config: Config,
        stages: Stages,
        calls: CallRegistry,
        clock: Clock,
        access: Authenticator,
        tools: ServerTools,
        state_store: StateStore,
    ) -> None:
        self.config = config
        """The settings of calls that begin now."""
        self._tools = tools
        self._stages = stages
        self._calls = calls
        self._clock = clock
        self._access = access
        self._num_held: Counter[str] = Counter()
        """Calls in progress, by `key_id`."""
        self._by_address = CallsByAddress(config.access)
        self.tokens: Final = CallTokens(clock)
        """Reserved lines of telephone calls that are on their way."""
        self.state_store: Final = state_store
        self.fleet_tokens: Final = FleetTokens(state_store)
        self.fleet: Final = _fleet_calls(state_store, config.agent.resume_s)
        """Calls in the store of the fleet; None where they are not shared."""
        self.socket_rules, self.phone_rules = _policies(config)

    def use(self, config: Config) -> None:
        """Serve the calls that begin from now on by these settings."""
        self.config = config
        self.socket_rules, self.phone_rules = _policies(config)

    @property
    def is_ready(self) -> bool:
        """The models are loaded, and work."""
        return self._stages.status == "ready"

    def refusal(
        self,
        principal: Principal,
        scope: Scope | None,
        give_way: GiveWay,
        *,
        may_be_due: bool = False,
    ) -> HttpRefusal | None:
        """Admission control: the reason why there is no line for this principal, or None. As many
        calls as needed give way among those that wait for their client; reserved telephone calls do
        not. `scope`: of the client's request; None on telephone lines, where an address stands for
        many callers, whatever key orders or brings their calls. `may_be_due`: the call may be a
        reserved one.
        """
        if self._stages.status != "ready":
            return WARMING if self._stages.status == "warming" else BROKEN
        waiting = self._calls.waiting
        kept = 0 if may_be_due else len(self.tokens)
        of_key = self._num_lacking_of_key(principal, kept and self.tokens.num_of(principal.key_id))
        if of_key and not waiting.can_give_way(principal.key_id, of_key):
            return LINES_OF_KEY
        if scope is not None and self._by_address.are_all_held(scope):
            return LINES_OF_ADDRESS
        number = max(of_key, self._calls.num_lacking(kept))
        if number and not waiting.can_give_way(None, number):
            return BUSY
        if not number and (crowd := self._calls.crowd(kept)) is not None:
            if not waiting.can_give_way():
                return replace(CROWDED, message=f"{crowd.reason} Try again later.")
            number = 1
        # Only now that nothing refuses: no call gives way to one that is refused after all.
        if of_key:
            give_way(principal.key_id, of_key)
        if number > of_key:
            give_way(None, number - of_key)
        return None

    def count_load_refusal(self, refusal: HttpRefusal) -> None:
        """Count a refusal that was caused by load."""
        if refusal.code in (BUSY.code, CROWDED.code):
            self._calls.refuse(refusal.code)

    def admit(
        self, principal: Principal, scope: Scope | None, start: SessionStart, rules: CallPolicy
    ) -> AdmittedCall:
        """Take a line, before any await. The caller of this has checked `refusal`, with the same
        `scope`, and releases the lines with `reservation.leave`."""
        settings = start.settings
        start = replace(
            start, settings=settings.changed(budget_ms=settings.budget_ms + rules.leg_ms)
        )
        call = self._calls.admit(new_session_id(), start.agent, is_recorded=rules.records)
        reservation = LineReservation(
            call, principal.key_id, scope, self._calls, self._num_held, self._by_address
        )
        return AdmittedCall(
            call,
            reservation,
            principal,
            start,
            rules,
            call.recording or NO_RECORDING,
            self._tools.loaded,
        )

    def admit_taken_over(
        self, principal: Principal, scope: Scope, taken_over: "TakenOverCall"
    ) -> AdmittedCall:
        """Take a line for a call of another server, as `admit` does. It ends when it would have
        ended there."""
        head = taken_over.state.head
        limit_s = max(1, head.expires_at_unix_s - unix_ns() // 10**9)
        start = resumed_start(self.config, taken_over.state)
        call = self._calls.admit(SessionId(head.session_id), start.agent, is_taken_over=True)
        reservation = LineReservation(
            call, principal.key_id, scope, self._calls, self._num_held, self._by_address
        )
        rules = replace(self.socket_rules, limit_s=limit_s)
        recording = call.recording or NO_RECORDING
        return AdmittedCall(
            call, reservation, principal, start, rules, recording, self._tools.loaded, taken_over
        )

    async def hold(self, held: AdmittedCall, transport: CallTransport) -> None:
        """Run the session to the end of the call."""
        call = held.call
        last: tuple[Notice, ...] = ()
        code, reason = errors.CLOSE_NORMAL, CLIENT_LEFT
        may_go_elsewhere = held.taken_over is not None
        line = FleetLine(self.state_store, held.principal, call.session_id)
        try:
            if not await line.take():
                code, reason = errors.CLOSE_OVERLOADED, LINES_OF_KEY.message
                return
            session = await self._session(held, transport)
            if held.taken_over is not None:
                session.restore(held.taken_over.state.session)
            call.conversation = session.heard_items
            may_go_elsewhere = False
            async with asyncio.timeout(held.rules.limit_s):
                await self._serve(held, session, transport, line)
        except errors.ClientError as error:
            _log.error("session %s can't begin: %s", call.session_id, error)
            last = (Problem(error.message, error.code, error.error_type, error.param),)
            code, reason = error.close_code, CANT_BEGIN
        except errors.StageError as error:
            _log.error("session %s can't begin: %s", call.session_id, error)
            code, reason = errors.CLOSE_OVERLOADED, "a part of the service is restarting; try again"
        except TimeoutError:
            last = (Problem(f"The session {EXPIRED}.", "session_expired"),)
            code, reason = errors.CLOSE_NORMAL, TIME_IS_UP
        except ExceptionGroup as group_error:
            code, reason = close_for(group_error, call)
        except asyncio.CancelledError:
            code, reason = errors.CLOSE_DRAINING, STOPPED
            raise
        except Exception:
            code, reason = errors.CLOSE_INTERNAL, FAILED
            raise
        finally:
            if may_go_elsewhere and code != errors.CLOSE_DRAINING:
                code = errors.CLOSE_OVERLOADED  # its record is kept, for another try
            if code != errors.CLOSE_TAKEN_OVER and not may_go_elsewhere:
                self._report_end(call, code, reason)
            held.reservation.leave()
            _log_end(call, code, reason)
            await transport.end(code, "" if reason == CLIENT_LEFT else reason, *last)
            if code != errors.CLOSE_TAKEN_OVER:  # then it is the other server's
                await line.release()

    async def _serve(
        self, held: AdmittedCall, session: Session, transport: CallTransport, line: FleetLine
    ) -> None:
        """Run a session with its transport, until one of them ends or the call has to. Raises
        ExceptionGroup."""
        async with asyncio.TaskGroup() as group:
            group.create_task(session.run())
            group.create_task(transport.serve(session))
            group.create_task(self._end_when_revoked(held.principal))
            group.create_task(self._end_when_stopping())
            if line.counts:
                group.create_task(line.hold())

    def _report_end(self, call: ActiveCall, code: int, reason: str) -> None:
        try:
            call.ended(_cause_of(code, reason), reason, self._clock.now_ns())
        except Exception:  # our own fault: it must not keep the line
            _log.exception("the conversation of session %s is lost", call.session_id)

    def _num_lacking_of_key(self, principal: Principal, num_kept: int) -> int:
        """Lines that the principal's key lacks for one more call, counted as in
        `CallRegistry.num_lacking`."""
        most, held = principal.limits.max_calls, self._num_held[principal.key_id] + num_kept
        return 0 if most is None else max(0, held + 1 - most)

    async def _end_when_revoked(self, principal: Principal) -> None:
        await self._access.until_revoked(principal)
        raise errors.RevokedKeyError

    async def _end_when_stopping(self) -> None:
        await self._calls.stopping.wait()
        raise errors.StoppingError

    async def _session(self, held: AdmittedCall, transport: CallTransport) -> Session:
        call, settings = held.call, held.start.settings
        config, rules = held.tools.config, held.rules
        own = config.agent
        tools = await self._tools_of(held, transport, call.agent, settings)
        settings = await with_spoken_voice(self._stages.prepare_language, settings)
        # Raises for a voice that this server lacks.
        self._stages.open_voice(settings.voice, settings.output_rate_hz)
        stages = SessionStages(
            ears=await self._stages.new_ears(settings.turn_detection),
            open_chat=self._stages.open_chat,
            open_voice=self._stages.open_voice,
            tools=tools,
            speaking_voice=self._stages.speaking_voice,
            is_troubled=lambda: self._stages.is_troubled,
            prepare_language=self._stages.prepare_language,
            is_prepared=self._stages.is_prepared,
            switch_agent=partial(self._switched, held, transport),
        )
        options = SessionOptions(
            lead_ms=rules.lead_ms,
            budget=rules.budget,
            preemptive=own.guess,
            previews=own.preview,
            ducks=transport.is_extended,
            chunking=cutting(by_clause=own.first_clause),
            sentences=config.sentences,
            early_openers=own.early_openers,
            idle=rules.idle,
            instructions_in=lambda language: instructions_in(config, call.agent, language),
            expires_at_unix_s=unix_ns() // 10**9 + rules.limit_s,
        )
        outputs = SessionOutputs(
            notify=transport.notify,
            log=self._turn_log(call, transport),
            recording=held.recording,
            on_agent=partial(self._calls.handed_off, call),
            on_state=partial(self._calls.changed, call),
            on_background=partial(self._calls.background_changed, call),
        )
        shared = SharedState(
            self._clock,
            self._calls.policy,
            self._calls.barge_ins,
            self._calls.guesses,
            self._calls.condensing,
        )
        return Session(
            call.session_id, held.start.profile, settings, stages, options, outputs, shared
        )

    async def _tools_of(
        self, held: AdmittedCall, transport: CallTransport, agent: str, settings: SessionSettings
    ) -> ToolsPort:
        """Server tools of an agent in this call, with these settings."""
        return await self._tools.for_call(
            agent,
            held.call.session_id,
            {str(each.get("name")) for each in settings.tools},
            partial(check_tools, self._stages, settings.instructions),
            transport.notify,
            transport.tools,
            held.tools,
        )

    async def _switched(
        self,
        held: AdmittedCall,
        transport: CallTransport,
        agent: str,
        settings: SessionSettings,
        old: AgentProfile,
    ) -> AgentSwitch:
        """Prepare an agent of the settings that the call began with to take it over. Raises
        StageError and ClientError."""
        config = held.tools.config
        profile = localized(config, agent, settings.language)
        asked = settings.changed(voice=shown_model(config.voice(profile)), asked_voice="")
        spoken = await with_spoken_voice(self._stages.prepare_language, asked)
        switch = AgentSwitch(
            agent,
            profile,
            spoken.voice,
            spoken.asked_voice,
            config.pace_ms(profile),
            config.budget_ms(profile) + held.rules.leg_ms,
            NO_TOOLS,
        )
        self._stages.open_voice(spoken.voice, settings.output_rate_hz)  # raises for an unknown one
        then = switch.applied(settings, old)
        return replace(switch, tools=await self._tools_of(held, transport, agent, then))

    def _turn_log(self, call: ActiveCall, transport: CallTransport) -> TurnRecorder:
        """Turn recorder of a call."""

        def on_turn(entry: TurnEntry) -> None:
            entry = self._calls.turn_over(call, entry)
            turn = turn_json(entry.record, entry.caller_text, entry.agent_text, entry.reply_s)
            fields = {"turn": turn, "response_id": entry.response_id}
            transport.notify(Extension("halfsec.turn", fields))

        told = None
        if transport.is_extended:
            told = LiveMarks(transport.notify, self._clock, call.began.now_ns)
        marked = partial(self._calls.marked, call)
        return TurnRecorder(call.session_id, call.trace, on_turn, marked, told, call.agent)


def _policies(config: Config) -> tuple[CallPolicy, CallPolicy]:
    """Policies of calls by WebSocket or WebRTC, and by telephone."""
    preset = config.agent.preset
    own, phone = config.agent, config.telephony
    by_socket, by_phone = budget_profile(preset), budget_profile(f"{preset}+telephony")
    return (
        CallPolicy(
            own.lead_ms,
            own.session_limit_s,
            by_socket,
            IdleRules(idle_after_ms=own.idle_prompt_ms, idle_hangup_ms=own.idle_hangup_ms),
        ),
        CallPolicy(
            phone.lead_ms,
            phone.limit_s,
            by_phone,
            IdleRules(idle_after_ms=phone.idle_prompt_ms, idle_hangup_ms=phone.idle_hangup_ms),
            leg_ms=by_phone.total_ms - by_socket.total_ms,
            records=phone.record != "no",
        ),
    )


def close_for(group_error: ExceptionGroup[Exception], call: ActiveCall) -> tuple[int, str]:
    """Close code and reason for the errors that ended a call's task group."""
    over, others = group_error.split(CallOver)
    if over is not None:
        if others is not None:
            _log.error("session %s failed at its end", call.session_id, exc_info=others)
        return errors.CLOSE_NORMAL, str(_first_of(over))
    if group_error.subgroup(errors.CallTakenOverError) is not None:
        return errors.CLOSE_TAKEN_OVER, ELSEWHERE
    if group_error.subgroup(errors.StoppingError) is not None:
        return errors.CLOSE_DRAINING, STOPPED
    if group_error.subgroup(errors.SilentCallError) is not None:
        return errors.CLOSE_NORMAL, SILENT
    if group_error.subgroup(errors.IdleClientError) is not None:
        return errors.CLOSE_NORMAL, IDLE
    if group_error.subgroup(errors.RevokedKeyError) is not None:
        return errors.CLOSE_POLICY, REVOKED
    if group_error.subgroup(SlowReader) is not None:
        return errors.CLOSE_POLICY, "the client does not read what it is sent"
    bad, others = group_error.split(StreamError)
    if bad is not None and others is None:
        problem = one_line(_first_of(bad))
        _log.warning("call %s: the carrier's stream: %s", call.session_id, problem)
        return errors.CLOSE_POLICY, problem
    _log.error("session %s failed", call.session_id, exc_info=group_error)
    return errors.CLOSE_INTERNAL, FAILED


def _cause_of(code: int, reason: str) -> str:
    if reason.startswith(CLIENT_LOST):
        return "lost"
    return _CAUSES.get(reason) or _CAUSES_OF_CODES.get(code, "failed")


def _first_of(group: BaseExceptionGroup[Exception]) -> BaseException:
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first


def _fleet_calls(store: StateStore, resume_s: int) -> "FleetCalls | None":
    if not (store.is_shared and resume_s):
        return None
    from .state_writer import FleetCalls  # only here: what it imports is large

    return FleetCalls(store, resume_s)


def _log_end(call: ActiveCall, code: int, reason: str) -> None:
    p50_ms = "none" if call.p50_ms is None else f"{call.p50_ms:.0f}"
    _log.info(
        "call %s ended: agent=%s turns=%d p50_ms=%s close=%d (%s)",
        call.session_id, call.agent, call.num_turns, p50_ms, code, reason,
    )  # fmt: skip
