"""Two servers and a Redis: calls that lose their server, their server's processor, or the Redis.

Real processes with real models; the last test ends the first server.
"""

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import pytest
import pytest_asyncio

from agent import errors
from tests.agent.server.test_resume import OWN, resumed, token_of
from tests.support.models import model_path
from tests.support.service.live_call import Event, Hangup, LiveCall, call_to, words_of
from tests.support.service.live_fixtures import MODELS
from tests.support.service.redis_server import RedisServer, redis_server
from tests.support.service.service_process import ServiceProcess, service

pytestmark = [
    pytest.mark.models,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
]

SETTINGS = ("latency_budget.admission=false", "latency_budget.enforce=false", "agent.resume_s=120")
CLOCK = {
    "type": "function",
    "name": "clock",
    "description": "Tell the time.",
    "parameters": {"type": "object", "properties": {}},
}


@dataclass(frozen=True)
class Fleet:
    redis: RedisServer
    first: ServiceProcess
    second: ServiceProcess


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet() -> AsyncIterator[Fleet]:
    for name in MODELS:
        model_path(name)
    with redis_server() as redis:
        options = options_with(redis)
        async with service(*options) as first, service(*options) as second:
            for server in (first, second):
                await server.listening()
                await server.line("Ready")
            yield Fleet(redis, first, second)


def options_with(redis: RedisServer) -> list[str]:
    """Options of the command line of each server."""
    given = (*SETTINGS, f"agent.state_store={redis.address()}")
    return [word for each in given for word in ("--set", each)]


async def tell_name(call: LiveCall) -> None:
    await call.ask("My name is Anna.", output_modalities=["text"])


async def recorded(fleet: Fleet, call: LiveCall, text: str) -> None:
    """Wait until the call's record has this text."""
    name = f"test:call:{call.events[0]['session']['id']}"
    wanted = json.dumps(text, ensure_ascii=False)[1:-1].encode()
    while wanted not in await asyncio.to_thread(fleet.redis.command, "HGETALL", name):
        pass


async def remembers(call: LiveCall, items: list[Event], *, contains: str) -> None:
    """The call goes on with these items, and answers once."""
    texts = [part.get("text") or part.get("transcript") or "" for item in items
             for part in item.get("content", ())]  # fmt: skip
    assert any(contains in text for text in texts), texts
    await call.prove_alive()
    assert len(call.of("response.created")) == 1


async def test_redis_is_away_for_a_while(fleet: Fleet) -> None:
    async with call_to(fleet.first.url, protocols=OWN) as call:
        token = await token_of(call)
        await tell_name(call)
        fleet.redis.stop()
        await call.prove_alive()
        async with resumed(fleet.second.url, token) as refused:
            with pytest.raises(Hangup):
                await refused.next()
            code, reason = await refused.closed()
            assert code == errors.CLOSE_OVERLOADED
            assert "try again" in reason
        async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
            ready = (await http.get(f"{fleet.second.http}/readyz")).json()
        assert ready["status"] == "degraded"
        assert "can't be reached" in ready["state_store"]
        call.hang_up_rudely()
        async with resumed(fleet.first.url, token) as again:
            token = await token_of(again)
            fleet.redis.start()
            await recorded(fleet, call, "Anna")  # by the first server, anew
            async with resumed(fleet.second.url, token) as elsewhere:
                told = await elsewhere.until("halfsec.resumed")
                await remembers(elsewhere, told["items"], contains="Anna")
            assert (await again.closed())[0] == errors.CLOSE_TAKEN_OVER


async def test_a_server_that_was_suspended_gives_way(fleet: Fleet) -> None:
    async with call_to(fleet.first.url, protocols=OWN) as call:
        token = await token_of(call)
        await tell_name(call)
        await recorded(fleet, call, "Anna")
        fleet.first.send(signal.SIGSTOP)
        try:
            async with resumed(fleet.second.url, token) as elsewhere:
                told = await elsewhere.until("halfsec.resumed")
                token = await token_of(elsewhere)
                await remembers(elsewhere, told["items"], contains="Anna")
                fleet.first.send(signal.SIGCONT)
                assert (await call.closed())[0] == errors.CLOSE_TAKEN_OVER
                answered = words_of(elsewhere.of("response.done")[-1]["response"])
                await recorded(fleet, call, answered)
                elsewhere.hang_up_rudely()
        finally:
            fleet.first.send(signal.SIGCONT)
        async with resumed(fleet.first.url, token) as back:
            told = await back.until("halfsec.resumed")
            await remembers(back, told["items"], contains=answered)


async def test_a_server_that_stops_leaves_its_calls_to_others(fleet: Fleet) -> None:
    async with service(*options_with(fleet.redis), "--set", "agent.drain_s=0") as third:
        await third.listening()
        await third.line("Ready")
        async with call_to(third.url, protocols=OWN) as call:
            token = await token_of(call)
            await tell_name(call)
            third.stop()
            assert (await call.closed())[0] == errors.CLOSE_DRAINING
        async with resumed(fleet.second.url, token) as elsewhere:
            told = await elsewhere.until("halfsec.resumed")
            await remembers(elsewhere, told["items"], contains="Anna")
        assert (await third.ended())[0] == 0


async def test_a_server_is_killed_in_mid_reply(fleet: Fleet) -> None:
    async with (
        call_to(fleet.first.url, protocols=OWN) as speaking,
        call_to(fleet.first.url, protocols=OWN) as calling,
    ):
        tokens = [await token_of(speaking), await token_of(calling)]
        await calling.update(tools=[CLOCK], tool_choice="required")
        called = await calling.ask("What time is it?", output_modalities=["text"])
        (made,) = called["output"]
        await calling.update(tool_choice="none")
        await tell_name(speaking)
        await speaking.type("Tell me a long story about a dragon and a princess.")
        await speaking.send("response.create")
        text = "response.output_audio_transcript.delta"
        for _ in range(2):
            await speaking.until(text)
        await speaking.until("response.output_audio.delta")
        fleet.first.send(signal.SIGKILL)
        with contextlib.suppress(Hangup):
            while True:
                await speaking.next()
        story = speaking.of(text)[0]["item_id"]
        pieces = [event["delta"] for event in speaking.of(text)]
        begun = speaking.events.index(speaking.of(text)[1])
        heard_ms = sum(
            len(event["delta"]) * 3 // 4 // 48  # base64 of 24 kHz 16-bit samples
            for event in speaking.events[:begun]
            if event["type"] == "response.output_audio.delta" and event["item_id"] == story
        )

        async with resumed(fleet.second.url, tokens[0]) as again:
            updated = await again.next()
            assert updated["session"]["id"] == speaking.events[0]["session"]["id"]
            told = await again.next()
            assert told["type"] == "halfsec.resumed"
            item = told["items"][-1]
            assert (item["id"], item["status"]) == (story, "incomplete")
            assert "".join(pieces).startswith(item["content"][0]["transcript"])
            assert not told["will_answer"]
            await again.send(
                "conversation.item.truncate", item_id=story, content_index=0, audio_end_ms=heard_ms
            )
            await again.send("conversation.item.retrieve", item_id=story)
            kept = await again.until("conversation.item.retrieved")
            assert kept["item"]["content"][0]["transcript"].strip() == pieces[0].strip()
            await remembers(again, told["items"], contains="Anna")
            old = {event["response"]["id"] for event in speaking.of("response.created")}
            new = {event["response"]["id"] for event in again.of("response.created")}
            assert not old & new
            ids = [event["event_id"] for event in speaking.events + again.events]
            assert len(set(ids)) == len(ids)

        async with resumed(fleet.second.url, tokens[1]) as again:
            told = await again.until("halfsec.resumed")
            assert [item["id"] for item in told["items"]][-1] == made["id"]
            output = {"type": "function_call_output", "call_id": made["call_id"], "output": "ten"}
            await again.send("conversation.item.create", item=output)
            added = await again.until("conversation.item.done")
            assert added["item"]["output"] == "ten"
            response = await again.answer(output_modalities=["text"], max_output_tokens=8)
            assert words_of(response), json.dumps(response)
            assert len(again.of("response.created")) == 1
