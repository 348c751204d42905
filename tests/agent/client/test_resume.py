"""The Python client when its connection breaks: with the real service, and with another server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import numpy as np
import pytest

from agent.client import events as ev
from agent.client.call import Call, connect
from agent.client.connection import MAX_PAUSE_S, merged
from agent.client.errors import CallEndedError
from agent.client.simulated_caller.talk import hold_call
from agent.session.api.client_events import AppendAudio, CreateItem, CreateResponse, UpdateSession
from latency_budget.account.clock import ManualClock
from tests.support.fakes.realtime_peer import answer, serving
from tests.support.service.live import LiveServer
from tests.support.service.live_call import PATIENCE_S, recording
from tests.support.service.tcp_proxy import TcpProxy, tcp_proxy

pytestmark = pytest.mark.slow

pytest_plugins = ["tests.support.service.live_fixtures"]

TEXT: dict[str, Any] = {"output_modalities": ["text"]}


class Listener:
    """Takes a call's events, in order."""

    def __init__(self, call: Call) -> None:
        self.seen: list[ev.ClientEvent] = []
        self._events = call.events()

    async def until(self, kind: type[Any]) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            async for event in self._events:
                self.seen.append(event)
                if isinstance(event, kind):
                    return event
        raise AssertionError(f"the call ended before {kind.__name__}: {self.seen[-3:]}")


@asynccontextmanager
async def through_network(
    live: LiveServer, **options: Any
) -> AsyncIterator[tuple[TcpProxy, Call, Listener]]:
    async with (
        tcp_proxy(live.port) as proxy,
        connect(f"ws://127.0.0.1:{proxy.port}", **options) as call,
    ):
        yield proxy, call, Listener(call)


async def ask(call: Call, listener: Listener, text: str) -> ev.ReplyDone:
    await call.send_text(text, reply=False)
    await call.create_reply(**TEXT)
    done: ev.ReplyDone = await listener.until(ev.ReplyDone)
    return done


@pytest.mark.models
async def test_the_call_goes_on(live: LiveServer) -> None:
    async with through_network(live) as (proxy, call, listener):
        await ask(call, listener, "My name is Anna.")
        session_id = call.session_id
        for number in range(2):
            proxy.cut()
            lost = await listener.until(ev.Reconnecting)
            assert lost.reason
            resumed = await listener.until(ev.Resumed)
            assert resumed.num_items == 2 + 2 * number
            done = await ask(call, listener, "What is my name?")
            assert done.status == "completed"
            assert done.usage["input_token_details"]["cached_tokens"] > 20
        assert call.session_id == session_id
        assert not [event for event in listener.seen if isinstance(event, ev.ServerError)]


@pytest.mark.models
async def test_what_was_on_its_way_arrives_once(live: LiveServer) -> None:
    """Sent into a network that is gone already, and while there is none."""
    async with through_network(live) as (proxy, call, listener):
        await ask(call, listener, "My name is Anna.")
        proxy.freeze()
        await call.send_text("I am from Rome.", reply=False)
        proxy.cut()
        await call.send_text("I have a dog.", reply=False)
        assert await call.send_audio(np.zeros(2400, np.int16), 24_000)
        resumed = await listener.until(ev.Resumed)
        said = [item["content"][0]["text"] for item in resumed.items if item["role"] == "user"]
        assert said == ["My name is Anna."]
        done = await ask(call, listener, "Where am I from?")
        assert done.status == "completed"
        proxy.cut()
        resumed = await listener.until(ev.Resumed)
        said = [item["content"][0]["text"] for item in resumed.items if item["role"] == "user"]
        assert said == ["My name is Anna.", "I am from Rome.", "I have a dog.", "Where am I from?"]


@pytest.mark.models
async def test_sound_of_the_gap_is_dropped(live: LiveServer) -> None:
    async with through_network(live) as (proxy, call, listener):
        await call.update(instructions="Listen.")
        await listener.until(ev.SessionUpdated)  # the token that resumes the call is read before it
        proxy.refuses = True
        proxy.cut()
        await listener.until(ev.Reconnecting)
        for _ in range(50):
            assert not await call.send_audio(recording("vm-nobodyavail")[:2400], 24_000)
        await call.report_playback("item_x", 20)

        async def mend() -> None:
            await proxy.refused.wait()
            proxy.refuses = False

        async with asyncio.TaskGroup() as group:
            group.create_task(mend())
            resumed = await listener.until(ev.Resumed)
        assert resumed.num_items == 0
        assert await call.send_audio(np.zeros(480, np.int16), 24_000)


@pytest.mark.models
async def test_a_call_that_is_gone_is_begun_anew_with_its_settings(live: LiveServer) -> None:
    async with through_network(live) as (proxy, call, listener):
        await call.update(instructions="Be a parrot.", audio={"output": {"speed": 1.0}})
        await listener.until(ev.SessionUpdated)
        first = call.session_id
        proxy.refuses = True
        proxy.cut()
        await listener.until(ev.Reconnecting)

        async def forget() -> None:
            live.calls.waiting.end_all("it is a test")

        while len(live.calls):
            await asyncio.to_thread(live.ask, forget)
        proxy.refuses = False
        restarted = await listener.until(ev.Restarted)
        assert restarted.session["id"] != first
        updated = await listener.until(ev.SessionUpdated)
        assert updated.session["instructions"] == "Be a parrot."
        assert (await ask(call, listener, "Hello?")).status == "completed"


@pytest.mark.models
async def test_talk_survives_a_break_in_mid_answer(live: LiveServer) -> None:
    seen: list[ev.ClientEvent] = []
    async with tcp_proxy(live.port) as proxy:

        def watch(event: ev.ClientEvent) -> None:
            # Once: audio that came before the break is watched while the client is connected anew.
            is_first = not any(isinstance(each, ev.ReplyAudio) for each in seen)
            seen.append(event)
            if isinstance(event, ev.ReplyAudio) and is_first:
                proxy.cut()

        pcm = recording("vm-nobodyavail")
        talk = await hold_call(
            [(pcm, 24_000), (pcm, 24_000)], f"ws://127.0.0.1:{proxy.port}", on_event=watch
        )
    kinds = [type(event) for event in seen]
    assert kinds.count(ev.Reconnecting) == kinds.count(ev.Resumed) == 1
    assert talk.errors == []
    assert talk.exchanges[-1].answered
    assert talk.exchanges[-1].agent_text
    assert talk.trace


async def test_a_server_without_resumption_gets_another_call() -> None:
    pauses: list[float] = []
    refusals = [answer(HTTPStatus.SERVICE_UNAVAILABLE, "Full.", Retry_After="7")] * 6

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    def refuse(_: Any) -> Any:
        return refusals.pop() if len(peer.requests) > 1 and refusals else None

    async with (
        serving(refuse, subprotocols=()) as peer,
        connect(peer.url, sleep=sleep, clock=ManualClock(5)) as call,
    ):
        await call.update(instructions="Sing.", tools=[])
        await call.update(instructions="Hum.")
        listener = Listener(call)
        assert [type(await peer.asked.get()) for _ in range(2)] == [UpdateSession] * 2
        (await peer.socket()).transport.abort()
        await listener.until(ev.Restarted)
        again = await peer.asked.get()
        assert isinstance(again, UpdateSession)
        assert again.settings.instructions == "Hum."
        await call.send_text("Hello!")
        asked = [type(await peer.asked.get()) for _ in range(2)]
        assert asked == [CreateItem, CreateResponse]
    assert len(pauses) == 6
    assert all(pause >= 7 * 0.75 for pause in pauses), "the server knows best"
    assert max(pauses) <= max(7, MAX_PAUSE_S) * 1.25


async def test_a_server_that_asks_for_a_longer_wait_than_the_limit_ends_the_call() -> None:
    busy = answer(HTTPStatus.SERVICE_UNAVAILABLE, "Full.", Retry_After="3600")

    async def sleep(seconds: float) -> None:
        raise AssertionError(f"waits for {seconds} s")

    def refuse(_: Any) -> Any:
        return busy if len(peer.requests) > 1 else None

    async with (
        serving(refuse) as peer,
        connect(peer.url, sleep=sleep, clock=ManualClock(5)) as call,
    ):
        (await peer.socket()).transport.abort()
        *_, closed = [event async for event in call.events()]
        assert isinstance(closed, ev.Closed)
        assert "Full." in closed.reason


@pytest.mark.parametrize("code", [1000, 1008, 4409])
async def test_what_the_server_ends_is_over(code: int) -> None:
    async with serving() as peer, connect(peer.url, clock=ManualClock(5)) as call:
        await (await peer.socket()).close(code, "enough")
        assert [event async for event in call.events()] == [ev.Closed(code, "enough", 5)]
        with pytest.raises(CallEndedError, match="enough"):
            await call.send_audio(np.zeros(480, np.int16), 24_000)


async def test_a_key_that_is_refused_ends_the_call() -> None:
    keys = ["k-1", "k-2", "k-2"]

    async def mint() -> str:
        return keys.pop(0)

    def refuse(request: Any) -> Any:
        known = request.headers["Authorization"] == "Bearer k-1"
        return None if known else answer(HTTPStatus.UNAUTHORIZED, "No.")

    async with serving(refuse) as peer, connect(peer.url, api_key=mint) as call:
        (await peer.socket()).transport.abort()
        *_, closed = [event async for event in call.events()]
        assert isinstance(closed, ev.Closed)
        assert "No." in closed.reason
        assert keys == []


async def test_hanging_up_is_no_loss() -> None:
    async with serving() as peer, connect(peer.url) as call:
        await call.close()
        (closed,) = [event async for event in call.events()]
        assert isinstance(closed, ev.Closed)
        assert closed.code == 1000
        assert len(peer.requests) == 1


async def test_no_reconnect_when_disabled() -> None:
    async with serving() as peer, connect(peer.url, reconnect=False) as call:
        (await peer.socket()).transport.abort()
        (closed,) = [event async for event in call.events()]
        assert isinstance(closed, ev.Closed)
        assert closed.code is None
        assert len(peer.requests) == 1


async def test_audio_goes_on_after_a_break() -> None:
    async with serving() as peer, connect(peer.url) as call:
        listener = Listener(call)
        await call.send_audio(np.zeros(1600, np.int16), 16_000)
        (await peer.socket()).transport.abort()
        await listener.until(ev.Restarted)
        await call.send_audio(np.ones(2400, np.int16), 24_000)
        while not (isinstance(got := await peer.asked.get(), AppendAudio) and got.pcm.any()):
            pass
        assert got.pcm.tolist() == [1] * 2400


def test_later_changes_of_a_session_count() -> None:
    first = {"audio": {"input": {"turn_detection": {"type": "server_vad", "threshold": 0.4}}}}
    later = {
        "audio": {"input": {"turn_detection": {"type": "semantic_vad"}}, "output": {"speed": 1}}
    }
    assert merged(merged({"tools": [1]}, first), later | {"tools": []}) == later | {"tools": []}
