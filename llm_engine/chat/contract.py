"""Contract of chat models: what every chat model does, ours and those of plug-ins.

    import llm_engine

    def test_my_model() -> None:
        llm_engine.check_chat(MyModel())

Needs no test framework, and no event loop that runs already; `halfsec check-plugin NAME` prints the
same checks. Some eight short replies are generated.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Final

from engine_plugins.contract import CheckResult, raise_broken, require, run_checks

from .chat_model import ChatModel, ReplyRequest, checked_reply
from .tool_calls import ToolCall

TIMEOUT_S: Final = 120.0
"""Longest wait for a reply of a few words. Only a model that hangs takes so long."""

MAX_TOKENS: Final = 16

_SYSTEM: Final = {"role": "system", "content": "Answer in one short sentence."}
_HELLO: Final = {"role": "user", "content": "Hello. Who are you?"}
_WEATHER: Final = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
_CALLED: Final = (
    {"role": "user", "content": "What is the weather in Paris?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "call00000",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
            }
        ],
    },
    {"role": "tool", "content": "18 degrees, sunny", "tool_call_id": "call00000"},
)

Check = Callable[[ChatModel], Coroutine[Any, Any, None]]


def check_chat(model: ChatModel) -> list[CheckResult]:
    """Run the contract, and close the model. Returns the checks; raises ContractError with those
    that failed."""
    results = list(chat_checks(model))
    raise_broken(results)
    return results


def chat_checks(model: ChatModel) -> Iterator[CheckResult]:
    """Run the contract check by check, on an event loop of its own; the last one closes the
    model."""
    checks: dict[str, Check] = {
        "replies in text": _text,
        "takes a conversation": _conversation,
        "replies to two at once": _two,
        "goes on after a reply that was broken off": _broken_off,
        "takes tools, and calls only those": _tools,
        "takes a tool's result": _result,
        "can be closed": lambda model: model.close(),
    }
    with asyncio.Runner() as runner:

        def run(check: Check) -> None:
            runner.run(_limited(check(model)))

        yield from run_checks((name, partial(run, check)) for name, check in checks.items())


async def _limited(check: Coroutine[Any, Any, None]) -> None:
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await check
    except TimeoutError:
        require(False, f"nothing came for {TIMEOUT_S:g} s")


async def _text(model: ChatModel) -> None:
    require(_words(await _reply(model, (_SYSTEM, _HELLO))), "the reply has no text")


async def _conversation(model: ChatModel) -> None:
    said = {"role": "assistant", "content": "I am an assistant."}
    asked = {"role": "user", "content": "Thank you. And now?"}
    require(
        _words(await _reply(model, (_SYSTEM, _HELLO, said, asked))), "the second reply has no text"
    )


async def _two(model: ChatModel) -> None:
    replies = await asyncio.gather(*(_reply(model, (_SYSTEM, _HELLO)) for _ in range(2)))
    require(all(map(_words, replies)), "one of two replies at once has no text")


async def _broken_off(model: ChatModel) -> None:
    async with aclosing(checked_reply(model, ReplyRequest((_SYSTEM, _HELLO)))) as pieces:
        require(await anext(pieces, None) is not None, "the reply is empty")
    require(_words(await _reply(model, (_SYSTEM, _HELLO))), "the next reply has no text")


async def _tools(model: ChatModel) -> None:
    asked = {"role": "user", "content": "What is the weather in Paris?"}
    pieces = await _reply(model, (_SYSTEM, asked), (_WEATHER,), max_tokens=4 * MAX_TOKENS)
    require(pieces, "the reply is empty: neither text nor a call")
    calls = [piece for piece in pieces if isinstance(piece, ToolCall)]
    require(pieces[len(pieces) - len(calls) :] == calls, "text follows a call")
    for call in calls:
        require(call.name == "weather", f"it calls {call.name!r}, which was not offered")
        try:
            arguments = json.loads(call.arguments)
        except (TypeError, ValueError):
            arguments = None
        require(isinstance(arguments, dict), f"arguments {call.arguments!r} are no JSON object")


async def _result(model: ChatModel) -> None:
    pieces = await _reply(model, (_SYSTEM, *_CALLED), (_WEATHER,))
    require(pieces, "the reply to a tool's result is empty")


async def _reply(
    model: ChatModel,
    messages: tuple[Mapping[str, Any], ...],
    tools: tuple[Mapping[str, Any], ...] = (),
    max_tokens: int = MAX_TOKENS,
) -> list[str | ToolCall]:
    request = ReplyRequest(messages, max_tokens, tools=tools)
    async with aclosing(checked_reply(model, request)) as pieces:
        return [piece async for piece in pieces]


def _words(pieces: list[str | ToolCall]) -> str:
    return "".join(piece for piece in pieces if isinstance(piece, str)).strip()
