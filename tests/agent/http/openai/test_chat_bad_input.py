"""The chat endpoint of a real service, attacked; a steady caller beside it gets its tokens."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from agent.codec.json_frame import MAX_MARKS
from agent.http import json_body
from tests.support.service.live import LiveServer
from tests.support.service.live_call import call_to

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = pytest.mark.models

HELLO: Any = [{"role": "user", "content": "Say hello."}]
STEADY: Any = {
    "messages": [{"role": "user", "content": "Tell me about the sea."}],
    "max_tokens": 60,
    "ignore_eos": True,
    "temperature": 0.8,
    "seed": 5,
}
PATH = "/v1/chat/completions"
WAIT_S = 60.0
"""Only a hang takes so long."""


@asynccontextmanager
async def client(live: LiveServer) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=300)
    async with httpx.AsyncClient(base_url=live.http, timeout=WAIT_S, limits=limits) as http:
        yield http


async def steady(http: httpx.AsyncClient) -> str:
    answer = await http.post(PATH, json=STEADY)
    assert answer.status_code == 200
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


async def raw(live: LiveServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", live.port, limit=1 << 24)


def request_bytes(body: Any, **headers: str) -> bytes:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = {
        "Host": "localhost",
        "Content-Type": "application/json",
        "Content-Length": str(len(text)),
        **headers,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {PATH} HTTP/1.1\r\n{head}\r\n".encode() + text


async def response(reader: asyncio.StreamReader) -> tuple[int, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.partition("content-length: ")[2].split("\r\n")[0])
    return int(head.split()[1]), json.loads(await reader.readexactly(length))


def message(content: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content}]}


def text(fields: str) -> bytes:
    return b'{"messages":[{"role":"user","content":"x"}],' + fields.encode() + b"}"


def tool(name: str, description: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description}}


DEEP = "[" * 900 + "]" * 900
REFUSED: dict[str, tuple[Any, int, str | None]] = {
    "nothing": (b"", 400, "body"),
    "no JSON": (b"hello", 400, "body"),
    "half of it": (b'{"messages":', 400, "body"),
    "not UTF-8": (b'{"messages":[{"role":"user","content":"\xff"}]}', 400, "body"),
    "a list": (b"[]", 400, "body"),
    "too deep": (b"[" * 100_000, 400, "body"),
    "too deep for a message": (text(f'"logit_bias":{DEEP}'), 400, None),
    "more values than text": (text('"x":[' + "[]," * 70_000 + "0]"), 400, "body"),
    "the same in a text": (message(", " * MAX_MARKS), 400, "body"),
    "more tools than fit": (
        {**message("x"), "tools": [tool(f"f{i}", "x" * 30_000) for i in range(10)]},
        400,
        "tools",
    ),
    "objects in objects": (b'{"a":' * 50_000, 400, "body"),
    "digits without end": (text('"seed":' + "9" * 5000), 400, "body"),
    "a huge number": (text('"temperature":' + "9" * 4000), 400, "temperature"),
    "a huge count": (text('"max_tokens":' + "9" * 4000), 400, "max_tokens"),
    "infinity": (text('"temperature":1e999'), 400, "temperature"),
    "NaN": (text('"top_p":NaN'), 400, "top_p"),
    "a long string for a number": (text('"min_p":"' + "x" * 100_000 + '"'), 400, "min_p"),
    "the last of two keys": (text('"max_tokens":5,"max_tokens":-5'), 400, "max_tokens"),
    "a long stop": (text('"stop":"' + "x" * 10_000 + '"'), 400, "stop"),
    "half a character": (message("a\ud83d"), 400, "messages[0].content"),
    "the same in a part": (
        message([{"type": "text", "text": "\udc00"}]),
        400,
        "messages[0].content[0]",
    ),
    "the same in the model": ({**message("x"), "model": "\ud800"}, 400, "model"),
    "a model of megabytes": ({**message("x"), "model": "m" * 1_000_000}, 400, "model"),
    "no messages": ({"messages": []}, 400, "messages"),
    "an empty one": (message(""), 400, "messages[0].content"),
    "longer than the context": (message("word " * 20_000), 400, "messages"),
    "a million letters": (message("a" * 1_000_000), 400, "messages"),
    "a system prompt of a million": (
        {"messages": [{"role": "system", "content": "1" * 1_000_000}, *HELLO]},
        400,
        "messages",
    ),
    "a history beyond the context": ({"messages": HELLO * 1500}, 400, "messages"),
    "too large": (b" " * (5 << 20), 413, "body"),
}


async def test_bad_requests_are_refused_without_affecting_calls(live: LiveServer) -> None:
    async with client(live) as http, call_to(live.url) as call:
        alone = await steady(http)
        async with asyncio.TaskGroup() as group:
            beside = group.create_task(steady(http))
            for name, (body, status, field) in REFUSED.items():
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                for stream in (b"", b'{"stream":true,'):
                    if stream and (status == 413 or not content.startswith(b"{")):
                        continue
                    answer = await http.post(
                        PATH,
                        content=stream + content[1:] if stream else content,
                        headers={"content-type": "application/json"},
                    )
                    assert answer.status_code == status, (name, answer.text[:300])
                    error = answer.json()["error"]
                    assert error["type"] == "invalid_request_error"
                    assert field in (None, error["param"]), (name, error)
                    assert 10 < len(error["message"]) < 300, name
        assert beside.result() == alone
        await call.prove_alive()


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonx"]
)
async def test_other_content_types(live: LiveServer, kind: str) -> None:
    """Which a web page elsewhere can make a browser send without asking first."""
    async with client(live) as http:
        headers = {"content-type": kind} if kind else {}
        answer = await http.post(PATH, content=json.dumps(message("x")), headers=headers)
        assert answer.status_code == 415
        assert "Content-Type: application/json" in answer.json()["error"]["message"]
        headers = {"content-type": "Application/JSON; charset=utf-8"}
        body = json.dumps({**message("x"), "max_tokens": 1})
        answer = await http.post(PATH, content=body, headers=headers)
        assert answer.status_code == 200


CALLING: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    ],
}


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
async def test_control_tokens_are_text(live: LiveServer, role: str) -> None:
    """As text each is several tokens, as a control token one; a part is as good as a string."""
    counts: list[int] = []
    async with client(live) as http:
        for content in ("<|im_end|>" * 20, "<| im_end |>" * 20):
            for shape in (content, [{"type": "text", "text": content}]):
                messages = [*HELLO, {"role": role, "content": shape}, *HELLO]
                messages = messages[1:] if role in ("system", "developer") else messages
                if role == "tool":
                    messages[1:2] = [CALLING, {**messages[1], "tool_call_id": "call_1"}]
                body = {"messages": messages, "max_tokens": 1}
                answer = await http.post(PATH, json=body)
                assert answer.status_code == 200, answer.text
                counts.append(answer.json()["usage"]["prompt_tokens"])
    assert counts[0] == counts[1]
    assert counts[2] == counts[3]
    assert counts[0] > 20 * 4


async def test_endless_body_is_refused(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_body, "BODY_TIMEOUT_S", 0.2)
    async with client(live) as http:
        reader, writer = await raw(live)
        writer.write(request_bytes(b"{", **{"Content-Length": "1000"}))
        assert (await response(reader))[0] == 408
        writer.close()
        reader, writer = await raw(live)
        writer.write(request_bytes(b"{", **{"Content-Length": "1000"}))
        await asyncio.sleep(0)
        writer.close()  # in the middle of its body
        assert await steady(http)


async def test_bodies_above_the_memory_limit_get_503(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_body, "MAX_HELD_BYTES", 1000)
    async with client(live) as http:
        for _ in range(2):
            answer = await http.post(PATH, json=message("x " * 1000))
            assert answer.status_code == 503
            assert answer.headers["retry-after"]
        assert await steady(http)  # nothing is counted as held that is not


async def test_concurrent_requests_are_queued(live: LiveServer) -> None:
    async with client(live) as http, call_to(live.url) as call:
        alone = await steady(http)
        short = {"max_tokens": 2, "temperature": 0}
        asked = [{**message(f"Name number {number}."), **short} for number in range(40)]
        async with asyncio.TaskGroup() as group:
            beside = group.create_task(steady(http))
            answers = [group.create_task(http.post(PATH, json=body)) for body in asked]
            await call.prove_alive()
        assert {answer.result().status_code for answer in answers} == {200}
        assert beside.result() == alone


async def test_sequential_requests_on_one_connection(live: LiveServer) -> None:
    bodies = [{**message(f"Count to {number}."), "max_tokens": 2 + number} for number in range(3)]
    extra = {"ignore_eos": True}
    reader, writer = await raw(live)
    writer.write(b"".join(request_bytes({**body, **extra}) for body in bodies))
    writer.write(request_bytes(b"nonsense") + request_bytes({**bodies[0], **extra}))
    counts = []
    for _ in bodies:
        status, answer = await response(reader)
        assert status == 200
        counts.append(answer["usage"]["completion_tokens"])
    assert counts == [2, 3, 4]
    assert (await response(reader))[0] == 400
    assert (await response(reader))[0] == 200
    writer.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_disconnect_before_the_first_token(live: LiveServer, stream: bool) -> None:
    """Four prompts of seconds each would be in the way of everybody after them."""
    before = await asyncio.to_thread(live.engine_stats)
    for number in range(4):
        _, writer = await raw(live)
        writer.write(request_bytes({**message(f"{number} " + "word " * 1500), "stream": stream}))
        await writer.drain()
        for _ in range(1000):
            if (await asyncio.to_thread(live.engine_stats)).num_waiting:
                break
        writer.close()
        await writer.wait_closed()
        for _ in range(1000):
            if not (await asyncio.to_thread(live.engine_stats)).num_waiting:
                break
        else:
            raise AssertionError("the engine reads a prompt for nobody")
    after = await asyncio.to_thread(live.engine_stats)
    assert after.output_tokens == before.output_tokens


async def test_disconnect_while_queued(live: LiveServer) -> None:
    """Nobody keeps a place in the queue whom nobody could answer."""
    endless = {**message("Tell me a story."), "stream": True, "ignore_eos": True}
    streams = []
    for _ in range(live.config.agent.max_sessions):
        reader, writer = await raw(live)
        writer.write(request_bytes(endless))
        await reader.readuntil(b"data: ")
        streams.append(writer)
    for _ in range(20):
        _, writer = await raw(live)
        writer.write(request_bytes(message("x")))
        await writer.drain()
        writer.close()
    for writer in streams:
        writer.close()
    async with client(live) as http:
        assert await steady(http)
    stats = await asyncio.to_thread(live.engine_stats)
    assert (stats.num_waiting, stats.num_replying) == (0, 0)
