"""OpenAI's own client, unchanged, writes to the service."""

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from tests.support.service.live import LiveServer
from tests.support.service.live_call import call_to

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = pytest.mark.models

HELLO: Any = [{"role": "user", "content": "Say hello."}]


def http_url(live: LiveServer) -> str:
    return live.url.replace("ws://", "http://").partition("/v1/")[0] + "/v1"


def client(live: LiveServer) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=http_url(live), api_key="none", max_retries=0)


async def test_unstreamed_answer(live: LiveServer) -> None:
    async with client(live) as api:
        answer = await api.chat.completions.create(
            model="gpt-whatever", messages=HELLO, max_tokens=12, temperature=0
        )
    assert answer.object == "chat.completion"
    assert answer.model == "gpt-whatever"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


async def test_a_streamed_answer_is_the_same(live: LiveServer) -> None:
    settings: Any = {"model": "m", "messages": HELLO, "max_tokens": 20, "temperature": 0}
    async with client(live) as api:
        whole = await api.chat.completions.create(**settings)
        stream = await api.chat.completions.create(
            **settings, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    first = chunks[0].choices[0].delta
    assert first.role == "assistant"
    assert first.content
    *texts, last, counted = chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in texts) == (
        whole.choices[0].message.content
    )
    assert last.choices[0].finish_reason == whole.choices[0].finish_reason
    assert counted.choices == []
    assert counted.usage is not None
    assert counted.usage.completion_tokens == whole.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1


async def test_follow_up_request_prefills_only_new_tokens(live: LiveServer) -> None:
    messages: list[Any] = [
        {"role": "system", "content": "You are a clerk in a bookshop. " * 10},
        {"role": "user", "content": "What is your name?"},
    ]
    async with client(live) as api:
        for turn in range(3):
            answer = await api.chat.completions.create(
                model="m", messages=messages, max_tokens=16, temperature=0
            )
            usage = answer.usage
            assert usage is not None
            assert usage.prompt_tokens_details is not None
            cached = usage.prompt_tokens_details.cached_tokens or 0
            assert not turn or usage.prompt_tokens - cached < 40
            messages += [
                {"role": "assistant", "content": answer.choices[0].message.content},
                {"role": "user", "content": f"And what is book number {turn} about?"},
            ]


async def test_ignore_eos_fixes_the_length(live: LiveServer) -> None:
    async with client(live) as api:
        answer = await api.chat.completions.create(
            model="m", messages=HELLO, max_tokens=40, extra_body={"ignore_eos": True}
        )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 40


async def test_invalid_requests_are_refused(live: LiveServer) -> None:
    async with client(live) as api:
        with pytest.raises(openai.BadRequestError, match="temperature: must be") as caught:
            await api.chat.completions.create(model="m", messages=HELLO, temperature=5)
        assert caught.value.param == "temperature"
        with pytest.raises(openai.BadRequestError, match="too long"):
            await api.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "word " * 20_000}], stream=True
            )
    kind = {"content-type": "application/json"}
    async with httpx.AsyncClient(timeout=60, base_url=http_url(live), headers=kind) as http:
        for body in (b"", b"[", b"[]", b'"x"', b"[" * 100_000, b'{"messages":[{"role":"user"}]}'):
            answer = await http.post("/chat/completions", content=body)
            assert answer.status_code == 400
            assert answer.json()["error"]["message"]
        answer = await http.post("/chat/completions", content=b"x" * (5 << 20))
        assert answer.status_code == 413


async def test_disconnect_stops_generation(live: LiveServer) -> None:
    body = {"messages": HELLO, "stream": True, "ignore_eos": True, "max_tokens": 1500}
    async with (
        httpx.AsyncClient(timeout=60, base_url=http_url(live)) as http,
        http.stream("POST", "/chat/completions", json=body) as stream,
    ):
        async for line in stream.aiter_lines():
            if line:
                assert json.loads(line.removeprefix("data: "))["choices"]
                break
    for _ in range(200):
        if not (await asyncio.to_thread(live.engine_stats)).num_replying:
            break
        await asyncio.sleep(0.05)
    else:
        raise AssertionError("the engine still works for a client that has gone")


async def test_calls_are_served_during_a_chat_request(live: LiveServer) -> None:
    async with call_to(live.url) as call, client(live) as api, asyncio.TaskGroup() as group:
        writing = group.create_task(
            api.chat.completions.create(
                model="m", messages=HELLO, max_tokens=100, extra_body={"ignore_eos": True}
            )
        )
        await call.prove_alive()
    usage = writing.result().usage
    assert usage is not None
    assert usage.completion_tokens == 100
