"""Items of responses, for the client and for the history: announced, ended, cut to what was heard.

A preemptive response is not known here until it is announced.

A reply that began with an opener, or failed and ends with an apology, holds words that the model
did not write and has no ids for. Once it is over the model takes the conversation anew: this one
reply is encoded from its text, as it was heard, and everything before it keeps its ids. That costs
a prefill of the reply, while it is still being played.
"""

import itertools
from collections import OrderedDict
from dataclasses import replace
from typing import Final

from agent.session.api.conversation import (
    FunctionCall,
    Item,
    ItemId,
    ItemStatus,
    Message,
    Modality,
    ModelCall,
    ToolRound,
)
from agent.session.api.ids import Identifiers
from agent.session.api.server_events import (
    ItemDeleted,
    MessageBegun,
    ReplyCalled,
    ReplyEnded,
    ReplyReason,
    ReplyStarted,
    ReplyStatus,
    Usage,
)
from agent.session.api.session_state import ReplyState
from agent.session.api.settings import ResponseOptions, SessionSettings
from agent.session.context.chat_context import ChatContext
from agent.session.ports.playback import Playback, duration_ns
from agent.session.ports.playback_reports import PlaybackReportCheck
from agent.turn_taking.commands import CutReason
from latency_budget.account.clock import Clock, Deadline
from latency_budget.account.marks import MarkName
from latency_budget.account.turn import TurnId

from .dependencies import SessionOutputs
from .response import Reply
from .task import INTERRUPTED, LOST

_OTHER_TURN: Final = TurnId(0)
"""Turn of a response that another server gave: none of this one's."""

MAX_KEPT: Final = 8
"""Limit of replies whose words can still be cut to what was heard. Clients truncate the newest."""

STOPPED_BEFORE_NS: Final = 1_000_000_000
"""Time before the caller's speech from which on a truncation is no part of that interruption. A
client that detects speech itself stops a little before the server does: shorter, and a cough ends
its response; longer, and words that were stopped on purpose are said again after one."""


class ReplyItems:
    """Conversation items and notices of one session's responses."""

    def __init__(
        self,
        clock: Clock,
        context: ChatContext,
        ids: Identifiers,
        outputs: SessionOutputs,
    ) -> None:
        self._clock = clock
        self._conversation = context.conversation
        self._context = context
        self._ids = ids
        self._log = outputs.log
        self._notify = outputs.notify
        self._recording = outputs.recording
        self._newest: Reply | None = None
        self._kept: OrderedDict[ItemId, Reply] = OrderedDict()

    def announce(self, reply: Reply) -> None:
        """Give the reply its ids and send that it begins. One that may call tools has no item
        before its first word: it may turn out to have none."""
        options = reply.options
        reply.response_id, reply.item_id = self._ids.reply(), self._ids.item()
        may_call = reply.tools is not None
        reply.follows = self._conversation.last_id()
        previous = None if may_call else self._add_message(reply)
        self._notify(
            ReplyStarted(
                reply.response_id,
                reply.item_id,
                previous,
                reply.modality,
                reply.settings,
                options.metadata,
                options.out_of_band,
                may_call,
            )
        )
        self._newest = reply
        self._kept[reply.item_id] = reply
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)

    def asked(self, reply: Reply) -> None:
        """The model is asked for the reply, with all that the conversation has by now."""
        last = self._conversation.last_id()
        if not reply.has_item:
            reply.follows = last
        elif last != reply.item_id:
            reply.is_displaced = True

    def begin_message(self, reply: Reply) -> None:
        """Add the reply's message item: its first word is about to be sent, or it calls a tool
        behind words."""
        if not (reply.has_item or reply.ended):
            self._notify(MessageBegun(reply.response_id, self._add_message(reply)))

    def _show_rounds(self, reply: Reply) -> None:
        """Tools that ran belong into the history, though nothing was said."""
        if reply.rounds:
            self.begin_message(reply)

    def add_call(self, reply: Reply, call: ModelCall) -> None:
        """Add a function call that the client has to run, and send it."""
        if reply.text.strip():
            self.begin_message(reply)
        item_id = self._ids.item()
        item = FunctionCall(item_id, self._ids.call(), call.name, call.arguments)
        previous = self._conversation.last_id()
        if not reply.options.out_of_band:
            previous = self._add(reply, item)
            if not (reply.has_item or reply.has_called):
                reply.joins_message = not self._context.is_next(item)
            if not reply.generated:
                self._context.edited()  # a chat of its own has made the call
        self._ids.release(item_id)
        reply.has_called = True
        self._notify(ReplyCalled(reply.response_id, item, previous))

    def _add_message(self, reply: Reply) -> ItemId | None:
        """Return the item before it."""
        reply.has_item = True
        if reply.options.out_of_band:
            return self._conversation.last_id()
        item = Message(
            reply.item_id, "assistant", reply.modality, None, "in_progress", reply.continues
        )
        return self._add(reply, item)

    def _add(self, reply: Reply, item: Item) -> ItemId | None:
        """Return the item before it."""
        if self._conversation.last_id() != reply.follows:
            reply.is_displaced = True
        reply.follows = item.id
        self._make_room()
        return self._conversation.add(item)

    def _make_room(self) -> None:
        for old in self._context.make_room():
            self._notify(ItemDeleted(old))

    def finish(self, reply: Reply) -> None:
        """End a response of which all was sent."""
        reply.answer_sample = None  # an answer without sound has no other end
        self._show_rounds(reply)
        status, reason = _outcome(reply)
        self._log.mark(reply.turn, MarkName.REPLY_DONE, self._clock.now_ns())
        item_status: ItemStatus = "completed" if status == "completed" else "incomplete"
        if reply.item_id in self._conversation:
            text = reply.text[reply.first_char :]
            self._conversation.set_text(reply.item_id, text, item_status, reply.rounds)
            if reply.generated and (reply.opener_chars or reply.failed):
                self._context.edited()
            # Of one that looped the model has more; a cut of the part before may have taken this
            # one along.
            elif reply.was_looping or reply.continues is not None:
                self._correct(reply, len(reply.text))
        is_mixed = reply.has_called and bool(reply.rounds)  # the client's call is told apart
        if reply.generated and (reply.is_displaced or is_mixed or reply.joins_message):
            self._context.edited()
        self._end(reply, status, reason, len(reply.text))
        self._record(reply, len(reply.text))
        if reply.stopped_at is not None:
            self._truncate(reply, reply.stopped_at)

    def hold(self, reply: Reply) -> tuple[str, str]:
        """End the response, but perhaps not the reply. Return the text that was heard, and the rest
        as far as it is known."""
        self._show_rounds(reply)
        reply.is_stopped = True
        stopped_ns = reply.stopped_ns
        reply.is_given_up = (
            stopped_ns is not None and self._clock.now_ns() - stopped_ns > STOPPED_BEFORE_NS
        )
        self._recording.cut(reply.playback, self._heard_samples(reply))
        heard = reply.held_at = self._heard(reply)
        self._keep_heard(reply, heard)
        self._end(reply, "cancelled", "turn_detected", heard)
        return reply.text[:heard], reply.text[heard:]

    def stands(self, reply: Reply) -> tuple[str, str]:
        """Return heard text and rest of a reply that continues meanwhile."""
        heard = self._heard(reply)
        return reply.text[:heard], reply.text[heard:]

    def resume(self, reply: Reply) -> Reply | None:
        """Announce what is left of a held reply as another response. None where nothing is left, or
        the client had stopped it before the caller spoke: it wants to play no more of it."""
        if reply.is_given_up:
            return None
        start = reply.held_at or 0
        rest = reply.playback.rest(start)
        if rest is None or (reply.is_complete and not reply.text[start:].strip()):
            return None
        before = replace(reply, text=reply.text[:start], held_at=None, goes_on=True)
        taken_up = replace(
            reply,
            playback=rest,
            first_char=start,
            continues=reply.item_id,
            shown_chars=start,
            held_at=None,
            claimed_chars=None,
            has_item=False,
            usage_before=reply.usage,
            spoken_before_s=reply.spoken_s,
            first_audible_sample=None,
            answer_sample=None,
            claims=PlaybackReportCheck(),
            stopped_at=None,
            stopped_ns=None,
            is_stopped=False,
            ended=False,
        )
        self._kept[reply.item_id] = before
        self.announce(taken_up)
        return taken_up

    def cut(self, reply: Reply, reason: CutReason, *, keeps_heard: bool) -> None:
        """Cut the response; the history keeps what was heard of it, or nothing."""
        self._show_rounds(reply)
        reply.is_stopped = True
        if reply.held_at is None:
            self._recording.cut(reply.playback, self._heard_samples(reply))
        heard = self._heard(reply) if reply.held_at is None else reply.held_at
        if not keeps_heard:
            heard = 0
        reply.held_at = None
        if not reply.playback.is_client_lost:
            self._log.mark(reply.turn, MarkName.INTERRUPTED, self._clock.now_ns())
        self._keep_heard(reply, heard)
        reply.taken_back = not keeps_heard
        self._end(reply, "cancelled", reason, heard)
        self._record(reply, heard)

    def _heard(self, reply: Reply) -> int:
        """Characters heard by now: a client that has reported so plays no more."""
        if reply.claimed_chars is not None:
            return max(reply.claimed_chars, reply.first_char)
        if not reply.speaks:
            return reply.shown_chars
        return max(_words_heard(reply, self._heard_samples(reply)), reply.first_char)

    def _heard_samples(self, reply: Reply) -> int:
        heard = reply.playback.heard_samples(self._clock.now_ns())
        return heard if reply.stopped_at is None else min(heard, reply.stopped_at)

    def is_held(self, item_id: ItemId) -> bool:
        """True if this item is the beginning of a held reply."""
        return item_id in self._kept and self._kept[item_id].held_at is not None

    def heard_until(self, item_id: ItemId, audio_end_ms: int) -> int | None:
        """Apply a client's truncation; of a response in progress when it is cut, held or over.
        Clients send it before they cancel. Return it in ms, clamped to what was sent.

        A response in progress goes on, as with OpenAI; what is sent behind the cut counts as not
        heard. The client may have played more by then than it seems here, but not more than was
        sent: who claims that has not said where it stopped. A client that has played nothing of it
        has stopped in a response in front of it, which is cut as well. None where the item is no
        reply that is still kept.
        """
        reply = self._kept.get(item_id)
        if reply is None:
            return None
        playback = reply.playback
        samples = playback.samples_claimed(audio_end_ms)
        is_believed = reply.ended or audio_end_ms * playback.rate_hz // 1000 <= playback.sent
        if is_believed and reply.stopped_ns is None:
            reply.stopped_ns = self._clock.now_ns()
        if reply.ended:
            self._truncate(reply, samples)
        elif is_believed:
            before = playback.sent if reply.stopped_at is None else reply.stopped_at
            reply.stopped_at, reply.is_stopped = min(samples, before), True
        if audio_end_ms <= 0:
            for each in self._played_before(reply):
                self.stop(each)
        return samples * 1000 // reply.playback.rate_hz

    def stop(self, reply: Reply) -> None:
        """Cut a response of which all was sent, and which the client plays no more."""
        if not reply.is_stopped:
            self._truncate(reply, self._heard_samples(reply))

    def _truncate(self, reply: Reply, samples: int) -> None:
        """Cut a response that is over to what the client has played of it."""
        reply.is_stopped = True
        self._recording.cut(reply.playback, samples)
        reply.claimed_chars = _words_heard(reply, samples)
        self._keep_heard(reply, reply.claimed_chars)

    def played(self, item_id: ItemId, played_ms: int) -> None:
        """Record a client's running report of its playback."""
        reply = self._kept.get(item_id)
        if reply is None:
            return
        playback, now_ns = reply.playback, self._clock.now_ns()
        playback.report(played_ms, now_ns)
        sent_ns = duration_ns(playback.sent, playback.rate_hz)
        for name, at_ns in reply.claims.claim(played_ms, sent_ns, now_ns):
            self._log.mark(reply.turn, name, at_ns)
            if name is MarkName.HEARD and reply.first_audible_sample is not None:
                self._recording.heard(playback, reply.first_audible_sample, at_ns)

    def heard_so_far(self) -> Message | None:
        """Item of the newest reply with the words that were heard by now, while it is not over;
        None where there is none in progress."""
        reply = self._newest
        if reply is None or reply.ended or reply.item_id not in self._conversation:
            return None
        item = self._conversation.get(reply.item_id)
        assert isinstance(item, Message)
        text = reply.text[reply.first_char : self._heard(reply)]
        return replace(item, text=text, rounds=tuple(reply.rounds))

    def state(self, *, in_progress: bool) -> ReplyState | None:
        """State of the newest response; None where it has nothing in the conversation.
        `in_progress`: it is not over yet."""
        reply = self._newest
        if reply is None or reply.options.out_of_band or not (reply.has_item or reply.rounds):
            return None
        if reply.taken_back:  # nothing of it counts as heard, whatever the client says later
            text = reply.text[: reply.first_char]
            return replace(self._state_of(reply, in_progress=False), text=text, chunks=())
        return self._state_of(reply, in_progress=in_progress)

    def earlier_states(self) -> tuple[ReplyState, ...]:
        """States of the responses in front of the newest one of which the client still plays what
        was sent, the oldest first. They are in progress until they were played."""
        return tuple(
            self._state_of(each, in_progress=True)
            for each in self._played_before(self._newest)
            if each.item_id in self._conversation
        )

    def _played_before(self, reply: Reply | None) -> list[Reply]:
        """The responses in front of this one that the client still plays, the oldest first."""
        now_ns = self._clock.now_ns()
        before = itertools.takewhile(lambda each: each is not reply, self._kept.values())
        return [each for each in before if not each.is_stopped and each.playback.end_ns() > now_ns]

    def _state_of(self, reply: Reply, *, in_progress: bool) -> ReplyState:
        stands_at = reply.held_at if reply.claimed_chars is None else reply.claimed_chars
        if reply.is_opener_all:
            stands_at = 0
        is_deleted = reply.has_item and reply.item_id not in self._conversation
        return ReplyState(
            reply.item_id,
            in_progress,
            reply.speaks,
            reply.text,
            reply.first_char,
            reply.shown_chars,
            reply.is_complete,
            stands_at,
            reply.playback.rate_hz,
            self._heard_samples(reply),
            reply.playback.spoken(),
            () if is_deleted else tuple(reply.rounds),
        )

    def restore(self, state: ReplyState, settings: SessionSettings) -> bool:
        """Take over a response of another server, the newest one last. One in progress ends there:
        the history keeps what was heard of it. Its client may still correct that. Returns whether
        any word of it was heard."""
        playback = Playback.of_spoken(state.rate_hz, state.chunks)
        heard = state.stands_at
        if heard is None:
            is_spoken = state.speaks
            played = playback.chars_heard(state.played_samples)
            heard = played if is_spoken else state.shown_chars
        heard = max(state.first_char, min(heard, len(state.text)))
        rounds = _with_lost(state.rounds) if state.in_progress else state.rounds
        modality: Modality = "audio" if state.speaks else "text"
        reply = Reply(
            _OTHER_TURN,
            settings,
            ResponseOptions(output_modality=modality),
            playback,
            Deadline(0),
            item_id=state.item_id,
            has_item=True,
            text=state.text,
            rounds=list(rounds),
            first_char=state.first_char,
            shown_chars=state.shown_chars,
            is_complete=state.is_complete,
            ended=True,
            is_recorded=True,
            claimed_chars=heard,
        )
        reply.claims.close()
        if state.in_progress:
            if state.item_id not in self._conversation and rounds:
                self._make_room()
                self._conversation.add(Message(state.item_id, "assistant", modality, None))
            if state.item_id in self._conversation:
                is_whole = state.is_complete and heard == len(state.text)
                status: ItemStatus = "completed" if is_whole else "incomplete"
                text = state.text[state.first_char : heard]
                self._conversation.set_text(state.item_id, text, status, rounds)
        self._kept[state.item_id] = reply
        return bool(state.text[:heard].strip())

    def _end(
        self, reply: Reply, status: ReplyStatus, reason: ReplyReason | None, end_char: int
    ) -> None:
        """Send that the response has ended."""
        if reply.ended:
            return
        reply.ended = True
        self._ids.release(reply.item_id)
        text = reply.text[reply.first_char : end_char]
        usage = _since(reply.usage_before, reply.usage)
        self._notify(ReplyEnded(reply.response_id, status, reason, text, usage, reply.failed))

    def _record(self, reply: Reply, end_char: int) -> None:
        """Put a reply that the model did not generate into its history, and log the end."""
        if reply.is_recorded:
            return
        reply.is_recorded = True
        if not reply.generated and reply.item_id in self._conversation:
            item = self._conversation.get(reply.item_id)
            assert isinstance(item, Message)
            if item.id == self._conversation.last_id() and reply.continues is None:
                self._context.added(replace(item, text=reply.text[:end_char]))
            else:
                # Something was said or typed while it was spoken, perhaps between its parts.
                self._context.edited()
        text = reply.text[:end_char]
        self._log.reply_ended(reply.turn, text, reply.spoken_s, reply.response_id)

    def _keep_heard(self, reply: Reply, num_chars: int) -> None:
        """Cut item and model history to the words that were heard."""
        if reply.taken_back:
            return
        num_chars = max(reply.first_char, min(num_chars, len(reply.text)))
        if reply.held_at is not None:
            reply.held_at = num_chars
        if reply.options.out_of_band or (
            reply.has_item and reply.item_id not in self._conversation
        ):
            return
        is_whole = 0 < num_chars == len(reply.text)
        if reply.has_item:
            is_part = reply.held_at is not None or reply.goes_on
            status: ItemStatus = "completed" if is_whole and not is_part else "incomplete"
            text = reply.text[reply.first_char : num_chars]
            self._conversation.set_text(reply.item_id, text, status, reply.rounds)
        if reply.held_at is not None or (reply.goes_on and is_whole):
            return
        self._correct(reply, num_chars)

    def _correct(self, reply: Reply, num_chars: int) -> None:
        """Cut the reply in the model's history, if it is in there."""
        if reply.is_displaced:
            self._context.edited()
        elif reply.rounds or reply.has_called or reply.has_unrun_calls:
            self._context.edited()  # its tokens hold calls, which stay whatever was heard
        elif reply.failed:
            self._context.edited()  # the apology is not the model's, and words before it are gone
        elif reply.generated and reply.tools is not None and not reply.text:
            self._context.edited()  # the model may have begun a call, which is none of its words
        elif reply.generated and reply is self._newest and not reply.opener_chars:
            self._context.reply_cut(num_chars, lambda: bool(reply.text))
        elif reply.generated or reply.is_recorded or reply.goes_on:
            self._context.edited()


def _with_lost(rounds: tuple[ToolRound, ...]) -> tuple[ToolRound, ...]:
    """Rounds of a reply that another server was making. How far the tools had come that were
    running there is not known: the model must not take them for cancelled, and call them again."""
    if not rounds:
        return rounds
    results = tuple(LOST if each == INTERRUPTED else each for each in rounds[-1].results)
    return (*rounds[:-1], replace(rounds[-1], results=results))


def _words_heard(reply: Reply, num_samples: int) -> int:
    """Characters that so many samples make audible: none of an early opener without an answer."""
    return 0 if reply.is_opener_all else reply.playback.chars_heard(num_samples)


def _outcome(reply: Reply) -> tuple[ReplyStatus, ReplyReason | None]:
    if reply.failed is not None:
        return "failed", "error"
    return ("incomplete", "max_output_tokens") if reply.hit_limit else ("completed", None)


def _since(before: Usage, now: Usage) -> Usage:
    """Tokens that no earlier response was charged with."""
    return Usage(
        now.input_tokens - before.input_tokens,
        now.cached_tokens - before.cached_tokens,
        now.output_tokens - before.output_tokens,
    )
