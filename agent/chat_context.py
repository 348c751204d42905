"""What the language model knows of the conversation, brought up to date just before it answers.

Changes are noted at once, cheaply, on the event loop, and carried out in order by `settle` when the
next reply begins. A barge-in thus costs nothing at the moment it happens, and the client's own word
on how much was heard, which comes some milliseconds later, can still correct ours.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from .conversation import Conversation, FunctionCall, FunctionOutput, Item, Message
from .ports import ChatMessage, ChatPort


@dataclass(frozen=True, slots=True)
class _Say:
    message: ChatMessage


@dataclass(frozen=True, slots=True)
class _CutReply:
    num_chars: int


@dataclass(frozen=True, slots=True)
class _Instruct:
    text: str


class ChatContext:
    """Pending changes of one model conversation. Belongs to one session."""

    def __init__(self, chat: ChatPort) -> None:
        self.chat = chat
        self._pending: deque[_Say | _CutReply | _Instruct] = deque()
        self._rebuild: tuple[ChatMessage, ...] | None = None

    def said(self, text: str) -> None:
        """The user's next message. One without words is none."""
        if text.strip():
            self._pending.append(_Say(ChatMessage("user", text)))

    def added(self, item: Item) -> None:
        """An item was appended."""
        self._pending.extend(map(_Say, messages_of((item,))))

    def reply_cut(self, num_chars: int) -> None:
        """Only so much of the last reply was heard. The latest word on it counts.

        Whatever else is pending came after that reply, so this goes in front.
        """
        if self._pending and isinstance(self._pending[0], _CutReply):
            self._pending.popleft()
        self._pending.appendleft(_CutReply(num_chars))

    def instructed(self, text: str) -> None:
        self._pending.append(_Instruct(text))

    def edited(self, conversation: Conversation) -> None:
        """Items were changed elsewhere than at the end: take the whole conversation anew."""
        self._rebuild = tuple(messages_of(conversation))
        self._pending = deque(op for op in self._pending if isinstance(op, _Instruct))

    async def settle(self) -> None:
        """Carry out what is pending. Raises StageError where the model can't.

        What it refuses is not tried again: a message too long for it would end every later turn.
        """
        if self._rebuild is not None:
            messages, self._rebuild = self._rebuild, None
            await self.chat.reset(messages)
        while self._pending:
            change = self._pending.popleft()
            match change:
                case _Say(message):
                    await self.chat.commit(message)
                case _CutReply(num_chars):
                    await self.chat.truncate_reply(num_chars)
                case _Instruct(text):
                    await self.chat.set_system(text)


def messages_of(items: Iterable[Item]) -> list[ChatMessage]:
    """What the model is shown of these items. Items without words are left out."""
    messages = []
    for item in items:
        match item:
            case Message(role=role, text=text) if text and text.strip():
                messages.append(ChatMessage(role, text))
            case FunctionCall(name=name, arguments=arguments):
                messages.append(ChatMessage("assistant", f"{name}({arguments})"))
            case FunctionOutput(output=output):
                messages.append(ChatMessage("user", output))
            case _:
                pass
    return messages
