"""Responses of one session: prepared preemptively, begun, released, held, cut, apologized for.

A preemptive response is a response without its announcement: the same task, whose audio is not
released and whose marks belong to no turn yet. Begun with the same words and settings it is adopted
as it stands; otherwise it is cancelled, and the model takes back the words that it was given.

A response that the caller speaks over is held and resumed (for stock clients), or turned down by
the client (`halfsec.duck`); `agent/turn_taking/barge_in.py` decides which. Each method here is what
one command of the turn-taking machine does; the session dispatches the commands.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from agent.errors import StageError
from agent.observability.pending_records import REPORT_S
from agent.session.api.conversation import ModelCall
from agent.session.api.server_events import Extension
from agent.session.api.settings import ResponseOptions, SessionSettings
from agent.session.context.chat_context import ChatContext
from agent.session.context.chat_messages import messages_of, response_input
from agent.session.context.prefill_scheduler import IdlePrefill
from agent.session.ports.playback import Outgoing, Playback
from agent.session.ports.stage_ports import ChatPort
from agent.tools.offered import SessionTools
from agent.turn_taking import events as ev
from agent.turn_taking.commands import CutReason
from agent.turn_taking.thresholds import MAX_QUESTION_CHARS
from latency_budget.account.clock import Deadline
from latency_budget.account.marks import MarkName
from latency_budget.account.turn import TurnId

from .budget_actions import BudgetActions
from .dependencies import SessionOptions, SessionOutputs, SessionStages, SharedState
from .first_audio import FirstAudioGate, HoldingPhrase
from .items import ReplyItems
from .response import Reply
from .task import ResponseCallbacks, ResponseTask, ScriptedText

STOCK: Final = "stock"
"""Clients whose responses are held while the caller speaks over them, as counted in `BargeIns`."""
DUCKS: Final = "ducks"
"""Clients that turn a response down instead."""


@dataclass(frozen=True, slots=True, eq=False)
class _Preemptive:
    """A response that may be discarded before it is announced."""

    run: ResponseTask
    task: asyncio.Task[None]


class ResponseController:
    """Responses of one session; their tasks live in the session's group."""

    def __init__(  # noqa: PLR0913
        self,
        group: asyncio.TaskGroup,
        stages: SessionStages,
        options: SessionOptions,
        outputs: SessionOutputs,
        shared: SharedState,
        *,
        context: ChatContext,
        prefill: IdlePrefill,
        items: ReplyItems,
        budget_actions: BudgetActions,
        emit: Callable[[ev.Event], None],
        synthesized: Callable[[], None],
        hand_off: Callable[[str], Awaitable[str | None]],
        start_background: Callable[[Reply, ModelCall], str],
        follow_up: Callable[[], None],
    ) -> None:
        """`emit` feeds the turn-taking machine. `synthesized` is called when all speech of a
        response is there. `hand_off` and `start_background` are those of `ResponseCallbacks`;
        `follow_up` asks for the response of the agent that took over."""
        self._group = group
        self._stages = stages
        self._options = options
        self._outputs = outputs
        self._shared = shared
        self._clock = shared.clock
        self._log = outputs.log
        self._context = context
        self._prefill = prefill
        self._items = items
        self._budget_actions = budget_actions
        self._emit = emit
        self._tools = SessionTools(stages.tools)
        self._first_audio = FirstAudioGate(
            group,
            shared.clock,
            emit,
            outputs.log,
            self._openers_in,
            budget_actions,
            HoldingPhrase(self._tool_wait_in, stages.is_troubled),
        )
        self._callbacks = ResponseCallbacks(
            notify=outputs.notify,
            mark=self._mark,
            audible=self._first_audio.ready,
            own_audio=self._first_audio.own_audio_ready,
            audio_sent=self._audio_sent,
            message_begins=items.begin_message,
            client_call=self._client_called,
            event=emit,
            hand_off=hand_off,
            start_background=start_background,
            synthesized=synthesized,
        )
        self._follow_up = follow_up
        self.current: ResponseTask | None = None
        """The newest response that was announced."""
        self._task: asyncio.Task[None] | None = None
        """Generates and sends the current response."""
        self._before: list[Reply] = []
        """Earlier responses that the client still plays, in front of the current one."""
        self._preemptive: _Preemptive | None = None
        self._overlapping: str | None = None
        """The kind of client whose overlap is undecided: `STOCK` or `DUCKS`."""
        self._ducked = ""
        """The item that is turned down, or was last."""

    @property
    def awaits_client(self) -> bool:
        """True once the current response has called a tool of the client."""
        return self.current is not None and self.current.reply.has_called

    def begin(
        self,
        turn: TurnId,
        settings: SessionSettings,
        options: ResponseOptions,
        script: str | None = None,
        *,
        voiced_ns: int | None = None,
        answer_after_ms: int = 0,
    ) -> None:
        """Start a response: the words of `script`, the preemptive one, or the model's anew.
        `voiced_ns`: when the caller was last heard, where that is what it answers.
        `answer_after_ms`: as in `StartReply`."""
        run = None if script is not None else self._adopt(turn, settings, options)
        if run is None:
            self.discard_preemptive(turn)
            if not options.out_of_band:
                self._context.stays()
            run = self._prepare(turn, settings, options)
            self._task = self._group.create_task(self._drive(run, script))
        before, self.current = self.current, run
        if before is not None and not before.reply.is_stopped:
            self._before = [*self._still_playing(), before.reply]
            # Not the newest alone: it may be a written one, behind speech that is still played.
            run.reply.playback.play_after(max(each.playback.end_ns() for each in self._before))
        self._overlapping = None  # an overlap of the response before is settled by other means
        self._items.announce(run.reply)
        run.announced.set()
        if not answer_after_ms:
            run.certain.set()
        self._first_audio.expect(run, voiced_ns, answer_after_ms)

    def prepare_preemptive(self, turn: TurnId, settings: SessionSettings, text: str) -> None:
        """Prepare the response to these words, in case they are the caller's message."""
        run = self._prepare(turn, settings, ResponseOptions())
        self._preemptive = _Preemptive(
            run, self._group.create_task(self._drive_preemptive(run, text))
        )
        self._shared.preemptive_counts.made += 1

    def discard_preemptive(self, instead: TurnId | None = None) -> None:
        """Discard the preemptive response, but for the tokens that it cost. `instead`: the turn
        that begins without it; None: the caller goes on."""
        discarded, self._preemptive = self._preemptive, None
        if discarded is None:
            return
        discarded.task.cancel()
        self._shared.preemptive_counts.dropped += 1
        self._context.withdraw()
        usage = discarded.run.reply.usage
        tokens = (usage.input_tokens - usage.cached_tokens, usage.output_tokens)
        if any(tokens):
            mark = self._log.mark_next_turn if instead is None else partial(self._log.mark, instead)
            mark(MarkName.LLM_WASTED, self._clock.now_ns(), tokens)

    def release_opener(self, turn: TurnId) -> None:
        """Let the early opener in front of the response of this turn be heard."""
        run = self._of(turn)
        if run is not None:
            run.release_opener()

    def release(self, turn: TurnId) -> None:
        """Let the response of this turn be heard."""
        run = self._of(turn)
        if run is not None:
            run.release()

    def hold(self, turn: TurnId) -> None:
        """Stop sending the response of this turn, until it is resumed or cut."""
        run = self._of(turn)
        if run is None:
            return
        self._overlapping = STOCK
        heard = self._heard(run)
        if heard is not run.reply:  # it is what may be taken up
            run.reply, self._before = heard, self._still_playing()[:-1]
            heard.turn = turn
        self._stop_before()
        run.hold()
        if run.reply.ended:
            self._cancel()  # all was sent: it waits for what is not played now
        self._emit(ev.ReplyStands(turn, *self._items.hold(run.reply)))

    def _heard(self, run: ResponseTask) -> Reply:
        """The reply that a caller who speaks now speaks over: where the response was sent without
        sound, the speech in front of it."""
        playing = self._still_playing()
        is_mute = run.is_sent and not run.reply.playback.sent
        return playing[-1] if is_mute and playing else run.reply

    def resume(self, turn: TurnId) -> None:
        """Send the rest of a held response. Where there is none, the response is over."""
        run = self._of(turn)
        if run is None:
            return
        self._count_kept()
        was_sent = run.is_sent
        rest = self._items.resume(run.reply)
        if rest is None:
            self._cancel()
            self._items.cut(run.reply, "turn_detected", keeps_heard=True)
            self._follow_handoff(run.reply)
            self._emit(ev.ReplySent(turn))
            self._emit(ev.ReplyPlayed(turn, _newest_heard(run.reply)))
            return
        run.go_on(rest)
        if was_sent:
            self._task = self._group.create_task(self._complete(run))

    def duck(self, turn: TurnId) -> None:
        """Ask the client to turn the response of this turn down."""
        run = self._of(turn)
        if run is None:
            return
        self._overlapping = DUCKS
        heard = self._heard(run)
        self._ducked = heard.item_id
        self._outputs.notify(Extension("halfsec.duck", {"item_id": self._ducked}))
        self._emit(ev.ReplyStands(turn, *self._items.stands(heard)))

    def unduck(self) -> None:
        """Ask the client to play the response at full volume again."""
        self._count_kept()
        self._outputs.notify(Extension("halfsec.unduck", {"item_id": self._ducked}))

    def cut(self, turn: TurnId, reason: CutReason | None, *, keeps_heard: bool = True) -> None:
        """Stop the response of this turn; the history keeps what was heard of it, or nothing.
        `reason` None: it has failed, and ends as it is."""
        run = self._of(turn)
        if run is None:
            return
        self._first_audio.cancel()
        self._cancel()
        if reason is None:
            self._items.finish(run.reply)
        else:
            self._stop_before()
            self._items.cut(run.reply, reason, keeps_heard=keeps_heard)
        if self._overlapping is not None:
            self._shared.barge_ins.barged_in[self._overlapping] += 1
            self._overlapping = None
        reply = run.reply
        if reply.opener_chars or reply.rounds or reply.failed or reply.is_displaced:
            self._prefill.changed()

    def apologize(self, turn: TurnId) -> None:
        """End the response of this turn as failed, with the cached apology."""
        run = self._of(turn)
        if run is None:
            return
        self._first_audio.cancel()
        run.reply.failed = run.reply.failed or "This turn could not be answered."
        self._cancel()
        self._task = self._group.create_task(self._drive_apology(run))

    def _still_playing(self) -> list[Reply]:
        now_ns = self._clock.now_ns()
        return [each for each in self._before if each.playback.end_ns() > now_ns]

    def _stop_before(self) -> None:
        """The client stops playing, also what it had of earlier responses."""
        for reply in self._still_playing():
            self._items.stop(reply)
            self._prefill.changed()
        self._before = []

    def _of(self, turn: TurnId) -> ResponseTask | None:
        """The current response, if it is this turn's."""
        run = self.current
        return run if run is not None and run.reply.turn == turn else None

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _count_kept(self) -> None:
        if self._overlapping is not None:
            self._shared.barge_ins.kept[self._overlapping] += 1
            self._overlapping = None

    def _adopt(
        self, turn: TurnId, settings: SessionSettings, options: ResponseOptions
    ) -> ResponseTask | None:
        """The preemptive response, if it is the one that is wanted now."""
        prepared = self._preemptive
        if prepared is None or prepared.task.done():
            return None
        reply = prepared.run.reply
        is_same = (reply.turn, reply.settings, reply.options) == (turn, settings, options)
        if not (is_same and self._context.adopt()):
            return None
        self._preemptive = None
        self._shared.preemptive_counts.used += 1
        self._task = prepared.task
        reply.generated = True
        return prepared.run

    def _prepare(
        self, turn: TurnId, settings: SessionSettings, options: ResponseOptions
    ) -> ResponseTask:
        """A response that is not announced."""
        rate_hz = settings.output_rate_hz
        chunking = replace(self._options.chunking, language=settings.language)
        chunking = chunking.at_speed(settings.speed)
        reply = Reply(
            turn,
            settings,
            options,
            Playback(rate_hz, self._options.lead_ms),
            Deadline.after_ms(settings.budget_ms, now_ns=self._clock.now_ns()),
            self._tools.of(settings, options),
        )
        return ResponseTask(
            reply,
            self._stages.open_voice(settings.voice, rate_hz, settings.speed),
            self._clock,
            self._callbacks,
            self._stages.tools,
            chunking=partial(self._budget_actions.cutting, turn, chunking),
            piece_due_ns=partial(self._budget_actions.piece_due_ns, turn),
            filler=self._tool_wait_in(settings.language),
        )

    def _openers_in(self, language: str) -> Sequence[str]:
        return self._options.sentences(language).openers

    def _tool_wait_in(self, language: str) -> str:
        return self._options.sentences(language).tool_wait

    # --- what a response reports ---

    def _mark(self, reply: Reply, name: MarkName, at_ns: int) -> None:
        """Marks of a preemptive response belong to no turn until it is announced."""
        if reply.response_id:
            self._log.mark(reply.turn, name, at_ns)
        else:
            self._log.mark_next_turn(name, at_ns)

    def _client_called(self, reply: Reply, call: ModelCall) -> None:
        self._items.add_call(reply, call)
        self._emit(ev.ReplyCalledClient(reply.turn))

    def _audio_sent(self, playback: Playback, frame: Outgoing) -> None:
        self._stages.ears.played(frame.pcm, playback.rate_hz, frame.at_ns)
        self._outputs.recording.agent(playback, frame)

    # --- tasks ---

    async def _drive(self, run: ResponseTask, script: str | None) -> None:
        reply = run.reply
        chat = self._context.chat if script is not None else self._chat_for(reply)
        try:
            if script is not None:
                await run.run(ScriptedText(script))
            else:
                await self._brief(chat, reply)
                await run.run(chat)
        except StageError as error:
            reply.failed = error.message
            self._emit(ev.ReplyFailed(reply.turn))
            return
        finally:
            if chat is not self._context.chat:
                await chat.close()
        await self._complete(run)

    async def _drive_preemptive(self, run: ResponseTask, text: str) -> None:
        """Drive a preemptive response: as `_drive`, but a stage that fails before the announcement
        leaves no trace."""
        reply = run.reply
        if not await self._prefill.catch_up():
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

    async def _complete(self, run: ResponseTask) -> None:
        """Send what is left, emit that all is sent, and wait until the client has played it."""
        if run is self.current:
            self._first_audio.cancel()  # a reply without sound never was ready
        await run.conclude()
        run.is_sent = True
        reply = run.reply
        self._items.finish(reply)
        if reply.opener_chars or reply.failed or reply.was_looping or reply.is_displaced:
            self._prefill.changed()  # the model's history is not what it generated
        self._follow_handoff(reply)
        self._emit(ev.ReplySent(reply.turn))
        await asyncio.sleep(max(0.0, self._plays_until_ns(reply) - self._clock.now_ns()) / 1e9)
        self._emit(ev.ReplyPlayed(reply.turn, _newest_heard(reply)))
        self._group.create_task(self._await_report(reply))

    def _plays_until_ns(self, reply: Reply) -> int:
        """Time at which this response was played, ns, and all that is played in front of it: behind
        speech a written one, and one without a word, is over no sooner than that."""
        before = [each.playback.end_ns() for each in self._before if not each.is_stopped]
        return max(reply.playback.end_ns(), *before, 0)

    def _follow_handoff(self, reply: Reply) -> None:
        """Ask for the response of the agent that took over, behind a response that is sent."""
        if reply.hands_off:
            reply.hands_off = False  # it may be held and resumed, and be sent once more
            if not reply.has_called:  # else the client asks, with the result of its tool
                self._follow_up()

    @property
    def hands_off(self) -> bool:
        """True if the agent that took over in the current response has yet to be asked for its
        first one, and nobody else asks."""
        run = self.current
        return run is not None and run.reply.hands_off and not run.reply.has_called

    def takes_handoff(self) -> bool:
        """True, once, if the agent that took over in the response in progress has yet to be asked
        for its first response: nobody else asks where this one is cut."""
        run = self.current
        if run is None or not self.hands_off:
            return False
        run.reply.hands_off = False
        return True

    async def _await_report(self, reply: Reply) -> None:
        """Wait some time for the client's report of what was played, and for speech that shows that
        the reply cut in."""
        window_s = self._log.window_left_ns(reply.turn, self._clock.now_ns()) / 1e9
        await asyncio.sleep(max(REPORT_S, window_s))
        self._log.settle(reply.turn)

    # --- the model's input ---

    def _chat_for(self, reply: Reply) -> ChatPort:
        """The session's own model conversation, or one for this response alone."""
        options = reply.options
        if not options.out_of_band and options.input is None:
            return self._context.chat
        return self._stages.open_chat(options.instructions or reply.settings.instructions, ())

    async def _brief(self, chat: ChatPort, reply: Reply) -> None:
        """Give the model what it answers: instructions, tools, and messages."""
        options = reply.options
        tools = () if reply.tools is None else reply.tools.definitions
        if chat is self._context.chat:
            await self._prefill.rest()
            await self._context.settle(options.instructions, tools)
            self._context.answering()
            self._items.asked(reply)
            reply.generated = True
            if (options.instructions, options.tools, options.tool_choice) != (None, None, None):
                self._prefill.changed()  # the next response has the session's own again
        else:
            chat.set_truncation(reply.settings.truncation)
            if tools:
                await chat.set_tools(tools)
            await chat.reset(messages_of(response_input(options, self._context.conversation)))


def _newest_heard(reply: Reply) -> str:
    """Newest words that the caller heard of a response that was played: none of one that is not
    part of the conversation."""
    if reply.options.out_of_band:
        return ""
    return reply.text[: reply.claimed_chars][-MAX_QUESTION_CHARS:]
