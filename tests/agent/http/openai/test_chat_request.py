"""Chat completion requests: those of real clients, and malformed ones."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.http.openai.chat_request import parse_chat_request
from agent.http.openai.chat_response import Completion
from agent.http.refusal import error_body
from latency_budget.account.turn import TurnId
from llm_engine.chat.template import ChatMessage
from llm_engine.config import SamplingParams
from llm_engine.core.output import FinishReason, TokenChunk, Usage
from llm_engine.errors import RequestError

HELLO = [{"role": "user", "content": "Hello!"}]
DEFAULTS = SamplingParams(max_tokens=64, repetition_penalty=1.1)


def sampling(**fields: Any) -> SamplingParams:
    return parse_chat_request({"messages": HELLO, **fields}, DEFAULTS).sampling


def test_roles_and_parts() -> None:
    request = parse_chat_request(
        {
            "model": "anything",
            "messages": [
                {"role": "developer", "content": "Be brief."},
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                },
                {"role": "assistant", "content": None},
                {"role": "assistant", "content": "Yes."},
                {"role": "user", "name": "Ann", "content": "c"},
            ],
            "stream": True,
            "stream_options": {"include_usage": True},
            "user": "x",
            "some_new_field": 1,
        },
        DEFAULTS,
    )
    assert request.messages == (
        ChatMessage("system", "Be brief."),
        ChatMessage("user", "ab"),
        ChatMessage("assistant", "Yes."),
        ChatMessage("user", "c"),
    )
    assert (request.model, request.stream, request.include_usage) == ("anything", True, True)
    assert request.sampling == DEFAULTS


def test_sampling_fields() -> None:
    assert sampling(temperature=1, top_p=1, stop="x", seed=-1, max_tokens=5) == SamplingParams(
        temperature=1.0,
        top_p=1.0,
        repetition_penalty=1.1,
        seed=(1 << 63) - 1,
        stop=("x",),
        max_tokens=5,
    )
    assert sampling(max_tokens=5, max_completion_tokens=7).max_tokens == 7
    assert sampling(stop=["a", "b"], min_tokens=3, ignore_eos=True, top_k=4).stop == ("a", "b")


REFUSED: dict[str, dict[str, Any]] = {
    "temperature: must be a number in [0, 2], not 3": {"temperature": 3},
    "temperature: must be a number in [0, 2], not 'hot'": {"temperature": "hot"},
    "max_tokens: must be a whole number": {"max_tokens": 0},
    "max_tokens: must be a whole number from 1 to 16777216, not -5": {"max_completion_tokens": -5},
    "top_p: must": {"top_p": float("nan")},
    "seed: must": {"seed": 1.5},
    "stop: must be a string or a list": {"stop": 5},
    "stop: must be a sequence of strings": {"stop": [5]},
    "stop: takes at most": {"stop": ["x"] * 50},
    "ignore_eos: must be true or false": {"ignore_eos": "yes"},
    "stream: must be true or false": {"stream": 1},
    "n: 2 is not supported": {"n": 2},
    "presence_penalty: 0.5 is not": {"presence_penalty": 0.5},
    "functions: [{'name': 'f'}] is not": {"functions": [{"name": "f"}]},
    "messages: must be a list": {"messages": "Hello"},
    "messages: must be a list with at least one": {"messages": []},
    "messages: has 5000": {"messages": HELLO * 5000},
    "messages[0]: must be an object": {"messages": ["Hello"]},
    "messages[0].role: must be one of": {"messages": [{"role": "caller", "content": "x"}]},
    "messages[0].role: must": {"messages": [{"role": ["user"], "content": "x"}]},
    "messages[0].content: is empty": {"messages": [{"role": "user", "content": " "}]},
    "messages[0].content: must be a string": {"messages": [{"role": "user", "content": 5}]},
    "messages[0].content[0]: only parts of type text": {
        "messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
        ]
    },
    "model: must be a string": {"model": 5},
    "stream_options: must be an object": {"stream_options": "x"},
    "chat_template_kwargs: must be an object": {"chat_template_kwargs": True},
    "chat_template_kwargs: 'tools' is not supported": {"chat_template_kwargs": {"tools": []}},
    "chat_template_kwargs.enable_thinking: must be": {
        "chat_template_kwargs": {"enable_thinking": "no"}
    },
    "chat_template_kwargs: chat_template_kwargs.thinking and enable_thinking contradict": {
        "chat_template_kwargs": {"thinking": True},
        "enable_thinking": False,
    },
}


@pytest.mark.parametrize(
    ("fields", "thinks"),
    [
        ({}, None),
        ({"chat_template_kwargs": None, "enable_thinking": None}, None),
        ({"chat_template_kwargs": {"enable_thinking": None}}, None),
        ({"chat_template_kwargs": {"enable_thinking": True}}, True),
        ({"chat_template_kwargs": {"thinking": False}, "enable_thinking": False}, False),
        ({"enable_thinking": True}, True),
    ],
)
def test_the_switch_of_thoughts(fields: dict[str, Any], thinks: bool | None) -> None:
    assert parse_chat_request({"messages": HELLO, **fields}, DEFAULTS).thinks is thinks


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("<think>Hm.</think>\n\nHi!", "Hi!"),
        ("\n<think>\n\n</think>\n\nHi!", "Hi!"),
        ("[THINK]Hm.[/THINK]Hi!", "Hi!"),
        ("Hm.\n</think>\n\nHi!", "Hi!"),
        ("Hm.[/THINK]Hi!", "Hi!"),
        ("<think>Hm.</think>Write `<think>` and `</think>`.", "Write `<think>` and `</think>`."),
        ("Use the `<think>` tag in HTML", None),
        ("Between `<think>` and `</think>` it thinks.", None),
        ("`</think>` ends what `<think>` begins.", None),
        ("One. [THINK]Hm.[/THINK] Two.", None),
        ("<think>never closed", None),
        ("<think>closed by another[/THINK]", None),
        (" Hi! ", None),
    ],
)
def test_only_a_closed_thought_that_begins_an_answer_is_dropped(
    content: str, text: str | None
) -> None:
    """None: the answer stays as it is."""
    call = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": content},
        {"role": "assistant", "content": content, "reasoning_content": "Hm."},
        {"role": "assistant", "content": content, "tool_calls": [call]},
    ]
    asked, answer, calling = parse_chat_request({"messages": messages}, DEFAULTS).messages
    assert asked.text == content
    assert answer.text == calling.text == (content if text is None else text)


def test_an_answer_that_is_only_a_thought_is_left_out() -> None:
    messages = [*HELLO, {"role": "assistant", "content": "<think>Hm.</think>\n"}, *HELLO]
    parsed = parse_chat_request({"messages": messages}, DEFAULTS).messages
    assert [message.text for message in parsed] == [HELLO[0]["content"]] * 2


@pytest.mark.parametrize("message", REFUSED)
def test_refusals_name_the_field(message: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_chat_request({"messages": HELLO, **REFUSED[message]}, DEFAULTS)
    assert str(caught.value).startswith(message)
    body = error_body(caught.value, is_clients=True)["error"]
    assert body["param"] == message.partition(":")[0]
    assert body["type"] == "invalid_request_error"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ["messages", "temperature", "seed", "stop", "n", "stream", "stream_options", "tools"]
)


@given(JSON | st.dictionaries(FIELDS, JSON, max_size=4).map(lambda d: {"messages": HELLO, **d}))
def test_arbitrary_bodies_raise_only_request_errors(body: Any) -> None:
    with contextlib.suppress(RequestError):
        parse_chat_request(body, DEFAULTS)


def chunk(text: str, reason: FinishReason | None = None, usage: Usage | None = None) -> TokenChunk:
    return TokenChunk(TurnId(0), 0, text, (), reason, usage)


def test_a_streamed_answer() -> None:
    completion = Completion("chatcmpl-1", 1_700_000_000, "smol")
    frames = [
        *completion.pieces(chunk("Hel")),
        *completion.pieces(chunk("lo", FinishReason.STOP)),
        completion.usage_piece(Usage(9, 4, 2)),
    ]
    json.dumps(frames)
    assert {(f["id"], f["object"], f["model"], f["created"]) for f in frames} == {
        ("chatcmpl-1", "chat.completion.chunk", "smol", 1_700_000_000)
    }
    assert [f["choices"][0]["delta"] for f in frames[:3]] == [
        {"role": "assistant", "content": "Hel"},
        {"content": "lo"},
        {},
    ]
    assert [f["choices"][0]["finish_reason"] for f in frames[:3]] == [None, None, "stop"]
    assert frames[3]["choices"] == []
    assert frames[3]["usage"]["total_tokens"] == 11


def test_empty_answer() -> None:
    pieces = list(Completion("c-1", 1, "smol").pieces(chunk("", FinishReason.LENGTH)))
    assert [piece["choices"][0]["delta"] for piece in pieces] == [
        {"role": "assistant", "content": ""},
        {},
    ]
    assert pieces[-1]["choices"][0]["finish_reason"] == "length"


def test_thoughts_stand_beside_the_content() -> None:
    chunks = [
        TokenChunk(TurnId(0), 0, "", (), None, None, thought="The caller"),
        TokenChunk(TurnId(0), 1, "Hi", (), None, None, thought=" said hello."),
        chunk("!", FinishReason.STOP, Usage(9, 4, 6)),
    ]
    completion = Completion("c-1", 1, "smol")
    frames = [frame for each in chunks for frame in completion.pieces(each)]
    assert [frame["choices"][0]["delta"] for frame in frames] == [
        {"role": "assistant", "reasoning_content": "The caller"},
        {"reasoning_content": " said hello."},
        {"content": "Hi"},
        {"content": "!"},
        {},
    ]
    message = Completion("c-1", 1, "smol").whole(chunks)["choices"][0]["message"]
    assert message["reasoning_content"] == "The caller said hello."
    assert message["content"] == "Hi!"


def test_unstreamed_answer() -> None:
    chunks = [chunk("Hel"), chunk("lo", FinishReason.LENGTH, Usage(9, 4, 2))]
    whole = Completion("chatcmpl-1", 1, "smol").whole(chunks)
    assert whole["choices"][0]["message"]["content"] == "Hello"
    assert "tool_calls" not in whole["choices"][0]["message"]
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
