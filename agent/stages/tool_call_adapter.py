"""Tools between the ports and the language model: what may be called, and calls as they come."""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import llm_engine
from agent.session.api.conversation import ModelCall
from agent.session.ports.stage_ports import ChatMessage, Tools
from llm_engine.chat.call_reader import ArgumentsDelta, CallReader, CallStarted
from llm_engine.chat.tool_calls import CallingMessage, Dialect, ToolCall, ToolUse

from .openai_tools import parse_tools

CHOICES = ("auto", "required")


@lru_cache(maxsize=64)
def tool_use(tools: Tools) -> ToolUse:
    """As the engine has it. Raises RequestError naming the tool at fault."""
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


class CallCollector:
    """Parts one reply into words and calls."""

    def __init__(self, dialect: Dialect, use: ToolUse) -> None:
        self._reader = CallReader(dialect, use.callable)
        self._begun: list[tuple[str, str]] = []
        """Name and arguments so far."""
        self._num_told = 0

    def push(self, text: str, *, is_last: bool) -> tuple[str, tuple[ModelCall, ...]]:
        """What is clear now: more words, and the calls that are complete. One that was broken off
        is none."""
        words = ""
        for event in [*self._reader.push(text), *(self._reader.flush() if is_last else ())]:
            if isinstance(event, CallStarted):
                self._begun.append((event.name, ""))
            elif isinstance(event, ArgumentsDelta):
                name, arguments = self._begun[-1]
                self._begun[-1] = (name, arguments + event.text)
            else:
                words += event.text
        num_whole = len(self._begun) - (not self._reader.is_whole)
        fresh = self._begun[self._num_told : num_whole]
        self._num_told = max(self._num_told, num_whole)
        return words, tuple(ModelCall(name, arguments) for name, arguments in fresh)


def for_engine(
    messages: Sequence[ChatMessage],
) -> list[llm_engine.ChatMessage | CallingMessage]:
    """The port's messages as the engine has them."""
    return [
        CallingMessage(each.text, calls_for_engine(each))
        if each.calls
        else llm_engine.ChatMessage(each.role, each.text)
        for each in messages
    ]


def calls_for_engine(message: ChatMessage) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(call.name, call.arguments) for call in message.calls)
