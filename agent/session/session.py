"""One call: feeds the turn-taking machine, runs its commands, re-arms its timer.

The only orchestrator. Decisions are the machine's (`agent/turn_taking/machine.py`). What it
commands is done by two desks: one for what the caller says (`user_items.py`), one for the replies
(`agent/session/response/controller.py`). What clients see is the dialect's
(`agent/realtime/protocol/`). Everything here runs on one event
loop inside one TaskGroup that ends with the call, so nothing outlives it.
"""

import asyncio
import contextlib
from functools import partial
from typing import Final

from agent.config.schema import AgentProfile
from agent.errors import ClientError, HalfsecError, SilentCallError, StageError
from agent.observability.agent_state import CallState
from agent.observability.turn_recorder import TurnRecorder
from agent.session.api.conversation import Conversation
from agent.session.api.ids import Identifiers
from agent.session.api.settings import ResponseOptions, SessionSettings
from agent.session.context.chat_context import ChatContext
from agent.session.context.prefill_scheduler import IdlePrefill
from agent.session.ports.playback import Outgoing, Playback
from agent.session.ports.stage_ports import ChatMessage, EarsPort, Heard, RecordingPort
from agent.session.response.briefing import Briefing
from agent.session.response.budget_actions import BudgetActions
from agent.session.response.controller import ResponseController, SessionDependencies, change_reply
from agent.session.response.items import ReplyItems
from agent.session.response.opening_clause import example_messages
from agent.session.response.scripted import Script
from agent.tools.offered import check_choice, check_names, tools_of
from agent.turn_taking import commands as cmd
from agent.turn_taking import events as ev
from agent.turn_taking.end_of_turn import asked_wait_ms, rules_of
from agent.turn_taking.machine import TurnTaking
from agent.turn_taking.tables import Agent, Caller
from latency_budget.account.budget import Budget
from latency_budget.account.marks import MarkName
from latency_budget.account.turn import SessionId

from .api import client_events as ask
from .api import server_events as say
from .disconnect import Absence
from .item_operations import change_items, check_request, check_text, check_tools
from .say import Aloud
from .user_items import UserItems

STALL_NS: Final = 1_500_000_000
"""No audio for so long in mid-word: the caller was muted or lost. Shorter would end turns at a
network hiccup; longer is dead air."""

_PLAIN: Final = ResponseOptions()

_VOICED: Final = MarkName.CALLER_LAST_VOICED

REFUSALS: Final = {
    "conversation_already_has_active_response": (
        "A response is in progress; wait for response.done, or cancel it first."
    ),
    "response_cancel_not_active": "Cancellation failed: no response is in progress.",
    "input_audio_buffer_commit_empty": (
        "There is nothing to commit: nobody has spoken since the last turn was committed, which "
        "with turn detection the server does by itself."
    ),
}


class Session:
    """One call. `run` lives as long as the call does; `handle` takes what the client asks."""

    def __init__(
        self,
        session_id: SessionId,
        profile: AgentProfile,
        settings: SessionSettings,
        around: SessionDependencies,
        hearing: EarsPort,
        log: TurnRecorder,
    ) -> None:
        self.id = session_id
        self.settings = settings
        self.conversation = Conversation()
        self._profile = profile
        self._around = around
        self._hearing = hearing
        self._log = log
        self._ids = Identifiers(session_id)
        rules = rules_of(settings, around.idle, ducks=around.ducks)
        self._machine = TurnTaking(rules)
        self._state = CallState(self._machine, log, around.on_state)
        chat = around.open_chat(settings.instructions, example_messages(profile))
        self._context = ChatContext(chat, self.conversation, settings.instructions)
        tools = tools_of(settings, _PLAIN, around.tools)
        self._context.setting.tools = () if tools is None else tools.definitions
        self._warming = IdlePrefill(self._context, self._may_warm, self._refused_by_model)
        self._enforcement = BudgetActions(
            around.policy, around.clock, log, hearing, chat, settings.turn_detection, self._warming
        )
        self._desk: ResponseController | None = None
        self._options = ResponseOptions()
        self._script = Script()
        self._is_asked = False
        """A client asked for the next reply."""
        self._request_id: str | None = None
        """The client's event id of the request in hand, for errors about it."""
        self._rearm = asyncio.Event()
        self._utterances = UserItems(
            hearing, self.conversation, self._context, self._ids, log, around.notify
        )
        clock, notify = around.clock, around.notify
        self._replies = ReplyItems(
            clock, self.conversation, self._context, self._ids, log, notify, around.recording
        )
        self.absence = Absence(
            self._machine,
            self.feed,
            lambda: self._the_desk.present,
            hearing,
            self._replies,
            log,
            around.clock,
        )
        self.aloud = Aloud(
            self._machine, self._script, self.feed, lambda: self._the_desk.present, clock
        )
        log.budget = budget_of(settings, around.budget)
        log.event(ev.RulesChanged(rules), around.clock.now_ns(), self._machine.turn)

    async def run(self) -> None:
        """Serve the call until cancelled. Raises what no client and no stage is to blame for, and
        SilentCallError where nobody speaks any more; both in groups."""
        expires_at_unix_s = self._around.expires_at_unix_s
        self._around.notify(say.SessionCreated(self.id, self.settings, expires_at_unix_s))
        try:
            async with asyncio.TaskGroup() as group:
                self._desk = ResponseController(
                    group,
                    self._around,
                    Briefing(
                        self._around.open_chat, self.conversation, self._context, self._warming
                    ),
                    self._replies,
                    self._log,
                    self.feed,
                    self._enforcement,
                )
                self._desk.on_sound = partial(_on_sound, self._hearing, self._around.recording)
                group.create_task(self._hearing.run(self._on_heard))
                group.create_task(self._keep_time())
                group.create_task(self._warming.run())
                self._warming.changed()
                if self._profile.greeting and not self.settings.transcribes_only:
                    self.aloud.say(self._profile.greeting)
        finally:
            self._log.over.settle_all()
            await self._context.chat.close()

    async def handle(self, request: ask.Request) -> None:
        """Do what the client asks; what it may not ask becomes a `Problem` notice."""
        self._request_id = getattr(request, "event_id", None)
        try:
            await self._dispatch(request)
        except (ClientError, StageError) as error:
            self._complain(error)
        finally:
            self._request_id = None

    def feed(self, event: ev.Event) -> None:
        """Give the machine an event and carry out its commands."""
        now_ns = self._around.clock.now_ns()
        self._log.event(event, now_ns, self._machine.turn)
        self._carry_out(self._machine.apply(event, now_ns), now_ns)

    # --- requests ---

    async def _dispatch(self, request: ask.Request) -> None:
        await check_request(
            request, self._context.chat, self.conversation, self.settings, self._around
        )
        match request:
            case ask.AppendAudio(pcm, rate_hz):
                self._around.recording.caller(pcm, rate_hz, self._around.clock.now_ns())
                await self._hearing.feed(pcm, rate_hz)
            case ask.UpdateSession(settings):
                await self._update(settings)
            case ask.CommitAudio():
                utterance = await self._hearing.commit()
                self.feed(ev.BufferCommitted(utterance))
            case ask.ClearAudio():
                utterance = await self._hearing.clear()
                self.feed(ev.BufferCleared(utterance))
                self._around.notify(say.AudioCleared())
            case ask.CreateResponse(options):
                follows_up = self._the_desk.present.awaits_client
                if self._machine.takes_requests or (follows_up and not self._machine.is_asked):
                    self._options, self._script.next, self._is_asked = options, None, True
                self.feed(ev.FollowUpRequested() if follows_up else ev.ReplyRequested())
            case ask.CancelResponse():
                self.feed(ev.ReplyCancelled())
                if self._machine.takes_requests:
                    self._options, self._is_asked = ResponseOptions(), False  # it was waiting
            case ask.PlaybackReport(item_id, played_ms):
                self._replies.played(item_id, played_ms)
            case ask.DeleteItem(item_id) if self._replies.is_held(item_id):
                self.feed(ev.ReplyCancelled())  # nothing is left to go on with
                self._change_items(request)
            case _:
                self._change_items(request)

    def _change_items(self, request: ask.Request) -> None:
        change_items(
            request,
            self.conversation,
            self._context,
            self._replies,
            self._ids,
            self._around.notify,
        )
        if isinstance(request, ask.CreateItem | ask.DeleteItem):
            self._warming.changed()

    async def _update(self, settings: SessionSettings) -> None:
        """Raises ClientError, having changed nothing."""
        around, old = self._around, self.settings
        around.open_voice(settings.voice, 24_000)  # raises for an unknown voice
        if settings.instructions != old.instructions:
            instructions = ChatMessage("system", settings.instructions)
            await check_text(self._context.chat, instructions, "session.instructions")
        if (settings.tools, settings.tool_choice) != (old.tools, old.tool_choice):
            check_choice(settings, _PLAIN, around.tools, "session.tool_choice")
        tools, old_tools = (tools_of(each, _PLAIN, around.tools) for each in (settings, old))
        if tools != old_tools:
            check_names(settings.tools, around.tools)
            await check_tools(self._context.chat, tools, "session.tools")
        self.settings = settings
        if (settings.instructions, tools) != (old.instructions, old_tools):
            self._context.setting.instructions = settings.instructions
            self._context.setting.tools = () if tools is None else tools.definitions
            self._warming.changed()
        if (settings.turn_detection, settings.transcribes_only) != (
            old.turn_detection,
            old.transcribes_only,
        ):
            rules = rules_of(settings, around.idle, ducks=around.ducks)
            self._enforcement.detects(settings.turn_detection)
            self.feed(ev.RulesChanged(rules))
        self._log.budget = budget_of(settings, around.budget)
        around.notify(say.SessionUpdated(settings))

    def _complain(self, error: HalfsecError) -> None:
        self._around.notify(
            say.Problem(error.message, error.code, error.error_type, error.param, self._request_id)
        )

    # --- what the caller's audio brings ---

    def _on_heard(self, heard: Heard) -> None:
        self._log.heard(heard, self._machine.turn)
        if heard.refused is not None:
            self._complain(heard.refused)
        if heard.partial is not None:
            text, stable_chars = heard.partial
            if text:
                self._utterances.partial(heard.utterance, text, stable_chars)
                if self._around.previews:
                    self._warming.hears(text)
            if self._machine.checks_words:
                self.feed(ev.WordsHeard(heard.utterance, text))
        if isinstance(heard.event, ev.SpeechStarted):
            is_overlap = self._machine.agent not in (Agent.IDLE, Agent.PREPARING)
            self._enforcement.speech_began(is_overlap=is_overlap)
            self._log.guessed(MarkName.SPEECH_STARTED, self._around.clock.now_ns())
        if heard.event is not None:
            self.feed(heard.event)

    async def _keep_time(self) -> None:
        """Fire the machine's timer, and notice audio that stops in mid-word."""
        clock = self._around.clock
        while True:
            self._rearm.clear()
            now_ns = clock.now_ns()
            due_ns = self._machine.next_deadline_ns()
            if due_ns is not None and now_ns >= due_ns:
                self._log.timer(now_ns, self._machine.turn)
                self._carry_out(self._machine.on_timer(now_ns), now_ns)
                continue
            if self._machine.caller is Caller.SPEAKING:
                stalled_ns = self._hearing.last_audio_ns + STALL_NS
                if now_ns >= stalled_ns:
                    self.feed(ev.AudioStalled(self._machine.utterance))
                    continue
                due_ns = stalled_ns if due_ns is None else min(due_ns, stalled_ns)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if due_ns is None else (due_ns - now_ns) / 1e9):
                    await self._rearm.wait()

    def _may_warm(self) -> bool:
        """No reply is being made, and no final pass decides how long the caller waits."""
        made = self._machine.agent in (Agent.PREPARING, Agent.SPEAKING, Agent.HELD)
        return not made and self._machine.caller is not Caller.PAUSING

    def _refused_by_model(self, refusal: StageError) -> None:
        """Outside any request, so without an event id."""
        self._around.notify(say.Problem(refusal.message, refusal.code, refusal.error_type))

    # --- commands ---

    def _carry_out(self, commands: tuple[cmd.Command, ...], now_ns: int) -> None:
        for command in commands:
            self._log.command(command, now_ns, self._machine.turn)
            self._do(command, now_ns)
        self._rearm.set()
        self._warming.go_on()
        self._state.look()

    def _do(self, command: cmd.Command, now_ns: int) -> None:
        desk = self._the_desk
        self._script.follow(command)
        match command:
            case cmd.Transcribe(utterance, revision):
                self._hearing.transcribe(utterance, revision)
            case cmd.StartReply(turn):
                options, self._options = self._options, ResponseOptions()
                script = self._script.take()
                is_asked, self._is_asked = self._is_asked or script is not None, False
                greets = script is not None
                self._log.reply_begun(turn, now_ns, greets=greets, asked=is_asked)
                voiced_ns = None if is_asked else self._log.so_far(turn).at.get(_VOICED)
                settings = options.applied(self.settings)
                desk.begin(turn, settings, options, script, voiced_ns=voiced_ns)
            case cmd.GuessReply(turn, text):
                if self._around.guesses:
                    desk.guess(turn, self.settings, text)
            case cmd.DropGuess():
                desk.drop_guess()
                self._log.guessed(MarkName.DISCARDED, now_ns)
            case (
                cmd.ReleaseReply()
                | cmd.CutReply()
                | cmd.HoldReply()
                | cmd.ResumeReply()
                | cmd.DuckReply()
                | cmd.UnduckReply()
                | cmd.Apologize()
                | cmd.AbandonReply()
            ):
                change_reply(desk, command)
            case cmd.PromptCaller():
                self._script.next = self._around.idle_prompt
            case cmd.HangUp():
                raise SilentCallError
            case cmd.RefuseRequest(code):
                self._complain(ClientError(REFUSALS[code], code=code))
            case _:
                if isinstance(command, cmd.CommitUtterance | cmd.DropUtterance):
                    self._warming.heard_all()
                elif isinstance(command, cmd.ReopenTurn):
                    desk.cut(command.turn, "turn_detected", keeps_heard=False)
                    self._log.reopened(command.turn, now_ns)
                self._utterances.do(command, now_ns)

    @property
    def _the_desk(self) -> ResponseController:
        if self._desk is None:
            raise ClientError("The session has not started yet.", code="session_not_started")
        return self._desk


def _on_sound(
    ears: EarsPort, recording: RecordingPort, playback: Playback, frame: Outgoing
) -> None:
    """Something of a reply is sent."""
    ears.played(frame.pcm, playback.rate_hz, frame.at_ns)
    recording.agent(playback, frame)


def budget_of(settings: SessionSettings, profile: Budget) -> Budget:
    """What turns are held to from now on: the session's total, and the silence that it asks for."""
    wait_ms = asked_wait_ms(settings.turn_detection)
    return profile.with_total(settings.budget_ms).widened(wait_ms)
