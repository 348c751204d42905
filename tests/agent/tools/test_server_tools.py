"""Real clients whose tools the real model calls."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import jsonschema
import pytest
from agents import function_tool
from agents.realtime import RealtimeAgent, RealtimeRunner

from tests.clients.openai_python.scenarios import Talk, talk
from tests.clients.scene import TOOL_CALL, Scene
from tests.support.service.live import LiveServer
from tests.support.service.live_call import PATIENCE_S
from tests.support.wire.wire_frames import check_strictly

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = pytest.mark.models

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 30},
            "unit": {"enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
}


@asynccontextmanager
async def sdk_call(live: LiveServer) -> AsyncIterator[Talk]:
    async with talk(Scene(live.http, {}, {}, no_cut)) as call:
        yield call
    for event in call.events:
        check_strictly(event)


async def no_cut() -> None:
    raise AssertionError("there is no cable here")


async def typed(call: Talk, text: str) -> None:
    await call.type(text)
    await call.until("conversation.item.done")


async def test_a_tool_call_in_the_order_that_clients_expect(live: LiveServer) -> None:
    async with sdk_call(live) as call:
        session: Any = {"type": "realtime", "tools": [WEATHER], "tool_choice": "required"}
        await call.connection.session.update(session=session)
        updated = (await call.until("session.updated"))["session"]
        assert (updated["tools"], updated["tool_choice"]) == ([WEATHER], "required")
        await typed(call, "What is the weather like in Paris?")
        num_before = len(call.events)
        await call.connection.response.create()
        await call.until("rate_limits.updated")
        events = call.events[num_before:]
        assert tuple(event["type"] for event in events) == TOOL_CALL
        done = events[-2]["response"]
        (made,) = done["output"]
        assert (made["type"], made["name"], made["status"]) == (
            "function_call",
            "get_weather",
            "completed",
        )
        jsonschema.validate(json.loads(made["arguments"]), WEATHER["parameters"])
        assert events[4]["arguments"] == events[3]["delta"] == made["arguments"]
        assert events[4]["call_id"] == made["call_id"]
        asked = next(e for e in call.events if e["type"] == "conversation.item.added")
        assert events[2]["previous_item_id"] == asked["item"]["id"]
        output: Any = {
            "type": "function_call_output",
            "call_id": made["call_id"],
            "output": "It is sunny.",
        }
        await call.connection.conversation.item.create(item=output)
        added = await call.until("conversation.item.done")
        assert added["previous_item_id"] == made["id"]
        spoken: Any = {"tool_choice": "none", "output_modalities": ["text"]}
        await call.connection.response.create(response=spoken)
        answer = (await call.until("response.done"))["response"]
        assert answer["status"] == "completed"
        assert answer["output"][0]["content"][0]["text"].strip()
        assert answer["usage"]["input_tokens"] > done["usage"]["input_tokens"] // 2


async def test_a_schema_that_can_not_be_met_is_an_error_before_anything_is_said(
    live: LiveServer,
) -> None:
    impossible = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 2}},
        "required": ["n"],
    }
    async with sdk_call(live) as call:
        session: Any = {"type": "realtime", "tools": [{**WEATHER, "parameters": impossible}]}
        await call.connection.session.update(session=session)
        error = (await call.until("error"))["error"]
        assert (error["code"], error["param"]) == ("invalid_value", "session.tools")
        assert "tools[0].parameters" in error["message"]
        await call.connection.conversation.item.create(
            item={"type": "function_call_output", "call_id": "call_no", "output": "x"}
        )
        assert (await call.until("error"))["error"]["code"] == "invalid_tool_call_id"
        await call.prove_alive()


async def test_the_agents_sdk_runs_a_tool_and_hears_the_answer(live: LiveServer) -> None:
    asked: list[str] = []

    @function_tool
    def get_weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        return "It is sunny."

    agent = RealtimeAgent(name="assistant", instructions="Be brief.", tools=[get_weather])
    runner = RealtimeRunner(
        agent, config={"model_settings": {"tool_choice": "required", "modalities": ["text"]}}
    )
    session = await runner.run(
        model_config={"url": f"{live.url}?model=gpt-realtime", "api_key": "x"}
    )
    ended: list[str] = []
    num_done = 0
    async with session:
        await session.send_message("What is the weather like in Paris?")
        async with asyncio.timeout(PATIENCE_S):
            async for event in session:
                assert event.type != "error", event
                if event.type == "tool_end":
                    ended.append(str(event.output))
                elif event.type == "raw_model_event":
                    assert event.data.type not in ("error", "exception"), event.data
                    raw: Any = getattr(event.data, "data", None)
                    is_done = isinstance(raw, dict) and raw.get("type") == "response.done"
                    num_done += is_done
                if ended and num_done >= 2:
                    break  # the result was told, and was answered (by another call: it must)
    assert asked
    assert ended[0] == "It is sunny."
