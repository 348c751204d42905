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
    assert fields.fitted(body) == body
    assert fields.note_refusal(reason, body) == name
    assert fields.refused == (name,)
    assert fields.fitted(body) == {"messages": body["messages"], "n": 1, **fitted}
    assert fields.note_refusal(reason, fields.fitted(body)) is None, "it was not sent this time"


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
    ],
)
def test_what_a_reply_needs_stays(reason: str, sent: dict[str, Any]) -> None:
    fields = OptionalFields()
    body = {"messages": [], **sent}
    assert fields.note_refusal(reason, body) is None
    assert fields.fitted(body) == body


def test_a_request_that_was_sent_before_the_refusal_goes_again_as_well() -> None:
    fields = OptionalFields()
    sent = {"seed": 7}
    reason = "seed: Extra inputs are not permitted"
    assert [fields.note_refusal(reason, sent) for _ in range(2)] == ["seed", "seed"]
    assert fields.refused == ("seed",)
