"""What a reply's model is told before it answers, and which model that is."""

from collections.abc import Sequence
from typing import Protocol

from agent.session.api.conversation import Conversation, Item, ItemReference
from agent.session.api.settings import ResponseOptions
from agent.session.context.chat_context import ChatContext
from agent.session.context.chat_messages import messages_of
from agent.session.context.prefill_scheduler import IdlePrefill
from agent.session.ports.stage_ports import ChatMessage, ChatPort

from .response import Reply
from .scripted import ScriptedChat


class OpenChat(Protocol):
    """Opens a conversation in the language model. Raises StageError where there is none."""

    def __call__(self, instructions: str, examples: Sequence[ChatMessage]) -> ChatPort: ...


class Briefing:
    """Belongs to one session."""

    def __init__(
        self,
        open_chat: OpenChat,
        conversation: Conversation,
        context: ChatContext,
        warming: IdlePrefill,
    ) -> None:
        self._open_chat = open_chat
        self._conversation = conversation
        self.context = context
        self.warming = warming

    def chat_for(self, reply: Reply, script: str | None) -> ChatPort:
        """The session's own chat, or one for this reply alone."""
        if script is not None:
            return ScriptedChat(script)
        options = reply.options
        if not options.out_of_band and options.input is None:
            return self.context.chat
        return self._open_chat(options.instructions or reply.settings.instructions, ())

    async def brief(self, chat: ChatPort, reply: Reply) -> None:
        """Tell the chat what it is to answer."""
        options = reply.options
        tools = () if reply.tools is None else reply.tools.definitions
        if chat is self.context.chat:
            await self.warming.rest()
            await self.context.settle(options.instructions, tools)
            self.context.answering()
            reply.generated = True
            if (options.instructions, options.tools, options.tool_choice) != (None, None, None):
                self.warming.changed()  # the next reply has the session's own again
        else:
            if tools:
                await chat.set_tools(tools)
            await chat.reset(messages_of(self._items(options)))

    def _items(self, options: ResponseOptions) -> list[Item]:
        """What such a response answers. Items that are gone by now are left out."""
        if options.input is None:
            return list(self._conversation)
        found: list[Item] = []
        for item in options.input:
            if not isinstance(item, ItemReference):
                found.append(item)
            elif item.id in self._conversation:
                found.append(self._conversation.get(item.id))
        return found
