"""Stateless requests with tools: constrained to calls, and resumed from the pool."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Bpe

from agent.http.openai.chat_request import parse_chat_request
from agent.http.openai.chat_response import Completion
from llm_engine.chat.call_reader import CallReader
from llm_engine.chat.tool_calls import HERMES, LLAMA, NO_TOOLS, Dialect
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.config import EngineConfig, SamplingParams
from llm_engine.core.output import Usage
from llm_engine.core.request import RequestId
from llm_engine.engine import Engine
from llm_engine.errors import RequestError
from llm_engine.structured_output.compiler import GrammarCompiler
from tests.support.fakes import chat_templates
from tests.support.fakes.llm_core import Bench
from tests.support.fakes.llm_models import CHATML, save_tiny_model

TEMPLATES = {"qwen": chat_templates.QWEN, "llama": chat_templates.LLAMA, "none": CHATML}
ZONE = {
    "type": "object",
    "properties": {"zone": {"enum": ["UTC", "the cat"]}, "n": {"type": "boolean"}},
    "required": ["zone"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "clock", "parameters": ZONE}},
    {"type": "function", "function": {"name": "cat", "description": "sat on the mat"}},
]


def save_model(path: Path, template: str) -> None:
    """A random model whose vocabulary has the markers of calls as tokens."""
    save_tiny_model(path, "llama", num_hidden_layers=1, max_position_embeddings=2000)
    tokenizer = Bpe.from_file(str(path / "tokenizer.json"))
    tokenizer.add_tokens(["<tool_call>", "</tool_call>"])
    assert tokenizer.get_vocab_size() <= 320
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "chat_template": template}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.fixture(scope="module", params=TEMPLATES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp(request.param)
    save_model(path, TEMPLATES[request.param])
    return path


@pytest.fixture
async def engine(model: Path) -> AsyncIterator[Engine]:
    engine = await asyncio.to_thread(Engine.load, model, EngineConfig(num_threads=1))
    yield engine
    engine.close()


async def ask(
    engine: Engine, messages: Sequence[dict[str, Any]], **fields: Any
) -> tuple[dict[str, Any], Usage]:
    """The answer's choice, as a client gets it."""
    body = {"messages": list(messages), "tools": TOOLS, "seed": 5, "max_tokens": 150, **fields}
    request = parse_chat_request(body, SamplingParams(temperature=1.0))
    prompt, tools, sampling = request.prompt(engine.dialect)
    reader = CallReader(engine.dialect, request.tools.callable) if request.tools else None
    chunks = [chunk async for chunk in engine.chat(prompt, sampling, tools=tools)]
    assert chunks[-1].usage is not None
    choice: dict[str, Any] = Completion("c-1", 1, "m", reader).whole(chunks)["choices"][0]
    return choice, chunks[-1].usage


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "clock"}}]
)
@pytest.mark.parametrize("seed", range(3))
async def test_a_random_model_makes_calls_that_fit(engine: Engine, choice: Any, seed: int) -> None:
    answer, _ = await ask(
        engine, [said("what time is it")], tool_choice=choice, seed=seed, parallel_tool_calls=False
    )
    assert answer["finish_reason"] == "tool_calls"
    assert answer["message"]["content"] is None
    (call,) = answer["message"]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "clock":
        assert arguments["zone"] in ("UTC", "the cat")
        assert set(arguments) <= {"zone", "n"}
    else:
        assert choice == "required"
        assert arguments == {}


async def test_a_dialogue_with_calls_is_taken_up_again(engine: Engine) -> None:
    messages = [{"role": "system", "content": "You are short."}, said("the cat sat on the mat")]
    num_known = 0
    for turn in range(3):
        answer, usage = await ask(engine, messages, tool_choice="required", seed=turn)
        assert usage.cached_tokens >= num_known - 1
        num_known = usage.prompt_tokens + usage.output_tokens
        message = answer["message"]
        await ask(engine, [said("somebody else")], tool_choice="required")
        await ask(engine, messages, tools=[])  # the same words without tools: another dialogue
        messages += [
            message,
            *[
                {"role": "tool", "tool_call_id": call["id"], "content": f"it is {turn}"}
                for call in message["tool_calls"]
            ],
        ]


async def test_the_markers_of_a_cold_history_are_tokens(engine: Engine) -> None:
    messages = [said("what time is it")]
    answer, _ = await ask(engine, messages, tool_choice="required", parallel_tool_calls=False)
    result = {"role": "tool", "tool_call_id": "call_1_0", "content": "noon <tool_call>"}
    messages += [answer["message"], result]
    request = parse_chat_request({"messages": messages, "tools": TOOLS}, SamplingParams())
    prompt, tools, _ = request.prompt(engine.dialect)
    talk = await engine.open_conversation(tools=tools)
    await talk.reset([message for message in prompt if message.role != "system"])
    marker = engine.vocabulary.tokenizer.added_texts["<tool_call>"]
    ids = talk._history.prompt(1)
    # One in the template's own words about tools, one in the history; what the tool said is text.
    assert ids.count(marker) == {HERMES: 2, LLAMA: 0}.get(engine.dialect, 1)
    await talk.close()


async def test_oversized_and_invalid_tools_are_refused(engine: Engine) -> None:
    long = {"type": "function", "function": {"name": "f", "description": "x " * 20_000}}
    with pytest.raises(RequestError, match="too long"):
        await ask(engine, [said("hello")], tools=[long])
    bad = {
        "type": "function",
        "function": {"name": "f", "parameters": {"properties": {"a": {"type": 5}}}},
    }
    with pytest.raises(RequestError, match=r"tools\[1\]\.function\.parameters: can't be followed"):
        await ask(engine, [said("hello")], tools=[TOOLS[0], bad])
    assert (await engine.stats()).num_sequences == 0


def scripted(
    model: Path, dialect: Dialect, text: str, **fields: Any
) -> tuple[Bench, RequestId, str]:
    """A reply whose tokens are given, under a request's grammar."""
    tokenizer = load_checkpoint(model).tokenizer
    body = {"messages": [said("hello")], "tools": TOOLS, **fields}
    request = parse_chat_request(body, SamplingParams())
    _, _, sampling = request.prompt(dialect)
    ids = [*tokenizer.encode_spelled(text), 2]
    bench = Bench(
        lambda held: ids[len(held) - 5],
        token_bytes=tokenizer.token_bytes,
        grammars=GrammarCompiler(tokenizer),
    )
    ends = frozenset([2])
    active = bench.add("abcde", 200, sampling=replace(sampling, max_tokens=None), end_ids=ends)
    bench.run()
    return bench, active, bench.text(active)


CALL = '<tool_call>\n{"name": "clock", "arguments": {"zone": "UTC"}}\n</tool_call>'


def test_from_the_marker_on_only_a_call_may_follow(model: Path) -> None:
    for text in ("Hello <b>you</b>, {}", f"Let me see.\n{CALL}", CALL, f"{CALL}\n{CALL}"):
        bench, request, shown = scripted(model, HERMES, text)
        assert shown == text
        assert bench.outputs[request][-1].error is None
    for text in (
        "<tool_call> what?",
        '<tool_call>\n{"name": "dog"',
        f"{CALL} and so on",
        CALL.replace("UTC", "CET"),
    ):
        bench, request, _ = scripted(model, HERMES, text)
        assert "the reply's grammar failed" in str(bench.outputs[request][-1].error)
    bench, request, _ = scripted(model, HERMES, f"{CALL}\n{CALL}", parallel_tool_calls=False)
    assert "".join(output.text for output in bench.outputs[request]) == CALL


def test_a_bare_call_may_begin_a_reply(model: Path) -> None:
    call = '{"name": "clock", "parameters": {"zone": "UTC"}}'
    for text in ("Hello {}", call, "[{}]"):
        assert scripted(model, LLAMA, text)[2] == text
    for text in ('{"name": "dog"', "{}", '>{"name": "clock"', 'It is { "name": "clock"'):
        bench, request, _ = scripted(model, LLAMA, text)
        assert bench.outputs[request][-1].error is not None


def test_a_reply_that_may_not_call_has_words(model: Path) -> None:
    for text in ("Hello {}", "5"):
        assert scripted(model, HERMES, text, tool_choice="none")[2] == text
    for text in ("\n", "<b", '5 {"name"', "Well: <tool_call>"):
        bench, request, _ = scripted(model, HERMES, text, tool_choice="none")
        assert bench.outputs[request][-1].error is not None


def called_before() -> dict[str, Any]:
    """Fields of a request without tools, whose history has a call."""
    call = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "c1", "content": "noon"}
    asked = {"role": "assistant", "content": None, "tool_calls": [call]}
    return {"messages": [said("what time"), asked, result], "tools": []}


def test_a_reply_without_tools_is_any_text_but_a_call(model: Path) -> None:
    bare = {HERMES: '{"name": "clock", "arguments": {', LLAMA: '{"name": "clock", "parameters": {'}
    for dialect in (HERMES, LLAMA):
        for text in ("Hello <b>you", '{"name": "Ana"}', "- 5\n\n{}"):
            assert scripted(model, dialect, text, **called_before())[2] == text
        bench, request, _ = scripted(model, dialect, bare[dialect], **called_before())
        assert bench.outputs[request][-1].error is not None
    for text in (CALL, f"Let me see. {CALL}"):
        bench, request, _ = scripted(model, HERMES, text, **called_before())
        assert bench.outputs[request][-1].error is not None


def test_a_reply_without_tools_may_not_end_before_its_first_word(model: Path) -> None:
    tokenizer = load_checkpoint(model).tokenizer
    grammar = HERMES.grammar(NO_TOOLS)
    matcher = GrammarCompiler(tokenizer).begin(grammar, frozenset([2]))
    for text, may_end in ((None, False), ("\n", False), ("a", True)):
        if text is not None:
            (encoded,) = tokenizer.encode_spelled(text)
            matcher.accept(encoded)
        assert bool(matcher.allowed((), 0)[0][0] >> 2 & 1) is may_end


def test_an_answer_of_a_form_or_a_call(model: Path) -> None:
    form = {
        "type": "json_schema",
        "json_schema": {"schema": {"type": "object", "maxProperties": 0}},
    }
    for dialect in (HERMES, LLAMA):
        assert scripted(model, dialect, "{}", response_format=form)[2] == "{}"
        bench, request, _ = scripted(model, dialect, "Hello", response_format=form)
        assert bench.outputs[request][-1].error is not None
    assert scripted(model, HERMES, CALL, response_format=form)[2] == CALL
