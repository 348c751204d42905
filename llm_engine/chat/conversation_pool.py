"""Pool of idle conversations for stateless clients, which send the whole history each time.

Such a client sends system prompt, history and the next message with every request. Among the last
few conversations is the one that it continues: that with the same system prompt and tools whose
messages are the longest prefix of the request's. It is resumed with its token ids, so that only new
messages are computed. No client id is needed; a wrong match costs time and nothing else.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from llm_engine.errors import RequestError

from .conversation import Conversation
from .template import ChatMessage

MAX_IDLE = 8
"""Idle conversations kept for the next request. Each may hold a context's worth of cache, which is
evicted when others need it."""


@dataclass(frozen=True, slots=True)
class ConversationKey:
    """System prompt, tools and switch that a request must share with a pooled conversation."""

    system: str
    tools: tuple[str, ...] = ()
    """Tool definitions in JSON, for the chat template."""
    thinks: bool = False
    """The model's thoughts are switched on."""


Open = Callable[[ConversationKey], Awaitable[Conversation]]


class ConversationPool:
    """Idle conversations, the one used last at the end. Belongs to one event loop at a time."""

    def __init__(self, open_conversation: Open) -> None:
        self._open = open_conversation
        self._idle: list[tuple[ConversationKey, Conversation]] = []

    async def resume(
        self,
        messages: Sequence[ChatMessage],
        tools: tuple[str, ...] = (),
        *,
        thinks: bool = False,
    ) -> tuple[ConversationKey, Conversation]:
        """Take or open a conversation and make it hold exactly these messages; returns its key too.

        The last message must be one that asks for a reply. Raises RequestError.
        """
        if not messages or messages[-1].role not in ("user", "tool"):
            raise RequestError("messages", "must end with a message of the user or of a tool")
        if messages[-1].role == "user" and not messages[-1].text.strip():
            raise RequestError("messages", "must not end with an empty one")
        system = messages[0].text if messages[0].role == "system" else ""
        turns = messages[1:] if messages[0].role == "system" else messages
        key = ConversationKey(system, tools, thinks)
        conversation = self._take(key, turns) or await self._open(key)
        try:
            # A second system message would be taken for the system prompt.
            has_second = turns[0].role == "system"
            await conversation.reset(messages if has_second else turns)
        except BaseException:
            await conversation.close()
            raise
        return key, conversation

    async def give_back(self, key: ConversationKey, conversation: Conversation) -> None:
        """Return a conversation to the pool, unless it was closed."""
        if conversation.is_closed:
            return
        self._idle.append((key, conversation))
        while len(self._idle) > MAX_IDLE:
            await self._drop_oldest()

    async def make_room(self) -> bool:
        """Close the conversation that has been idle longest. False when there is none."""
        if not self._idle:
            return False
        await self._drop_oldest()
        return True

    def _take(self, key: ConversationKey, turns: Sequence[ChatMessage]) -> Conversation | None:
        best, longest = None, 0
        for index, (idle_key, conversation) in enumerate(self._idle):
            if idle_key == key:
                num_common = _num_common(conversation.messages, turns)
                if num_common >= max(longest, 1):  # of two equal ones the newer
                    best, longest = index, num_common
        return None if best is None else self._idle.pop(best)[1]

    async def _drop_oldest(self) -> None:
        _, conversation = self._idle.pop(0)
        await conversation.close()


def _num_common(first: Sequence[ChatMessage], second: Sequence[ChatMessage]) -> int:
    num = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        num += 1
    return num
