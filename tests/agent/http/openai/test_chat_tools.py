"""OpenAI's own client, unchanged, calls tools and asks for forms."""

import json
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field

from tests.agent.http.openai.test_chat import client
from tests.support.service.live import LiveServer

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = pytest.mark.models

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city.",
            "parameters": WEATHER,
        },
    },
    {"type": "function", "function": {"name": "get_time", "description": "The time now."}},
]
ASK: Any = {
    "model": "m",
    "messages": [{"role": "user", "content": "What is the weather in Paris, in celsius?"}],
    "tools": TOOLS,
    "temperature": 0,
    "max_tokens": 120,
}


async def test_tool_call_and_its_result(live: LiveServer) -> None:
    async with client(live) as api:
        first = await api.chat.completions.create(
            **ASK, tool_choice="required", parallel_tool_calls=False
        )
        choice = first.choices[0]
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        assert choice.message.tool_calls is not None
        (call,) = choice.message.tool_calls
        assert call.type == "function"
        assert call.function.name == "get_weather"
        assert set(json.loads(call.function.arguments)) == {"city", "unit"}
        messages: Any = [
            *ASK["messages"],
            choice.message,
            {"role": "tool", "tool_call_id": call.id, "content": "18 degrees and sunny"},
        ]
        second = await api.chat.completions.create(**{**ASK, "messages": messages})
    assert second.choices[0].message.content
    assert second.usage is not None
    assert first.usage is not None
    details = second.usage.prompt_tokens_details
    assert details is not None
    known = first.usage.prompt_tokens + first.usage.completion_tokens
    assert (details.cached_tokens or 0) >= known - 1


@pytest.mark.parametrize("choice", ["auto", "required", {"name": "get_time"}])
async def test_tool_calls_are_streamed_whole(live: LiveServer, choice: Any) -> None:
    if isinstance(choice, dict):
        choice = {"type": "function", "function": choice}
    # Without it the small model repeats its first sentence for ever.
    ask = {**ASK, "tool_choice": choice, "extra_body": {"repetition_penalty": 1.1}}
    async with client(live) as api:
        whole = await api.chat.completions.create(**ask)
        async with api.chat.completions.stream(**ask) as stream:
            kinds = [event.type async for event in stream]
            streamed = await stream.get_final_completion()
    one, other = whole.choices[0], streamed.choices[0]
    assert one.finish_reason == other.finish_reason
    assert (one.message.content or "") == (other.message.content or "")
    calls = [
        [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
        for message in (one.message, other.message)
    ]
    assert calls[0] == calls[1]
    if choice != "auto":
        assert calls[0]
        assert "tool_calls.function.arguments.delta" in kinds
        assert kinds.count("tool_calls.function.arguments.done") == len(calls[0])


async def test_conversation_with_tool_calls_continues(live: LiveServer) -> None:
    """Shown how, even a small model calls by itself: the marker, and from there on the grammar."""
    messages: list[Any] = []
    for number, city in enumerate(("Rome", "Oslo", "Bonn", "Cairo", "Paris")):
        arguments = json.dumps({"city": city, "unit": "celsius"})
        called = {"name": "get_weather", "arguments": arguments}
        messages += [
            {"role": "user", "content": f"What is the weather in {city}?"},
            {
                "role": "assistant",
                "tool_calls": [{"id": f"c{number}", "type": "function", "function": called}],
            },
            {"role": "tool", "tool_call_id": f"c{number}", "content": "sunny"},
            {"role": "assistant", "content": f"It is sunny in {city}."},
        ]
    messages.append({"role": "user", "content": "What is the weather in Lima?"})
    async with client(live) as api:
        answer = await api.chat.completions.create(
            **{**ASK, "messages": messages}, parallel_tool_calls=False
        )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert json.loads(call.function.arguments)["city"] == "Lima"


class Pet(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=20)  # the small model may repeat itself for ever
    kind: Literal["cat", "dog"]
    is_young: bool


class Pets(BaseModel):
    pets: list[Pet] = Field(max_length=2)


async def test_an_answer_is_parsed_into_a_model(live: LiveServer) -> None:
    question = "Ann has a young cat, Tom, and an old dog, Rex. List her pets."
    async with client(live) as api:
        answer = await api.chat.completions.parse(
            model="m",
            messages=[{"role": "user", "content": question}],
            response_format=Pets,
            temperature=0,
            max_tokens=300,
        )
        strict = await api.chat.completions.parse(
            **{**ASK, "tools": [openai.pydantic_function_tool(Pet)]}, tool_choice="required"
        )
    assert answer.choices[0].finish_reason == "stop"
    assert isinstance(answer.choices[0].message.parsed, Pets)
    calls = strict.choices[0].message.tool_calls
    assert calls
    assert isinstance(calls[0].function.parsed_arguments, Pet)


async def test_a_json_object(live: LiveServer) -> None:
    async with client(live) as api:
        answer = await api.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "Write a JSON object with a name and an age."}],
            response_format={"type": "json_object"},
            temperature=0,
            max_tokens=300,
        )
    assert isinstance(json.loads(answer.choices[0].message.content or ""), dict)


async def test_unsupported_options_are_refused_by_name(live: LiveServer) -> None:
    bad: Any = {"type": "object", "properties": {"a": {"type": "strin"}}}
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": bad}}
    async with client(live) as api:
        with pytest.raises(openai.BadRequestError, match="Invalid type: strin") as caught:
            await api.chat.completions.create(**{**ASK, "tools": [tool]}, stream=True)
        assert caught.value.param == "tools[0].function.parameters"
        with pytest.raises(openai.BadRequestError) as caught:
            await api.chat.completions.create(
                model="m",
                messages=ASK["messages"],
                response_format={
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"enum": []}},
                },
            )
        assert caught.value.param == "response_format.json_schema.schema"
