"""The service's one port: who may connect, what is offered beside the voice socket."""

import asyncio
import json
from contextlib import AsyncExitStack

import httpx
import pytest
import websockets.asyncio.client as websockets_client
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin, Subprotocol

from tests.support.service.live import LiveServer
from tests.support.service.live_call import call_to, recording, words_of

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = pytest.mark.models

SECRET = "openai-insecure-api-key.sk-secret"


async def get(live: LiveServer, path: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=live.http, timeout=30, trust_env=False) as http:
        return await http.get(path)


async def refused(url: str, origin: str | None = None) -> httpx.Headers:
    """Connect, and be told no before the handshake is over. Returns status and headers."""
    with pytest.raises(InvalidStatus) as caught:
        async with websockets_client.connect(
            url, origin=None if origin is None else Origin(origin), proxy=None
        ):
            pass
    response = caught.value.response
    assert b'"message"' in (response.body or b"")
    return httpx.Headers([*response.headers.raw_items(), (":status", str(response.status_code))])


# --- who may connect ---


async def test_a_foreign_page_is_refused_and_our_own_is_not(live: LiveServer) -> None:
    for origin in ("http://evil.example", "null", "http://[bad", f"{live.http}1"):
        assert (await refused(live.url, origin))[":status"] == "403"
    async with call_to(live.url, origin=live.http) as call:
        await call.prove_alive()


async def test_a_strangers_name_for_this_machine_is_not_answered_to(live: LiveServer) -> None:
    """As a page does whose name was made to point here."""
    stranger = f"evil.example:{live.port}"
    async with httpx.AsyncClient(base_url=live.http, timeout=30, trust_env=False) as http:
        for path in ("/", "/healthz", "/v1/sessions", "/v1/latency/turns", "/nothing-here"):
            answer = await http.get(path, headers={"Host": stranger})
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "host_not_allowed")
            assert "agent.allowed_hosts" in answer.json()["error"]["message"]
            assert answer.headers["x-content-type-options"] == "nosniff"
    url = live.url.replace("127.0.0.1", "evil.example")
    with pytest.raises(InvalidStatus) as caught:
        async with websockets_client.connect(
            url, origin=Origin(f"http://{stranger}"), host="127.0.0.1", proxy=None
        ):
            pass
    assert caught.value.response.status_code == 403


async def test_call_above_the_limit_gets_a_retry_time(live: LiveServer) -> None:
    limit = live.config.agent.max_sessions
    before = live.calls.refusals.total
    async with asyncio.TaskGroup() as group, AsyncExitStack() as stack:
        tasks = [
            group.create_task(stack.enter_async_context(call_to(live.url))) for _ in range(limit)
        ]
        calls = [await task for task in tasks]
        headers = await refused(live.url)
        assert headers[":status"] == "503"
        assert int(headers["retry-after"]) > 0
        assert live.calls.refusals.total == before + 1
        asked = await get(live, "/v1/realtime")
        assert (asked.status_code, asked.json()["error"]["code"]) == (503, "busy")
        assert asked.headers["retry-after"] == headers["retry-after"]
        assert live.calls.refusals.total == before + 1, "who only asks was not refused a line"
        await calls[0].prove_alive()
    asked = await get(live, "/v1/realtime?model=pirate")
    assert (asked.status_code, asked.headers["upgrade"]) == (426, "websocket")
    async with call_to(live.url) as call:
        await call.prove_alive()


async def test_many_at_once_get_no_more_lines_than_there_are(live: LiveServer) -> None:
    limit = live.config.agent.max_sessions
    barrier = asyncio.Barrier(3 * limit)

    async def dial() -> bool:
        try:
            async with call_to(live.url):
                await barrier.wait()
        except InvalidStatus:
            await barrier.wait()
            return False
        return True

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        dials = [group.create_task(dial()) for _ in range(3 * limit)]
    assert sum(task.result() for task in dials) == limit


# --- what is spoken on it ---


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ((), None),
        (("realtime", SECRET), "realtime"),
        (("halfsec.v1", "realtime", SECRET), "halfsec.v1"),
        ((SECRET,), None),
    ],
)
async def test_the_key_is_never_echoed(
    live: LiveServer, offered: tuple[str, ...], chosen: str | None
) -> None:
    protocols = [Subprotocol(name) for name in offered]
    async with websockets_client.connect(
        live.url, subprotocols=protocols or None, proxy=None
    ) as socket:
        assert socket.subprotocol == chosen
        assert socket.response is not None
        assert "sk-secret" not in str(socket.response.headers)
        await socket.recv()


async def test_extension_events_need_offered_extensions(live: LiveServer) -> None:
    async with call_to(live.url, protocols=("halfsec.v1",)) as call:
        session_id = call.events[0]["session"]["id"]
        await call.update(max_output_tokens=8)
        await call.say("vm-nobodyavail")
        done = await call.until("response.done")
        turn = await call.until("halfsec.turn")
        for partial in call.of("halfsec.partial"):
            assert 0 <= partial["stable_chars"] <= len(partial["text"])
        told = call.of("halfsec.mark")
        item_id = done["response"]["output"][0]["id"]
        await call.send("halfsec.playback", item_id=item_id, played_ms=100)
        await call.prove_alive()
    assert call.of("error") == []
    assert [mark["turn"] for mark in told][:2] == [None, None]
    names = [mark["name"] for mark in told if mark["turn"] in (None, turn["turn"]["turn"])]
    assert {"speech_started", "caller_last_voiced", "endpoint", "released"} <= set(names)
    assert all(mark["at_ms"] <= mark["now_ms"] for mark in told)
    report = turn["turn"]
    assert report["agent_text"] == words_of(done["response"])
    assert report["caller_text"]
    stages = report["stages"]
    assert {"asr", "llm_prefill", "llm_clause", "tts"} <= stages.keys()
    exposed = sum(stage["exposed_ms"] for stage in stages.values())
    assert exposed == pytest.approx(report["e2e_server_ms"], abs=1.0)
    listed = (await get(live, f"/v1/latency/turns?session={session_id}")).json()["turns"]
    assert [each["agent_text"] for each in listed][:1] == [report["agent_text"]]


async def test_partials_are_sent_while_the_caller_speaks(live: LiveServer) -> None:
    """In real time, as a caller would: a partial is due every 0.6 s of speech."""
    async with call_to(live.url, protocols=("halfsec.v1",)) as call:
        async with asyncio.TaskGroup() as group:
            group.create_task(call.say_in_real_time("vm-nobodyavail"))
            partial = await call.until("halfsec.partial")
        assert "nobody" in partial["text"].lower()
        await call.until("response.created")


async def test_partials_come_before_the_commit_of_a_client(live: LiveServer) -> None:
    async with call_to(live.url, protocols=("halfsec.v1",)) as call:
        await call.update(audio={"input": {"turn_detection": None}})
        await call.append(recording("vm-nobodyavail"))
        partial = await call.until("halfsec.partial")
        assert partial["text"]
        await call.send("input_audio_buffer.commit")
        committed = await call.until("input_audio_buffer.committed")
        assert committed["item_id"] == partial["item_id"]
        await call.until("conversation.item.input_audio_transcription.completed")
        await call.append(recording("vm-nobodyavail"))
        cleared = await call.until("halfsec.partial")
        await call.send("input_audio_buffer.clear")
        await call.until("input_audio_buffer.cleared")
        await call.append(recording("conf-locked"))
        await call.send("input_audio_buffer.commit")
        committed = await call.until("input_audio_buffer.committed")
        assert committed["item_id"] != cleared["item_id"]
        done = await call.until("conversation.item.input_audio_transcription.completed")
        assert done["item_id"] == committed["item_id"]
        assert "locked" in done["transcript"].lower()


async def test_plain_clients_see_no_extensions(live: LiveServer) -> None:
    async with call_to(live.url, protocols=("realtime",)) as call:
        await call.update(max_output_tokens=8)
        await call.say("conf-locked")
        await call.response()
        await call.prove_alive()
        assert not [kind for kind in call.types if kind.startswith("halfsec.")]


# --- several agents ---


async def test_each_agent_answers_in_its_own_way(live: LiveServer) -> None:
    async with call_to(live.url, model="pirate") as call:
        created = call.events[0]["session"]
        assert created["model"] == "pirate"
        assert "pirate" in created["instructions"]
        greeting = await call.response()
        assert (greeting["status"], words_of(greeting)) == ("completed", "Ahoy, welcome aboard.")
        assert call.of("response.output_audio.delta")
        await call.prove_alive()


async def test_an_unknown_model_is_served_by_the_default_and_echoed(live: LiveServer) -> None:
    async with call_to(live.url, model="gpt-realtime-2.1") as call:
        created = call.events[0]["session"]
        assert created["model"] == "gpt-realtime-2.1"
        assert "pirate" not in created["instructions"]
        await call.prove_alive()
        assert len(call.of("response.created")) == 1
    listed = (await get(live, "/v1/models")).json()
    assert {model["id"] for model in listed["data"] if model["kind"] == "agent"} == {
        "default",
        "desk",
        "helper",
        "pirate",
        "reader",
    }


# --- pages and plain answers ---


async def test_the_page_is_served_with_a_content_policy(live: LiveServer) -> None:
    page = await get(live, "/")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    script = await get(live, "/app.js")
    assert "javascript" in script.headers["content-type"]


PATHS = (
    "/../pyproject.toml",
    "/..%2fpyproject.toml",
    "/%2e%2e/pyproject.toml",
    "/%2e%2e%2fpyproject.toml",
    "/..\\pyproject.toml",
    "//etc/passwd",
    "/%2fetc%2fpasswd",
    "/app.js/../../pyproject.toml",
    "/\x00",
    "/nothing-here",
    "/v1/sessions/../../pyproject.toml/trace",
    "/v1/sessions/%2e%2e/trace",
)


@pytest.mark.parametrize("path", PATHS)
async def test_no_path_leads_out_of_the_pages(live: LiveServer, path: str) -> None:
    """Byte for byte: clients would tidy it up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{live.port}\r\nConnection: close\r\n\r\n"
    writer.write(request.encode())
    async with asyncio.timeout(30):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert answer.split(b" ")[1] in (b"400", b"404"), answer[:200]
    assert b"halfsec" not in answer.partition(b"\r\n\r\n")[2]


async def test_what_an_operator_asks(live: LiveServer) -> None:
    assert (await get(live, "/healthz")).text == "ok\n"
    async with call_to(live.url) as call:
        ready = await get(live, "/readyz")
        assert (await get(live, "/health")).status_code == 200
        assert ready.status_code == 200
        body = ready.json()
        assert (body["status"], body["calls"]) == ("ready", 1)
        assert set(body["stages"].values()) == {"ready"}
        session_id = call.events[0]["session"]["id"]
        sessions = (await get(live, "/v1/sessions")).json()["sessions"]
        assert [each["session"] for each in sessions] == [session_id]
    assert (await get(live, "/v1/latency/summary")).json()["summary"].keys() >= {"p50", "p95"}
    missing = await get(live, "/v1/sessions/sess_nope/trace")
    assert missing.status_code == 404
    assert missing.json()["error"]["message"]


async def test_a_socket_elsewhere_is_refused(live: LiveServer) -> None:
    for path in ("/", "/v1/other", "/v1/realtime/x", "/app.js"):
        with pytest.raises(InvalidStatus) as caught:
            async with websockets_client.connect(f"ws://127.0.0.1:{live.port}{path}", proxy=None):
                pass
        response = caught.value.response
        assert response.status_code == 404
        assert "/v1/realtime" in json.loads(response.body or b"")["error"]["message"]
