"""How a conversation's model is told of tools, of calls and of what they gave."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from llm_engine.checkpoints.tokenizer import LONG_TEXT_CHARS
from llm_engine.config import SamplingParams
from llm_engine.grammar import Grammar

from .template import ChatMessage, ChatTemplate, Role
from .token_history import TokenHistory
from .tool_calls import CallingMessage, Dialect, Tool, ToolCall, ToolUse


@dataclass(frozen=True, slots=True)
class ToolPrompts:
    """An engine's side of it. For any event loop."""

    dialect: Dialect
    template_with: Callable[[tuple[str, ...]], Awaitable[ChatTemplate]]
    """The chat template that tells of these definitions. Raises RequestError."""
    compile: Callable[[Grammar], None]
    """Has a grammar ready, on any thread. Raises RequestError."""

    async def template(self, tools: Sequence[Tool]) -> ChatTemplate:
        """Raises RequestError where the template can't tell of these tools."""
        return await self.template_with(self.dialect.definitions(tools))

    async def constrained(self, sampling: SamplingParams, use: ToolUse | None) -> SamplingParams:
        """The same, so that a reply may call nothing but these tools, as they are to be called.

        Raises RequestError naming the tool whose arguments can't be constrained.
        """
        if use is None:
            return sampling
        grammar = self.dialect.grammar(use)
        await asyncio.to_thread(self.compile, grammar)
        if use.must_call:
            # JSON repeats its quotes and brackets; who penalizes that gets strings without an end.
            sampling = replace(sampling, repetition_penalty=1.0)
        return replace(sampling, grammar=grammar)


class PromptHead:
    """The system prompt and the tools of one conversation, and messages in the model's own words.

    Each change is prefilled with all that follows it.
    """

    def __init__(self, dialogue: TokenHistory, tooling: ToolPrompts, system: str) -> None:
        """`dialogue` was opened with this system prompt, and without tools."""
        self._dialogue = dialogue
        self._tooling = tooling
        self._system = system
        self._tools: tuple[Tool, ...] = ()

    def system(self, text: str) -> ChatMessage:
        """As the model is to read it, with the present tools."""
        return ChatMessage("system", self._tooling.dialect.system(text, self._tools))

    def message(self, text: str, role: str, calls: Sequence[ToolCall] = ()) -> ChatMessage:
        """One message as the model is to read it; `calls` are the assistant's."""
        if role == "system":
            return self.system(text)
        if calls:
            return self._tooling.dialect.written(CallingMessage(text, tuple(calls)))
        return self._tooling.dialect.told([ChatMessage(cast(Role, role), text)])[0]

    def history(self, messages: Sequence[ChatMessage | CallingMessage]) -> list[ChatMessage]:
        """Several; a system prompt in front is one."""
        told = self._tooling.dialect.told(messages)
        if told and told[0].role == "system":
            told[0] = self.system(told[0].text)
        return told

    def has_system(self, text: str) -> None:
        """The dialogue's system prompt is this one now."""
        self._system = text

    async def set_tools(self, tools: Sequence[Tool]) -> None:
        """Tell the model of these tools and no others. Raises RequestError, changing nothing."""
        template = await self._tooling.template(tools)
        system = self._tooling.dialect.system(self._system, tools)
        await prepare(self._dialogue, [ChatMessage("system", system)])
        self._dialogue.set_system(system, template)
        self._tools = tuple(tools)

    async def check_tools(self, sampling: SamplingParams, use: ToolUse) -> None:
        """Raise RequestError where the model can't be told of these tools, or a reply can't be made
        to fit what they take."""
        await self._tooling.constrained(sampling, use)
        template = await self._tooling.template(use.shown)
        system = self._tooling.dialect.system(self._system, use.shown)
        await prepare(self._dialogue, [ChatMessage("system", system)])
        self._dialogue.check("system", system, template=template)

    async def constrained(self, sampling: SamplingParams, use: ToolUse | None) -> SamplingParams:
        """As `ToolPrompts.constrained`."""
        return await self._tooling.constrained(sampling, use)


async def prepare(dialogue: TokenHistory, messages: Sequence[ChatMessage]) -> None:
    """Let long texts be encoded on another thread: all calls share this one."""
    if sum(len(each.text) for each in messages) > LONG_TEXT_CHARS:
        await asyncio.to_thread(dialogue.prepare, messages)
