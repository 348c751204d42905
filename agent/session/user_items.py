"""Items of the caller's utterances: announced, committed, completed, failed or dropped."""

from typing import Final

from agent.session.api.conversation import ItemId, Message
from agent.session.api.ids import Identifiers
from agent.session.context.chat_context import ChatContext
from agent.session.ports.stage_ports import SpeechInputPort
from agent.session.response.dependencies import SessionOutputs
from latency_budget.account.marks import MarkName

from .api import server_events as say

SAMPLES_PER_MS: Final = 16
"""Samples per millisecond of the speech input's axis: 16 kHz."""


class UserItems:
    """The caller's utterances of one session as conversation items and notices. Each public
    method is what one command of the turn-taking machine does."""

    def __init__(
        self,
        ears: SpeechInputPort,
        context: ChatContext,
        ids: Identifiers,
        outputs: SessionOutputs,
    ) -> None:
        self._ears = ears
        self._conversation = context.conversation
        self._context = context
        self._ids = ids
        self._log = outputs.log
        self._notify = outputs.notify
        self.origin_ms = 0
        """The caller's audio that another server received before this one, in ms."""
        self._items: dict[int, ItemId] = {}
        """Items of utterances whose words are not known yet, by utterance."""
        self._last_said: ItemId | None = None
        """Item of the last utterance that was committed with its words."""
        self._continuing: int | None = None
        """The utterance that continues it."""
        self._uncommitted: int | None = None
        """The utterance of push-to-talk that has an item for its partials alone."""

    def partial(
        self, utterance: int, text: str, stable_chars: int, *, is_push_to_talk: bool
    ) -> None:
        """Send a partial transcript, to clients that asked for it. In push-to-talk no event tells
        of an utterance before its commit: there the first partial does."""
        if is_push_to_talk and utterance not in self._items:
            self._uncommitted = utterance
            self._item_of(utterance)
        item_id = self._items.get(utterance)
        if item_id is not None:
            fields = {"item_id": item_id, "text": text, "stable_chars": stable_chars}
            self._notify(say.Extension("halfsec.partial", fields))

    def clear(self) -> None:
        """Forget the utterance that was not committed: its audio was cleared."""
        uncommitted, self._uncommitted = self._uncommitted, None
        if uncommitted is not None and uncommitted in self._items:
            self._known(uncommitted)

    def announce_speech(self, utterance: int, at_sample: int) -> None:
        """Send that an utterance began, at this sample of the speech input's axis."""
        start_ms = self.origin_ms + at_sample // SAMPLES_PER_MS
        self._notify(say.SpeechStarted(self._item_of(utterance), start_ms))

    @property
    def received_ms(self) -> int:
        """The caller's audio received so far, in ms."""
        return self.origin_ms + int(self._ears.received) // SAMPLES_PER_MS

    def reopen(self, utterance: int) -> None:
        """This utterance continues the last one that was committed."""
        if self._last_said is not None:
            self._continuing = utterance
            self._context.reopened(self._last_said)

    def commit(self, utterance: int, text: str | None, *, by_client: bool, now_ns: int) -> None:
        """Add the item of an utterance that is over. `text` None: the words are not known yet."""
        self._ears.close(utterance)
        self._uncommitted = None
        self._log.mark_next_turn(MarkName.ENDPOINT, now_ns)
        item_id = self._item_of(utterance)
        if by_client:
            self._log.mark_next_turn(MarkName.ASKED, now_ns)
        else:
            self._notify(say.SpeechStopped(item_id, self._end_ms(utterance)))
        self._add(item_id, self._context.open_item if utterance == self._continuing else None)
        if text is not None:
            self._last_said = item_id
            self.complete(utterance, text)

    def complete(self, utterance: int, text: str) -> None:
        """Set the words of an utterance that was committed."""
        item_id = self._known(utterance)
        continues = self._continues(utterance)
        if item_id in self._conversation:
            self._conversation.set_text(item_id, text, "completed")
            if item_id == self._conversation.last_id():
                self._context.said(text, goes_on=continues)
            else:
                self._context.edited()
        elif continues:
            self._context.stays()
        if text:
            self._notify(say.TranscriptDelta(item_id, text))
        self._notify(say.TranscriptCompleted(item_id, text, self._ears.duration_s(utterance)))
        self._log.caller_said(text)

    def fail(self, utterance: int) -> None:
        """The words of an utterance that was committed will never be known."""
        item_id = self._known(utterance)
        if self._continues(utterance):
            self._context.stays()
        message = "The recording could not be transcribed."
        self._notify(say.TranscriptionFailed(item_id, message))

    def drop(self, utterance: int, *, announced: bool, was_echo: bool) -> None:
        """Forget an utterance without words; the client gets its end if it got its beginning."""
        self._ears.close(utterance, was_echo=was_echo)
        self._log.utterance_dropped()
        self._item_of(utterance)
        item_id = self._known(utterance)
        if self._continues(utterance):
            self._context.stays()
        if announced:
            self._notify(say.SpeechStopped(item_id, self._end_ms(utterance)))

    def commit_silence(self, silence_ms: int) -> None:
        """Add an item for silence that a client asked to be prompted about. It is no utterance: the
        ears have heard none, and the model gets none."""
        item_id = self._ids.item()
        end_ms = self.received_ms
        start_ms = max(0, end_ms - silence_ms)
        self._notify(say.SilenceTimedOut(item_id, start_ms, end_ms))
        self._add(item_id)
        self._conversation.set_text(item_id, "", "completed")
        self._notify(say.TranscriptCompleted(item_id, "", (end_ms - start_ms) / 1000))
        self._ids.release(item_id)

    def _add(self, item_id: ItemId, continues: ItemId | None = None) -> None:
        for old in self._context.make_room():
            self._notify(say.ItemDeleted(old))
        item = Message(item_id, "user", "audio", None, continues=continues)
        previous = self._conversation.add(item)
        self._notify(say.AudioCommitted(item_id, previous))
        self._notify(say.ItemAdded(item, previous))

    def _continues(self, utterance: int) -> bool:
        """True if the utterance continues the one before. Answers True only once."""
        if utterance != self._continuing:
            return False
        self._continuing = None
        return True

    def _item_of(self, utterance: int) -> ItemId:
        if utterance not in self._items:
            self._items[utterance] = self._ids.item()
        return self._items[utterance]

    def _known(self, utterance: int) -> ItemId:
        """The item of an utterance whose words are known now, or will never be."""
        item_id = self._items.pop(utterance)
        self._ids.release(item_id)
        return item_id

    def _end_ms(self, utterance: int) -> int:
        return self.origin_ms + self._ears.end_sample(utterance) // SAMPLES_PER_MS
