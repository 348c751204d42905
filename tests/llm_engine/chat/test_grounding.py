"""Arguments of tool calls are narrowed to what the conversation grounds."""

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.stages.openai_tools import parse_tools
from llm_engine.chat.grounding import MAX_CHARS, MAX_MESSAGES, MAX_VALUES, Ground, grounded
from llm_engine.chat.template import ChatMessage, Role
from llm_engine.chat.tool_calls import (
    HERMES,
    LLAMA,
    REPLY_TOOL,
    CallingMessage,
    Dialect,
    ToolCall,
    ToolUse,
)

TODAY = "Today is Wednesday, 2026-03-11."


def use_of(properties: dict[str, Any], required: list[str] | None = None, **more: Any) -> ToolUse:
    needed = list(properties) if required is None else required
    schema = {"type": "object", "properties": properties, "required": needed}
    tool = {"name": "do_it", "parameters": schema}
    use = parse_tools({"tools": [{"type": "function", "function": tool}], **more})
    assert use is not None
    return use


def values(schema: dict[str, Any], *said: str, name: str = "argument") -> Any:
    """Values that a required argument may have; None where the tool can't be called."""
    ground = Ground.of([ChatMessage("user", text) for text in said], TODAY)
    found = grounded(use_of({name: schema}), ground)
    if found.lacking:
        assert not found.callable
        return None
    (tool,) = found.callable
    return json.loads(tool.parameters.text)["properties"][name].get("enum")


STRING = {"type": "string"}
PHONE = {"type": "string", "description": "phone number, digits only"}


@pytest.mark.parametrize(
    ("schema", "said", "expected"),
    [
        ({"type": "integer"}, "for four people at eight", [4]),
        ({"type": "integer"}, "at eight", None),
        ({"type": "integer", "maximum": 10}, "twelve or three", [3]),
        ({"type": "integer"}, "two and a half", [2]),
        ({"type": "number"}, "two and a half", [2.5, 2]),
        ({"type": "string", "format": "time"}, "half past six in the evening", ["18:30:00"]),
        ({"type": "string", "pattern": "^[0-2]?[0-9]:[0-5][0-9]$"}, "at 8 pm", ["20:00"]),
        ({"type": "string", "description": "24-hour time, HH:MM"}, "at 8 pm", ["20:00"]),
        ({"type": "string", "description": "like 7:30 PM"}, "at 8 pm", None),
        ({"type": "string", "description": "HH:MM"}, "on Friday", None),
        ({"type": "string", "format": "date"}, "tomorrow", ["2026-03-12"]),
        ({"type": "string", "description": "day, YYYY-MM-DD"}, "tomorrow", ["2026-03-12"]),
        ({"type": "string", "format": "date"}, "at noon", None),
        ({"type": "string", "format": "date-time"}, "tomorrow at noon", ["2026-03-12T12:00:00"]),
        ({"type": "string", "pattern": "^[0-9]{4}$"}, "four four seven one", ["4471"]),
        ({"type": "string", "pattern": "^[0-9]{4}$"}, "four four seven", None),
        ({"type": "string", "description": "last four digits"}, "card 12344471", ["4471"]),
        ({"type": "string", "description": "last 0 digits"}, "card 4471", ["4471"]),
        (PHONE, "555 7340", ["5557340"]),
        (PHONE, "call me back", None),
        ({"type": "string", "description": "flight number"}, "it's LH442", ["LH442"]),
        ({"enum": ["Monday", "Friday"]}, "on friday", ["Friday"]),
        ({"enum": ["Monday", "Friday"]}, "at noon", None),
        ({"enum": ["red", "blue"]}, "at noon", ["red", "blue"]),
        (
            {"type": "string", "description": "name of the guest"},
            "It's for Ada Brook.",
            ["Ada", "Ada Brook", "Brook"],
        ),
        ({"type": "string", "description": "name of the guest"}, "I'd like a room", None),
        ({"type": "string", "maxLength": 3}, "Rome", None),
        (STRING, "I'd like to, um, you know", None),
    ],
)
def test_values(schema: dict[str, Any], said: str, expected: Any) -> None:
    assert values(schema, said) == expected


DATE = {"type": "string", "format": "date"}
TIME = {"type": "string", "description": "HH:MM"}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "integer"}, "two more, so four"),
        (DATE, "last Monday"),
        (DATE, "at the end of the month"),
        (TIME, "an hour before noon"),
        ({"type": "string", "format": "date-time"}, "last Monday at noon"),
        ({"type": "string", "format": "date-time"}, "tomorrow, an hour before noon"),
        ({"enum": ["Monday", "Friday"]}, "any day but Monday"),
        ({"type": "string", "description": "flight number"}, "it's LH 442"),
    ],
)
def test_an_argument_named_in_words_not_understood_is_left_to_the_model(
    schema: dict[str, Any], said: str
) -> None:
    use = use_of({"argument": schema})
    ground = Ground.of([ChatMessage("user", said), ChatMessage("user", "Yes.")], TODAY)
    (tool,) = grounded(use, ground).callable
    assert json.loads(tool.parameters.text)["properties"]["argument"] == schema


def test_words_not_understood_some_turns_ago_leave_no_argument_to_the_model() -> None:
    said = ("The whole weekend it was off.", "OK.", "Please send a technician.")
    ground = Ground.of([ChatMessage("user", each) for each in said], TODAY)
    use = grounded(use_of({"day": DATE}), ground)
    assert use.callable == ()
    assert len(use.lacking) == 1


def test_more_questions_leave_no_number_to_the_model() -> None:
    said = "I had two more questions. Book a table for four."
    assert values({"type": "integer", "description": "guests"}, said) == [2, 4]


def test_prose_in_a_result_leaves_no_argument_to_the_model() -> None:
    messages = [ChatMessage("tool", "Closed last Monday."), ChatMessage("user", "Tomorrow.")]
    (tool,) = grounded(use_of({"day": DATE}), Ground.of(messages, TODAY)).callable
    found = json.loads(tool.parameters.text)["properties"]["day"]["enum"]
    assert "2026-03-12" in found


@pytest.mark.parametrize(
    ("description", "expected"),
    [("seconds", [2, 120, 7200]), ("how long, in minutes", [2, 120]), ("guests", [2, 120])],
)
def test_lengths_of_time_are_also_counted_in_seconds(description: str, expected: Any) -> None:
    assert values({"type": "integer", "description": description}, "two hours") == expected


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("I want to go to Rome.", "Rome"),
        ("Please put olive oil on it.", "olive oil"),
        ("Take me to the train station.", "train station"),
        ("From 14 Station Road to the airport.", "14 Station Road"),
        ("Send it to Mr. Brook, please.", "Mr. Brook"),
        ("to 5 Hill Road, Leeds", "5 Hill Road, Leeds"),
    ],
)
def test_a_string_is_copied_from_the_callers_words(said: str, value: str) -> None:
    assert value in values(STRING, said)


def test_a_text_may_be_a_whole_sentence() -> None:
    said = "It makes a loud noise and then it stops all by itself. Bye."
    sentence = said.removesuffix(". Bye.")
    assert sentence in values(STRING, said, name="problem")
    assert sentence not in values(STRING, said, name="place")


def test_a_name_in_lower_case_is_taken_where_the_recognizer_writes_no_capitals() -> None:
    schema = {"type": "string", "description": "name of the guest"}
    assert "novak" in values(schema, "a room for novak")


def test_words_of_the_tool_are_no_value() -> None:
    assert values(STRING, "a table", name="table") is None


def test_earlier_messages_and_results_ground() -> None:
    call = CallingMessage("", (ToolCall("find", "{}"),))
    messages: list[ChatMessage | CallingMessage] = [
        ChatMessage("user", "For three."),
        call,
        ChatMessage("tool", '[{"id": "T2", "seats": 6}]'),
        ChatMessage("user", "That one."),
    ]
    use = use_of({"count": {"type": "integer"}, "booking": STRING})
    (tool,) = grounded(use, Ground.of(messages, "")).callable
    properties = json.loads(tool.parameters.text)["properties"]
    assert properties["count"]["enum"] == [3, 6]
    assert "T2" in properties["booking"]["enum"]


def test_a_time_that_the_agent_offered_grounds_but_not_its_names() -> None:
    messages = [ChatMessage("assistant", "Is 19:30 fine, Mr. Doe?"), ChatMessage("user", "Yes.")]
    ground = Ground.of(messages, "")
    use = use_of({"time": {"type": "string", "description": "HH:MM"}})
    (tool,) = grounded(use, ground).callable
    assert json.loads(tool.parameters.text)["properties"]["time"]["enum"] == ["19:30"]
    assert grounded(use_of({"name": STRING}), ground).lacking


@pytest.mark.parametrize("dialect", [HERMES, LLAMA])
@pytest.mark.parametrize(
    "arguments", ['{"words": "WORDS"}', '{"result": "WORDS"}', '{"words": "WORDS']
)
def test_a_time_that_a_reply_by_call_offered_grounds(dialect: Dialect, arguments: str) -> None:
    """The last one was cut to what the caller heard."""
    offer = "Half past six is free for 4"
    call = ToolCall(REPLY_TOOL.name, arguments.replace("WORDS", offer))
    reply = dialect.written(CallingMessage("", (call,))).text
    heard = reply[: reply.index(offer) + len(offer)] if arguments[-1] != "}" else reply
    question = dialect.written(
        CallingMessage("", (ToolCall("do_it", '{"ask_caller": "At 7:15 then?"}'),))
    )
    other = dialect.written(CallingMessage("", (ToolCall("do_it", '{"words": "at 9:15"}'),)))
    for text, time in ((heard, 18 * 60 + 30), (question.text, 19 * 60 + 15)):
        messages = [ChatMessage("assistant", text), ChatMessage("user", "yes, in the evening")]
        assert time in Ground.of(messages, TODAY).values.times
        assert not Ground.of([ChatMessage("assistant", text)], TODAY).said
    assert not Ground.of([other], TODAY).values.times


def test_what_was_said_long_ago_no_longer_grounds() -> None:
    use = use_of({"count": {"type": "integer"}})
    later = [ChatMessage("user", "Go on.")] * MAX_MESSAGES
    messages = [ChatMessage("system", ""), ChatMessage("user", "For three.")]
    assert grounded(use, Ground.of([*messages, *later[1:]], "")).callable
    assert grounded(use, Ground.of([*messages, *later], "")).lacking
    assert grounded(use, Ground.of([ChatMessage("user", "3 " + MAX_CHARS * ".")], "")).lacking


def test_an_account_in_the_instructions_grounds_and_todays_date_does_not() -> None:
    use = use_of({"account": {"type": "string", "description": "account number"}})
    ground = Ground.of([ChatMessage("user", "My balance?")], f"{TODAY} Their account is 774120.")
    (tool,) = grounded(use, ground).callable
    assert json.loads(tool.parameters.text)["properties"]["account"]["enum"] == ["774120"]


def test_an_optional_argument_without_ground_is_left_out() -> None:
    use = use_of({"what": {"type": "boolean"}, "count": {"type": "integer"}}, ["what"])
    (tool,) = grounded(use, Ground.of([ChatMessage("user", "Do it.")], "")).callable
    assert list(json.loads(tool.parameters.text)["properties"]) == ["what"]


def test_every_copied_argument_needs_a_word_of_its_own() -> None:
    use = use_of({"pickup": STRING, "destination": STRING})
    ground = Ground.of([ChatMessage("user", "I'd like to go to the museum.")], "")
    assert [each.question for each in grounded(use, ground).lacking] == ["What is the destination"]
    ground = Ground.of([ChatMessage("user", "From the station to the museum.")], "")
    assert not grounded(use, ground).lacking


@pytest.mark.parametrize(
    ("name", "schema", "question"),
    [
        ("time", STRING, "What time"),
        ("start", {"type": "string", "format": "date-time"}, "What time"),
        ("day", {"enum": ["Monday"]}, "Which day"),
        ("people", {"type": "integer"}, "How many people"),
        ("num_seats", {"type": "integer"}, "How many seats"),
        ("amount", {"type": "number"}, "What is the amount"),
        ("phone", PHONE, "What is the phone number"),
        ("orderNumber", {"type": "string", "pattern": "^[0-9]+$"}, "What is the order number"),
    ],
)
def test_questions(name: str, schema: dict[str, Any], question: str) -> None:
    found = grounded(use_of({name: schema}), Ground.of([ChatMessage("user", "Hello.")], ""))
    assert [each.question for each in found.lacking] == [question]


def test_no_question_for_a_tool_that_the_last_message_names_less_for() -> None:
    day, time = {"enum": ["Monday", "Sunday"]}, {"type": "string", "description": "HH:MM"}
    tools: list[tuple[str, dict[str, Any]]] = [
        ("set_alarm", {"day": day, "time": time}),
        ("set_timer", {"minutes": {"type": "integer"}}),
        ("book", {"day": day, "time": time, "people": {"type": "integer"}}),
    ]
    definitions = [
        {
            "type": "function",
            "function": {
                "name": name,
                "parameters": {
                    "type": "object",
                    "properties": properties,
                    "required": list(properties),
                },
            },
        }
        for name, properties in tools
    ]
    use = parse_tools({"tools": definitions})
    assert use is not None
    found = grounded(use, Ground.of([ChatMessage("user", "On Monday at seven a.m.")], ""))
    assert [each.name for each in found.callable] == ["set_alarm"]
    assert [each.name for each in found.lacking] == ["book"]


def test_no_question_for_a_tool_where_another_is_named_a_value_in_words_not_understood() -> None:
    def tool(name: str, properties: dict[str, Any]) -> dict[str, Any]:
        schema = {"type": "object", "properties": properties, "required": list(properties)}
        return {"type": "function", "function": {"name": name, "parameters": schema}}

    day, minutes = {"enum": ["Monday", "Sunday"]}, {"type": "integer"}
    use = parse_tools({"tools": [tool("hours", {"day": day}), tool("timer", {"for": minutes})]})
    assert use is not None
    found = grounded(use, Ground.of([ChatMessage("user", "Any day but Monday.")], ""))
    assert ([each.name for each in found.callable], found.lacking) == (["hours"], ())


def test_a_demanded_call_stays_possible() -> None:
    use = use_of({"count": {"type": "integer"}}, tool_choice="required")
    found = grounded(use, Ground.of([ChatMessage("user", "Do it.")], ""))
    assert (found.callable, found.lacking) == (use.callable, ())


@pytest.mark.parametrize(
    "schema", [{"type": "boolean"}, {"type": "array"}, {"const": "x"}, {}, {"type": "object"}]
)
def test_other_arguments_are_the_models(schema: dict[str, Any]) -> None:
    use = use_of({"argument": schema})
    assert grounded(use, Ground.of([ChatMessage("user", "Do it.")], "")).callable[0].name == "do_it"
    assert not grounded(use, Ground.of([ChatMessage("user", "Do it.")], "")).lacking


SCHEMAS = (
    {"type": "integer", "minimum": 1, "maximum": 40},
    {"type": "number"},
    {"type": "string"},
    {"type": "string", "pattern": "^[0-9]{2}$"},
    {"type": "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"},
    {"type": "string", "format": "date"},
    {"type": "string", "maxLength": 12},
)


@given(st.sampled_from(SCHEMAS), st.lists(st.text(), max_size=4))
def test_narrowed_values_fit_the_schema(schema: dict[str, Any], said: list[str]) -> None:
    for value in values(schema, *said) or ():
        jsonschema.validate(value, schema)


WORDS = ("ten", "at", "past", "7:30", "pm", "42", "Rome", "tomorrow", ",", "four")


@given(st.lists(st.sampled_from(WORDS), max_size=9))
def test_values_of_words_fit_the_schema(words: list[str]) -> None:
    for schema in SCHEMAS:
        for value in values(schema, " ".join(words)) or ():
            jsonschema.validate(value, schema)


def test_a_pattern_that_backtracks_for_ever_is_searched_at_once() -> None:
    schema = {"type": "string", "pattern": r"^(\w+\s?)+!$"}
    assert values(schema, "my name is " + "a" * 60) is None


def test_a_pattern_with_look_ahead_is_left_to_the_grammar() -> None:
    assert "novak" in values({"type": "string", "pattern": "^(?=n).*"}, "a room for novak")


HOSTILE = [
    "1 million 200",
    "2 million 1",
    "1" + " million" * 52,
    "9" * 4000,
    "1" + ",000" * 999,
    "in 999999999 days",
    "1 x may " * 500,
    "31 february " * 333,
    "[" * 100_000,
    "[" + "1," * 100_000 + "1]",
    "[" + "1" * 4000 + "]",
]


@pytest.mark.parametrize("role", ["user", "tool", "assistant"])
@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:12])
def test_no_text_stops_the_reading(text: str, role: Role) -> None:
    properties = {
        "count": {"type": "integer"},
        "share": {"type": "number", "multipleOf": 10**400},
        "account": {"type": "string", "description": "last 99 digits of the account"},
        "day": {"type": "string", "format": "date"},
        "name": {"type": "string"},
    }
    messages = [ChatMessage("user", "For three."), ChatMessage(role, text)]
    for instructions in (TODAY, "Today is 9999-12-31. " + text):
        grounded(use_of(properties, required=[]), Ground.of(messages, instructions))


def test_numbers_that_are_not_finite_do_not_ground() -> None:
    result = '{"seats": 1e400, "price": [-1e400, NaN], "row": 12}'
    ground = Ground.of([ChatMessage("tool", result)], "")
    assert ground.results == ("12",)


def test_large_numbers_have_their_digits() -> None:
    account = {"type": "string", "description": "account number"}
    assert values(account, "2 million") == ["2000000"]
    assert values({"type": "integer"}, "1 million") == [1_000_000]
    assert values(account, "it is " + "7" * 20) == ["7" * 20]
    assert values({"type": "integer"}, "it is " + "7" * 20) is None


def test_the_newest_values_of_results_ground() -> None:
    results = [json.dumps([f"{name}{index}" for index in range(300)]) for name in "abc"]
    ground = Ground.of([ChatMessage("tool", text) for text in results], "")
    assert len(ground.results) == MAX_VALUES
    assert (ground.results[0], ground.results[-1]) == ("b0", "c299")


NUMBER_WORDS = (*WORDS, "million", "1,000", "9" * 30, "31st", "may", "february", "in", "days", "-")
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=9,
)


@given(st.lists(st.sampled_from(NUMBER_WORDS), max_size=40), JSON_VALUES)
def test_any_words_and_any_result_are_read(words: list[str], result: Any) -> None:
    properties = {str(index): schema for index, schema in enumerate((*SCHEMAS, PHONE))}
    messages = [
        ChatMessage("tool", json.dumps(result)),
        ChatMessage("user", " ".join(words)[:300]),
    ]
    for instructions in (TODAY, "Today is 9999-12-31."):
        (tool,) = grounded(
            use_of(properties, required=[]), Ground.of(messages, instructions)
        ).callable
        for name, schema in json.loads(tool.parameters.text)["properties"].items():
            for value in schema.get("enum", ()):
                jsonschema.validate(value, properties[name])


def test_every_result_of_a_round_grounds_for_a_template_without_tools() -> None:
    results = [ChatMessage("tool", '{"booking": "Brook"}'), ChatMessage("tool", '{"seat": "C12"}')]
    (shown,) = replace(HERMES, in_template=False).shown(results)
    assert Ground.of([shown], "").results == Ground.of(results, "").results == ("Brook", "C12")
