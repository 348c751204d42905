"""Chat models: the engine of this package as one, and what the contract finds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

import llm_engine
from engine_plugins.contract import ContractError
from llm_engine import ChatModelOptions, ReplyRequest, ToolCall
from llm_engine.chat.chat_model import checked_reply
from tests.support.models import model_path

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    },
}


class EchoModel:
    """Answers with the last message."""

    async def reply(self, request: ReplyRequest) -> AsyncIterator[str | ToolCall]:
        for word in request.messages[-1]["content"].split():
            yield f"{word} "

    async def close(self) -> None: ...


def test_a_small_model_passes_the_contract() -> None:
    assert len(llm_engine.check_chat(EchoModel())) == 7


@pytest.mark.models
@pytest.mark.slow
def test_the_engine_passes_the_contract() -> None:
    path = model_path("smollm2-135m-instruct") / "SmolLM2-135M-Instruct.Q4_1.gguf"
    model = llm_engine.load_chat(path, ChatModelOptions(context=1024))
    request = ReplyRequest(
        ({"role": "user", "content": "What is the weather?"},),
        max_tokens=64,
        tools=(WEATHER,),
        tool_choice={"type": "function", "function": {"name": "weather"}},
    )

    async def called() -> list[str | ToolCall]:
        async with aclosing(checked_reply(model, request)) as pieces:
            return [piece async for piece in pieces]

    # One event loop for all requests of an engine.
    with asyncio.Runner() as runner:
        assert runner.run(called()) == [ToolCall("weather", "{}")]
    assert len(llm_engine.check_chat(model)) == 7


async def _not_async(request: ReplyRequest) -> str:
    return "Hello"


def _plain(request: ReplyRequest) -> Any:
    yield "Hello"


async def _number(request: ReplyRequest) -> AsyncIterator[Any]:
    yield 3


async def _nothing(request: ReplyRequest) -> AsyncIterator[str]:
    return
    yield


async def _other_tool(request: ReplyRequest) -> AsyncIterator[str | ToolCall]:
    yield "Hello" if not request.tools else ToolCall("strike", "{}")


async def _broken_arguments(request: ReplyRequest) -> AsyncIterator[str | ToolCall]:
    yield "Hello" if not request.tools else ToolCall("weather", "{")


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (
            _not_async,
            "replies in text: TypeError: reply() returned coroutine, and must be",
        ),
        (_plain, "replies in text: TypeError: reply() returned generator, and must be an async"),
        (_number, "replies in text: TypeError: reply() yielded int, and must yield str or"),
        (_nothing, "replies in text: the reply has no text"),
        (
            _other_tool,
            "takes tools, and calls only those: it calls 'strike', which was not",
        ),
        (_broken_arguments, "takes tools, and calls only those: arguments '{' are no JSON object"),
    ],
)
def test_the_contract_names_what_is_broken(reply: Any, said: str) -> None:
    model = EchoModel()
    model.reply = reply  # type: ignore[method-assign]
    with pytest.raises(ContractError) as caught:
        llm_engine.check_chat(model)
    assert str(caught.value).startswith(said)
