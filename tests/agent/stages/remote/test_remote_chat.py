"""Conversations with servers that work, that are slow, full or gone, and that send nonsense."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

import pytest

from agent.errors import StageError
from agent.session.api.conversation import ModelCall
from agent.session.api.server_events import Usage
from agent.session.ports.stage_ports import (
    ChatMessage,
    ChatPort,
    ReplyToken,
    ScoresMessageEnd,
    Tools,
)
from agent.stages.remote import api_server, recovery, remote_chat
from agent.stages.remote import model_server as model_server_module
from agent.stages.remote.completion_chunks import CHARS_PER_TOKEN, SPARE_CHARS
from agent.stages.remote.event_stream import MAX_EVENT_BYTES
from agent.stages.remote.model_server import ModelServer
from agent.stages.remote.remote_chat import SmallModel, remote_chat_factory
from agent.stages.tool_call_adapter import ToolLimits
from latency_budget.account.clock import SystemClock
from latency_budget.account.marks import MarkName
from latency_budget.account.turn import TurnId
from llm_engine.config import SamplingParams
from tests.agent.stages.test_chat_contract import EchoChat
from tests.support.service.model_servers import (
    EVENT_STREAM,
    WAIT_S,
    Answer,
    ScriptedServer,
    error,
    head,
    http,
    model_server,
    said,
    scripted_server,
    stream,
)

HI: Final = ChatMessage("user", "Hi")
HELLO: Final = stream(said("Hel"), said("lo", "stop"))
WEATHER: Final = '{"name": "weather", "parameters": {"type": "object", "properties": {}}}'
MAX_CLOSING_TURNS: Final = 20
"""Turns of the event loop until both sides have closed a connection over loopback: the client's
does at once, and the server sees it with the next turn of its own, which is in the same loop."""
SHORT_S: Final = 0.5
"""Timeout of a server that is to be given up."""


@asynccontextmanager
async def talking(
    *answers: Answer,
    small: SmallModel | None = None,
    context: int = 4096,
    limits: ToolLimits = ToolLimits(),  # noqa: B008
    **options: Any,
) -> AsyncIterator[tuple[ChatPort, ScriptedServer, ModelServer]]:
    async with (
        scripted_server(*answers) as scripted,
        model_server(scripted.url, **options) as server,
    ):
        sampling = SamplingParams(max_tokens=32, seed=7, stop=("END",))
        factory = remote_chat_factory(
            server, SystemClock(), sampling, context, limits, "quotes", small
        )
        chat = factory("Be brief.", ())
        await chat.commit(HI)
        yield chat, scripted, server
        await chat.close()


async def reply(
    chat: ChatPort, tools: Tools | None = None, deadline_ns: int = 0
) -> list[ReplyToken]:
    marks: list[MarkName] = []
    tokens = chat.generate(
        TurnId(1),
        deadline_ns=deadline_ns,
        max_tokens=None,
        on_mark=lambda name, _: marks.append(name),
        tools=tools,
    )
    async with asyncio.timeout(WAIT_S), aclosing(tokens):
        found = [token async for token in tokens]
    assert marks == [MarkName.LLM_FIRST_TOKEN]
    return found


def text_of(tokens: Sequence[ReplyToken]) -> str:
    return "".join(token.text for token in tokens)


async def failure(chat: ChatPort) -> StageError:
    with pytest.raises(StageError) as caught:
        await reply(chat)
    return caught.value


async def test_a_reply_streams_and_its_tokens_are_counted() -> None:
    usage = '{"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 5}}'
    async with talking(stream(said("Hel"), said("lo", "stop"), usage)) as (chat, scripted, server):
        tokens = await reply(chat)
        assert [token.text for token in tokens] == ["Hel", "lo", ""]
        assert [token.finish_reason for token in tokens] == [None, None, "stop"]
        assert tokens[-1].usage == Usage(9, 0, 5)
        body = scripted.bodies[0]
        assert [each["content"] for each in body.pop("messages")] == ["Be brief.", "Hi"]
        assert body == {
            "model": "tiny",
            "max_tokens": 32,
            "temperature": 0.0,
            "seed": 7,
            "stop": ["END"],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        assert server.problem is None


async def test_it_does_not_score_the_end_of_messages() -> None:
    async with talking(HELLO) as (chat, _, _):
        assert not isinstance(chat, ScoresMessageEnd)


async def test_one_connection_serves_all_turns() -> None:
    async with talking(HELLO) as (chat, scripted, _):
        for _turn in range(3):
            await reply(chat)
            await chat.commit(HI)
        assert (len(scripted.bodies), scripted.num_connections) == (3, 1)


async def test_a_connection_that_the_server_had_closed_costs_no_reply() -> None:
    closing = Answer(HELLO.pieces, "close")
    async with talking(closing) as (chat, scripted, _):
        for _turn in range(3):
            assert text_of(await reply(chat)) == "Hello"
            await chat.commit(HI)
        assert scripted.num_connections == 3


async def test_a_barge_in_closes_the_request() -> None:
    speaking = Answer([head(), f"data: {said('Hello')}\n\n".encode()], "hang")
    async with talking(speaking) as (chat, scripted, server):
        tokens = chat.generate(TurnId(1), deadline_ns=0, max_tokens=None, on_mark=lambda *_: None)
        assert (await anext(tokens)).text == "Hello"
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(anext(tokens))
            await asyncio.sleep(0)
            waiting.cancel()
        await tokens.aclose()
        async with asyncio.timeout(WAIT_S):
            await scripted.given_up.wait()
        await chat.truncate_reply(4)
        assert server.problem is None
        await chat.commit(ChatMessage("user", "Stop"))
        scripted.answers.append(HELLO)
        await reply(chat)
        texts = [each["content"] for each in scripted.bodies[-1]["messages"]]
        assert texts == ["Be brief.", "Hi", "Hell", "Stop"]


async def test_a_barge_in_ends_a_stream_that_flows_within_some_turns_of_the_event_loop() -> None:
    """The server can send a piece in each turn, and hardly does so before it sees the end."""
    flowing = Answer([head(), f"data: {said('la ')}\n\n".encode()], "flow")
    async with talking(flowing) as (chat, scripted, server):
        tokens = chat.generate(TurnId(1), deadline_ns=0, max_tokens=None, on_mark=lambda *_: None)
        texts = [(await anext(tokens)).text for _ in range(5)]
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(anext(tokens))
            waiting.cancel()
        before = scripted.num_flowed
        await tokens.aclose()
        num_turns = 0
        while not scripted.given_up.is_set():
            num_turns += 1
            assert num_turns < MAX_CLOSING_TURNS, "the stream is still open"
            await asyncio.sleep(0)
        assert scripted.num_flowed - before <= MAX_CLOSING_TURNS
        assert server.problem is None
        await chat.commit(ChatMessage("user", "Stop"))
        scripted.answers.append(HELLO)
        await reply(chat)
        history = [each["content"] for each in scripted.bodies[-1]["messages"]]
        assert history == ["Be brief.", "Hi", "".join(texts), "Stop"], "nothing was read behind it"


async def test_a_reply_without_end_ends_by_its_limit() -> None:
    flowing = Answer([head(), f"data: {said('words and ')}\n\n".encode()], "flow")
    async with talking(flowing) as (chat, scripted, server):
        tokens = await reply(chat)
        assert tokens[-1].finish_reason == "length"
        assert len(text_of(tokens)) == 32 * CHARS_PER_TOKEN + SPARE_CHARS
        async with asyncio.timeout(WAIT_S):
            await scripted.given_up.wait()
        assert server.problem is None
        summary = await server.complete([{"role": "user", "content": "Hi"}], 16)
        assert len(summary) == 16 * CHARS_PER_TOKEN + SPARE_CHARS


async def test_a_guess_is_given_up_before_its_first_token() -> None:
    async with talking(Answer([head()], "hang")) as (chat, scripted, server):
        tokens = chat.generate(TurnId(1), deadline_ns=0, max_tokens=None, on_mark=lambda *_: None)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(anext(tokens))
            async with asyncio.timeout(WAIT_S):
                while not scripted.bodies:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            waiting.cancel()
        async with asyncio.timeout(WAIT_S):
            await scripted.given_up.wait()
        await chat.take_back()
        assert server.problem is None


# --- servers that fail ---


def page(status: int) -> Answer:
    return Answer([http(status, "text/html", b"<html>It works!</html>")], "keep")


def moved(status: int) -> Answer:
    return Answer(
        [http(status, "text/plain", b"", "location: http://user:pass@elsewhere/")], "keep"
    )


def lines(*events: str) -> Answer:
    return stream(*events)


BROKEN: Final = {
    "wrong model": (error(404, "The model tiny does not exist."), "has no model 'tiny'"),
    "not JSON": (lines("{nonsense"), "sent what is not a JSON object"),
    "not an object": (lines('["x"]'), "sent what is not a JSON object"),
    "no events": (stream(end=""), "sent an empty reply"),
    "only the end": (stream(), "sent an empty reply"),
    "no progress": (stream(said("")), "sent an empty reply"),
    "a line of 10 MB": (
        Answer([head(), b"data: ", *[b"x" * (1 << 20)] * 10], "close"),
        f"sent an event of more than {MAX_EVENT_BYTES >> 20} MiB",
    ),
    "a page": (page(200), "answers with text/html where text/event-stream is due"),
    "a page of a proxy": (page(502), "answers with status 502"),
    "moved": (moved(307), "answers with a redirect"),
    "moved for good": (moved(301), "answers with a redirect"),
    "compressed": (
        Answer([http(200, EVENT_STREAM, b"\x1f\x8b", "content-encoding: gzip")], "keep"),
        "compresses its answers",
    ),
    "an error that is compressed": (
        error(503, "loading", "content-encoding: gzip, gzip"),
        "compresses its answers",
    ),
    "an error in the stream": (lines('{"error": {"message": "no memory"}}'), "reports: no memory"),
    "no key": (error(401, "Incorrect API key: sk-very-secret"), "rejects the key"),
    "a bad request": (error(400, "unknown field seed"), "status 400: unknown field seed"),
    "full": (error(429, "slow down", "retry-after: 60"), "status 429: slow down"),
    "loading": (error(503, "loading"), "status 503: loading"),
    "not UTF-8": (
        Answer([http(200, EVENT_STREAM, b"data: \xff\xfe\n\n")], "keep"),
        "sent an event that is not UTF-8",
    ),
    "gone at once": (Answer([], "close"), "broke the connection off"),
    "headers and nothing": (Answer([head()], "hang"), "sent no first token within 0.5 s"),
    "nothing": (Answer([], "hang"), "sent no first token within 0.5 s"),
    "pings only": (Answer([head(), b": ping\n\n" * 3], "hang"), "sent no first token"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_server_that_fails_ends_the_turn_with_its_reason(name: str) -> None:
    answer, reason = BROKEN[name]
    async with talking(answer, timeout_s=SHORT_S) as (chat, scripted, server):
        caught = await failure(chat)
        assert reason in caught.message
        assert caught.stage == "llm"
        for shown in (caught.message, server.problem or ""):
            assert "secret" not in shown
            assert "127.0.0.1" not in shown
            assert "pass" not in shown
        is_requests_fault = name == "a bad request"
        assert (server.problem is None) == is_requests_fault
        scripted.answers = [HELLO]
        assert text_of(await reply(chat)) == "Hello", "the next turn is answered"
        assert server.problem is None


async def test_nobody_listens() -> None:
    async with scripted_server() as scripted:
        url = scripted.url
    async with model_server(url) as server:
        chat = remote_chat_factory(
            server, SystemClock(), SamplingParams(), 4096, ToolLimits(), "off"
        )("", ())
        await chat.commit(HI)
        assert "can't be reached" in (await failure(chat)).message
        await chat.preview("Hel")  # fails in silence: it is an optimization


MIDDLE: Final = {
    "gone": Answer([head(), f"data: {said('Hello')}\n\n".encode()], "close"),
    "silent": Answer([head(), f"data: {said('Hello')}\n\n".encode()], "hang"),
    "nonsense": lines(said("Hello"), "{nonsense"),
    "an error": lines(said("Hello"), '{"error": "no memory"}'),
    "an error with a status": lines(said("Hello"), '{"error": {"message": "x", "code": 500}}'),
    "aborted": lines(said("Hello"), said("", "abort")),
}


@pytest.mark.parametrize("name", MIDDLE)
async def test_one_that_fails_in_the_middle_of_a_reply_leaves_what_was_said(name: str) -> None:
    small = SmallModel(EchoChat, lambda: True)
    async with talking(MIDDLE[name], small=small, timeout_s=SHORT_S) as (chat, scripted, server):
        tokens = chat.generate(TurnId(1), deadline_ns=0, max_tokens=None, on_mark=lambda *_: None)
        async with aclosing(tokens):
            assert (await anext(tokens)).text == "Hello"
            with pytest.raises(StageError):
                await anext(tokens)
        assert len(scripted.bodies) == 1, "nothing is tried again behind the first token"
        assert server.problem is not None
        await chat.commit(ChatMessage("user", "And?"))
        assert text_of(await reply(chat)) == "Be brief. Hi Hello And? "


async def test_a_full_server_is_asked_again_when_it_says_so_soon() -> None:
    full = error(429, "slow down", "retry-after: 0")
    async with talking(full, full, HELLO) as (chat, scripted, _):
        assert text_of(await reply(chat)) == "Hello"
        assert len(scripted.bodies) == 3


async def test_one_that_is_full_for_long_is_not() -> None:
    async with talking(error(503, "full", "retry-after: 30"), HELLO) as (chat, scripted, _):
        await failure(chat)
        assert len(scripted.bodies) == 1


# --- fields that a server refuses ---


FORMAT: Final = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}


async def test_a_reply_does_without_a_form_that_the_server_refuses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = error(400, "This response_format type is unavailable now")
    extra = {"response_format": FORMAT}
    async with talking(refused, HELLO, extra_body=extra) as (chat, scripted, server):
        for _turn in range(2):
            assert text_of(await reply(chat)) == "Hello"
        sent = [body.get("response_format") for body in scripted.bodies]
        assert sent == [FORMAT, None, None]
        assert server.refused_fields == ("response_format",)
        assert "gets no response_format from now on" in caplog.text
        assert server.problem is None


async def test_each_field_that_is_refused_is_given_up_by_itself() -> None:
    refusals = (
        error(422, "seed: Extra inputs are not permitted"),
        error(400, "Use 'max_completion_tokens' instead."),
        error(400, "stream_options: Extra inputs are not permitted"),
    )
    async with talking(*refusals, HELLO) as (chat, scripted, server):
        assert text_of(await reply(chat)) == "Hello"
        assert server.refused_fields == ("seed", "max_tokens", "stream_options")
        last = scripted.bodies[-1]
        assert last["max_completion_tokens"] == 32
        assert not {"seed", "max_tokens", "stream_options"} & last.keys()
        assert last["stop"] == ["END"]


async def test_a_refusal_that_stays_ends_the_turn() -> None:
    refused = error(400, "seed is not for you")
    async with talking(refused, refused, HELLO) as (chat, scripted, server):
        assert "seed is not for you" in (await failure(chat)).message
        assert server.refused_fields == ()
        assert text_of(await reply(chat)) == "Hello"
        assert ["seed" in body for body in scripted.bodies] == [True, False, True]
        assert server.problem is None


async def test_a_bad_schema_of_one_client_costs_the_others_nothing() -> None:
    """llama.cpp says the same of a tool's schema as of the format of all calls."""
    bad, extra = error(400, "failed to parse grammar"), {"response_format": FORMAT}
    async with talking(bad, bad, HELLO, extra_body=extra) as (chat, scripted, server):
        await failure(chat)
        assert server.refused_fields == ()
        assert text_of(await reply(chat)) == "Hello"
        sent = [body.get("response_format") for body in scripted.bodies]
        assert sent == [FORMAT, None, FORMAT]


async def test_a_request_that_fails_in_its_stream_was_not_accepted() -> None:
    refused = error(400, "seed: Extra inputs are not permitted")
    failed = lines('{"error": {"message": "no", "code": 400}}')
    async with talking(refused, failed, HELLO) as (chat, scripted, server):
        await failure(chat)
        assert server.refused_fields == ()
        assert text_of(await reply(chat)) == "Hello"
        assert ["seed" in body for body in scripted.bodies] == [True, False, True]


async def test_schemas_of_strict_tools_are_the_servers_to_keep() -> None:
    strict = WEATHER.removesuffix("}") + ', "strict": true}'
    unlike = error(400, "Invalid schema for function 'weather'")
    async with talking(HELLO, unlike, HELLO) as (chat, scripted, server):
        await chat.set_tools((strict,))
        for _turn in range(3):
            await reply(chat, Tools((strict,)))
        sent = [body["tools"][0]["function"].get("strict") for body in scripted.bodies]
        assert sent == [True, True, None, True], "the next request's schema may be a good one"
        assert all(body["tools"][0]["function"]["name"] == "weather" for body in scripted.bodies)
        assert server.refused_fields == ()


async def test_a_choice_that_the_server_refuses_is_left_to_the_model() -> None:
    refused = error(400, "tool_choice: must be auto")
    async with talking(refused, IN_PIECES, IN_PIECES) as (chat, scripted, server):
        await chat.set_tools((WEATHER,))
        for _turn in range(2):
            tokens = await reply(chat, Tools((WEATHER,), choice="required"))
            assert [call.name for token in tokens for call in token.calls] == ["weather"]
        sent = [body["tool_choice"] for body in scripted.bodies]
        assert sent == ["required", "auto", "required"]
        assert server.refused_fields == ()


async def test_refusals_are_read_whole_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """vLLM quotes the request, and so the instructions and the caller's words."""
    quoted = "my number is 555 " * 30
    refused = error(400, f"{quoted}: seed: Extra inputs are not permitted")
    with caplog.at_level(logging.DEBUG, logger="agent"):
        async with talking(refused, HELLO) as (chat, _, server):
            assert text_of(await reply(chat)) == "Hello"
            assert server.refused_fields == ("seed",)
    assert "gets no seed from now on: it answers with status 400" in caplog.text
    assert "555" not in caplog.text


async def test_the_search_in_a_refusal_is_bounded() -> None:
    long = "x" * api_server.MAX_SAID_CHARS
    refused = error(400, f"{long}: seed: Extra inputs are not permitted")
    async with talking(refused, HELLO) as (chat, scripted, _):
        await failure(chat)
        assert len(scripted.bodies) == 1


# --- the smaller model ---


@pytest.mark.parametrize("name", ["wrong model", "full", "gone at once", "headers and nothing"])
async def test_the_smaller_model_answers_in_its_place(name: str) -> None:
    small = SmallModel(EchoChat, lambda: True)
    async with talking(BROKEN[name][0], small=small, timeout_s=SHORT_S) as (chat, scripted, server):
        assert text_of(await reply(chat)) == "Be brief. Hi "
        assert server.problem is not None
        await chat.truncate_reply(9)
        await chat.commit(ChatMessage("user", "Well?"))
        before = len(scripted.bodies)
        assert text_of(await reply(chat)) == "Be brief. Hi Be brief. Well? "
        assert len(scripted.bodies) == before, "a server that is known to fail is not waited for"
        await chat.take_back()
        await chat.commit(ChatMessage("user", "And?"))
        scripted.answers = [*[HELLO] * before, one_token(0), one_token(250), HELLO]
        await server.start()  # as `watch` does
        assert server.problem is None
        assert text_of(await reply(chat)) == "Hello"
        texts = [each["content"] for each in scripted.bodies[-1]["messages"]]
        assert texts == ["Be brief.", "Hi", "Be brief.", "And?"]


async def test_it_answers_when_the_first_sound_is_due() -> None:
    small = SmallModel(EchoChat, lambda: True)
    async with talking(Answer([head()], "hang"), small=small, timeout_s=WAIT_S) as (
        chat,
        _,
        server,
    ):
        due_ns = SystemClock().now_ns() + 50_000_000
        assert text_of(await reply(chat, deadline_ns=due_ns)) == "Be brief. Hi "
        assert server.problem is None, "it is late, not broken"


async def test_it_answers_where_the_policy_says_so() -> None:
    async with talking(HELLO, small=SmallModel(EchoChat, lambda: True)) as (chat, scripted, _):
        assert chat.use_small_model(small=True)
        await chat.commit(ChatMessage("user", "there"))
        assert text_of(await reply(chat)) == "Be brief. Hi there "
        assert not chat.use_small_model(small=False)
        await chat.commit(HI)
        assert text_of(await reply(chat)) == "Hello"
        assert len(scripted.bodies) == 1


async def test_one_that_is_not_ready_is_not_asked() -> None:
    async with talking(error(500, "x"), small=SmallModel(EchoChat, lambda: False)) as (chat, _, _):
        assert not chat.use_small_model(small=True)
        await failure(chat)


# --- tools ---


def called(*pieces: str, finish: str = "tool_calls") -> Answer:
    chunks = [f'{{"choices": [{{"delta": {{"tool_calls": [{piece}]}}}}]}}' for piece in pieces]
    end = f'{{"choices": [{{"delta": {{}}, "finish_reason": "{finish}"}}]}}'
    return stream(*chunks, end)


IN_PIECES: Final = called(
    '{"index": 0, "id": "a", "type": "function", "function": {"name": "weather", "arguments": ""}}',
    '{"index": 0, "function": {"arguments": "{\\"city\\": \\"B"}}',
    '{"index": 0, "function": {"arguments": "onn\\"}"}}',
)


async def test_a_call_and_its_result() -> None:
    tools = Tools((WEATHER,))
    async with talking(IN_PIECES, HELLO) as (chat, scripted, _):
        await chat.set_tools(tools.definitions)
        tokens = await reply(chat, tools)
        call = ModelCall("weather", '{"city": "Bonn"}')
        assert [token.calls for token in tokens] == [(call,)]
        await chat.commit(ChatMessage("tool", "dry"))
        await reply(chat, tools)
        first, second = scripted.bodies
        assert first["tools"] == second["tools"]
        assert (first["tool_choice"], second["tool_choice"]) == ("auto", "auto")
        asked, result = second["messages"][-2:]
        assert asked["tool_calls"][0]["function"] == {
            "name": "weather",
            "arguments": '{"city": "Bonn"}',
        }
        assert result == {
            "role": "tool",
            "content": "dry",
            "tool_call_id": asked["tool_calls"][0]["id"],
        }


async def test_limits_of_calls_are_the_requests() -> None:
    limits = ToolLimits(in_parallel=False, max_rounds=1)
    async with talking(IN_PIECES, HELLO, limits=limits) as (chat, scripted, _):
        await chat.set_tools((WEATHER,))
        await reply(chat, Tools((WEATHER,), choice="weather"))
        await chat.commit(ChatMessage("tool", "dry"))
        await reply(chat, Tools((WEATHER,)))
        choices = [body["tool_choice"] for body in scripted.bodies]
        assert choices == [{"type": "function", "function": {"name": "weather"}}, "none"]
        assert [body["parallel_tool_calls"] for body in scripted.bodies] == [False, False]


async def test_a_call_that_the_length_cut_off_is_dropped() -> None:
    piece = '{"index": 0, "function": {"name": "weather", "arguments": "{\\"ci"}}'
    async with talking(called(piece, finish="length"), HELLO) as (chat, scripted, _):
        await chat.set_tools((WEATHER,))
        tokens = await reply(chat, Tools((WEATHER,)))
        assert [(each.calls, each.finish_reason) for each in tokens] == [((), "length")]
        await reply(chat, Tools((WEATHER,)))
        assert scripted.bodies[-1]["messages"] == scripted.bodies[0]["messages"]


CALL_TEXT: Final = '<tool_call>\\n{\\"name\\": \\"weather\\"}\\n</tool_call>'
"""A call that the model writes as its words, in a string of JSON."""


async def test_a_call_in_a_reply_without_tools_is_dropped() -> None:
    """Servers do not parse calls where the choice is "none"."""
    answer = stream(said("Dry. <tool_"), said(CALL_TEXT[6:]), said("Bye", "stop"))
    async with talking(answer, HELLO) as (chat, scripted, _):
        await chat.set_tools((WEATHER,))
        assert text_of(await reply(chat, Tools((WEATHER,), choice="none"))) == "Dry. Bye"
        await chat.commit(HI)
        await reply(chat)
        assert scripted.bodies[-1]["messages"][2]["content"] == "Dry. Bye"


async def test_a_reply_of_nothing_but_a_call_is_asked_for_again_once() -> None:
    only = stream(said(CALL_TEXT, "stop"))
    async with talking(only, HELLO, only, only) as (chat, scripted, _):
        tokens = await reply(chat)
        assert text_of(tokens) == "Hello"
        assert [token.finish_reason for token in tokens if token.finish_reason] == ["stop"]
        assert scripted.bodies[0] == scripted.bodies[1]
        assert text_of(await reply(chat)) == ""
        assert len(scripted.bodies) == 4


async def test_a_tool_that_was_not_offered_is_not_called() -> None:
    async with talking(IN_PIECES) as (chat, _, _):
        assert "not offered" in (await failure(chat)).message


async def test_tools_that_no_server_takes_are_refused() -> None:
    async with talking(HELLO) as (chat, scripted, _):
        with pytest.raises(StageError) as caught:
            await chat.set_tools(('{"name": "a b"}',))
        assert caught.value.refused
        await reply(chat)
        assert "tools" not in scripted.bodies[0]


# --- thoughts, previews, context ---


async def test_thoughts_are_neither_spoken_nor_kept() -> None:
    thinking = '{"choices": [{"delta": {"reasoning_content": "Hm."}}]}'
    answer = stream(thinking, said("<thi"), said("nk>Hm.</think>Yes"), said(".", "stop"))
    async with talking(answer, HELLO) as (chat, scripted, _):
        assert text_of(await reply(chat)) == "Yes."
        await chat.commit(HI)
        await reply(chat)
        assert scripted.bodies[-1]["messages"][2]["content"] == "Yes."


def one_token(num_cached: int) -> Answer:
    usage = f'{{"prompt_tokens_details": {{"cached_tokens": {num_cached}}}}}'
    body = f'{{"choices": [], "usage": {usage}}}'
    return Answer([http(200, "application/json", body.encode())], "keep")


async def test_words_are_sent_ahead_to_a_server_that_keeps_prompts() -> None:
    # Two requests that measure, the first reply of one token, a preview, a reply.
    answers = one_token(0), one_token(250), HELLO, one_token(0), HELLO
    async with talking(*answers) as (chat, scripted, server):
        await server.start()
        assert server.caches_prefix
        assert scripted.bodies[0] == scripted.bodies[1]
        await chat.take_back()
        await chat.preview("Could you")
        await chat.commit(ChatMessage("user", "Could you help?"))
        await reply(chat)
        ahead, asked = scripted.bodies[3:]
        assert (ahead["max_tokens"], ahead["messages"][-1]["content"]) == (1, "Could you")
        assert asked["messages"][:-1] == ahead["messages"][:-1]
        assert scripted.num_connections == 1


async def test_a_prompt_that_is_too_long_to_be_measured_is_no_failure() -> None:
    too_long = error(400, "maximum context length is 512")
    async with talking(one_token(0), one_token(0), too_long, HELLO) as (_, scripted, server):
        await server.start()
        assert server.problem is None
        assert len(scripted.bodies) == 4


async def test_nothing_is_sent_ahead_to_one_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_server_module, "CACHED_SHARE", 0.0)  # both take as long
    answers = *[one_token(3)] * 4, HELLO
    async with talking(*answers) as (chat, scripted, server):
        await server.start()
        assert not server.caches_prefix
        assert server.problem is None
        before = len(scripted.bodies)
        assert before == 5
        for words in ("Could", "Could you"):
            await chat.preview(words)
        assert len(scripted.bodies) == before


async def test_previews_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one begins when the interval is over; until then, there are newer words. A reply
    does not wait for that."""
    monkeypatch.setattr(remote_chat, "PREVIEW_EVERY_S", 3600)
    async with talking(one_token(0), HELLO) as (chat, scripted, server):
        server.caches_prefix = True
        async with asyncio.TaskGroup() as group:
            preview = group.create_task(chat.preview("Could"))
            await until(lambda: len(scripted.bodies) == 1)
            assert text_of(await reply(chat)) == "Hello"
            assert not preview.done()
            preview.cancel()


async def test_the_oldest_turns_give_way_where_the_context_is_full() -> None:
    async with talking(HELLO, context=200) as (chat, scripted, _):
        for number in range(8):
            await chat.commit(ChatMessage("user", f"{number}: " + "word " * 20))
            await reply(chat)
        sent = scripted.bodies[-1]["messages"]
        assert sent[0]["content"] == "Be brief."
        assert sent[1]["role"] == "user"
        assert sent[-1]["content"].startswith("7: ")
        assert len(sent) < 8


TOO_LONG: Final = "This model's maximum context length is 512 tokens."


@pytest.mark.parametrize(
    "too_long",
    [error(400, TOO_LONG), stream(f'{{"error": {{"message": "{TOO_LONG}", "code": 400}}}}')],
    ids=["by its status", "in the stream"],
)
async def test_a_prompt_that_the_server_calls_too_long_is_shortened(too_long: Answer) -> None:
    async with talking(HELLO, HELLO, too_long, HELLO) as (chat, scripted, server):
        for number in range(3):
            await reply(chat)
            await chat.commit(ChatMessage("user", f"Turn {number}"))
        longer, shorter = (body["messages"] for body in scripted.bodies[2:])
        assert shorter[0] == longer[0]
        assert shorter[1:] == longer[len(longer) - len(shorter) + 1 :]
        assert len(shorter) < len(longer)
        assert server.problem is None


@pytest.mark.parametrize(
    "said",
    [
        TOO_LONG,
        "Your input exceeds the context window of this model. Please adjust your input.",
        "This model's maximum context length is 2048 tokens. However, your request has 8 input "
        "tokens plus 2045 'max_tokens'. Please reduce one or the other.",
        "The decoder prompt (length 9000) is longer than the maximum model length of 4096.",
        "The input (61709 tokens) is longer than the model's context length (40960 tokens).",
        "Input length (160062 tokens) exceeds the maximum allowed length (59862 tokens).",
        "the request exceeds the available context size, try increasing it",
        "Requested tokens (2285) exceed context window of 2048",
        "Context size has been exceeded.",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000",
        "Please reduce the length of the messages or completion.",
        "The input token count (40000) exceeds the maximum number of tokens allowed (32768).",
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096.",
        "This model's maximum prompt length is 131072 but the request contains 200000 tokens.",
        "litellm.ContextWindowExceededError: litellm.BadRequestError",
    ],
)
async def test_servers_call_a_prompt_too_long_in_their_own_words(said: str) -> None:
    async with talking(HELLO, error(400, said), HELLO) as (chat, scripted, _):
        for _ in range(2):
            await reply(chat)
            await chat.commit(HI)
        longer, shorter = (body["messages"] for body in scripted.bodies[1:])
        assert (len(longer), len(shorter)) == (4, 2)


@pytest.mark.parametrize(
    "said",
    [
        "tools.0.function.name: string too long. Expected a string with maximum length 64.",
        "max_tokens is too large: 4096. This model supports at most 2048 completion tokens.",
        "Invalid 'stop': array too long. Expected an array with maximum length 4.",
        "[{'loc': ('body', 'top_k'), 'msg': 'bad', 'input': {'text': 'maximum context length'}}]",
    ],
)
async def test_a_request_that_is_rejected_for_another_reason_keeps_the_history(said: str) -> None:
    async with talking(HELLO, HELLO, error(400, said), HELLO) as (chat, scripted, _):
        for _ in range(2):
            await reply(chat)
            await chat.commit(HI)
        await failure(chat)
        await reply(chat)
        assert [len(body["messages"]) for body in scripted.bodies] == [2, 4, 6, 6]


async def test_turns_that_were_dropped_in_vain_are_put_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    too_long = error(400, TOO_LONG)
    async with talking(*[HELLO] * 3, *[too_long] * 3, HELLO) as (chat, scripted, _):
        for _ in range(3):
            await reply(chat)
            await chat.commit(HI)
        assert TOO_LONG in (await failure(chat)).message
        assert text_of(await reply(chat)) == "Hello"
        assert [len(body["messages"]) for body in scripted.bodies] == [2, 4, 6, 8, 4, 2, 8]
        assert scripted.bodies[-1] == scripted.bodies[3]
    lines = [each for each in caplog.messages if "asked again without the oldest" in each]
    assert len(lines) == 2


# --- health and secrets ---


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_server_whose_list_of_models_fails_is_asked_for_a_token() -> None:
    async with talking(one_token(0), one_token(999), HELLO) as (_, scripted, server):
        await server.start()
        assert len(scripted.bodies) == 3
        await server.start()  # as `watch` does
        assert len(scripted.bodies) == 3
        scripted.list_status = 500
        await server.start()
        assert (len(scripted.bodies), server.problem) == (4, None)
        scripted.answers = [error(401, "no")]
        await server.start()
        assert "rejects the key" in (server.problem or "")


CUT_SHORT: Final = error(
    400,
    "Could not finish the message because max_tokens or model output limit was reached. "
    "Please try again with higher max_tokens.",
)


async def test_thoughts_that_one_token_does_not_hold_are_no_failure() -> None:
    """A reasoning model of OpenAI, which counts `max_completion_tokens`, and has none for words."""
    renamed = error(400, "Use 'max_completion_tokens' instead.")
    async with talking(renamed, CUT_SHORT) as (_, scripted, server):
        await server.start()
        assert server.problem is None
        assert server.refused_fields == ("max_tokens",)
        limits = [
            (body.get("max_tokens"), body.get("max_completion_tokens")) for body in scripted.bodies
        ]
        assert limits[0] == (1, None)
        assert set(limits[1:]) == {(None, 1)}


async def test_a_server_works_again_when_only_the_limit_ends_its_reply() -> None:
    async with talking(error(500, "x"), one_token(999)) as (_, scripted, server):
        await server.start()
        assert server.problem is not None
        scripted.answers = [*[one_token(999)] * 3, CUT_SHORT]
        await server.start()
        assert len(scripted.bodies) == 4
        assert server.problem is None


async def test_requests_of_one_token_are_no_longer_by_the_operators_limit() -> None:
    extra = {"max_completion_tokens": 500}
    both = error(400, "'max_tokens' with 'max_completion_tokens' is not supported")
    answers = both, one_token(0), one_token(250), HELLO
    async with talking(*answers, extra_body=extra) as (chat, scripted, server):
        await server.start()
        assert server.refused_fields == ("max_tokens",)
        await reply(chat)
        sent = [
            (body.get("max_tokens"), body.get("max_completion_tokens")) for body in scripted.bodies
        ]
        assert sent == [(1, 1), (None, 1), (None, 1), (None, 1), (None, 500)]


async def test_it_recovers_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "RECOVERY_S", 0.01)
    monkeypatch.setattr(api_server, "PROBE_S", 0.01)
    async with talking(one_token(0), one_token(999), HELLO) as (_, scripted, server):
        scripted.is_down = True
        await server.start()
        assert server.problem == "the model server broke the connection off"
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(server.watch())
            scripted.is_down = False
            await until(lambda: server.problem is None)
            assert server.caches_prefix, "measured as soon as it answers"
            scripted.is_down = True
            await until(lambda: server.problem is not None)
            scripted.is_down = False
            await until(lambda: server.problem is None)
            watching.cancel()


async def test_the_key_is_sent_and_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    secrets = "sk-very-secret", "tenant-secret"
    told = f"key {secrets[0]} and {secrets[1]} have no access"
    options: dict[str, Any] = {"key": secrets[0], "headers": {"x-tenant": secrets[1]}}
    with caplog.at_level(logging.DEBUG):
        async with talking(error(418, told), **options) as (chat, scripted, server):
            caught = await failure(chat)
            assert "authorization: bearer sk-very-secret" in scripted.heads[0].lower()
            assert f"x-tenant: {secrets[1]}" in scripted.heads[0].lower()
            assert server.problem == (
                "the model server answers with status 418: key *** and *** have no access"
            )
            shown = f"{caught!r} {caught.__cause__!r} {server.problem} {caplog.text}"
            assert "secret" not in shown


async def test_fields_of_the_operator_go_with_every_request() -> None:
    """Words that are sent ahead as well: with another `cache_salt` they would be computed in
    vain."""
    salt = {"cache_salt": "b2Zmc2V0", "chat_template_kwargs": {"enable_thinking": False}}
    extra = {**salt, "temperature": 0.3, "model": "x"}
    async with talking(one_token(0), HELLO, extra_body=extra) as (chat, scripted, server):
        server.caches_prefix = True
        await chat.take_back()
        await chat.preview("Hi")
        await chat.commit(HI)
        await reply(chat)
        for body in scripted.bodies:
            assert {name: body[name] for name in salt} == salt
            assert (body["temperature"], body["model"]) == (0.3, "tiny")
        assert [body["max_tokens"] for body in scripted.bodies] == [1, 32]
