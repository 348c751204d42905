"""What the language model knows of the conversation, brought up to date before it answers.

Changes are noted at once, cheaply, on the event loop, and carried out in order by `settle`: when
the next reply begins, or in a warm-up before that. A barge-in thus costs nothing at the moment it
happens, and the client's own word on how much was heard, which comes some milliseconds later, can
still correct ours.

The words of a pause may be told before it is known that they are a turn (`suppose`). If they become
one, and the reply to them is the one that is wanted (`adopt`), nothing more need be told; if not,
or if anything else changes first, they are taken back, with what the model answered to them.

`settle` may be cancelled anywhere: a change is forgotten when the model has it, and not before. The
instructions are no change but a state, compared with what the model was told last; so those of a
single response leave nothing to be taken back.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .conversation import Conversation, FunctionCall, FunctionOutput, Item, ItemId, Message
from .errors import StageError
from .ports import ChatMessage, ChatPort


@dataclass(frozen=True, slots=True, eq=False)
class _Say:
    message: ChatMessage


@dataclass(frozen=True, slots=True, eq=False)
class _CutReply:
    num_chars: int
    has_words: Callable[[], bool]


@dataclass(frozen=True, slots=True, eq=False)
class _TakeBack:
    """The last user message and the reply to it."""


_Change = _Say | _CutReply | _TakeBack


class ChatContext:
    """Pending changes of one model conversation. Belongs to one session; one `settle` at a time."""

    def __init__(self, chat: ChatPort, conversation: Conversation, instructions: str) -> None:
        """`chat` was opened with these instructions."""
        self.chat = chat
        self._conversation = conversation
        self._instructions = self._told = instructions
        self._pending: deque[_Change] = deque()
        self._supposed: str | None = None
        """What the model was told as the user's next message, before it is one."""
        self._was_said = False
        """What was supposed has become the user's message."""
        self._edited = False
        """The model's history differs from the conversation elsewhere than at the end."""
        self._max_cut: int | None = None
        """Up to which character the model's last reply can be cut; None: anywhere. What was cut off
        is gone, and behind another message of the agent's it is not the last any more."""

    def said(self, text: str) -> None:
        """The user's next message. One without words is none."""
        if self._supposed == text:
            self._was_said = True
        elif text.strip():
            self.withdraw()
            self._note(_Say(ChatMessage("user", text)))

    async def suppose(self, text: str) -> None:
        """Tell the model what is pending, and then words that may become the user's next message.

        Raises StageError. Cancelled, it has told them or not, and knows which.
        """
        await self.settle()
        await self.chat.commit(ChatMessage("user", text))
        self._supposed, self._was_said = text, False
        self._max_cut = -1  # what was answered before is not the model's last word for long
        if self._edited or self._pending:
            self.withdraw()

    def adopt(self) -> bool:
        """Take the reply to what was supposed for the next one.

        False, having changed nothing, where that was not said or the model knows less than it is
        to know by now.
        """
        if not self._was_said or self._instructions != self._told:
            return False
        self._supposed, self._was_said = None, False
        self._max_cut = None
        return True

    def withdraw(self) -> None:
        """The reply to what was supposed, if anything, never was; and unless that was said by now,
        neither was it."""
        text, was_said = self._supposed, self._was_said
        self._supposed, self._was_said = None, False
        if text is None or self._edited:
            return
        if was_said:
            self._pending.appendleft(_Say(ChatMessage("user", text)))
        self._pending.appendleft(_TakeBack())

    def added(self, item: Item) -> None:
        """An item was appended."""
        self.withdraw()
        for message in messages_of((item,)):
            self._note(_Say(message))

    def answering(self) -> None:
        """The model begins a reply: the one that will be cut."""
        self._max_cut = None

    def reply_cut(self, num_chars: int, has_words: Callable[[], bool] = lambda: True) -> None:
        """Only so much of the last reply was heard. The latest word on it counts.

        Whatever else is pending came after that reply, so this goes in front. `has_words` is asked
        when it is carried out: a word may still come from a model that is being stopped, and where
        none came, the model's last reply is another one, which is not to be cut.
        """
        if self._max_cut is not None and num_chars > self._max_cut:
            self.edited()
        if self._edited:
            return
        if self._pending and isinstance(self._pending[0], _CutReply):
            self._pending.popleft()
        self._pending.appendleft(_CutReply(num_chars, has_words))

    def instructed(self, text: str) -> None:
        self._instructions = text

    def edited(self) -> None:
        """Items were changed elsewhere than at the end: the model takes the whole conversation
        anew, as it is by then. The text of a reply under way is not known yet."""
        self._edited = True
        self._supposed, self._was_said = None, False
        self._pending.clear()

    async def settle(self, instructions: str | None = None) -> None:
        """Carry out what is pending, under these instructions in place of the session's.

        Raises StageError where the model can't; then it is tried again next time. What the model
        refused is not: a message too long for it would end every later turn.
        """
        wanted = self._instructions if instructions is None else instructions
        if wanted != self._told:
            await self._instruct(wanted)
        while self._edited or self._pending:
            if self._edited:
                await self._take_anew()
            else:
                await self._carry_out(self._pending[0])

    async def _instruct(self, text: str) -> None:
        try:
            await self.chat.set_system(text)
        except StageError as error:
            if error.refused and text == self._instructions:
                self._instructions = self._told
            raise
        self._told = text

    async def _take_anew(self) -> None:
        self._edited = False
        try:
            await self.chat.reset(messages_of(self._conversation))
        except BaseException as error:
            if not (isinstance(error, StageError) and error.refused):
                self.edited()
            raise
        self._max_cut = -1

    async def _carry_out(self, change: _Change) -> None:
        try:
            if isinstance(change, _Say):
                await self.chat.commit(change.message)
            elif isinstance(change, _TakeBack):
                await self.chat.take_back()
            elif change.has_words():
                await self.chat.truncate_reply(change.num_chars)
        except StageError as error:
            if error.refused:
                _forget(self._pending, change)
            raise
        _forget(self._pending, change)
        if isinstance(change, _CutReply):
            self._max_cut = change.num_chars
        elif isinstance(change, _TakeBack) or change.message.role == "assistant":
            self._max_cut = -1

    def _note(self, change: _Say) -> None:
        if not self._edited:  # then the conversation has it, and is taken anew
            self._pending.append(change)


def _forget(pending: deque[_Change], change: _Change) -> None:
    """Other changes may have come in front of it meanwhile, or in place of all."""
    if change in pending:
        pending.remove(change)


def messages_of(items: Iterable[Item]) -> list[ChatMessage]:
    """What the model is shown of these items. Items without words are left out, and the parts of a
    reply that was taken up again are one message."""
    messages: list[ChatMessage] = []
    places: dict[ItemId, int] = {}
    for item in items:
        match item:
            case Message(continues=before, text=text) if before in places:
                place = places[item.id] = places[before]
                messages[place] = ChatMessage("assistant", messages[place].text + (text or ""))
            case Message(role=role, text=text) if text and text.strip():
                places[item.id] = len(messages)
                messages.append(ChatMessage(role, text))
            case FunctionCall(name=name, arguments=arguments):
                messages.append(ChatMessage("assistant", f"{name}({arguments})"))
            case FunctionOutput(output=output):
                messages.append(ChatMessage("user", output))
            case _:
                pass
    return messages
