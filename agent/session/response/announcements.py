"""Under which names the client knows a reply: its response, its message, its calls."""

from collections.abc import Callable

from agent.session.api.conversation import Conversation, FunctionCall, ItemId, Message, ModelCall
from agent.session.api.ids import Identifiers
from agent.session.api.server_events import (
    ItemDeleted,
    MessageBegun,
    Notice,
    ReplyCalled,
    ReplyStarted,
)

from .response import Reply


class ResponseAnnouncements:
    """Belongs to one session."""

    def __init__(
        self, conversation: Conversation, ids: Identifiers, notify: Callable[[Notice], None]
    ) -> None:
        self._conversation = conversation
        self._ids = ids
        self._notify = notify

    def announce(self, reply: Reply) -> None:
        """The reply is one from now on. One that may call tools has no item before its first word:
        it may turn out to have none."""
        options = reply.options
        reply.response_id, reply.item_id = self._ids.reply(), self._ids.item()
        may_call = reply.tools is not None
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

    def begin_message(self, reply: Reply) -> None:
        """Its first word is about to be sent, or it calls a tool behind words."""
        if not (reply.has_item or reply.ended):
            self._notify(MessageBegun(reply.response_id, self._add_message(reply)))

    def show_rounds(self, reply: Reply) -> None:
        """Tools that ran have run, and belong into the history, though nothing was said."""
        if reply.rounds:
            self.begin_message(reply)

    def called(self, reply: Reply, call: ModelCall) -> None:
        """The client is to run a tool."""
        if reply.text.strip():
            self.begin_message(reply)
        item_id = self._ids.item()
        item = FunctionCall(item_id, self._ids.call(), call.name, call.arguments)
        previous = self._conversation.last_id()
        if not reply.options.out_of_band:
            self._make_room()
            previous = self._conversation.add(item)
        self._ids.release(item_id)
        reply.has_called = True
        self._notify(ReplyCalled(reply.response_id, item, previous))

    def _add_message(self, reply: Reply) -> ItemId | None:
        """Returns the item before it."""
        reply.has_item = True
        if reply.options.out_of_band:
            return self._conversation.last_id()
        self._make_room()
        item = Message(
            reply.item_id, "assistant", reply.modality, None, "in_progress", reply.continues
        )
        return self._conversation.add(item)

    def _make_room(self) -> None:
        for old in self._conversation.make_room():
            self._notify(ItemDeleted(old))
