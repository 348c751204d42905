"""Replies as the client and the model's history know them: announced, ended, cut to what was heard.

A reply that was only guessed is not known here, until it is announced.

A reply that began with an opener holds words that the model did not write and has no ids for. Once
it is over the model takes the conversation anew: this one reply is encoded from its text, as it was
heard, and everything before it keeps its ids. That costs a prefill of the reply, while it is still
being played.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from latency_budget.clock import Clock
from latency_budget.marks import MarkName

from .chat_context import ChatContext
from .commands import CutReason
from .conversation import Conversation, ItemId, ItemStatus, Message
from .identifiers import Identifiers
from .notices import ItemDeleted, Notice, ReplyEnded, ReplyReason, ReplyStarted, ReplyStatus
from .reply import Reply
from .turn_log import TurnLog

MAX_KEPT: Final = 8
"""Replies whose words can still be cut to what was heard. Clients truncate the newest one."""


class ReplyItems:
    """Belongs to one session."""

    def __init__(
        self,
        clock: Clock,
        conversation: Conversation,
        context: ChatContext,
        ids: Identifiers,
        log: TurnLog,
        notify: Callable[[Notice], None],
    ) -> None:
        self._clock = clock
        self._conversation = conversation
        self._context = context
        self._ids = ids
        self._log = log
        self._notify = notify
        self._newest: Reply | None = None
        self._kept: OrderedDict[ItemId, Reply] = OrderedDict()

    def announce(self, reply: Reply) -> None:
        """The reply is one from now on: it has a name and, unless out of band, an item."""
        options = reply.options
        reply.response_id, reply.item_id = self._ids.reply(), self._ids.item()
        if not options.out_of_band:
            for old in self._conversation.make_room():
                self._notify(ItemDeleted(old))
        previous = self._conversation.last_id()
        if not options.out_of_band:
            item = Message(reply.item_id, "assistant", reply.modality, None, "in_progress")
            self._conversation.add(item)
        self._notify(
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
        self._newest = reply
        self._kept[reply.item_id] = reply
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)

    def finish(self, reply: Reply) -> None:
        """All of it was sent."""
        status, reason = _outcome(reply)
        self._log.mark(reply.turn, MarkName.REPLY_DONE, self._clock.now_ns())
        item_status: ItemStatus = "completed" if status == "completed" else "incomplete"
        if reply.item_id in self._conversation:
            self._conversation.set_text(reply.item_id, reply.text, item_status)
            if reply.generated and reply.opener_chars:
                self._context.edited()
        self._end(reply, status, reason, reply.text)

    def cut(self, reply: Reply, reason: CutReason) -> None:
        """It stops here; the history keeps what was heard of it."""
        now_ns = self._clock.now_ns()
        if reply.speaks:
            heard = reply.playback.chars_heard(reply.playback.heard_samples(now_ns))
        else:
            heard = reply.shown_chars
        self._log.mark(reply.turn, MarkName.INTERRUPTED, now_ns)
        self._keep_heard(reply, heard)
        self._end(reply, "cancelled", reason, reply.text[:heard])

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
            now_ns = self._clock.now_ns()
            reply.playback.report(played_ms, now_ns)
            first = reply.first_audible_sample
            if first is not None:
                since_first_ns = played_ms * 1_000_000 - first * 1_000_000_000 // (
                    reply.playback.rate_hz
                )
                if since_first_ns >= 0:
                    self._log.mark(reply.turn, MarkName.HEARD, now_ns - since_first_ns)

    def _end(
        self, reply: Reply, status: ReplyStatus, reason: ReplyReason | None, text: str
    ) -> None:
        if reply.ended:
            return
        reply.ended = True
        self._ids.release(reply.item_id)
        if not reply.generated and reply.item_id in self._conversation:
            self._context.added(self._conversation.get(reply.item_id))
        self._notify(ReplyEnded(reply.response_id, status, reason, text, reply.usage, reply.failed))
        self._log.reply_ended(reply.turn, text, reply.playback.sent_s)

    def _keep_heard(self, reply: Reply, num_chars: int) -> None:
        """Cut item and model context to the words that were heard."""
        if reply.item_id not in self._conversation:
            return
        num_chars = min(num_chars, len(reply.text))
        status: ItemStatus = "completed" if num_chars == len(reply.text) else "incomplete"
        self._conversation.set_text(reply.item_id, reply.text[:num_chars], status)
        if reply.generated and reply is self._newest and not reply.opener_chars:
            self._context.reply_cut(num_chars, lambda: bool(reply.text))
        elif reply.generated or reply.ended:
            self._context.edited()


def _outcome(reply: Reply) -> tuple[ReplyStatus, ReplyReason | None]:
    if reply.failed is not None:
        return "failed", "error"
    return ("incomplete", "max_output_tokens") if reply.hit_limit else ("completed", None)
