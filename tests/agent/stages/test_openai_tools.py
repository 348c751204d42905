"""Tools and response formats of requests: those of real clients, and malformed ones."""

import contextlib
import json
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.http.openai.chat_request import ChatRequest, parse_chat_request
from agent.http.openai.chat_response import Completion
from agent.stages.tool_call_adapter import ToolLimits
from latency_budget.account.turn import TurnId
from llm_engine.chat.call_reader import CallReader
from llm_engine.chat.template import ChatMessage
from llm_engine.chat.tool_calls import HERMES, LLAMA, CallingMessage, Tool, ToolCall, ToolUse
from llm_engine.config import SamplingParams
from llm_engine.core.output import FinishReason, TokenChunk, Usage
from llm_engine.errors import RequestError
from llm_engine.structured_output.grammar import Grammar

HELLO = [{"role": "user", "content": "Hello!"}]
DEFAULTS = SamplingParams(max_tokens=64, repetition_penalty=1.1)
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def function(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


CALLED = {"type": "function", "function": {"name": "clock", "arguments": "{}"}}
TOOLS = [function("weather", description="Weather.", parameters=CITY), function("clock")]


def parsed(**fields: Any) -> ChatRequest:
    return parse_chat_request({"messages": HELLO, **fields}, DEFAULTS)


def test_what_may_be_called() -> None:
    assert parsed().tools is None
    assert parsed(tools=[], tool_choice="auto").tools is None
    none = parsed(tools=TOOLS, tool_choice="none").tools
    assert none is not None
    assert (len(none.shown), none.callable, none.must_call) == (2, (), False)
    auto = parsed(tools=TOOLS).tools
    assert auto is not None
    assert [tool.name for tool in auto.callable] == ["weather", "clock"]
    assert (auto.must_call, auto.in_parallel) == (False, True)
    assert json.loads(auto.shown[0].definition) == TOOLS[0]
    required = parsed(tools=TOOLS, tool_choice="required", parallel_tool_calls=False).tools
    assert required is not None
    assert (required.must_call, required.in_parallel) == (True, False)
    named = parsed(tools=TOOLS, tool_choice=function("clock")).tools
    assert named is not None
    assert [tool.name for tool in named.callable] == ["clock"]
    assert len(named.shown) == 2
    assert (named.must_call, named.in_parallel) == (True, False)


def test_listed_arguments_are_the_only_ones() -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "place": {"type": "object", "properties": {"city": {"type": "string"}}},
            "guests": {"type": "array", "items": CITY},
            "notes": {"type": "object", "properties": {}, "additionalProperties": True},
            "when": {"anyOf": [{"properties": {"day": {"type": "string"}}}, {"type": "null"}]},
            "both": {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
        },
    }
    tools = parsed(tools=[function("book", parameters=schema)]).tools
    assert tools is not None
    (tool,) = tools.callable
    closed = json.loads(tool.parameters.text)
    inner = closed["properties"]
    assert closed["additionalProperties"] is False
    assert inner["place"]["additionalProperties"] is False
    assert inner["guests"]["items"]["additionalProperties"] is False
    assert inner["notes"]["additionalProperties"] is True
    assert inner["when"]["anyOf"][0]["additionalProperties"] is False
    assert inner["both"] == schema["properties"]["both"]
    assert json.loads(tool.definition)["function"]["parameters"] == schema, "as the model sees it"


def test_a_model_may_call_no_more_than_its_limits() -> None:
    called = {"role": "assistant", "tool_calls": [{"id": "1", **CALLED}]}
    result = {"role": "tool", "tool_call_id": "1", "content": "{}"}
    limits = ToolLimits(in_parallel=False, max_rounds=1)

    def limited(*more: dict[str, Any], **fields: Any) -> ToolUse:
        use = parsed(tools=TOOLS, **fields, messages=[*HELLO, *more]).limited(limits).tools
        assert use is not None
        return use

    first = limited()
    assert (len(first.callable), first.in_parallel) == (2, False)
    after = limited(called, result)
    assert (after.callable, len(after.shown)) == ((), 2)
    assert len(limited(called, result, *HELLO).callable) == 2, "other words of the caller"
    assert len(limited(called, result, tool_choice="required").callable) == 2
    assert parsed().limited(limits) == parsed()


def test_calls_in_the_history() -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "clock", "arguments": ""}}]
    request = parsed(
        messages=[
            *HELLO,
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "c1", "content": ""},
            {"role": "assistant", "content": "Noon.", "tool_calls": []},
            *HELLO,
        ]
    )
    assert request.messages[1:4] == (
        CallingMessage("", (ToolCall("clock", "{}"),)),
        ChatMessage("tool", ""),
        ChatMessage("assistant", "Noon."),
    )


def test_what_penalizes_repetition_leaves_json_alone() -> None:
    plain, forms = {"type": "text"}, {"type": "json_object"}
    assert parsed(response_format=plain, tools=TOOLS).sampling.repetition_penalty == 1.1
    assert parsed(response_format=forms).sampling.repetition_penalty == 1.0
    assert parsed(tools=TOOLS, tool_choice="required").sampling.repetition_penalty == 1.0
    asked = parsed(response_format=forms, repetition_penalty=1.2)
    assert asked.sampling.repetition_penalty == 1.2


def grammar_of(request: ChatRequest) -> Grammar | None:
    _, _, sampling = request.prompt(HERMES)
    return sampling.grammar


def test_equal_requests_have_equal_grammars() -> None:
    assert grammar_of(parsed()) is None
    for fields in ({"tools": TOOLS}, {"response_format": {"type": "json_object"}}):
        grammar = grammar_of(parsed(**fields))
        assert grammar is not None
        assert grammar == grammar_of(parsed(**fields))
        assert hash(grammar) == hash(grammar_of(parsed(**fields)))
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": CITY, "strict": True}}
    assert grammar_of(parsed(response_format=schema)) == Grammar.json(
        CITY, "response_format.json_schema.schema"
    )


RESULT = {"role": "tool", "tool_call_id": "c9", "content": "x"}


def called(**call: Any) -> dict[str, Any]:
    whole = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}, **call}
    return {"messages": [*HELLO, {"role": "assistant", "tool_calls": [whole]}]}


def form(schema: object) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}


def needing(required: object, properties: object) -> dict[str, Any]:
    return function("f", parameters={"properties": properties, "required": required})


REFUSED: dict[str, dict[str, Any]] = {
    "tools: must be a list": {"tools": {"a": 1}},
    "tools: has 129": {"tools": [function(f"f{index}") for index in range(129)]},
    "tools: have more than 262144 characters together, counted to tools[2]": {
        "tools": [function(f"f{index}", description="x" * 100_000) for index in range(5)]
    },
    "tools[0]: must be of type function": {"tools": [{"type": "custom", "custom": {}}]},
    "tools[1]: must be of type function": {"tools": [function("f"), 5]},
    "tools[0].function.name: must be 1 to 64": {"tools": [function("a b")]},
    "tools[1].function.name: 'f' is": {"tools": [function("f"), function("f")]},
    "tools[0].function.description: must": {"tools": [function("f", description=5)]},
    "tools[0].function.strict: must": {"tools": [function("f", strict="yes")]},
    "tools[0].function.parameters: must be a": {"tools": [function("f", parameters=[])]},
    "tools[0].function.parameters: must describe": {
        "tools": [function("f", parameters={"type": "string"})]
    },
    "tools[1].function.parameters: can't be met": {
        "tools": [
            function("f"),
            function("g", parameters={"properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
        ]
    },
    "tools[0].function.parameters.required: must be a list": {
        "tools": [needing("a", {"a": {"type": "string"}})]
    },
    "tools[1].function.parameters.required: must be a list of names": {
        "tools": [function("g"), needing(["a", 5], {"a": {"type": "string"}})]
    },
    "tools[0].function.parameters.required: 'b' is not among the properties": {
        "tools": [needing(["a", "b"], {"a": {"type": "string"}})]
    },
    "tools[0].function.parameters.required: 'a' is not": {"tools": [needing(["a"], None)]},
    "tools[0].function.parameters.properties.a.items.required: 'b' is not": {
        "tools": [needing(["a"], {"a": {"type": "array", "items": {"required": ["b"]}}})]
    },
    "parallel_tool_calls: must be": {"tools": TOOLS, "parallel_tool_calls": 1},
    "tool_choice: there are no tools": {"tool_choice": "required"},
    "tool_choice: 'nothing' is not": {"tools": TOOLS, "tool_choice": function("nothing")},
    "tool_choice: must be none": {"tools": TOOLS, "tool_choice": "any"},
    "tool_choice: must be none, auto": {"tools": TOOLS, "tool_choice": ["auto"]},
    "response_format: type must be": {"response_format": {"type": "grammar"}},
    "response_format: type must be text": {"response_format": "json"},
    "response_format.json_schema: must be": {"response_format": {"type": "json_schema"}},
    "response_format.json_schema.schema: must be a": form(None),
    "response_format.json_schema.schema: can't be met": form({"allOf": [{"$ref": "#"}]}),
    "response_format.json_schema.schema: has 12": form({"enum": ["x" * 120_000]}),
    "messages[1].tool_call_id: must name a call": {"messages": [*HELLO, RESULT]},
    "messages[1].tool_call_id: must name a call of": {  # found by fuzzing: status 500
        "messages": [*HELLO, {**RESULT, "tool_call_id": {}}]
    },
    "messages[0].tool_calls: must be a list": {
        "messages": [{"role": "user", "content": "x", "tool_calls": [1]}]
    },
    "messages[1].tool_calls[0].function: must": called(function=None),
    "messages[1].tool_calls[0].id: must": called(id=None),
    "messages[1].tool_calls[0].function.name: must": called(
        function={"name": "<x>", "arguments": "{}"}
    ),
    "messages[1].tool_calls[0].function.arguments: must": called(
        function={"name": "f", "arguments": {}}
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused_names_the_field(message: str) -> None:
    with pytest.raises(RequestError) as caught:
        parsed(**REFUSED[message])
    assert str(caught.value).startswith(message)
    assert caught.value.field == message.partition(":")[0]


def test_properties_of_other_parts_of_a_schema_may_be_required() -> None:
    parts = {"allOf": [{"properties": {"a": {"type": "string"}}}], "required": ["a"]}
    assert parsed(tools=[function("f", parameters=parts)]).tools is not None
    assert parsed(tools=[needing([], {})]).tools is not None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "function", "name", "parameters", "$ref", "properties", "required", "id"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
FIELDS = st.sampled_from(["tools", "tool_choice", "response_format", "parallel_tool_calls"])


@given(st.dictionaries(FIELDS, JSON, max_size=4), JSON)
def test_nothing_but_request_errors(fields: dict[str, Any], calls: Any) -> None:
    with contextlib.suppress(RequestError):
        parsed(**fields)
    with contextlib.suppress(RequestError):
        parsed(messages=[*HELLO, {"role": "assistant", "tool_calls": calls}])
    with contextlib.suppress(RequestError):
        parsed(tools=[function("f", parameters=calls)], response_format=fields)


def completion() -> Completion:
    use = parsed(tools=TOOLS).tools
    assert use is not None
    return Completion("chatcmpl-7", 1, "smol", CallReader(HERMES, use.callable))


def reply(text: str, size: int, reason: FinishReason) -> list[TokenChunk]:
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    chunks = [TokenChunk(TurnId(0), 0, piece, ()) for piece in pieces]
    return [*chunks, TokenChunk(TurnId(0), 0, "", (), reason, Usage(9, 0, 9))]


CALLS = (ToolCall("weather", '{"city": "Paris"}'), ToolCall("clock", "{}"))


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("words", ["", "Let me see."])
def test_calls_streamed_and_whole(size: int, words: str) -> None:
    text = HERMES.written(CallingMessage(words, CALLS)).text
    chunks = reply(text, size, FinishReason.STOP)
    writer = completion()
    pieces = [piece["choices"][0] for chunk in chunks for piece in writer.pieces(chunk)]
    assert [piece["finish_reason"] for piece in pieces] == [None] * (len(pieces) - 1) + [
        "tool_calls"
    ]
    deltas = [piece["delta"] for piece in pieces]
    assert deltas[0]["role"] == "assistant"
    assert not any("role" in delta for delta in deltas[1:])
    assert "".join(delta.get("content") or "" for delta in deltas) == words
    calls: list[dict[str, Any]] = []
    for delta in chain.from_iterable(each.get("tool_calls", ()) for each in deltas):
        if delta["index"] == len(calls):
            assert delta["type"] == "function"
            assert delta["function"]["arguments"] == ""
            calls.append(json.loads(json.dumps(delta)))
        else:
            assert delta["index"] == len(calls) - 1
            calls[-1]["function"]["arguments"] += delta["function"]["arguments"]
    whole = completion().whole(chunks)["choices"][0]
    assert whole["finish_reason"] == "tool_calls"
    assert whole["message"]["content"] == (words or None)
    for call in calls:
        del call["index"]
    assert whole["message"]["tool_calls"] == calls
    assert [(each["function"]["name"], each["function"]["arguments"]) for each in calls] == [
        (call.name, call.arguments) for call in CALLS
    ]
    assert len({call["id"] for call in calls}) == 2


@pytest.mark.parametrize(
    ("cut", "engine_says", "told"),
    [
        (len('<tool_call>\n{"name": "wea'), FinishReason.LENGTH, "length"),
        (len('<tool_call>\n{"name": "weather", "arguments": {"ci'), FinishReason.LENGTH, "length"),
        (len('<tool_call>\n{"name": "weather", "arguments": {"ci'), FinishReason.STOP, "stop"),
    ],
)
def test_a_call_that_was_cut_off(cut: int, engine_says: FinishReason, told: str) -> None:
    text = HERMES.written(CallingMessage("", CALLS)).text[:cut]
    assert completion().whole(reply(text, 3, engine_says))["choices"][0]["finish_reason"] == told


def test_one_form_of_calls_takes_one_at_a_time() -> None:
    use = parsed(tools=TOOLS).tools
    assert use is not None
    assert all(isinstance(tool, Tool) for tool in use.callable)
    assert "{0," in HERMES.grammar(use).lark
    assert "{0," not in LLAMA.grammar(use).lark
