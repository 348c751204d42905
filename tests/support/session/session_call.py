"""A whole session on fake stages, for tests."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from agent.config.schema import AgentProfile
from agent.errors import ClientError
from agent.observability.counters import BargeIns
from agent.observability.live_marks import LiveMarks
from agent.observability.turn_recorder import TurnRecorder
from agent.session.api.server_events import Notice
from agent.session.api.session_state import SessionState
from agent.session.api.settings import SessionSettings
from agent.session.ports.stage_ports import (
    NO_RECORDING,
    ChatMessage,
    ChatPort,
    RecordingPort,
    SpeechInputPort,
    ToolsPort,
    VoicePort,
)
from agent.session.response.dependencies import (
    SessionOptions,
    SessionOutputs,
    SessionStages,
    SharedState,
)
from agent.session.response.handoff import SwitchAgent, no_agents
from agent.session.session import Session
from agent.tools.offered import NO_TOOLS
from agent.turn_taking.end_of_turn import NOT_IDLE, IdleRules
from languages import ENGLISH
from latency_budget.account.actions import Action
from latency_budget.account.budget import EMBEDDED
from latency_budget.account.clock import Clock, SystemClock
from latency_budget.account.turn import SessionId, Stage
from latency_budget.enforcement.policy import Policy
from latency_budget.reporting.trace import TraceWriter
from latency_budget.storage.history import TurnEntry
from tests.support.fakes.stages import Calling, FakeChat, FakeEars, FakeVoice
from tests.support.session.virtual_time import clock_of_loop

WAIT = "One moment."
"""Said while tools take too long."""

PATIENCE_S = 240
"""Timeout in s of a whole call, in real time. Only a hang takes so long, on any machine."""


class Call:
    """One session and everything it said."""

    def __init__(  # noqa: PLR0913
        self,
        chat: FakeChat,
        voice: FakeVoice,
        profile: AgentProfile,
        *,
        ahead: bool = True,
        ducks: bool = False,
        clock: Clock | None = None,
        pace_ms: int = 0,
        openers: tuple[str, ...] = (),
        early_openers: bool = False,
        idle: IdleRules = NOT_IDLE,
        hearing: SpeechInputPort | None = None,
        policy: Policy | None = None,
        tools: ToolsPort = NO_TOOLS,
        recording: RecordingPort = NO_RECORDING,
        told_marks: bool = False,
        restored: SessionState | None = None,
        settings: SessionSettings | None = None,
        is_troubled: Callable[[], bool] = lambda: False,
        switch_agent: SwitchAgent = no_agents,
    ) -> None:
        """`restored`: state of the session at another server. `settings`: those of the start.

        `ahead`: with guesses and previews. `ducks`: the client turns replies down. `hearing`: in
        place of the fake ears. `told_marks`: the client hears of marks as they become known."""
        self.chat = chat
        self.ears = FakeEars()
        self.voice = voice
        self.opened_voices: list[tuple[str, int, float]] = []
        """Voices that were asked for: name, rate and speed."""
        self.notices: list[Notice] = []
        self.turns: list[TurnEntry] = []
        self.states: list[tuple[str, Stage | None]] = []
        self.num_background: list[int] = []
        self._news = asyncio.Event()
        clock = clock or SystemClock()
        self.counts = BargeIns()
        session_id = SessionId("sess_test")
        origin_ns = clock.now_ns()
        self.trace = TraceWriter(
            session_id, started_unix_ns=0, config_fingerprint="", origin_ns=origin_ns
        )

        told = LiveMarks(self._notify, clock, origin_ns) if told_marks else None
        stages = SessionStages(
            ears=hearing or self.ears,
            open_chat=self._open_chat,
            open_voice=self._open_voice,
            tools=tools,
            speaking_voice=lambda name: "hibari" if name == "marin" else name,
            is_troubled=is_troubled,
            switch_agent=switch_agent,
        )
        said = replace(
            ENGLISH.sentences, openers=tuple(openers), idle_prompt="Hey?", tool_wait=WAIT
        )
        options = SessionOptions(
            lead_ms=400,
            budget=EMBEDDED,
            preemptive=ahead,
            previews=ahead,
            ducks=ducks,
            sentences=lambda language: said,
            early_openers=early_openers,
            idle=idle,
        )
        self._log = TurnRecorder(
            session_id, self.trace, self.turns.append, told=told, agent="default"
        )
        outputs = SessionOutputs(
            notify=self._notify,
            log=self._log,
            recording=recording,
            on_state=lambda state, stage: self.states.append((state, stage)),
            on_background=self.num_background.append,
        )
        shared = SharedState(clock, policy or Policy({Action.OPENER}), self.counts)
        settings = settings or SessionSettings(instructions="Be brief.", pace_ms=pace_ms)
        if restored is not None:
            settings = restored.settings
        self.session = Session(session_id, profile, settings, stages, options, outputs, shared)
        if restored is not None:
            self.session.restore(restored)

    def _open_chat(self, instructions: str, examples: Sequence[ChatMessage]) -> ChatPort:
        return self.chat

    def _open_voice(self, name: str, rate_hz: int, speed: float) -> VoicePort:
        if name not in ("hibari", "marin"):
            raise ClientError(f"There is no voice {name!r}.", code="invalid_value")
        self.opened_voices.append((name, rate_hz, speed))
        return self.voice

    def _notify(self, notice: Notice) -> None:
        self.notices.append(notice)
        self._news.set()

    def records(self) -> list[TurnEntry]:
        """The turns that are over, whatever their records wait for."""
        self._log.over.settle_all()
        return self.turns

    async def until(self, kind: type[Notice], count: int = 1) -> list[Notice]:
        """Wait for the `count`-th notice of this kind."""
        while len(found := [n for n in self.notices if isinstance(n, kind)]) < count:
            self._news.clear()
            await self._news.wait()
        return found

    def names(self) -> list[str]:
        """Kinds of notices in order, repeated text and audio folded."""
        names: list[str] = []
        for notice in self.notices:
            name = type(notice).__name__
            if not (names and names[-1] == name and name in ("ReplyAudio", "ReplyText")):
                names.append(name)
        return names

    def of(self, kind: type[Notice]) -> list[Notice]:
        return [notice for notice in self.notices if isinstance(notice, kind)]


@asynccontextmanager
async def call_with(  # noqa: PLR0913
    *replies: str | Exception | Calling,
    voice: FakeVoice | None = None,
    profile: AgentProfile | None = None,
    chat: FakeChat | None = None,
    ahead: bool = True,
    pace_ms: int = 0,
    openers: tuple[str, ...] = (),
    early_openers: bool = False,
    ducks: bool = False,
    clock: Clock | None = None,
    idle: IdleRules = NOT_IDLE,
    policy: Policy | None = None,
    tools: ToolsPort = NO_TOOLS,
    recording: RecordingPort = NO_RECORDING,
    told_marks: bool = False,
    restored: SessionState | None = None,
    settings: SessionSettings | None = None,
    is_troubled: Callable[[], bool] = lambda: False,
    switch_agent: SwitchAgent = no_agents,
) -> AsyncIterator[Call]:
    chat = chat or FakeChat(replies)
    clock = clock or clock_of_loop()
    call = Call(
        chat,
        voice or FakeVoice(),
        profile or AgentProfile(),
        ahead=ahead,
        pace_ms=pace_ms,
        openers=openers,
        early_openers=early_openers,
        ducks=ducks,
        clock=clock,
        idle=idle,
        policy=policy,
        tools=tools,
        recording=recording,
        told_marks=told_marks,
        restored=restored,
        settings=settings,
        is_troubled=is_troubled,
        switch_agent=switch_agent,
    )
    patience_s = PATIENCE_S if isinstance(clock, SystemClock) else 3600
    async with asyncio.timeout(patience_s), asyncio.TaskGroup() as group:
        running = group.create_task(call.session.run())
        await call.ears.running.wait()
        yield call
        running.cancel()
