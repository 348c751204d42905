"""Chat context: brings a language model's history up to date with the conversation.

Changes are queued at once, cheaply, on the event loop, and carried out in order by `settle`: when
the next response begins, or in an idle prefill before that. A barge-in thus costs nothing at the
moment it happens, and the client's own report of how much was heard, which comes some milliseconds
later, can still correct ours.

The words of a pause may be committed before it is decided that they are a turn (`suppose`). If they
become one, and the response to them is the one that is wanted (`adopt`), nothing more is committed;
if not, or if anything else changes first, they are taken back, with the reply to them.

A message may turn out to have been only the first half of one (`reopened`). The model then takes
back the half with its reply, and gets the whole when the rest is known: `open_text` is withheld
meanwhile. Where nothing more is said, or something else comes first, the half is committed again
(`stays`).

The oldest messages may be condensed to a summary. Which of the conversation's they are is known
here (`_covered`): when the model takes the conversation anew, it gets the summary and the others,
and where one of those that it covers was changed or deleted, it gets all of them and no summary.
The result of a call that is among them comes later: it stands in its own place (`apart`). So does a
late one where the model has dropped its oldest messages without a summary: with the call, which
would be dropped once more, the model would not get the result at all.

`settle` may be cancelled anywhere: a change is forgotten when the model has it, and not before. The
instructions are no change but a state, compared with what the model has; so those of a single
response leave nothing to be taken back.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from agent.errors import StageError
from agent.session.api.conversation import (
    MAX_ITEMS,
    ConversationItems,
    FunctionCall,
    FunctionOutput,
    Item,
    ItemId,
    Message,
)
from agent.session.api.settings import AUTO_TRUNCATION, Truncation
from agent.session.ports.stage_ports import (
    ChatMessage,
    ChatPort,
    Condensed,
    CondensingGoal,
    ContextUse,
)

from .chat_messages import joined, messages_of, open_calls_among, told

MAX_TAIL: Final = 64
"""Calls and results behind the last message that are looked at for each one that is added. Behind
more of them the model takes the history anew."""

MAX_PENDING: Final = 256
"""Changes that wait for the model. Between two responses there are a few; where nothing is answered
they would only grow."""


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

    def __init__(
        self,
        chat: ChatPort,
        conversation: ConversationItems,
        instructions: str,
        examples: Sequence[ChatMessage] = (),
    ) -> None:
        """`chat` was opened with these instructions and examples, and without tools."""
        self.chat = chat
        self.conversation = conversation
        self.instructions = self._given_instructions = instructions
        """The session's instructions; and those that the model was given last."""
        self.examples = self._given_examples = tuple(examples)
        """The agent's examples; and those that the model was given last."""
        self.tools: tuple[str, ...] = ()
        """The session's tools, as `Tools.definitions`."""
        self._truncation = AUTO_TRUNCATION
        self._given_tools: tuple[str, ...] = ()
        self._pending: deque[_Change] = deque()
        self._supposed: str | None = None
        """The user's next message as committed before it is decided."""
        self._was_said = False
        """The supposed message has become the user's message."""
        self.open_text = ""
        """Beginning of a message that continues: the last of the conversation, but not in the
        model's history. Empty where there is none."""
        self.open_item: ItemId | None = None
        """The last item of that beginning."""
        self._misses = False
        """The model refused a message that the conversation has."""
        self._edited = False
        """The model's history differs from the conversation elsewhere than at the end."""
        self.summary: tuple[str, ...] = ()
        """Sentences that stand for the oldest messages in the model's history."""
        self._covered: list[tuple[ItemId, ChatMessage]] = []
        """The messages, from the conversation's beginning, that the model has no more: the summary
        covers them, or they were dropped before there was one."""
        self.apart: frozenset[str] = frozenset()
        """Calls that the summary covers without their results: see `told`."""
        self._dropped: frozenset[str] = frozenset()
        """Of these calls, those that were dropped without a summary, or may be."""
        self._has_dropped = False
        """It had done so when the model last took the conversation anew, or at another server: it
        drops as many again."""
        self._num_summarized = 0
        """Messages that it had left out when the last summary was made, since the last `reset`."""
        self._num_withheld = 0
        """Of these, those that the model did not get when it last took the conversation anew."""
        self._num_deleted = 0
        """Messages that the conversation's limit has deleted from its beginning since then."""
        self._max_cut: int | None = None
        """Character up to which the model's last reply can be cut; None: anywhere. What was cut off
        is gone, and behind another message of the agent it is not the last any more."""

    @property
    def truncation(self) -> Truncation:
        """Rule by which the oldest messages leave the model's context."""
        return self._truncation

    @truncation.setter
    def truncation(self, truncation: Truncation) -> None:
        self._truncation = truncation
        self.chat.set_truncation(truncation)

    def said(self, text: str, *, goes_on: bool = False) -> None:
        """Add the user's next message, or the rest of the open one. One without words is none."""
        whole = joined(self.open_text, text) if goes_on else text
        if goes_on:
            self.open_item, self.open_text = None, ""
        if self._supposed == whole:
            self._was_said = True
        elif whole.strip():
            self.withdraw()
            self.stays()
            self._append(_Say(ChatMessage("user", whole)))

    def reopened(self, item_id: ItemId) -> None:
        """Reopen the user's last message, with this item; the reply to it is taken back.

        Where that is not what the conversation ends with (but for items without words), it stays a
        message of its own.
        """
        messages = self._told()
        if not messages or messages[-1][0] != item_id:
            return
        self.open_item, self.open_text = item_id, messages[-1][1].text
        if self._misses:
            self.edited()
        else:
            self._append(_TakeBack())

    def stays(self) -> None:
        """Close the open message, if there is one: nothing more belongs to it."""
        text, self.open_item, self.open_text = self.open_text, None, ""
        if text:
            self._append(_Say(ChatMessage("user", text)))

    async def suppose(self, text: str) -> None:
        """Settle, and commit words that may become the user's next message.

        Raises StageError. Cancelled, it has committed them or not, and knows which.
        """
        await self.settle()
        text = joined(self.open_text, text)
        await self.chat.commit(ChatMessage("user", text))
        self._supposed, self._was_said = text, False
        self._max_cut = -1  # what was answered before is not the model's last word for long
        if self._edited or self._pending:
            self.withdraw()

    def adopt(self) -> bool:
        """Adopt the response to the supposed message.

        False, having changed nothing, where that was not said or the model's instructions or tools
        are out of date.
        """
        if not (self._was_said and self._has_setting):
            return False
        self._supposed, self._was_said = None, False
        self._max_cut = None
        return True

    def withdraw(self) -> None:
        """Take back the reply to the supposed message, and the message unless it was said by
        now."""
        text, was_said = self._supposed, self._was_said
        self._supposed, self._was_said = None, False
        if text is None or self._edited:
            return
        if was_said:
            self._pending.appendleft(_Say(ChatMessage("user", text)))
        self._pending.appendleft(_TakeBack())

    def added(self, item: Item) -> None:
        """Add an item that was appended to the conversation. A tool's call or result may belong in
        front of what the model has already."""
        if isinstance(item, FunctionCall | FunctionOutput) and not self.is_next(item):
            if isinstance(item, FunctionOutput) and self.has_dropped:
                self._dropped |= {item.call_id}
                self.apart |= {item.call_id}
            self.edited()
            return
        self.withdraw()
        for message in messages_of((item,)):
            self.stays()
            self._append(_Say(message))

    def is_next(self, item: Item) -> bool:
        """True if the messages of the conversation are those without this item, and then its own.
        False also where that would take long to find out, or a reply in progress has words that
        the conversation has not: the model takes the history anew then."""
        newest_first: list[Item] = []
        for each in reversed(self.conversation):
            if each.id == item.id:
                continue
            newest_first.append(each)
            if isinstance(each, Message):
                break
            if len(newest_first) > MAX_TAIL:
                return False
        before = newest_first[::-1]
        if before and isinstance(before[0], Message) and before[0].status == "in_progress":
            return False
        if isinstance(item, FunctionOutput) and not any(
            isinstance(each, FunctionCall) and each.call_id == item.call_id for each in before
        ):
            return False
        return messages_of([*before, item]) == [*messages_of(before), *messages_of((item,))]

    def answering(self) -> None:
        """The model begins a reply, which `reply_cut` refers to."""
        self._max_cut = None

    def reply_cut(self, num_chars: int, has_words: Callable[[], bool] = lambda: True) -> None:
        """Cut the model's last reply to what was heard. The latest call counts.

        Whatever else is pending came after that reply, so this goes in front. `has_words` is asked
        when it is carried out: a word may still come from a model that is being stopped, and where
        none came, the model's last reply is another one, which is not to be cut. That is not so of
        a reply with tools, which may be a call without a word: without words it is `edited`.
        """
        if self._max_cut is not None and num_chars > self._max_cut:
            self.edited()
        if self._edited:
            return
        if self._pending and isinstance(self._pending[0], _CutReply):
            self._pending.popleft()
        self._pending.appendleft(_CutReply(num_chars, has_words))

    def _append(self, change: _Change) -> None:
        """Add a change. Where there are too many, because nothing is answered, the model takes the
        whole conversation anew instead."""
        if len(self._pending) < MAX_PENDING:
            self._pending.append(change)
        else:
            self._pending.clear()
            self.edited()

    def edited(self) -> None:
        """Items were changed elsewhere than at the end: the model takes the whole conversation
        anew, as it is by then. The text of a reply under way is not known yet."""
        self._edited = True
        self._supposed, self._was_said = None, False

    async def settle(
        self, instructions: str | None = None, tools: tuple[str, ...] | None = None
    ) -> None:
        """Carry out the pending changes, under these instructions and with these tools in place of
        the session's.

        Raises StageError where the model can't; then it is tried again next time. What the model
        refused is not: a message too long for it would end every later turn.
        """
        await self._set_instructions(self.instructions if instructions is None else instructions)
        await self._set_tools(self.tools if tools is None else tools)
        while self._edited or self._pending:
            if self._edited:
                await self._take_anew()
            else:
                await self._carry_out(self._pending[0])

    def _told(self) -> list[tuple[ItemId, ChatMessage]]:
        return told(self.conversation, self.apart)

    def make_room(self) -> list[ItemId]:
        """Let the conversation delete its oldest items so that one more fits. The model keeps what
        it has of them. Returns their ids."""
        if len(self.conversation) < MAX_ITEMS:
            return []
        messages = self._told()
        gone = self.conversation.make_room()
        num_messages = sum(item_id in gone for item_id, _ in messages)
        self._num_deleted += num_messages
        if self._edited:
            del self._covered[:num_messages]
        else:  # a result may stand elsewhere without its call
            covered = set(self._covered)
            self._covered = [each for each in self._told() if each in covered]
        return gone

    # --- condensing ---

    def use(self) -> ContextUse | None:
        """Tokens of the model's context; None where nothing can be condensed now, or the client has
        a rule of its own for the oldest messages."""
        if self._misses or self._edited or self._truncation != AUTO_TRUNCATION:
            return None
        return self.chat.context_use()

    @property
    def is_edited(self) -> bool:
        """True if the model takes the whole conversation anew when the context is settled."""
        return self._edited

    @property
    def has_dropped(self) -> bool:
        """True if the model has dropped messages since the last summary: a result that comes late
        stands in its own place."""
        return self._has_dropped or self.chat.num_left_out > self._num_summarized

    async def condense(self, goal: CondensingGoal) -> Condensed | None:
        """Condense the oldest messages as `ChatPort.condense` does.

        Raises StageError, also where it is not known which messages the summary covers: the model
        then takes the conversation anew.
        """
        done = await self.chat.condense(goal)
        if done is None:
            return None
        messages = self._told()
        first = self._num_withheld + done.num_left_out - self._num_deleted
        end = max(0, first + len(done.roles))
        replaced = [message.role for _, message in messages[max(0, first) : end]]
        self.summary, self._covered = done.summary, messages[:end]
        if self._misses or not _same_speakers(replaced, done.roles[max(0, -first) :]):
            self.summary, self._covered, self.apart = (), [], self._dropped
            self.edited()
            raise StageError("llm", "it is not known what the summary covers")
        self.apart |= open_calls_among(self.conversation, self._covered)
        self._has_dropped = False
        self._num_summarized = done.num_left_out + len(done.roles)
        return done

    @property
    def num_covered(self) -> int:
        """Number of the conversation's messages that the summary stands for."""
        return len(self._covered) if self.summary else 0

    def restore(
        self,
        summary: tuple[str, ...],
        num_covered: int,
        apart: Collection[str] = (),
        *,
        has_dropped: bool = False,
    ) -> None:
        """The conversation is another server's, with this summary of its oldest messages: the model
        takes it anew. `has_dropped`: the model there had dropped messages."""
        self._has_dropped = has_dropped
        self.apart = frozenset(apart)
        self._dropped = frozenset() if summary else self.apart
        self.summary, self._covered = summary, self._told()[:num_covered]
        self.edited()

    @property
    def _has_setting(self) -> bool:
        """True if the model has the session's instructions, examples and tools, and no others."""
        given = (self._given_instructions, self._given_examples, self._given_tools)
        return (self.instructions, self.examples, self.tools) == given

    async def _set_instructions(self, wanted: str) -> None:
        """Give the model these instructions. The session's own are given up if the model refuses
        them."""
        examples = None if self.examples == self._given_examples else self.examples
        if wanted == self._given_instructions and examples is None:
            return
        try:
            if examples is None:
                await self.chat.set_system(wanted)
            else:
                await self.chat.set_system(wanted, examples)
        except StageError as error:
            if error.refused and wanted == self.instructions:
                self.instructions, self.examples = self._given_instructions, self._given_examples
            raise
        self._given_instructions = wanted
        if examples is not None:
            self._given_examples = examples

    async def _set_tools(self, wanted: tuple[str, ...]) -> None:
        """Give the model these tools, as `_set_instructions` does."""
        if wanted == self._given_tools:
            return
        try:
            await self.chat.set_tools(wanted)
        except StageError as error:
            if error.refused and wanted == self.tools:
                self.tools = self._given_tools
            raise
        self._given_tools = wanted

    async def _take_anew(self) -> None:
        self._edited = False
        self._pending.clear()
        messages = self._told()
        num_covered = len(self._covered)
        if not self.summary or messages[:num_covered] != self._covered:
            self.summary, self._covered, self.apart, num_covered = (), [], self._dropped, 0
            messages = self._told()
        if messages and messages[-1][0] == self.open_item:
            self.open_text = messages.pop()[1].text
        else:
            self.open_item, self.open_text = None, ""
        self._has_dropped = self.has_dropped
        self._num_withheld, self._num_deleted = num_covered, 0
        rest = [message for _, message in messages[num_covered:]]
        try:
            await self.chat.reset(rest, self.summary)
        except BaseException as error:
            is_refused = isinstance(error, StageError) and error.refused
            if not is_refused or self._truncation.is_disabled:  # then it fails until it is shorter
                self.edited()
            raise
        self._misses = False
        self._num_summarized = 0
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
                self._misses = True
            raise
        _forget(self._pending, change)
        if isinstance(change, _CutReply):
            self._max_cut = change.num_chars
        elif isinstance(change, _TakeBack) or change.message.role == "assistant":
            self._max_cut = -1


def _forget(pending: deque[_Change], change: _Change) -> None:
    """Remove a change. Others may have come in front of it meanwhile, or in place of all."""
    if change in pending:
        pending.remove(change)


def _same_speakers(found: Sequence[str], reported: Sequence[str]) -> bool:
    """True for equal roles. A model whose template has no tools reads their results as the user's
    messages."""
    return len(found) == len(reported) and all(
        role == other or (role == "tool" and other == "user")
        for role, other in zip(found, reported, strict=True)
    )
