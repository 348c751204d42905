"""Calls whose connection breaks, and their clients, who come back: the real service."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import pytest
import websockets.asyncio.client as websockets_client
from websockets.typing import Subprotocol

from agent import errors
from tests.support.service.live import LiveServer
from tests.support.service.live_call import (
    PATIENCE_S,
    Event,
    Hangup,
    LiveCall,
    call_to,
    words_of,
)
from tests.support.service.tcp_proxy import TcpProxy, tcp_proxy

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = pytest.mark.models

OWN = ("halfsec.v1", "realtime")


@asynccontextmanager
async def resumed(url: str, token: str, *, own: bool = True) -> AsyncIterator[LiveCall]:
    """A connection with this token. What it is told is not looked at."""
    async with websockets_client.connect(
        f"{url}?{urlencode({'resume': token})}",
        subprotocols=[Subprotocol(name) for name in OWN if own or name == "realtime"],
        compression=None,
        proxy=None,
        max_queue=None,
        open_timeout=PATIENCE_S,
        ping_timeout=PATIENCE_S,
    ) as socket:
        yield LiveCall(socket)


@asynccontextmanager
async def breakable(live: LiveServer) -> AsyncIterator[tuple[TcpProxy, LiveCall]]:
    """A call through a network that can be broken."""
    async with (
        tcp_proxy(live.port) as proxy,
        call_to(f"ws://127.0.0.1:{proxy.port}/v1/realtime", protocols=OWN) as call,
    ):
        yield proxy, call


async def token_of(call: LiveCall) -> str:
    told = await call.until("halfsec.session")
    token: str = told["resume_token"]
    return token


async def is_waiting(live: LiveServer, number: int = 1) -> None:
    """Until the server has noticed that so many clients are gone."""
    while len(live.calls.waiting) < number:
        await asyncio.to_thread(live.ask, lambda: asyncio.sleep(0.01))


async def refused(url: str, token: str, **options: Any) -> int:
    """The code with which the server refuses it."""
    async with resumed(url, token, **options) as call:
        with pytest.raises(Hangup):
            await call.next()
        return (await call.closed())[0]


def said_by_caller(items: list[Event]) -> list[Event]:
    """Parts of his messages."""
    return [part for item in items if item["role"] == "user" for part in item["content"]]


def ids_of(call: LiveCall) -> list[str]:
    return [event["item"]["id"] for event in call.of("conversation.item.added")]


async def test_a_conversation_goes_on_where_it_was(live: LiveServer) -> None:
    async with breakable(live) as (proxy, call):
        token = await token_of(call)
        session = call.events[0]["session"]
        await call.update(instructions="You are a parrot. Answer in one short sentence.")
        first = await call.ask("My name is Anna.", output_modalities=["text"])
        proxy.cut()
        await is_waiting(live)
        (listed,) = live.calls.listing()
        assert (listed["session"], listed["waiting"]) == (session["id"], True)
        async with resumed(live.url, token) as again:
            updated = await again.next()
            assert updated["type"] == "session.updated"
            assert updated["session"]["id"] == session["id"]
            assert "parrot" in updated["session"]["instructions"]
            told = await again.next()
            assert told["type"] == "halfsec.resumed"
            shown = [*call.of("conversation.item.added"), *call.of("conversation.item.done")]
            assert {item["id"] for item in told["items"]} == {e["item"]["id"] for e in shown}
            assert [item["status"] for item in told["items"]] == ["completed", "completed"]
            assert told["items"][1]["content"][0]["text"] == words_of(first)
            assert told["received"] == 3
            assert (told["num_items"], told["previous_item_id"]) == (2, None)
            assert not told["will_answer"]
            assert await token_of(again) != token
            second = await again.ask("What is my name?", output_modalities=["text"])
            cached = second["usage"]["input_token_details"]["cached_tokens"]
            assert cached > 20, "the model had to read it all again"
            assert not set(ids_of(call)) & set(ids_of(again))
            assert second["id"] != first["id"]
            added = again.of("conversation.item.added")[0]
            assert added["previous_item_id"] == told["items"][-1]["id"]
            assert not live.calls.listing()[0]["waiting"]
            events = [event["event_id"] for event in call.events + again.events]
            assert len(set(events)) == len(events)
            assert live.calls.waiting.num_back >= 1


async def test_the_reply_in_progress_ends_and_nothing_of_it_comes_later(live: LiveServer) -> None:
    async with breakable(live) as (proxy, call):
        token = await token_of(call)
        await call.say("vm-nobodyavail", silence_s=0.6)
        await call.until("input_audio_buffer.speech_started")
        await call.type("Tell me a long story about a dragon.")
        await call.send("response.create")
        await call.until("response.output_audio.delta")
        proxy.cut()
        await is_waiting(live)
        async with resumed(live.url, token) as again:
            told = await again.until("halfsec.resumed")
            statuses = {item["status"] for item in told["items"]}
            assert statuses <= {"completed", "incomplete"}
            if not any(part.get("transcript") for part in said_by_caller(told["items"])):
                # His words are not known yet, and his turn not over: more would belong to it.
                await again.until("conversation.item.input_audio_transcription.completed")
            await again.say("vm-nobodyavail", silence_s=2.0)
            before = call.of("input_audio_buffer.speech_started")[-1]
            after = await again.until("input_audio_buffer.speech_started")
            assert after["audio_start_ms"] > before["audio_start_ms"]
            await again.response()
            old = {event["response"]["id"] for event in call.of("response.created")}
            responses = {e["response_id"] for e in again.events if "response_id" in e}
            assert responses
            assert not responses & old


async def test_a_network_that_goes_without_a_word(live: LiveServer) -> None:
    """The server learns of it from the client, who is there again."""
    async with breakable(live) as (proxy, call):
        token = await token_of(call)
        await call.ask("My name is Anna.", output_modalities=["text"])
        proxy.freeze()
        async with resumed(live.url, token) as again:
            assert (await again.until("halfsec.resumed"))["num_items"] == 2
            await again.prove_alive()
            assert len(live.calls) == 1
        proxy.cut()


async def test_the_last_to_come_has_the_call(live: LiveServer) -> None:
    async with call_to(live.url, protocols=OWN) as call:
        token = await token_of(call)
        async with resumed(live.url, token) as second, resumed(live.url, token) as third:
            assert (await call.closed())[0] == errors.CLOSE_TAKEN_OVER
            assert (await second.closed())[0] == errors.CLOSE_TAKEN_OVER
            await third.until("halfsec.resumed")
            await third.prove_alive()
            assert len(live.calls) == 1


async def test_a_token_works_until_the_next_one_has_arrived(live: LiveServer) -> None:
    async with call_to(live.url, protocols=OWN) as call:
        first = await token_of(call)
        call.hang_up_rudely()
        async with resumed(live.url, first) as again:
            again.hang_up_rudely()  # before it has read anything
        async with resumed(live.url, first) as again:
            second = await token_of(again)
            await again.prove_alive()
            assert await refused(live.url, first) == errors.CLOSE_NOT_RESUMED
            await again.prove_alive()
            again.hang_up_rudely()
        async with resumed(live.url, second) as again:
            await again.prove_alive()


async def test_what_is_no_token_opens_nothing(live: LiveServer) -> None:
    async with call_to(live.url, protocols=OWN) as call:
        token = await token_of(call)
        wrong = ["", "nonsense", token[:-1] + "~", token[:19], token + "x", "é" * 500]
        for text in wrong:
            assert await refused(live.url, text) == errors.CLOSE_NOT_RESUMED, text
        assert await refused(live.url, token, own=False) == errors.CLOSE_NOT_RESUMED
        await asyncio.gather(*(refused(live.url, token[:-1] + "~") for _ in range(50)))
        await call.prove_alive()
        assert len(live.calls) == 1


async def test_call_that_was_hung_up_can_not_be_resumed(live: LiveServer) -> None:
    for code in (1000, 1001, 4000):
        async with call_to(live.url, protocols=OWN) as call:
            token = await token_of(call)
            await call.socket.close(code)
        assert await refused(live.url, token) == errors.CLOSE_NOT_RESUMED


async def test_a_strict_client_has_one_connection(live: LiveServer) -> None:
    async with call_to(live.url, protocols=("realtime",)) as call:
        await call.prove_alive()
        call.hang_up_rudely()
        assert not [kind for kind in call.types if kind.startswith("halfsec.")]
    await asyncio.to_thread(live.ask, lambda: asyncio.wait_for(live.calls.wait_empty(), 60))
    assert len(live.calls.waiting) == 0


async def wait_on_all_lines(live: LiveServer) -> list[str]:
    """Fill the server with calls whose clients are gone. Returns their tokens."""
    most = live.config.agent.max_sessions
    tokens: list[str] = []
    for number in range(1, most + 1):
        async with call_to(live.url, protocols=OWN) as call:
            tokens.append(await token_of(call))
            call.hang_up_rudely()
            await is_waiting(live, number)
    assert len(live.calls) == most
    return tokens


async def test_new_call_evicts_a_waiting_call(live: LiveServer) -> None:
    tokens = await wait_on_all_lines(live)
    async with call_to(live.url) as call:
        assert len(live.calls) == live.config.agent.max_sessions
        assert await refused(live.url, tokens[0]) == errors.CLOSE_NOT_RESUMED
        await call.prove_alive()
        async with resumed(live.url, tokens[1]) as again:
            await again.prove_alive()


async def test_client_that_is_refused_evicts_no_call(live: LiveServer) -> None:
    tokens = await wait_on_all_lines(live)
    beta = {"OpenAI-Beta": "realtime=v1"}
    async with websockets_client.connect(live.url, proxy=None, additional_headers=beta) as socket:
        await socket.wait_closed()
    assert socket.close_code == errors.CLOSE_BETA
    async with resumed(live.url, tokens[0]) as again:
        await again.prove_alive()


async def test_stopping_server_waits_for_no_reconnect(live: LiveServer) -> None:
    async with call_to(live.url, protocols=OWN) as call:
        token = await token_of(call)
        call.hang_up_rudely()
        await is_waiting(live)

        async def stop() -> None:
            live.calls.waiting.end_all("the server is stopping")

        await asyncio.to_thread(live.ask, stop)
        assert len(live.calls) == 0
        assert await refused(live.url, token) == errors.CLOSE_NOT_RESUMED
