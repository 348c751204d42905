"""The real service, whose real model calls tools that run on the server."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.support.service.live import LiveServer
from tests.support.service.live_call import PATIENCE_S, LiveCall, call_to, words_of

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = pytest.mark.models


async def asked(call: LiveCall, tool_choice: Any) -> dict[str, Any]:
    """The response to a question that has to be answered with a tool first."""
    await call.update(tool_choice=tool_choice, output_modalities=["text"])
    return await call.ask("What is the weather like in Paris?")


async def test_one_response_with_a_tool_inside(live: LiveServer) -> None:
    async with call_to(live.url, model="helper", protocols=("halfsec.v1",)) as call:
        response = await asked(call, {"type": "function", "name": "forecast"})
        assert response["status"] in ("completed", "incomplete")
        assert [item["type"] for item in response["output"]] == ["message"]
        assert words_of(response)
        (started, done) = call.of("halfsec.tool")
        assert (started["state"], done["state"]) == ("started", "done")
        assert {started["name"], done["name"]} == {"forecast"}
        assert started["item_id"] == done["item_id"] == response["output"][0]["id"]
        assert done["ms"] >= started["ms"] == 0
        assert not call.of("response.function_call_arguments.done")
        await call.prove_alive()


async def test_a_tool_of_an_mcp_server(live: LiveServer) -> None:
    async with httpx.AsyncClient() as http, asyncio.timeout(PATIENCE_S):
        while "tools" in (ready := (await http.get(f"{live.http}/readyz")).json()):
            assert ready["status"] == "degraded", "it is not connected yet"
    assert ready["status"] == "ready"
    async with call_to(live.url, model="helper", protocols=("halfsec.v1",)) as call:
        await asked(call, {"type": "function", "name": "fine"})
        assert [(each["name"], each["state"]) for each in call.of("halfsec.tool")] == [
            ("fine", "started"),
            ("fine", "done"),
        ]


async def test_server_tools_are_invisible_to_strict_clients(live: LiveServer) -> None:
    """A strict client has the tools, and sees nothing of them; another agent has none."""
    async with call_to(live.url, model="helper") as call:
        response = await asked(call, "required")
        assert words_of(response)
        assert not [kind for kind in call.types if kind.startswith("halfsec")]
        clash = {"type": "function", "name": "forecast", "parameters": {"type": "object"}}
        await call.send("session.update", session={"type": "realtime", "tools": [clash]})
        while call.types[-1] != "error":
            event = await call.next()
        assert "is the name of a tool of this server" in event["error"]["message"]
        assert event["error"]["param"] == "session.tools[0].name"
        await call.send("response.create", response={"tools": [clash]})
        refused = await call.until("error")
        assert refused["error"]["param"] == "response.tools[0].name"
    async with call_to(live.url, protocols=("halfsec.v1",)) as call:
        await call.prove_alive()
        assert not call.of("halfsec.tool")
