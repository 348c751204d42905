"""Conversations with a model on another server: well-behaved, slow, full, gone and absurd ones."""

import asyncio
import json
import logging
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pytest

from agent.errors import StageError
from agent.session.api.conversation import ModelCall
from agent.session.api.server_events import Usage
from agent.session.ports.stage_ports import ChatMessage, ChatPort, ReplyToken, Tools
from agent.stages.remote.event_stream import MAX_EVENT_BYTES
from agent.stages.remote.model_server import reuses_prefix
from agent.stages.remote_chat import RemoteSampling, num_tokens_of
from latency_budget.account.marks import MarkName
from latency_budget.account.turn import TurnId
from tests.support.fakes.remote_models import (
    DONE,
    PATIENCE_S,
    Answer,
    Asked,
    Script,
    chunk,
    echo,
    event,
    remote_chats,
)

HELLO = ChatMessage("user", "Hello")
KEY = "sk-very-secret-0123456789"
WEATHER = json.dumps({"name": "weather", "description": "", "parameters": {"type": "object"}})
TOOLS = Tools((WEATHER,))


async def reply(
    chat: ChatPort, tools: Tools | None = None, marks: list[MarkName] | None = None
) -> list[ReplyToken]:
    tokens = chat.generate(
        TurnId(1),
        deadline_ns=0,
        max_tokens=None,
        on_mark=lambda name, _: None if marks is None else marks.append(name),
        tools=tools,
    )
    async with asyncio.timeout(PATIENCE_S), aclosing(tokens):
        return [token async for token in tokens]


def text_of(tokens: Sequence[ReplyToken]) -> str:
    return "".join(token.text for token in tokens)


def sends(*parts: bytes) -> Script:
    """A stream of these bytes, each sent on its own."""

    async def script(asked: Asked, answer: Answer) -> None:
        await answer.head()
        for part in parts:
            await answer.send(part)
        await answer.end()

    return script


def refuses(status: int, body: bytes = b"{}", **headers: str) -> Script:
    async def script(asked: Asked, answer: Answer) -> None:
        await answer.whole(body, status=status, kind="application/json", **headers)

    return script


async def failure(script: Script, *, timeout_s: float = PATIENCE_S, api_key: str = "") -> str:
    """Message of the error with which a reply fails."""
    async with remote_chats(script, timeout_s=timeout_s, api_key=api_key) as (open_chat, _):
        chat = open_chat("Be brief.", ())
        await chat.commit(HELLO)
        with pytest.raises(StageError) as caught:
            await reply(chat)
        assert caught.value.stage == "llm"
        assert not caught.value.refused
        return caught.value.message


# --- streams of servers ---

OPENAI_USAGE = {"prompt_tokens": 30, "completion_tokens": 3, "total_tokens": 33}

VLLM = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": "It is"}, logprobs=None),
    chunk({"content": " sunny."}),
    chunk({"content": ""}, "stop", stop_reason=None),
    chunk(usage=OPENAI_USAGE),
    DONE,
]
"""A role, words, an empty delta with the reason, and the usage without choices."""

SGLANG = [
    chunk({"role": "assistant", "content": "", "reasoning_content": None, "tool_calls": None}),
    chunk({"role": None, "content": "It is", "reasoning_content": None, "tool_calls": None}),
    chunk({"content": " sunny."}, "stop", matched_stop=151645, usage=None),
    chunk(usage={**OPENAI_USAGE, "prompt_tokens_details": None}),
    DONE,
]
"""Fields that are null, and the reason beside the last words."""

LLAMA_CPP = [
    chunk({"role": "assistant", "content": None}),
    chunk({"content": "It is"}),
    chunk({"content": " sunny."}),
    chunk({}, "stop", usage=OPENAI_USAGE, timings={"prompt_n": 1}),
    DONE,
]
"""The usage beside the last choice."""


@pytest.mark.parametrize("stream", [VLLM, SGLANG, LLAMA_CPP])
@pytest.mark.parametrize("num_bytes", [1, 7, 100_000])
async def test_streams_of_known_servers(stream: list[bytes], num_bytes: int) -> None:
    data = b": ping\r\n\r\n" + b"".join(stream)
    parts = [data[at : at + num_bytes] for at in range(0, len(data), num_bytes)]
    async with remote_chats(sends(*parts)) as (open_chat, _):
        chat = open_chat("Be brief.", ())
        await chat.commit(HELLO)
        marks: list[MarkName] = []
        tokens = await reply(chat, marks=marks)
        assert text_of(tokens) == "It is sunny."
        assert [token.finish_reason for token in tokens if token.finish_reason] == ["stop"]
        assert tokens[-1].finish_reason == "stop"
        assert tokens[-1].usage == Usage(30, 0, 3)
        assert marks == [MarkName.LLM_FIRST_TOKEN]


def call_piece(index: int | None, **call: Any) -> bytes:
    numbered = {} if index is None else {"index": index}
    return chunk({"tool_calls": [{**numbered, "type": "function", **call}]})


IN_PIECES = [
    chunk({"role": "assistant", "content": None}),
    call_piece(0, id="call_a", function={"name": "weather", "arguments": ""}),
    call_piece(0, function={"arguments": '{"city": "R'}),
    call_piece(0, function={"arguments": 'ome"}'}),
    call_piece(1, id="call_b", function={"name": "weather", "arguments": '{"city": "Oslo"}'}),
    chunk({}, "tool_calls"),
    chunk(usage=OPENAI_USAGE),
    DONE,
]
WHOLE = [
    call_piece(None, id="call_a", function={"name": "weather", "arguments": '{"city": "Rome"}'}),
    call_piece(None, id="call_b", function={"name": "weather", "arguments": '{"city": "Oslo"}'}),
    chunk({}, "stop"),
    DONE,
]


@pytest.mark.parametrize("stream", [IN_PIECES, WHOLE])
async def test_tool_calls(stream: list[bytes]) -> None:
    scripts = iter([sends(*stream), echo])

    async def script(asked: Asked, answer: Answer) -> None:
        await next(scripts)(asked, answer)

    async with remote_chats(script) as (open_chat, port):
        chat = open_chat("Be brief.", ())
        await chat.set_tools(TOOLS.definitions)
        await chat.commit(HELLO)
        tokens = await reply(chat, TOOLS)
        assert [token.calls for token in tokens if token.calls] == [
            (ModelCall("weather", '{"city": "Rome"}'), ModelCall("weather", '{"city": "Oslo"}'))
        ]
        assert (text_of(tokens), tokens[-1].finish_reason) == ("", "stop")
        await chat.commit(ChatMessage("tool", "warm"))
        await reply(chat, TOOLS)
        assert port.replies[0].body["tools"][0]["function"]["name"] == "weather"
        *_, calling, first, second = port.replies[1].body["messages"]
        ids = [call["id"] for call in calling["tool_calls"]]
        assert len(set(ids)) == 2
        assert [first["tool_call_id"], second["tool_call_id"]] == ids
        assert [first["content"], second["content"]] == ["warm", "The call was interrupted."]


async def test_a_call_that_is_cut_off_or_was_not_offered_is_dropped() -> None:
    cut = [
        chunk({"content": "Well."}),
        call_piece(0, function={"name": "weather", "arguments": '{"city": "R'}),
        call_piece(1, function={"name": "launch", "arguments": "{}"}),
        chunk({}, "length"),
        DONE,
    ]
    async with remote_chats(sends(*cut)) as (open_chat, _):
        chat = open_chat("Be brief.", ())
        await chat.commit(HELLO)
        tokens = await reply(chat, TOOLS)
        assert (text_of(tokens), tokens[-1].calls) == ("Well.", ())
        assert tokens[-1].finish_reason == "length"


# --- history ---


async def test_the_history_holds_what_was_heard() -> None:
    async with remote_chats(sends(*VLLM)) as (open_chat, port):
        chat = open_chat("Be brief.", ())
        await chat.commit(HELLO)
        await reply(chat)
        await chat.truncate_reply(len("It is"))
        await chat.commit(ChatMessage("user", "What?"))
        await reply(chat)
        said = [(each["role"], each["content"]) for each in port.replies[1].body["messages"]]
        assert said == [
            ("system", "Be brief."),
            ("user", "Hello"),
            ("assistant", "It is"),
            ("user", "What?"),
        ]


async def test_the_oldest_turns_are_left_out_of_a_full_context() -> None:
    sampling = RemoteSampling(max_tokens=16, context=256)
    async with remote_chats(sampling=sampling) as (open_chat, port):
        chat = open_chat("Be brief.", ())
        for number in range(12):
            await chat.commit(ChatMessage("user", f"This is line {number}. " + "word " * 8))
            await reply(chat)
        sizes = []
        for asked in port.replies:
            roles = [each["role"] for each in asked.body["messages"]]
            assert roles[:2] == ["system", "user"]
            sizes.append(sum(num_tokens_of(each["content"]) for each in asked.body["messages"]))
            assert sizes[-1] <= 240
        firsts = [asked.body["messages"][1]["content"] for asked in port.replies]
        assert firsts[0] == firsts[1]
        assert firsts[-1] != firsts[0]
        assert len(set(firsts)) < 8, "the beginning changes less often than a turn is added"


# --- cancelling and previews ---


@pytest.fixture
async def endless() -> tuple[Script, asyncio.Event]:
    """A server that does not finish, and the event that its client has gone."""
    has_gone = asyncio.Event()

    async def script(asked: Asked, answer: Answer) -> None:
        await answer.head()
        await answer.send(chunk({"content": "Once "}))
        await answer.gone()
        has_gone.set()

    return script, has_gone


async def test_a_barge_in_closes_the_request(endless: tuple[Script, asyncio.Event]) -> None:
    script, has_gone = endless
    async with remote_chats(script) as (open_chat, _):
        chat = open_chat("Be brief.", ())
        await chat.commit(HELLO)
        tokens = chat.generate(
            TurnId(1), deadline_ns=0, max_tokens=None, on_mark=lambda name, at_ns: None
        )
        async with asyncio.timeout(PATIENCE_S):
            async with aclosing(tokens):
                assert (await anext(tokens)).text == "Once "
            await has_gone.wait()


async def test_a_preview_that_is_cancelled_closes_its_request(
    endless: tuple[Script, asyncio.Event],
) -> None:
    script, has_gone = endless
    async with remote_chats(script) as (open_chat, port):
        chat = open_chat("Be brief.", ())
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            preview = group.create_task(chat.preview("I would"))
            while not port.replies:  # noqa: ASYNC110 - the server's side has no event
                await asyncio.sleep(0.001)
            preview.cancel()
            await has_gone.wait()


async def test_a_preview_asks_for_one_token_and_not_too_often() -> None:
    async with remote_chats() as (open_chat, port):
        chat = open_chat("Be brief.", ())
        await chat.preview("I would")
        await chat.preview("I would like")
        (asked,) = port.replies
        assert asked.body["max_tokens"] == 1
        assert asked.body["messages"][-1] == {"role": "user", "content": "I would"}


def test_a_prefix_cache_shows_in_the_time_of_a_prompt_sent_again() -> None:
    ms = 10**6
    assert reuses_prefix(400 * ms, 100 * ms)
    assert not reuses_prefix(400 * ms, 390 * ms)
    assert reuses_prefix(20 * ms, 20 * ms), "too quick to tell, and to matter"


async def test_connections_are_kept() -> None:
    async with remote_chats() as (open_chat, port):
        chat = open_chat("Be brief.", ())
        for _ in range(3):
            await chat.commit(HELLO)
            await reply(chat)
        assert {asked.connection for asked in port.replies} == {1}


# --- servers that fail ---


@pytest.mark.parametrize("status", [429, 503])
async def test_a_full_server_is_asked_again(status: int) -> None:
    scripts = iter([refuses(status, retry_after="0"), echo])

    async def script(asked: Asked, answer: Answer) -> None:
        await next(scripts)(asked, answer)

    async with remote_chats(script) as (open_chat, port):
        chat = open_chat("Be brief.", ())
        await chat.commit(HELLO)
        assert text_of(await reply(chat)) == "Be brief. Hello "
        assert len(port.replies) == 2


async def test_a_server_that_asks_for_a_long_wait_is_not_waited_for() -> None:
    assert "503" in await failure(refuses(503, retry_after="3600"))


async def test_a_server_that_stays_full_fails_the_turn() -> None:
    assert "429: busy" in await failure(refuses(429, b'{"error": {"message": "busy"}}'))


async def test_a_wrong_name_is_said() -> None:
    body = b'{"object": "error", "message": "The model `tiny` does not exist.", "code": 404}'
    assert "has no model 'tiny'" in await failure(refuses(404, body))


async def test_headers_and_then_nothing() -> None:
    async def silent(asked: Asked, answer: Answer) -> None:
        await answer.head()
        await answer.gone()

    assert "did not answer within 0.5 s" in await failure(silent, timeout_s=0.5)


async def test_comments_alone_do_not_keep_a_caller_waiting() -> None:
    async def pinging(asked: Asked, answer: Answer) -> None:
        await answer.head()
        while not answer.writer.transport.is_closing():
            await answer.send(b": ping\n\n")
            await asyncio.sleep(0.01)

    assert "did not answer within 0.5 s" in await failure(pinging, timeout_s=0.5)


async def test_a_break_in_mid_reply_is_not_tried_again() -> None:
    async def breaking(asked: Asked, answer: Answer) -> None:
        await answer.head()
        await answer.send(chunk({"content": "Once upon"}))
        answer.writer.transport.abort()

    async with remote_chats(breaking) as (open_chat, port):
        chat = open_chat("Be brief.", ())
        await chat.commit(HELLO)
        with pytest.raises(StageError, match="broke off"):
            await reply(chat)
        assert len(port.replies) == 1


async def test_a_break_before_the_first_token_is_tried_again() -> None:
    async def breaking(asked: Asked, answer: Answer) -> None:
        answer.writer.transport.abort()

    scripts = iter([breaking, echo])

    async def script(asked: Asked, answer: Answer) -> None:
        await next(scripts)(asked, answer)

    async with remote_chats(script) as (open_chat, port):
        chat = open_chat("Be brief.", ())
        await chat.commit(HELLO)
        assert text_of(await reply(chat)) == "Be brief. Hello "
        assert len(port.replies) == 2


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (sends(event("{broken")), "not JSON"),
        (sends(event("[1, 2]")), "not an object"),
        (sends(event('{"choices": [3]}')), "no chat completion chunk"),
        (sends(event('{"choices": {"a": 1}}')), "no chat completion chunk"),
        (sends(event('{"usage": 3}')), "no chat completion chunk"),
        (sends(event("[" * 100_000)), "not JSON"),
        (sends(b"data: \xff\xfe\n\n"), "not UTF-8"),
        (sends(), "broke off"),
        (sends(b"not an event at all"), "broke off"),
        (sends(chunk({"content": "Half"})), "broke off"),
        (sends(DONE), "empty reply"),
        (sends(event('{"error": {"message": "CUDA out of memory"}}')), "CUDA out of memory"),
        (sends(*[b"x" * (1 << 20)] * 10), "too long"),
        (sends(*[b"data: " + b"x" * (MAX_EVENT_BYTES // 2) + b"\n"] * 3), "too long"),
    ],
)
async def test_what_is_no_stream_of_chunks_fails_the_turn(script: Script, problem: str) -> None:
    assert problem in await failure(script)


async def test_a_web_page_fails_the_turn() -> None:
    async def page(asked: Asked, answer: Answer) -> None:
        await answer.whole(b"<html><h1>Welcome</h1></html>", kind="text/html; charset=utf-8")

    assert "answered with text/html, not a stream" in await failure(page)


async def test_a_server_that_is_gone_and_comes_back() -> None:
    async with remote_chats() as (open_chat, port):
        chat = open_chat("Be brief.", ())
        await chat.commit(HELLO)
        working, port.script = port.script, refuses(401)
        with pytest.raises(StageError, match="refuses the API key"):
            await reply(chat)
        port.script = working
        assert text_of(await reply(chat)) == "Be brief. Hello "


async def test_the_key_is_sent_and_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    quoting = json.dumps({"error": {"message": f"Bad key {KEY}"}}).encode()
    seen: list[str] = []

    async def script(asked: Asked, answer: Answer) -> None:
        seen.append(asked.headers["authorization"])
        await refuses(400, quoting)(asked, answer)

    messages = [await failure(script, api_key=KEY)]
    messages.append(await failure(refuses(401, quoting), api_key=KEY))
    messages.append(await failure(sends(event(quoting.decode())), api_key=KEY))
    assert seen == [f"Bearer {KEY}"]
    assert "***" in messages[0]
    assert KEY not in "".join(messages)
    assert KEY not in caplog.text
