"""Requests without the fields that servers refuse. The refusals are worded as those of OpenAI,
DeepSeek, vLLM, TensorRT-LLM and llama.cpp."""

from typing import Any, Final

import pytest

from agent.stages.remote.optional_fields import OptionalFields

FUNCTION: Final = {"name": "weather", "parameters": {"type": "object"}}
STRICT: Final = {"type": "function", "function": {**FUNCTION, "strict": True}}
LAX: Final = {"type": "function", "function": FUNCTION}
NAMED: Final = {"type": "function", "function": {"name": "weather"}}


@pytest.mark.parametrize(
    ("reason", "name", "sent", "fitted"),
    [
        ("This response_format type is unavailable now", "response_format",
         {"response_format": {"type": "json_schema"}}, {}),
        ("The provided JSON schema contains features not supported by xgrammar.",
         "response_format", {"response_format": {"type": "json_schema"}}, {}),
        ("Invalid schema for function 'weather': 'additionalProperties' is required to be false.",
         "strict", {"tools": [STRICT]}, {"tools": [LAX]}),
        ("[{'type': 'extra_forbidden', 'loc': ('body', 'parallel_tool_calls')}]",
         "parallel_tool_calls", {"parallel_tool_calls": False}, {}),
        ("tool_choice: only auto is supported", "tool_choice",
         {"tool_choice": "required"}, {"tool_choice": "auto"}),
        ("tool_choice: only auto is supported", "tool_choice",
         {"tool_choice": NAMED}, {"tool_choice": "auto"}),
        ("stream_options: Extra inputs are not permitted", "stream_options",
         {"stream_options": {"include_usage": True}}, {}),
        ("Unsupported parameter: 'max_tokens' is not supported with this model. Use "
         "'max_completion_tokens' instead.", "max_tokens",
         {"max_tokens": 32}, {"max_completion_tokens": 32}),
        ("Unsupported value: 'temperature' does not support 0.0 with this model.", "temperature",
         {"temperature": 0.0}, {}),
    ],
)  # fmt: skip
def test_a_field_that_is_refused_is_given_up(
    reason: str, name: str, sent: dict[str, Any], fitted: dict[str, Any]
) -> None:
    fields = OptionalFields()
    body = {"messages": [{"role": "user", "content": "Hi"}], "n": 1, **sent}
    request = fields.request(body)
    assert request.body == body
    assert request.give_up(reason) == name
    assert request.body == {"messages": body["messages"], "n": 1, **fitted}
    assert request.give_up(reason) is None, "it was not sent this time"
    assert body.items() >= sent.items(), "the caller's own is left as it was"


@pytest.mark.parametrize(
    ("reason", "sent"),
    [
        ("This model's maximum context length is 512 tokens.", {"max_tokens": 32}),
        ("'max_tokens' or 'max_completion_tokens' is too large: 4096.", {"max_tokens": 4096}),
        ("temperature must be at most 2", {"temperature": 3.0}),
        ("tools are not supported by this model", {"tools": [LAX], "tool_choice": "auto"}),
        ("tool_choice: none is not supported", {"tool_choice": "none"}),
        ("strict is not supported", {"tools": [LAX]}),
        ("response_format is not supported", {}),
        ("[{'loc': ('body',), 'msg': 'bad', 'input': {'seed': 7}}]", {"seed": 7}),
    ],
)
def test_what_a_reply_needs_stays(reason: str, sent: dict[str, Any]) -> None:
    body = {"messages": [], **sent}
    request = OptionalFields().request(body)
    assert request.give_up(reason) is None
    assert request.body == body


# --- what is remembered ---

SEED_UNKNOWN: Final = "seed: Extra inputs are not permitted"


def test_later_requests_do_without_a_field_once_one_was_accepted_without_it() -> None:
    fields = OptionalFields()
    request = fields.request({"seed": 7})
    assert request.give_up(SEED_UNKNOWN) == "seed"
    assert (fields.refused, fields.request({"seed": 7}).body) == ((), {"seed": 7})
    assert request.accepted() == ("seed",)
    assert (fields.refused, fields.request({"seed": 7}).body) == (("seed",), {})
    assert request.accepted() == (), "noted already"


def test_a_request_that_was_sent_before_the_refusal_goes_again_as_well() -> None:
    fields = OptionalFields()
    requests = [fields.request({"seed": 7}) for _ in range(2)]
    assert [request.give_up(SEED_UNKNOWN) for request in requests] == ["seed", "seed"]
    assert [request.accepted() for request in requests] == [("seed",), ()]
    assert fields.refused == ("seed",)


def test_a_field_that_did_not_change_the_refusal_was_not_its_cause() -> None:
    fields = OptionalFields()
    request = fields.request({"response_format": {}, "tools": [STRICT]})
    reason = "failed to parse grammar (strict: true)"
    assert [request.give_up(reason) for _ in range(3)] == ["response_format", "strict", None]
    assert request.accepted() == ()
    assert fields.refused == ()


def test_the_field_that_a_refusal_names_first_is_at_fault() -> None:
    request = OptionalFields().request({"response_format": {}, "seed": 7})
    reason = "[{'loc': ('body', 'seed'), 'msg': 'Extra', 'input': {'response_format': {}}}]"
    assert request.give_up(reason) == "seed"
    assert request.body == {"response_format": {}}


OF_A_VALUE: Final = {
    "strict": (
        "Invalid schema for function 'weather': 'additionalProperties' is required to be false.",
        "strict: unsupported type in the schema",
        "strict: must be false",
    ),
    "tool_choice": (
        "Tool choice 'wether' in tool_choice not found in 'tools' parameter.",
        "tool_choice: unknown function 'wether'",
        "unknown name 'wether' in tool_choice",
        "tool_choice: only auto is supported",
        "Unsupported value: 'tool_choice' does not support 'required' with this model.",
    ),
}
OF_THE_FIELD: Final = {
    "strict": (
        "tools.0.function.strict: Extra inputs are not permitted",
        "Unknown parameter: 'tools[0].function.strict'.",
        "Unknown name \"strict\" at 'tools[0].function': Cannot find field.",
        "strict is not supported by this model",
    ),
    "tool_choice": (
        "[{'type': 'extra_forbidden', 'loc': ('body', 'tool_choice')}]",
        "Unrecognized request argument supplied: tool_choice",
        "unknown field `tool_choice`, expected one of `model`",
        "tool_choice is unsupported",
    ),
}


@pytest.mark.parametrize(
    ("name", "reason", "is_remembered"),
    [
        (name, reason, said is OF_THE_FIELD)
        for said in (OF_A_VALUE, OF_THE_FIELD)
        for name, reasons in said.items()
        for reason in reasons
    ],
)
def test_what_clients_choose_is_given_up_for_good_only_where_the_server_does_not_know_it(
    name: str, reason: str, *, is_remembered: bool
) -> None:
    fields = OptionalFields()
    request = fields.request({"tools": [STRICT], "tool_choice": NAMED})
    assert request.give_up(reason) == name
    assert request.accepted() == ((name,) if is_remembered else ())
    assert fields.refused == ((name,) if is_remembered else ())


def test_a_limit_of_the_operator_holds() -> None:
    request = OptionalFields().request({"max_tokens": 32, "max_completion_tokens": 500})
    reason = "Setting 'max_tokens' and 'max_completion_tokens' at once is not supported."
    assert request.give_up(reason) == "max_tokens"
    assert request.body == {"max_completion_tokens": 500}
