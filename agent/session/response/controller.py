"""The replies of one session: guessed, begun, let go, cut, apologized for.

A guess is a reply that lacks its announcement: the same run, with nowhere to send to and marks that
belong to no turn yet. Begun with the same words and settings it is taken as it stands; otherwise it
is cancelled, and the model takes back what it was told for it.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from agent.errors import StageError
from agent.observability.agent_state import OnState
from agent.observability.counters import BargeIns, PreemptiveCounts
from agent.observability.pending_records import REPORT_S
from agent.observability.turn_recorder import TurnRecorder
from agent.session.api.server_events import Notice
from agent.session.api.settings import ResponseOptions, SessionSettings
from agent.session.ports.playback import Playback
from agent.session.ports.stage_ports import NO_RECORDING, RecordingPort, ToolsPort, VoicePort
from agent.tools.offered import NO_TOOLS, SessionTools
from agent.turn_taking import commands as cmd
from agent.turn_taking import events as ev
from agent.turn_taking.commands import CutReason
from agent.turn_taking.end_of_turn import NOT_IDLE, IdleRules
from latency_budget.account.actions import Action
from latency_budget.account.budget import Budget
from latency_budget.account.clock import Clock
from latency_budget.account.deadline import Deadline
from latency_budget.account.marks import MarkName
from latency_budget.account.turn import TurnId
from latency_budget.enforcement.policy import Policy
from tts.text_chunker import CutterConfig

from .briefing import Briefing, OpenChat
from .budget_actions import BudgetActions
from .first_audio import FirstAudioGate
from .items import ReplyItems
from .overlap import CurrentResponse, OverlapHandler
from .response import Reply
from .task import OnSound, ResponseTask


class OpenVoice(Protocol):
    """Finds a voice by name. Raises ClientError for a name that is not to be had."""

    def __call__(self, name: str, rate_hz: int) -> VoicePort: ...


@dataclass(frozen=True, slots=True)
class SessionDependencies:
    """What a session's replies draw on and report to."""

    clock: Clock
    open_chat: OpenChat
    open_voice: OpenVoice
    lead_ms: int
    budget: Budget
    """How what may lie between the caller's last word and the answer is divided, whatever the
    session allows for it."""
    notify: Callable[[Notice], None]
    guesses: bool = True
    """Whether replies are prepared before it is known that the caller is done."""
    previews: bool = True
    """Whether the model reads the caller's words while they are being said."""
    ducks: bool = False
    """Whether the client turns a reply down when it is told to."""
    barge_ins: BargeIns = field(default_factory=BargeIns)
    """Where overlaps of caller and agent are counted."""
    guess_counts: PreemptiveCounts = field(default_factory=PreemptiveCounts)
    """Where replies that were prepared are counted."""
    recording: RecordingPort = NO_RECORDING
    """Takes down what is said."""
    on_state: OnState = lambda state, stage: None
    """Told who speaks and what is waited for, whenever that changes."""
    cutting: CutterConfig = field(default_factory=CutterConfig)
    """Where replies are cut into pieces to speak."""
    policy: Policy = field(default_factory=lambda: Policy({Action.OPENER}))
    """What is done about turns that are about to be late."""
    openers: Sequence[str] = ()
    """Words for replies that are late; none: they just come late."""
    idle: IdleRules = NOT_IDLE
    """What is done about callers who stay silent."""
    idle_prompt: str = ""
    """Said to them."""
    tools: ToolsPort = NO_TOOLS
    """Those that run here."""
    tool_wait: str = ""
    """Said while they take too long."""
    expires_at_unix_s: int | None = None
    """When the call is ended; None: never."""


@dataclass(frozen=True, slots=True, eq=False)
class _Guess:
    """A reply that may never be one."""

    run: ResponseTask
    task: asyncio.Task[None]


class ResponseController:
    """Belongs to one session; its tasks live in the session's group."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        around: SessionDependencies,
        briefing: Briefing,
        items: ReplyItems,
        log: TurnRecorder,
        emit: Callable[[ev.Event], None],
        enforcement: BudgetActions,
    ) -> None:
        """`emit` feeds the turn-taking machine."""
        self._enforcement = enforcement
        self.on_sound: OnSound = lambda playback, frame: None
        """Hears what every reply sends."""
        self._emit = emit
        self._warming = briefing.warming
        self._group = group
        self._around = around
        self._briefing = briefing
        self._context = briefing.context
        self._items = items
        self._log = log
        self._tools = SessionTools(around.tools)
        self.present = CurrentResponse()
        self.overlaps = OverlapHandler(
            self.present, items, around.barge_ins, around.notify, emit, self._send_rest
        )
        self._guess: _Guess | None = None
        self._first_sound = FirstAudioGate(
            group,
            around.clock,
            emit,
            lambda: log.budget.total_ms,
            around.openers,
            enforcement,
        )

    def begin(
        self,
        turn: TurnId,
        settings: SessionSettings,
        options: ResponseOptions,
        script: str | None = None,
        *,
        voiced_ns: int | None = None,
    ) -> None:
        """Start a reply: the words of `script`, what was guessed, or the model's anew. `voiced_ns`:
        when the caller was last heard, where that is what it answers."""
        run = None if script is not None else self._adopted(turn, settings, options)
        if run is None:
            self.drop_guess(turn)
            if not options.out_of_band:
                self._context.stays()
            run = self._prepared(turn, settings, options)
            self.present.task = self._group.create_task(self._drive(run, script))
        self.present.run = run
        self.overlaps.forget()
        self._items.announce(run.reply)
        run.mark = partial(self._log.mark, turn)
        run.pulse.on_beat = lambda: self._emit(ev.ReplyContinued(turn))
        run.announced.set()
        self._first_sound.expect(run, voiced_ns)

    def guess(self, turn: TurnId, settings: SessionSettings, text: str) -> None:
        """Prepare the reply to these words, in case they are the caller's message."""
        run = self._prepared(turn, settings, ResponseOptions())
        self._guess = _Guess(run, self._group.create_task(self._drive_guess(run, text)))
        self._around.guess_counts.made += 1

    def drop_guess(self, instead: TurnId | None = None) -> None:
        """The caller goes on, or something else came first: forget it, but for what it cost.
        `instead`: the turn that begins without it."""
        guess, self._guess = self._guess, None
        if guess is None:
            return
        guess.task.cancel()
        self._around.guess_counts.dropped += 1
        self._context.withdraw()
        usage = guess.run.reply.usage
        tokens = (usage.input_tokens - usage.cached_tokens, usage.output_tokens)
        if any(tokens):
            mark = self._log.guessed if instead is None else partial(self._log.mark, instead)
            mark(MarkName.LLM_WASTED, self._around.clock.now_ns(), tokens)

    def _adopted(
        self, turn: TurnId, settings: SessionSettings, options: ResponseOptions
    ) -> ResponseTask | None:
        """What was guessed, if it is what would be said now."""
        guess = self._guess
        if guess is None or guess.task.done():
            return None
        reply = guess.run.reply
        is_same = (reply.turn, reply.settings, reply.options) == (turn, settings, options)
        if not (is_same and self._context.adopt()):
            return None
        self._guess = None
        self._around.guess_counts.used += 1
        self.present.task = guess.task
        reply.generated = True
        return guess.run

    def _prepared(
        self, turn: TurnId, settings: SessionSettings, options: ResponseOptions
    ) -> ResponseTask:
        """A reply that nobody has heard of yet."""
        around = self._around
        rate_hz = settings.output_rate_hz
        reply = Reply(
            turn,
            settings,
            options,
            Playback(rate_hz, around.lead_ms),
            Deadline.after_ms(settings.budget_ms, now_ns=around.clock.now_ns()),
            self._tools.of(settings, options),
        )
        voice = around.open_voice(settings.voice, rate_hz)
        mark = self._log.guessed
        cutting = partial(self._enforcement.cutting, turn, around.cutting)
        run = ResponseTask(reply, voice, around.clock, around.notify, mark, cutting)
        run.on_sound = self.on_sound
        run.tools, run.filler = around.tools, around.tool_wait
        names = self._items.names
        run.on_message, run.on_call = names.begin_message, names.called
        return run

    def release(self, turn: TurnId) -> None:
        """Let the reply of this turn be heard."""
        run = self.present.of(turn)
        if run is not None:
            run.release()

    def cut(self, turn: TurnId, reason: CutReason | None, *, keeps_heard: bool = True) -> None:
        """Stop the reply of this turn; the history keeps what was heard of it, or nothing. No
        reason: it has failed, and ends as it is."""
        run = self.present.of(turn)
        if run is None:
            return
        self._first_sound.forget()
        self.present.cancel()
        if reason is None:
            self._items.finish(run.reply)
        else:
            self._items.cut(run.reply, reason, keeps_heard=keeps_heard)
        self.overlaps.cut()
        if run.reply.opener_chars or run.reply.rounds:
            self._warming.changed()

    def apologize(self, turn: TurnId) -> None:
        """End the reply of this turn as failed, with the cached apology."""
        run = self.present.of(turn)
        if run is None:
            return
        self._first_sound.forget()
        run.reply.failed = run.reply.failed or "This turn could not be answered."
        self.present.cancel()
        self.present.task = self._group.create_task(self._drive_apology(run))

    async def _drive(self, run: ResponseTask, script: str | None) -> None:
        reply = run.reply
        chat = self._briefing.chat_for(reply, script)
        try:
            await self._briefing.brief(chat, reply)
            await run.run(chat)
        except StageError as error:
            reply.failed = error.message
            self._emit(ev.ReplyFailed(reply.turn))
            return
        finally:
            if chat is not self._context.chat:
                await chat.close()
        await self._complete(run)

    async def _drive_guess(self, run: ResponseTask, text: str) -> None:
        """As `_drive`, but a stage that fails before the reply is one leaves nothing."""
        reply = run.reply
        if not await self._warming.catch_up():
            return
        try:
            await self._context.suppose(text)
            await run.run(self._context.chat)
        except StageError as error:
            reply.failed = error.message
            if run.announced.is_set():
                self._emit(ev.ReplyFailed(reply.turn))
            return
        await run.announced.wait()
        await self._complete(run)

    async def _drive_apology(self, run: ResponseTask) -> None:
        await run.apologize()
        await self._complete(run)

    def _send_rest(self, run: ResponseTask) -> None:
        self.present.task = self._group.create_task(self._complete(run))

    async def _complete(self, run: ResponseTask) -> None:
        """Send what is left, say that all is sent, and wait until the client has played it."""
        await run.conclude()
        run.is_sent = True
        reply = run.reply
        self._items.finish(reply)
        if reply.opener_chars:
            self._warming.changed()  # the model is told of words that it did not write
        self._emit(ev.ReplySent(reply.turn))
        remaining_ns = reply.playback.end_ns() - self._around.clock.now_ns()
        await asyncio.sleep(max(0.0, remaining_ns / 1e9))
        self._emit(ev.ReplyPlayed(reply.turn))
        self._group.create_task(self._await_report(reply))

    async def _await_report(self, reply: Reply) -> None:
        """Of what was played, for a while."""
        await asyncio.sleep(REPORT_S)
        self._log.over.settle(reply.turn)


_AboutReply = (
    cmd.ReleaseReply
    | cmd.CutReply
    | cmd.HoldReply
    | cmd.ResumeReply
    | cmd.DuckReply
    | cmd.UnduckReply
    | cmd.Apologize
    | cmd.AbandonReply
)


def change_reply(desk: ResponseController, command: _AboutReply) -> None:
    """Carry out what the machine commands about a reply that has begun."""
    match command:
        case cmd.ReleaseReply(turn):
            desk.release(turn)
        case cmd.CutReply(turn, reason):
            desk.cut(turn, reason)
        case cmd.Apologize(turn):
            desk.apologize(turn)
        case cmd.AbandonReply(turn):
            desk.cut(turn, None)
        case _:
            desk.overlaps.do(command)
