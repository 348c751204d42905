"""Adapter between the ports' tools and the engine's: allowed calls in, parsed calls out."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import llm_engine
from agent.session.api.conversation import ModelCall
from agent.session.ports.stage_ports import ChatMessage, Tools
from llm_engine.chat.call_reader import ArgumentsDelta, CallReader, CallStarted
from llm_engine.chat.grounding import Ground, grounded
from llm_engine.chat.tool_calls import REPLY_TOOL, CallingMessage, Dialect, ToolCall, ToolUse

from .openai_tools import parse_tools

CHOICES = ("auto", "required", "none")


MAX_CHARS_ON_LOOP: Final = 8000
"""Definitions that are read at once, in a millisecond; a thread takes a tenth of that to answer."""


@lru_cache(maxsize=64)
def tool_use(tools: Tools) -> ToolUse:
    """The engine's form of the tools. Raises RequestError naming the tool at fault."""
    choice: Any = tools.choice
    if choice not in CHOICES:
        choice = {"type": "function", "function": {"name": choice}}
    functions = [json.loads(definition) for definition in tools.definitions]
    body = {
        "tools": [{"type": "function", "function": function} for function in functions],
        "tool_choice": choice,
        "parallel_tool_calls": tools.in_parallel,
    }
    use = parse_tools(body)
    assert use is not None
    return use


async def tool_use_off_loop(tools: Tools) -> ToolUse:
    """`tool_use`, on a thread where the schemas are large: 250 kB take 40 ms."""
    if sum(map(len, tools.definitions)) <= MAX_CHARS_ON_LOOP:
        return tool_use(tools)
    return await asyncio.to_thread(tool_use, tools)


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """What a model can do with tools: `llm_engine.parallel_tool_calls`, `max_tool_rounds`,
    `examples_with_tools`, `reply_tool` and `grounded_calls`."""

    in_parallel: bool = True
    max_rounds: int = 5
    with_examples: bool = True
    replies_by_call: bool = False
    is_grounded: bool = False

    def limited(self, use: ToolUse, num_rounds: int) -> ToolUse:
        """The tools that a reply may call after this many tool rounds since the caller's last
        words. A call that the client demands is always allowed."""
        if use.must_call:
            return use
        callable_tools = use.callable if num_rounds < self.max_rounds else ()
        in_parallel = use.in_parallel and self.in_parallel
        use = replace(use, callable=callable_tools, in_parallel=in_parallel)
        if not self.replies_by_call or any(tool.name == REPLY_TOOL.name for tool in use.shown):
            return use
        # First in the list: a small model that saw it last called some tool to every greeting.
        shown = (REPLY_TOOL, *use.shown)
        return replace(use, shown=shown, replies_by_call=True, tells_result=num_rounds > 0)

    def grounds(self, use: ToolUse) -> bool:
        """True if `grounded` reads the conversation, which takes some milliseconds."""
        return self.is_grounded and bool(use.callable)

    def grounded(
        self,
        use: ToolUse,
        messages: Sequence[llm_engine.ChatMessage | CallingMessage],
        instructions: str = "",
    ) -> ToolUse:
        """The tools with their arguments narrowed to what these messages ground, the oldest
        first."""
        if not self.grounds(use):
            return use
        return grounded(use, Ground.of(messages, instructions))


NO_LIMITS: Final = ToolLimits()


def num_tool_rounds(messages: Sequence[llm_engine.ChatMessage | CallingMessage]) -> int:
    """Number of replies with calls behind the last user message."""
    num_rounds = 0
    for message in reversed(messages):
        if isinstance(message, CallingMessage):
            num_rounds += 1
        elif message.role == "user":
            break
    return num_rounds


class CallCollector:
    """Separates the words and the calls of one reply."""

    def __init__(self, dialect: Dialect, use: ToolUse) -> None:
        self._reader = CallReader(dialect, use.callable, reply_heads=dialect.reply_heads(use))
        self._begun: list[tuple[str, str]] = []
        """Name and arguments so far of each call."""
        self._num_returned = 0

    @property
    def num_hidden(self) -> int:
        """Characters of the reply before its words."""
        return self._reader.num_hidden

    def push(self, text: str, *, is_last: bool) -> tuple[str, tuple[ModelCall, ...]]:
        """Take in text; returns more words, and the calls that are complete. A call that was broken
        off is dropped."""
        words = ""
        for event in [*self._reader.push(text), *(self._reader.flush() if is_last else ())]:
            if isinstance(event, CallStarted):
                self._begun.append((event.name, ""))
            elif isinstance(event, ArgumentsDelta):
                name, arguments = self._begun[-1]
                self._begun[-1] = (name, arguments + event.text)
            else:
                words += event.text
        fresh = self._begun[self._num_returned : self._reader.num_whole]
        self._num_returned = self._reader.num_whole
        return words, tuple(ModelCall(name, arguments) for name, arguments in fresh)


def for_engine(
    messages: Sequence[ChatMessage],
) -> list[llm_engine.ChatMessage | CallingMessage]:
    """The engine's form of the port's messages."""
    return [
        CallingMessage(each.text, calls_for_engine(each))
        if each.calls
        else llm_engine.ChatMessage(each.role, each.text)
        for each in messages
    ]


def calls_for_engine(message: ChatMessage) -> tuple[ToolCall, ...]:
    """The engine's form of a message's calls."""
    return tuple(ToolCall(call.name, call.arguments) for call in message.calls)
