"""Tools that a Python client runs: called, answered, and the reply to them asked for."""

import asyncio
import json
from typing import Any

from agent.client import events as ev
from agent.client.call import Call, connect
from agent.session.api.client_events import CreateItem, CreateResponse, UpdateSession
from agent.session.api.conversation import FunctionCall, FunctionOutput, ItemId
from agent.session.api.server_events import Notice, ReplyCalled, ReplyEnded, ReplyStarted, Usage
from tests.support.fakes.realtime_peer import SETTINGS, Peer, serving

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


async def weather(city: str) -> dict[str, Any]:
    if city == "Atlantis":
        raise LookupError("no such city")
    return {"city": city, "degrees": 21}


def calling(response: str, *cities: str, status: Any = "completed") -> list[Notice]:
    """A response that asks for the weather of these cities."""
    calls = [
        ReplyCalled(
            response,
            FunctionCall(ItemId(f"i_{city}"), f"c_{city}", "weather", json.dumps({"city": city})),
            None,
        )
        for city in cities
    ]
    started = ReplyStarted(
        response, ItemId(f"m_{response}"), None, "audio", SETTINGS, may_call=True
    )
    return [started, *calls, ReplyEnded(response, status, None, "", Usage())]


async def offered(call: Call, peer: Peer) -> None:
    await call.tools.add(weather, "The weather in a city, now.", CITY)
    update = await peer.asked.get()
    assert isinstance(update, UpdateSession)
    assert [tool["name"] for tool in update.settings.tools] == ["weather"]


async def outputs(peer: Peer, count: int) -> dict[str, Any]:
    given = {}
    for _ in range(count):
        request = await peer.asked.get()
        assert isinstance(request, CreateItem)
        assert isinstance(request.item, FunctionOutput)
        given[request.item.call_id] = json.loads(request.item.output)
    return given


async def listen(call: Call) -> None:
    async for _ in call.events():
        pass


async def test_calls_are_answered_and_then_one_reply_is_asked_for() -> None:
    async with serving() as peer, connect(peer.url) as call, asyncio.TaskGroup() as group:
        listening = group.create_task(listen(call))
        await offered(call, peer)
        await peer.say(*calling("r1", "Rome", "Atlantis"))
        given = await outputs(peer, 2)
        assert given["c_Rome"] == {"city": "Rome", "degrees": 21}
        assert given["c_Atlantis"] == {"error": "LookupError: no such city"}
        assert isinstance(await peer.asked.get(), CreateResponse)
        listening.cancel()


async def test_interrupted_reply_requests_no_response() -> None:
    async with serving() as peer, connect(peer.url) as call, asyncio.TaskGroup() as group:
        listening = group.create_task(listen(call))
        await offered(call, peer)
        await peer.say(*calling("r1", "Rome", status="cancelled"))
        await peer.say(*calling("r2", "Oslo"))
        assert set(await outputs(peer, 2)) == {"c_Rome", "c_Oslo"}
        assert isinstance(await peer.asked.get(), CreateResponse)
        assert peer.asked.empty()
        listening.cancel()


async def test_calls_of_the_gap_are_caught_up_with() -> None:
    async with serving() as peer, connect(peer.url) as call:
        await offered(call, peer)
        item = {"type": "function_call", "name": "weather", "arguments": '{"city": "Rome"}'}
        items = [
            item | {"call_id": "c_Rome"},
            item | {"call_id": "c_Oslo"},
            {"type": "function_call_output", "call_id": "c_Oslo", "output": "known"},
            item | {"call_id": "c_other", "name": "unheard_of"},
        ]
        call.tools.take(ev.Resumed(items, 4, 1, False, 0))
        assert set(await outputs(peer, 1)) == {"c_Rome"}
        assert isinstance(await peer.asked.get(), CreateResponse)


async def test_hung_tool_does_not_delay_the_end_of_the_call() -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    async with serving() as peer, connect(peer.url) as call:
        await call.tools.add(hang, "Never ends.", {"type": "object", "properties": {}})
        call.tools.take(ev.FunctionCall("r", "i", "c", "hang", "", 0))
