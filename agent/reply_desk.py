"""The replies of one session: begun, let go, cut, apologized for, and cut to what was heard."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from latency_budget.clock import Clock
from latency_budget.deadline import Deadline
from latency_budget.marks import MarkName
from latency_budget.turn import TurnId

from . import events as ev
from .chat_context import ChatContext, messages_of
from .commands import CutReason
from .conversation import Conversation, ItemId, ItemStatus, Message
from .errors import StageError
from .identifiers import Identifiers
from .notices import ItemDeleted, Notice, ReplyEnded, ReplyReason, ReplyStarted, ReplyStatus
from .playback import Playback
from .ports import ChatMessage, ChatPort, VoicePort
from .reply import Reply, ReplyRun
from .scripted import ScriptedChat
from .settings import WIRE_RATE_HZ, ResponseOptions, SessionSettings
from .turn_log import TurnLog
from .warming import Warming

MAX_KEPT: Final = 8
"""Replies whose words can still be cut to what was heard. Clients truncate the newest one."""


class OpenChat(Protocol):
    """Opens a conversation in the language model. Raises StageError where there is none."""

    def __call__(self, instructions: str, examples: Sequence[ChatMessage]) -> ChatPort: ...


class OpenVoice(Protocol):
    """Finds a voice by name. Raises ClientError for a name that is not to be had."""

    def __call__(self, name: str, rate_hz: int) -> VoicePort: ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a session's replies draw on and report to."""

    clock: Clock
    open_chat: OpenChat
    open_voice: OpenVoice
    lead_ms: int
    budget_ms: int
    """From the end of the caller's turn to the first sound."""
    notify: Callable[[Notice], None]
    guesses: bool = True
    """Whether replies are prepared before it is known that the caller is done."""
    previews: bool = True
    """Whether the model reads the caller's words while they are being said."""


@dataclass(frozen=True, slots=True, eq=False)
class _Guess:
    """A reply that may never be one."""

    run: ReplyRun
    task: asyncio.Task[None]
    is_adopted: asyncio.Event


class ReplyDesk:
    """Belongs to one session; its tasks live in the session's group."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        around: Surroundings,
        conversation: Conversation,
        context: ChatContext,
        ids: Identifiers,
        log: TurnLog,
        emit: Callable[[ev.Event], None],
        warming: Warming,
    ) -> None:
        """`emit` feeds the turn-taking machine."""
        self._emit = emit
        self._warming = warming
        self._group = group
        self._around = around
        self._conversation = conversation
        self._context = context
        self._ids = ids
        self._log = log
        self._run: ReplyRun | None = None
        self._task: asyncio.Task[None] | None = None
        self._guess: _Guess | None = None
        self._kept: OrderedDict[ItemId, Reply] = OrderedDict()

    def begin(
        self,
        turn: TurnId,
        settings: SessionSettings,
        options: ResponseOptions,
        script: str | None = None,
    ) -> None:
        """Start a reply: the words of `script`, what was guessed, or the model's anew."""
        guessed = self._adopted(turn, settings, options, script)
        run = self._prepared(turn, settings, options) if guessed is None else guessed.run
        self._announce(run.reply)
        run.mark = partial(self._log.mark, turn)
        run.on_audible = lambda: self._emit(ev.ReplyAudible(turn))
        self._run = run
        if guessed is None:
            self._task = self._group.create_task(self._drive(run, script))
            return
        run.reply.generated = True
        self._task = guessed.task
        guessed.is_adopted.set()
        if run.is_ready:
            run.on_audible()

    def guess(self, turn: TurnId, settings: SessionSettings, text: str) -> None:
        """Prepare the reply to these words, in case they are the caller's message."""
        run = self._prepared(turn, settings, ResponseOptions())
        run.mark = self._log.guessed
        is_adopted = asyncio.Event()
        task = self._group.create_task(self._drive_guess(run, text, is_adopted))
        self._guess = _Guess(run, task, is_adopted)

    def drop_guess(self) -> None:
        """The caller goes on, or something else came first: forget it without a trace."""
        guess, self._guess = self._guess, None
        if guess is not None:
            guess.task.cancel()
            self._context.withdraw()
            self._log.guessed(MarkName.DISCARDED, self._around.clock.now_ns())

    def _adopted(
        self,
        turn: TurnId,
        settings: SessionSettings,
        options: ResponseOptions,
        script: str | None,
    ) -> "_Guess | None":
        """What was guessed, if it is what would be said now; otherwise it is dropped."""
        guess = self._guess
        if guess is None:
            return None
        is_confirmed = self._context.take_confirmed()
        reply = guess.run.reply
        is_same = (reply.turn, reply.settings, reply.options) == (turn, settings, options)
        if is_confirmed and is_same and script is None and not guess.task.done():
            self._guess = None
            self._context.answering()
            return guess
        self.drop_guess()
        if is_confirmed:
            self._context.edited()  # the model has words of the reply that is not to be
        return None

    def _prepared(
        self, turn: TurnId, settings: SessionSettings, options: ResponseOptions
    ) -> ReplyRun:
        """A reply that nobody has heard of yet."""
        around = self._around
        rate_hz = WIRE_RATE_HZ[settings.output_encoding]
        reply = Reply(
            turn,
            settings,
            options,
            Playback(rate_hz, around.lead_ms),
            Deadline.after_ms(around.budget_ms, now_ns=around.clock.now_ns()),
        )
        voice = around.open_voice(settings.voice, rate_hz)
        mark = partial(self._log.mark, turn)
        return ReplyRun(reply, voice, around.clock, around.notify, mark)

    def _announce(self, reply: Reply) -> None:
        """The reply is one from now on: it has a name and, unless out of band, an item."""
        around, options = self._around, reply.options
        reply.response_id, reply.item_id = self._ids.reply(), self._ids.item()
        if not options.out_of_band:
            for old in self._conversation.make_room():
                around.notify(ItemDeleted(old))
        previous = self._conversation.last_id()
        if not options.out_of_band:
            item = Message(reply.item_id, "assistant", reply.modality, None, "in_progress")
            self._conversation.add(item)
        around.notify(
            ReplyStarted(
                reply.response_id,
                reply.item_id,
                previous,
                reply.modality,
                reply.settings,
                options.metadata,
                options.out_of_band,
            )
        )
        self._kept[reply.item_id] = reply
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)

    def release(self, turn: TurnId) -> None:
        """Let the reply of this turn be heard."""
        if self._run is not None and self._run.reply.turn == turn:
            self._run.release()

    def cut(self, turn: TurnId, reason: CutReason) -> None:
        """Stop the reply of this turn; the history keeps what was heard of it."""
        run = self._run
        if run is None or run.reply.turn != turn:
            return
        if self._task is not None:
            self._task.cancel()
        reply = run.reply
        playback = reply.playback
        if reply.speaks:
            heard = playback.chars_heard(playback.heard_samples(self._around.clock.now_ns()))
        else:
            heard = reply.shown_chars
        self._log.mark(turn, MarkName.INTERRUPTED, self._around.clock.now_ns())
        self._keep_heard(reply, heard)
        self._end(reply, "cancelled", reason, reply.text[:heard])

    def apologize(self, turn: TurnId) -> None:
        """End the reply of this turn as failed, with the cached apology."""
        run = self._run
        if run is None or run.reply.turn != turn:
            return
        run.reply.failed = run.reply.failed or "This turn could not be answered."
        if self._task is not None:
            self._task.cancel()
        self._task = self._group.create_task(self._drive_apology(run))

    def heard_until(self, item_id: ItemId, audio_end_ms: int) -> int | None:
        """The client says how much of a reply it played. Returns that, clamped to what was sent.

        None where the item is no reply that is still kept.
        """
        reply = self._kept.get(item_id)
        if reply is None:
            return None
        samples = reply.playback.samples_of_ms(audio_end_ms)
        if reply.ended:
            self._keep_heard(reply, reply.playback.chars_heard(samples))
        return samples * 1000 // reply.playback.rate_hz

    def played(self, item_id: ItemId, played_ms: int) -> None:
        """A client's running report of its playback."""
        reply = self._kept.get(item_id)
        if reply is not None:
            now_ns = self._around.clock.now_ns()
            reply.playback.report(played_ms, now_ns)
            first = reply.first_audible_sample
            if first is not None:
                since_first_ns = played_ms * 1_000_000 - first * 1_000_000_000 // (
                    reply.playback.rate_hz
                )
                if since_first_ns >= 0:
                    self._log.mark(reply.turn, MarkName.HEARD, now_ns - since_first_ns)

    async def _drive(self, run: ReplyRun, script: str | None) -> None:
        reply = run.reply
        chat = self._chat_for(reply, script)
        try:
            await self._brief(chat, reply)
            await run.run(chat)
        except StageError as error:
            reply.failed = error.message
            self._emit(ev.ReplyFailed(reply.turn))
            return
        finally:
            if chat is not self._context.chat:
                await chat.close()
        await self._complete(reply)

    async def _drive_guess(self, run: ReplyRun, text: str, is_adopted: asyncio.Event) -> None:
        """As `_drive`, but a stage that fails before the reply is one only leaves nothing."""
        reply = run.reply
        try:
            await self._warming.rest()
            await self._context.suppose(text)
            await run.run(self._context.chat)
        except StageError as error:
            reply.failed = error.message
            if is_adopted.is_set():
                self._emit(ev.ReplyFailed(reply.turn))
            return
        await is_adopted.wait()
        await self._complete(reply)

    async def _complete(self, reply: Reply) -> None:
        if reply.hit_limit:
            self._finish(reply, "incomplete", "max_output_tokens")
        else:
            self._finish(reply, "completed", None)
        await self._play_out(reply)

    async def _drive_apology(self, run: ReplyRun) -> None:
        await run.apologize()
        self._finish(run.reply, "failed", "error")
        await self._play_out(run.reply)

    async def _play_out(self, reply: Reply) -> None:
        """The reply is sent: wait until the client has played it."""
        self._emit(ev.ReplySent(reply.turn))
        remaining_ns = reply.playback.end_ns() - self._around.clock.now_ns()
        await asyncio.sleep(max(0.0, remaining_ns / 1e9))
        self._emit(ev.ReplyPlayed(reply.turn))

    def _chat_for(self, reply: Reply, script: str | None) -> ChatPort:
        """The session's own chat, or one for this reply alone."""
        if script is not None:
            return ScriptedChat(script)
        options = reply.options
        if not options.out_of_band and options.input is None:
            return self._context.chat
        return self._around.open_chat(options.instructions or reply.settings.instructions, ())

    async def _brief(self, chat: ChatPort, reply: Reply) -> None:
        """Tell the chat what it is to answer."""
        options = reply.options
        if chat is self._context.chat:
            await self._warming.rest()
            await self._context.settle(options.instructions)
            self._context.answering()
            reply.generated = True
            if options.instructions is not None:
                self._warming.changed()  # the next reply has the session's own again
        else:
            items = options.input if options.input is not None else tuple(self._conversation)
            await chat.reset(messages_of(items))

    def _finish(self, reply: Reply, status: ReplyStatus, reason: ReplyReason | None) -> None:
        self._log.mark(reply.turn, MarkName.REPLY_DONE, self._around.clock.now_ns())
        item_status: ItemStatus = "completed" if status == "completed" else "incomplete"
        if reply.item_id in self._conversation:
            self._conversation.set_text(reply.item_id, reply.text, item_status)
        self._end(reply, status, reason, reply.text)

    def _end(
        self, reply: Reply, status: ReplyStatus, reason: ReplyReason | None, text: str
    ) -> None:
        if reply.ended:
            return
        reply.ended = True
        self._ids.release(reply.item_id)
        if not reply.generated and reply.item_id in self._conversation:
            self._context.added(self._conversation.get(reply.item_id))
        self._around.notify(
            ReplyEnded(reply.response_id, status, reason, text, reply.usage, reply.failed)
        )
        self._log.reply_ended(reply.turn, text, reply.playback.sent_s)

    def _keep_heard(self, reply: Reply, num_chars: int) -> None:
        """Cut item and model context to the words that were heard."""
        if reply.item_id not in self._conversation:
            return
        num_chars = min(num_chars, len(reply.text))
        status: ItemStatus = "completed" if num_chars == len(reply.text) else "incomplete"
        self._conversation.set_text(reply.item_id, reply.text[:num_chars], status)
        if reply.generated and self._run is not None and self._run.reply is reply:
            if reply.text:  # or the model's last reply is still another one
                self._context.reply_cut(num_chars)
        elif reply.generated or reply.ended:
            self._context.edited()
