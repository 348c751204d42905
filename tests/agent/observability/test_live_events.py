"""Live events of the service: their order, gaps, and subscribers that leave."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import StreamingResponse

from agent.calls.registry import CallRegistry
from agent.config.schema import Config
from agent.http.auth.authenticator import Authenticator
from agent.http.auth.keys import KeyFile
from agent.http.auth.principal import ANYONE, SCOPE_KEY, KeyLimits
from agent.http.endpoints.latency import LatencyEndpoints
from agent.observability import live_events
from agent.observability.live_events import MAX_ENCODED, MAX_KEPT, MAX_LISTENERS, LiveEvents
from latency_budget.account.clock import ManualClock, SystemClock
from latency_budget.account.marks import Mark, MarkName
from latency_budget.account.turn import SessionId, Stage, TurnId
from tests.latency_budget.test_store import stored
from tests.support.service.live import LiveServer
from tests.support.service.live_call import call_to

pytest_plugins = ["tests.support.service.live_fixtures"]

Told = tuple[int, str, dict[str, Any]]


def parsed(text: str) -> Told | None:
    """An event's number, kind and data; None for a comment."""
    if text.startswith(":"):
        return None
    fields = dict(line.split(": ", 1) for line in text.strip().splitlines())
    return int(fields["id"]), fields["event"], json.loads(fields["data"])


async def told(stream: AsyncIterator[str], count: int) -> list[Told]:
    """The next so many events."""
    found: list[Told] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            event = parsed(await anext(stream))
            found += [] if event is None else [event]
    return found


def number_of(events: LiveEvents, number: int, session: str | None = "s1") -> None:
    events.publish("mark", session, lambda: {"number": number})


async def test_listeners_hear_what_comes_in_order_and_only_their_session() -> None:
    events = LiveEvents()
    number_of(events, 0)  # before anybody listens
    everything, of_one = events.listen(), events.listen(session="s1")
    for stream in (everything, of_one):
        assert (await anext(stream)).startswith(":")
    assert events.num_listeners == 2
    number_of(events, 1)
    number_of(events, 2, "s2")
    number_of(events, 3, None)
    assert [data for _, _, data in await told(everything, 3)] == [
        {"session": "s1", "number": 1},
        {"session": "s2", "number": 2},
        {"number": 3},
    ]
    assert [data["number"] for _, _, data in await told(of_one, 2)] == [1, 3]
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(told(of_one, 1))  # news while it waits
        await asyncio.sleep(0)
        number_of(events, 4)
    ((number, kind, data),) = waiting.result()
    assert (number, kind, data["number"]) == (5, "mark", 4)
    await of_one.aclose()  # type: ignore[attr-defined]
    assert events.num_listeners == 1


async def test_reconnected_listener_receives_missed_events() -> None:
    events = LiveEvents()
    for number in range(1, 6):
        number_of(events, number)
    again = events.listen(after_id=2)
    assert [number for number, _, _ in await told(again, 3)] == [3, 4, 5]
    of_a_server_before = events.listen(after_id=1000)
    assert [number for number, _, _ in await told(of_a_server_before, 5)] == [1, 2, 3, 4, 5]


async def test_a_replay_of_the_ring_leaves_others_their_turns() -> None:
    """And what is published meanwhile comes once, in order."""
    events = LiveEvents()
    turns, encoded_at = 0, list[int]()

    def content() -> dict[str, Any]:
        encoded_at.append(turns)
        return {}

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            if turns <= 100:
                events.publish("mark", "s1", content)
            await asyncio.sleep(0)

    for _ in range(MAX_KEPT - 200):
        events.publish("mark", "s1", content)
    async with asyncio.TaskGroup() as group:
        beside = group.create_task(others())
        await asyncio.sleep(0)
        found = await told(events.listen(after_id=0), MAX_KEPT - 100)
        beside.cancel()
    assert [number for number, _, _ in found] == list(range(1, MAX_KEPT - 99))
    assert max(map(encoded_at.count, set(encoded_at))) == MAX_ENCODED


async def test_slow_listener_receives_the_number_of_lost_events() -> None:
    events = LiveEvents()
    stream = events.listen()
    await anext(stream)
    for number in range(1, MAX_KEPT + 11):
        number_of(events, number)
    first, second = await told(stream, 2)
    assert first[1:] == ("lost", {"events": 10})
    assert second == (11, "mark", {"session": "s1", "number": 11})


async def test_a_quiet_stream_shows_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_events, "HEARTBEAT_S", 0.01)
    stream = LiveEvents().listen()
    assert [await anext(stream) for _ in range(3)][1:] == [": still here\n\n"] * 2


async def test_the_end_of_the_service_ends_all_streams() -> None:
    events = LiveEvents()
    stream = events.listen()
    await anext(stream)

    async def rest() -> list[str]:
        return [text async for text in stream]

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        waiting = group.create_task(rest())
        await asyncio.sleep(0)
        events.close()
    assert waiting.result() == []
    assert events.num_listeners == 0


async def test_a_stream_ends_after_a_while_and_its_place_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_events, "STREAM_S", 0.01)
    events = LiveEvents()
    number_of(events, 1)
    async with asyncio.timeout(30):
        texts = [text async for text in events.listen(after_id=0)]
    assert texts[0] == ": halfsec\nretry: 1000\n\n", "it comes again in a second"
    assert [parsed(text) for text in texts[1:]] == [(1, "mark", {"session": "s1", "number": 1})]
    assert events.num_listeners == 0


async def test_calls_tell_of_themselves() -> None:
    calls = CallRegistry(Config(), SystemClock())
    stream = calls.events.listen()
    await anext(stream)
    call = calls.admit(SessionId("s1"), "sales")
    calls.marked(call, Mark(TurnId(1), MarkName.RELEASED, 5_000_000))
    calls.turn_over(call, replace(stored().entry, agent="sales"))
    calls.refuse("busy")
    calls.leave(call)
    calls.leave(call)
    began, mark, turn, refusal, ended = await told(stream, 5)
    began_at = began[2].pop("began_at")
    assert began[1:] == ("session", {"session": "s1", "state": "began", "agent": "sales"})
    assert calls.listing() == []
    assert mark[1:] == ("mark", {"session": "s1", "turn": 1, "name": "released", "at_ms": 5.0})
    assert turn[1] == "turn"
    assert turn[2]["e2e_ear_ms"] == 450
    assert turn[2]["waterfall"]["path"]
    assert (turn[2]["agent"], turn[2]["row"]) == ("sales", None)
    assert began_at <= turn[2]["at"] <= refusal[2]["at"]
    assert (refusal[1], refusal[2]["code"], refusal[2]["calls"]) == ("refusal", "busy", 1)
    assert ended[1:] == ("session", {"session": "s1", "state": "ended", "turns": 1})
    assert calls.refusals.listing() == {"refusals": [refusal[2]], "total": 1}


async def test_call_state_is_published_on_change() -> None:
    """While its client is lost it waits, whatever goes on in it; nothing is told behind its end."""
    clock = ManualClock(5_000_000_000)
    calls = CallRegistry(Config(), clock)
    call = calls.admit(SessionId("s1"), "sales")
    stream = calls.events.listen()
    await anext(stream)
    clock.advance_ms(30)
    calls.changed(call, "thinking", Stage.ASR)
    calls.changed(call, "thinking", Stage.ASR)
    clock.advance_ms(70)
    (listed,) = calls.listing()
    assert (listed["state"], listed["stage"], listed["stage_since_ms"]) == ("thinking", "asr", 70)
    assert (listed["turns"], listed["p50_ms"], listed["recorded"]) == (0, None, False)
    call.is_waiting = True
    calls.tell_state(call)
    calls.changed(call, "hearing", None)
    (listed,) = calls.listing()
    assert (listed["state"], listed["stage"]) == ("waiting", None)
    call.is_waiting = False
    calls.tell_state(call)
    calls.leave(call)
    calls.changed(call, "listening", None)
    calls.refuse("busy")
    *states, ended, refusal = [data for _, _, data in await told(stream, 5)]
    assert [(each["state"], each["stage"]) for each in states] == [
        *(("thinking", "asr"), ("waiting", None), ("hearing", None)),
    ]
    assert (ended["state"], refusal["code"]) == ("ended", "busy")


async def test_tools_in_the_background_and_handoffs_of_a_call_are_published() -> None:
    calls = CallRegistry(Config(), ManualClock(5_000_000_000))
    call = calls.admit(SessionId("s1"), "desk")
    other = calls.admit(SessionId("s2"), "desk")
    stream = calls.events.listen()
    await anext(stream)
    calls.background_changed(call, 1)
    calls.background_changed(call, 2)
    calls.background_changed(other, 1)
    calls.handed_off(call, "sales")
    calls.changed(call, "thinking", Stage.ASR)
    listed, _ = calls.listing()
    assert (listed["background_tools"], listed["handoffs"], listed["agent"]) == (2, 1, "sales")
    assert (calls.num_background, calls.num_handoffs) == (3, 1)
    calls.background_changed(call, 0)
    calls.leave(other)
    assert calls.num_background == 0
    told_of = [data for _, _, data in await told(stream, 7)]
    assert [each.get("background_tools") for each in told_of] == [1, 2, 1, None, 2, 0, None]
    assert [each.get("handoffs") for each in told_of] == [None, None, None, 1, None, None, None]
    assert (told_of[3]["agent"], told_of[-1]["state"]) == ("sales", "ended")


def request(**headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "headers": raw, "query_string": b"session=s1", SCOPE_KEY: ANYONE}
    return Request(scope)


@pytest.fixture
def access(tmp_path: Path) -> Authenticator:
    return Authenticator(Config(), KeyFile(tmp_path / "keys.json"), SystemClock())


@pytest.mark.parametrize(("seen", "first"), [("2", 3), ("x", None), ("-1", None), ("9" * 30, None)])
async def test_the_endpoint_goes_on_where_a_browser_left_off(
    access: Authenticator, seen: str, first: int | None
) -> None:
    calls = CallRegistry(Config(), SystemClock())
    for number in range(1, 5):
        number_of(calls.events, number)
    answer = await LatencyEndpoints(calls, access).events(request(last_event_id=seen))
    assert isinstance(answer, StreamingResponse)
    assert answer.media_type == "text/event-stream"
    stream = aiter(answer.body_iterator)
    await anext(stream)
    number_of(calls.events, 5)
    ((number, _, _),) = await told(stream, 1)  # type: ignore[arg-type]
    assert number == (first or 5)


async def test_too_many_listeners_are_refused(access: Authenticator) -> None:
    calls = CallRegistry(Config(), SystemClock())
    streams = [calls.events.listen() for _ in range(MAX_LISTENERS)]
    for stream in streams:
        await anext(stream)
    assert (await LatencyEndpoints(calls, access).events(request())).status_code == 503
    await streams[0].aclose()  # type: ignore[attr-defined]
    assert (await LatencyEndpoints(calls, access).events(request())).status_code == 200


async def test_listeners_that_come_at_once_are_no_more_than_may() -> None:
    events = LiveEvents()
    streams = [events.listen() for _ in range(MAX_LISTENERS + 2)]  # none has begun: none is counted
    for each in streams:
        assert await anext(each) == ": halfsec\nretry: 1000\n\n"
    assert events.num_listeners == MAX_LISTENERS
    for each in streams[MAX_LISTENERS:]:
        assert [text async for text in each] == []
    for each in streams:
        await each.aclose()  # type: ignore[attr-defined]


async def test_a_stream_ends_with_the_key_that_opened_it(
    access: Authenticator, tmp_path: Path
) -> None:
    """At once, while it waits for news, and nothing that came meanwhile is told."""
    keys = KeyFile(tmp_path / "keys.json")
    key = keys.add("mine", KeyLimits(), 0)
    keys.add("other", KeyLimits(), 0)
    await access.refresh()
    principal = await access.identify(key)
    assert principal is not None
    calls = CallRegistry(Config(), SystemClock())
    access.on_news = calls.events.look_up
    scope = {**request().scope, SCOPE_KEY: principal, "query_string": b""}
    answer = await LatencyEndpoints(calls, access).events(Request(scope))
    assert isinstance(answer, StreamingResponse)
    stream = aiter(answer.body_iterator)
    await anext(stream)

    async def rest() -> list[Any]:
        return [text async for text in stream]

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        waiting = group.create_task(rest())
        await asyncio.sleep(0)
        keys.revoke("other")
        await access.refresh()
        await asyncio.sleep(0)
        assert not waiting.done()
        keys.revoke("mine")
        await access.refresh()
        number_of(calls.events, 1)
    assert waiting.result() == []
    assert calls.events.num_listeners == 0


@pytest.mark.models
async def test_listener_that_never_reads_loses_its_place(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_events, "STREAM_S", 0.3)
    events = live.calls.events
    reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
    writer.write(b"GET /v1/latency/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
    await writer.drain()
    await reader.readuntil(b": halfsec")  # and nothing more
    for _ in range(3000):
        if not events.num_listeners:
            break
        await asyncio.sleep(0.01)
    assert events.num_listeners == 0
    writer.close()


@pytest.mark.models
async def test_a_call_is_seen_while_it_happens(live: LiveServer) -> None:
    kinds: list[str] = []
    async with httpx.AsyncClient(base_url=live.http, trust_env=False, timeout=60) as http:
        async with http.stream("GET", "/v1/latency/events") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = answer.aiter_lines()
            assert await anext(lines) == ": halfsec"
            async with call_to(live.url) as call:
                await call.ask("Say a word.", max_output_tokens=4)
            async for line in lines:
                if line.startswith("event: "):
                    kinds.append(line.removeprefix("event: "))
                if line.startswith("data: ") and '"ended"' in line:
                    break
        assert kinds[0] == kinds[-1] == "session"
        assert {"mark", "turn"} <= set(kinds)
    for _ in range(3000):
        if not live.calls.events.num_listeners:
            break
        await asyncio.sleep(0.01)
    assert live.calls.events.num_listeners == 0
