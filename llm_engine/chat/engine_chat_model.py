"""A `ChatModel` from the engine of this package, for programs that want any chat model alike.

Calls of halfsec's own service use the engine's conversations instead, which keep their token ids.
"""

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from llm_engine.config import SamplingParams
from llm_engine.engine import Engine
from llm_engine.errors import RequestError
from llm_engine.structured_output.grammar import Schema

from .call_reader import ArgumentsDelta, CallReader, CallStarted
from .chat_model import ReplyRequest
from .template import ChatMessage
from .tool_calls import CallingMessage, Tool, ToolCall, ToolUse

_ANY: Final = {"type": "object", "properties": {}}


class EngineChatModel:
    """A `ChatModel` on an engine, which it closes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def reply(self, request: ReplyRequest) -> AsyncGenerator[str | ToolCall, None]:
        """See `ChatModel.reply`. Raises RequestError and EngineError."""
        dialect = self._engine.dialect
        use = _tool_use(request)
        messages = [_message(each) for each in request.messages]
        prompt, definitions = dialect.prompt(messages, use.shown if use else ())
        sampling = SamplingParams(
            temperature=request.temperature,
            top_p=request.top_p,
            seed=request.seed,
            stop=request.stop,
            max_tokens=request.max_tokens,
            grammar=dialect.grammar(use) if use else None,
        )
        reader = CallReader(dialect, use.callable) if use else None
        calls: list[ToolCall] = []
        chunks = self._engine.chat(prompt, sampling, tools=definitions)
        async with aclosing(chunks):
            async for chunk in chunks:
                text = chunk.text
                if reader is not None:
                    is_last = chunk.finish_reason is not None
                    text = _read(reader, text, calls, is_last=is_last)
                if text:
                    yield text
        for call in calls[: reader.num_whole] if reader is not None else ():
            yield call

    async def close(self) -> None:
        """Close the engine."""
        self._engine.close()


def _read(reader: CallReader, text: str, calls: list[ToolCall], *, is_last: bool) -> str:
    """Read more of a reply. Returns its words; what belongs to calls is added to `calls`."""
    words = ""
    for event in [*reader.push(text), *(reader.flush() if is_last else ())]:
        if isinstance(event, CallStarted):
            calls.append(ToolCall(event.name, ""))
        elif isinstance(event, ArgumentsDelta):
            calls[-1] = ToolCall(calls[-1].name, calls[-1].arguments + event.text)
        else:
            words += event.text
    return words


def _message(message: Mapping[str, Any]) -> ChatMessage | CallingMessage:
    text = message.get("content") or ""
    if calls := message.get("tool_calls"):
        functions = [call["function"] for call in calls]
        found = tuple(ToolCall(each["name"], each["arguments"]) for each in functions)
        return CallingMessage(text, found)
    return ChatMessage(message["role"], text)


def _tool_use(request: ReplyRequest) -> ToolUse | None:
    """Raises RequestError."""
    tools = _tools(request.tools)
    if not tools:
        return None
    choice, in_parallel = request.tool_choice, request.parallel_tool_calls
    if isinstance(choice, str):
        callable_tools = () if choice == "none" else tools
        return ToolUse(tools, callable_tools, choice == "required", in_parallel)
    name = choice["function"]["name"]
    chosen = tuple(tool for tool in tools if tool.name == name)
    if not chosen:
        raise RequestError("tool_choice", f"{name!r} is not among the tools")
    return ToolUse(tools, chosen, must_call=True, in_parallel=False)


def _tools(definitions: Sequence[Mapping[str, Any]]) -> tuple[Tool, ...]:
    return tuple(
        Tool(
            each["function"]["name"],
            json.dumps(each, ensure_ascii=False),
            Schema.of(each["function"].get("parameters") or _ANY, "tools", is_lenient=True),
        )
        for each in definitions
    )
