"""Tools in a conversation: set, called, checked, answered."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from agent.stages.openai_tools import parse_tools
from latency_budget.account.turn import TurnId
from llm_engine.chat.call_reader import ArgumentsDelta, CallReader, CallStarted, TextDelta
from llm_engine.chat.conversation import Conversation
from llm_engine.chat.template import ChatMessage
from llm_engine.chat.tool_calls import CallingMessage, ToolCall, ToolUse
from llm_engine.config import EngineConfig, SamplingParams
from llm_engine.core.output import Usage
from llm_engine.engine import Engine
from llm_engine.errors import RequestError
from tests.llm_engine.chat.test_conversation_pool_tools import TEMPLATES, TOOLS, ZONE, save_model

SAMPLING = SamplingParams(max_tokens=60, temperature=1.0, seed=3)


@pytest.fixture(scope="module", params=TEMPLATES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp(request.param)
    save_model(path, TEMPLATES[request.param])
    return path


@pytest.fixture
async def engine(model: Path) -> AsyncIterator[Engine]:
    engine = await asyncio.to_thread(Engine.load, model, EngineConfig(num_threads=1))
    yield engine
    engine.close()


def use(
    choice: str = "auto", tools: list[dict[str, Any]] = TOOLS, *, in_parallel: bool = True
) -> ToolUse:
    body = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": in_parallel}
    asked = parse_tools(body)
    assert asked is not None
    return asked


async def answer(talk: Conversation, turn: int, tools: ToolUse | None) -> tuple[str, Usage]:
    text, usage = "", Usage(0, 0, 0)
    async for chunk in talk.generate(TurnId(turn), use=tools):
        text += chunk.text
        usage = chunk.usage or usage
    return text, usage


def calls_in(engine: Engine, text: str, tools: ToolUse) -> list[ToolCall]:
    reader = CallReader(engine.dialect, tools.callable)
    names: list[str] = []
    arguments: list[str] = []
    for event in [*reader.push(text), *reader.flush()]:
        match event:
            case CallStarted(name):
                names.append(name)
                arguments.append("")
            case ArgumentsDelta(piece):
                arguments[-1] += piece
            case TextDelta():
                pass
    assert reader.is_whole
    return [ToolCall(*pair) for pair in zip(names, arguments, strict=True)]


async def test_a_call_its_result_and_what_is_said_then(engine: Engine) -> None:
    talk = await engine.open_conversation("Be brief.", sampling=SAMPLING)
    required = use("required", in_parallel=False)
    await talk.set_tools(required.shown)
    await talk.commit("What time is it?")
    text, _ = await answer(talk, 1, required)
    (call,) = calls_in(engine, text, required)
    if call.name == "clock":
        jsonschema.validate(json.loads(call.arguments), ZONE)
    await talk.commit("noon", "tool")
    spoken, before = await answer(talk, 2, None)
    # Told anew in the words of the port, it is the same conversation, with its ids.
    await talk.reset(
        [
            ChatMessage("user", "What time is it?"),
            CallingMessage("", (call,)),
            ChatMessage("tool", "noon"),
            ChatMessage("assistant", spoken),
            ChatMessage("user", "And now?"),
        ]
    )
    _, usage = await answer(talk, 3, use())
    assert usage.cached_tokens >= before.prompt_tokens + before.output_tokens - 1


async def test_a_conversation_that_moves_to_another_engine_keeps_its_calls(
    engine: Engine, model: Path
) -> None:
    talk = await engine.open_conversation("Be brief.", sampling=SAMPLING)
    await talk.set_tools(use().shown)
    await talk.commit("What time is it?")
    await talk.commit("", "assistant", [ToolCall("clock", '{"zone": "UTC"}')])
    await talk.commit("noon", "tool")
    other = await asyncio.to_thread(Engine.load, model, EngineConfig(num_threads=1))
    moved = await other.open_conversation("Be brief.", sampling=SAMPLING)
    await moved.set_tools(use().shown)
    await moved.reset(talk.messages)
    assert moved._history.prompt(1) == talk._history.prompt(1)
    other.close()


async def test_a_client_tells_of_calls_that_were_made_elsewhere(engine: Engine) -> None:
    tools = use()
    told, reset = [await engine.open_conversation("Be brief.", sampling=SAMPLING) for _ in range(2)]
    calls = ToolCall("clock", '{"zone": "UTC"}'), ToolCall("cat", "{}")
    for talk in (told, reset):
        await talk.set_tools(tools.shown)
    await told.commit("What time is it?")
    await told.commit("", "assistant", calls)
    await told.commit("noon", "tool")
    await told.commit("on the mat", "tool")
    await reset.reset(
        [
            ChatMessage("user", "What time is it?"),
            CallingMessage("", calls),
            ChatMessage("tool", "noon"),
            ChatMessage("tool", "on the mat"),
        ]
    )
    assert told.messages == reset.messages
    one, other = await answer(told, 1, tools), await answer(reset, 1, tools)
    assert one[0] == other[0]
    assert one[1].prompt_tokens == other[1].prompt_tokens


async def test_tools_that_are_gone_leave_nothing(engine: Engine) -> None:
    plain, changed = [
        await engine.open_conversation("Be brief.", sampling=SAMPLING) for _ in range(2)
    ]
    await changed.set_tools(use().shown)
    await changed.set_system("Be long.")
    await changed.set_tools(())
    await changed.set_system("Be brief.")
    for talk in (plain, changed):
        await talk.commit("Hello.")
    one, other = await answer(plain, 1, None), await answer(changed, 1, None)
    assert one[0] == other[0]
    assert one[1].prompt_tokens == other[1].prompt_tokens


async def test_tools_are_kept_when_the_history_is_rebuilt(engine: Engine) -> None:
    told, reset = [await engine.open_conversation("Be brief.", sampling=SAMPLING) for _ in range(2)]
    for talk in (told, reset):
        await talk.set_tools(use().shown)
    await told.commit("Hello.")
    await reset.reset([ChatMessage("system", "Be brief."), ChatMessage("user", "Hello.")])
    one, other = await answer(told, 1, use()), await answer(reset, 1, use())
    assert one[1].prompt_tokens == other[1].prompt_tokens
    assert one[0] == other[0]


async def test_examples_may_be_left_out_beside_tools(engine: Engine) -> None:
    examples = [ChatMessage("user", "Hi."), ChatMessage("assistant", "Good morning.")]
    talk = await engine.open_conversation("Be brief.", sampling=SAMPLING, examples=examples)
    bare = await engine.open_conversation("Be brief.", sampling=SAMPLING)
    await talk.commit("Hello.")
    await bare.commit("Hello.")
    with_examples = (await answer(talk, 1, None))[1].prompt_tokens
    await talk.truncate_reply(0)
    for each, hidden in ((talk, False), (bare, True)):
        await each.set_tools(use().shown, with_examples=hidden)
    one, other = await answer(talk, 2, use()), await answer(bare, 2, use())
    assert one[1].prompt_tokens == other[1].prompt_tokens
    assert one[0] == other[0]
    await talk.truncate_reply(0)
    await talk.set_tools(())
    assert (await answer(talk, 3, None))[1].prompt_tokens == with_examples


async def test_what_can_not_be_met_is_refused_before_anything_is_said(engine: Engine) -> None:
    talk = await engine.open_conversation("Be brief.", sampling=SAMPLING)
    endless = {
        "type": "object",
        "properties": {"n": {"minimum": 2, "maximum": 1, "type": "integer"}},
    }
    endless["required"] = ["n"]
    tools = [{"type": "function", "function": {"name": "pick", "parameters": endless}}]
    with pytest.raises(RequestError, match=r"tools\[0\].function.parameters"):
        await talk.check_tools(SAMPLING, use("auto", tools))
    long = [{"type": "function", "function": {"name": "long", "description": "x " * 20_000}}]
    with pytest.raises(RequestError, match=r"tools|system"):
        await talk.check_tools(SAMPLING, use("auto", long))
    with pytest.raises(RequestError, match=r"tools|system"):
        await talk.set_tools(use("auto", long).shown)
    await talk.check_tools(SAMPLING, use())
    await talk.commit("Hello.")
    assert (await answer(talk, 1, None))[0]
