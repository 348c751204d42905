"""What the caller says, as items: announced, committed, completed or dropped."""

from collections.abc import Callable
from typing import Final

from agent.observability.turn_recorder import TurnRecorder
from agent.session.api.conversation import Conversation, ItemId, Message
from agent.session.api.ids import Identifiers
from agent.session.api.server_events import Notice
from agent.session.context.chat_context import ChatContext
from agent.session.ports.stage_ports import EarsPort
from agent.turn_taking import commands as cmd
from latency_budget.account.marks import MarkName

from .api import server_events as say

SAMPLES_PER_MS: Final = 16
"""Of the ears' axis."""


class UserItems:
    """Belongs to one session."""

    def __init__(
        self,
        ears: EarsPort,
        conversation: Conversation,
        context: ChatContext,
        ids: Identifiers,
        log: TurnRecorder,
        notify: Callable[[Notice], None],
    ) -> None:
        self._ears = ears
        self._conversation = conversation
        self._context = context
        self._ids = ids
        self._log = log
        self._notify = notify
        self._items: dict[int, ItemId] = {}
        """Of utterances whose words are not known yet."""
        self._last_said: ItemId | None = None
        """Of the last utterance that was committed with its words."""
        self._going_on: int | None = None
        """The utterance that goes on with it."""

    def partial(self, utterance: int, text: str, stable_chars: int) -> None:
        """Show what has been understood so far, to clients that asked for it."""
        item_id = self._items.get(utterance)
        if item_id is not None:
            fields = {"item_id": item_id, "text": text, "stable_chars": stable_chars}
            self._notify(say.Extension("halfsec.partial", fields))

    def do(self, command: cmd.Command, now_ns: int) -> None:
        """Carry out a command of the machine that is about an utterance."""
        match command:
            case cmd.AnnounceSpeech(utterance, at_sample):
                started = say.SpeechStarted(self._item_of(utterance), at_sample // SAMPLES_PER_MS)
                self._notify(started)
            case cmd.ReopenTurn(_, utterance):
                if self._last_said is not None:
                    self._going_on = utterance
                    self._context.reopened(self._last_said)
            case cmd.CommitUtterance(utterance, text, by_client):
                self._ears.close(utterance)
                self._log.guessed(MarkName.ENDPOINT, now_ns)
                self._commit(utterance, text, now_ns if by_client else None)
            case cmd.CompleteTranscript(utterance, text):
                self._complete(utterance, text)
            case cmd.FailTranscript(utterance):
                item_id = self._known(utterance)
                if self._goes_on(utterance):
                    self._context.stays()
                message = "The recording could not be transcribed."
                self._notify(say.TranscriptFailed(item_id, message))
            case cmd.CommitSilence(silence_ms):
                self._commit_silence(silence_ms)
            case cmd.DropUtterance(utterance, announced, was_echo):
                self._ears.close(utterance, was_echo=was_echo)
                self._log.utterance_dropped()
                self._item_of(utterance)
                item_id = self._known(utterance)
                if self._goes_on(utterance):
                    self._context.stays()
                if announced:
                    self._notify(say.SpeechStopped(item_id, self._end_ms(utterance)))
            case _:
                raise AssertionError(f"no one carries out {command}")

    def _commit(self, utterance: int, text: str | None, by_client_ns: int | None) -> None:
        """`by_client_ns`: when the client ended it itself."""
        item_id = self._item_of(utterance)
        if by_client_ns is not None:
            self._log.guessed(MarkName.ASKED, by_client_ns)
        else:
            self._notify(say.SpeechStopped(item_id, self._end_ms(utterance)))
        self._add(item_id, self._context.open_item if utterance == self._going_on else None)
        if text is not None:
            self._last_said = item_id
            self._complete(utterance, text)

    def _commit_silence(self, silence_ms: int) -> None:
        """It is no utterance: the ears have heard none, and the model is shown none."""
        item_id = self._ids.item()
        end_ms = int(self._ears.received) // SAMPLES_PER_MS
        start_ms = max(0, end_ms - silence_ms)
        self._notify(say.SilenceTimedOut(item_id, start_ms, end_ms))
        self._add(item_id)
        self._conversation.set_text(item_id, "", "completed")
        self._notify(say.TranscriptCompleted(item_id, "", (end_ms - start_ms) / 1000))
        self._ids.release(item_id)

    def _add(self, item_id: ItemId, continues: ItemId | None = None) -> None:
        for old in self._conversation.make_room():
            self._notify(say.ItemDeleted(old))
        item = Message(item_id, "user", "audio", None, continues=continues)
        previous = self._conversation.add(item)
        self._notify(say.AudioCommitted(item_id, previous))
        self._notify(say.ItemAdded(item, previous))

    def _complete(self, utterance: int, text: str) -> None:
        item_id = self._known(utterance)
        goes_on = self._goes_on(utterance)
        if item_id in self._conversation:
            self._conversation.set_text(item_id, text, "completed")
            if item_id == self._conversation.last_id():
                self._context.said(text, goes_on=goes_on)
            else:
                self._context.edited()
        elif goes_on:
            self._context.stays()
        if text:
            self._notify(say.TranscriptDelta(item_id, text))
        self._notify(say.TranscriptCompleted(item_id, text, self._ears.duration_s(utterance)))
        self._log.caller_said(text)

    def _goes_on(self, utterance: int) -> bool:
        """Whether it was to go on with the one before. Asked once, when it is known what it is."""
        if utterance != self._going_on:
            return False
        self._going_on = None
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
        return self._ears.end_sample(utterance) // SAMPLES_PER_MS
