"""The reply as one more tool: what the grammar admits, and what is spoken of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.http.openai.chat_request import ChatRequest, parse_chat_request
from agent.stages.tool_call_adapter import ToolLimits
from llm_engine.chat.call_reader import ArgumentsDelta, CallReader, CallStarted, TextDelta
from llm_engine.chat.tool_calls import HERMES, LLAMA, REPLY_TOOL, Dialect
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.config import SamplingParams
from llm_engine.structured_output.compiler import GrammarCompiler
from tests.llm_engine.chat.test_conversation_pool_tools import CALL, TOOLS, said, save_model
from tests.support.fakes.llm_core import Bench
from tests.support.fakes.llm_models import CHATML

REPLY = (
    '<tool_call>\n{"name": "answer_caller", "arguments": {"words": "It\'s 12:30."}}\n</tool_call>'
)
BARE_REPLY = '{"name": "answer_caller", "parameters": {"words": "It\'s 12:30."}}'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_model(path, CHATML)
    return path


def limited(max_rounds: int = 5, **fields: Any) -> ChatRequest:
    body = {"messages": [said("What time is it?")], "tools": TOOLS, **fields}
    limits = ToolLimits(max_rounds=max_rounds, replies_by_call=True)
    return parse_chat_request(body, SamplingParams()).limited(limits)


def is_admitted(model: Path, text: str, request: ChatRequest, dialect: Dialect = HERMES) -> bool:
    tokenizer = load_checkpoint(model).tokenizer
    _, _, sampling = request.prompt(dialect)
    ids = [*tokenizer.encode_spelled(text), 2]
    bench = Bench(
        lambda held: ids[len(held) - 5],
        token_bytes=tokenizer.token_bytes,
        grammars=GrammarCompiler(tokenizer),
    )
    sampling = replace(sampling, max_tokens=None)
    active = bench.add("abcde", 200, sampling=sampling, end_ids=frozenset([2]))
    bench.run()
    return bench.outputs[active][-1].error is None and bench.text(active) == text


def test_a_reply_is_one_call(model: Path) -> None:
    for text in (REPLY, CALL):
        assert is_admitted(model, text, limited())
    for text in ("It's 12:30.", f"{CALL}\n{CALL}", f"{REPLY}\n{CALL}"):
        assert not is_admitted(model, text, limited())
    assert is_admitted(model, BARE_REPLY, limited(), LLAMA)
    assert not is_admitted(model, "It's 12:30.", limited(), LLAMA)


@pytest.mark.parametrize("words", ["", "*Hi*", "a\\nb", "`ls`", "- one", "Hi <b>", '"Hi', "# Hi"])
def test_words_are_speakable(model: Path, words: str) -> None:
    assert not is_admitted(model, REPLY.replace("It's 12:30.", words), limited())


def test_only_words_are_left_where_no_call_is_allowed(model: Path) -> None:
    for request in (limited(0), limited(tool_choice="none")):
        assert is_admitted(model, REPLY, request)
        assert not is_admitted(model, CALL, request)


def test_the_reply_is_among_the_tools_in_the_prompt() -> None:
    _, definitions, _ = limited().prompt(HERMES)
    assert definitions[0] == REPLY_TOOL.definition
    assert len(definitions) == len(TOOLS) + 1


def test_a_client_that_demands_a_call_or_a_form_gets_it() -> None:
    demanded = limited(tool_choice="required").tools
    assert demanded is not None
    assert not demanded.replies_by_call
    form = {"type": "json_object"}
    grammar = limited(response_format=form).prompt(HERMES)[2].grammar
    assert grammar is not None
    assert "answer_caller" not in grammar.lark


def test_a_tool_of_the_same_name_stays_the_clients() -> None:
    own = [{"type": "function", "function": {"name": "answer_caller"}}]
    use = limited(tools=own).tools
    assert use is not None
    assert (len(use.shown), use.replies_by_call) == (1, False)


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize(("dialect", "text"), [(HERMES, REPLY), (LLAMA, BARE_REPLY)])
def test_the_words_are_the_text(size: int, dialect: Dialect, text: str) -> None:
    request = limited()
    reader = request.reader(dialect)
    assert reader is not None
    events = [
        event
        for start in range(0, len(text), size)
        for event in reader.push(text[start : start + size])
    ]
    assert {type(event) for event in events} == {TextDelta}
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "It's 12:30."
    assert text[reader.num_hidden :].startswith("It's 12:30.")
    assert (reader.flush(), reader.num_calls, reader.is_whole) == ([], 0, True)


def test_calls_are_read_as_ever() -> None:
    use = limited().tools
    assert use is not None
    reader = CallReader(HERMES, use.callable, reply_heads=HERMES.reply_heads(use))
    events = reader.push(CALL)
    assert events == [CallStarted("clock"), ArgumentsDelta('{"zone": "UTC"}')]
    assert reader.num_hidden == 0


def asking(**fields: Any) -> ChatRequest:
    """A request whose caller has not said what the tool `clock` needs."""
    zone = {"type": "string", "pattern": "^[A-Z]{3}[0-9]$"}
    schema = {"type": "object", "properties": {"zone": zone}, "required": ["zone"]}
    tools = [{"type": "function", "function": {"name": "clock", "parameters": schema}}]
    body = {"messages": [said("What time is it there?")], "tools": tools, **fields}
    limits = ToolLimits(replies_by_call=True, is_grounded=True)
    return parse_chat_request(body, SamplingParams()).limited(limits)


WORDS = "What is the zone, please?"
QUESTION = (
    '<tool_call>\n{"name": "clock", "arguments": {"ask_caller": "What is the zone, please?"}}\n'
    "</tool_call>"
)


def test_a_tool_without_ground_for_its_arguments_asks(model: Path) -> None:
    request = asking()
    assert is_admitted(model, QUESTION, request)
    assert is_admitted(model, REPLY, request)
    assert not is_admitted(model, CALL.replace("UTC", "UTC1"), request)
    for words in ("What is the zone.", "The zone?", "What is the zone? Why?", "What is the zones?"):
        question = QUESTION.replace(WORDS, words)
        assert not is_admitted(model, question, request)
    grounded = asking(messages=[said("What time is it in UTC1?")])
    assert is_admitted(model, CALL.replace("UTC", "UTC1"), grounded)
    assert not is_admitted(model, QUESTION, grounded)


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_a_question_is_the_text(size: int) -> None:
    reader = asking().reader(HERMES)
    assert reader is not None
    pieces = [QUESTION[start : start + size] for start in range(0, len(QUESTION), size)]
    events = [event for piece in pieces for event in reader.push(piece)]
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == WORDS
    assert (reader.num_calls, QUESTION[reader.num_hidden :].startswith(WORDS)) == (0, True)


def test_words_after_a_result_are_its_telling(model: Path) -> None:
    called = {"id": "1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    messages = [
        said("What time is it?"),
        {"role": "assistant", "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "1", "content": "12:30"},
    ]
    request = limited(messages=messages)
    told = REPLY.replace("words", "result")
    assert is_admitted(model, told, request)
    assert not is_admitted(model, REPLY, request)
    reader = request.reader(HERMES)
    assert reader is not None
    assert reader.push(told) == [TextDelta("It's 12:30.")]
