"""Constrained replies fit their grammar for any model; drafts change only the speed."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latency_budget.account.clock import ManualClock
from latency_budget.account.turn import TurnId
from llm_engine.backends.base import Backend, Slot
from llm_engine.backends.cpu import CpuBackend
from llm_engine.backends.onnx_cpu import OnnxBackend
from llm_engine.chat.tool_calls import HERMES, Tool, ToolUse
from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.config import EngineConfig, Precision, SamplingParams
from llm_engine.core.engine_core import EngineCore
from llm_engine.core.output import FinishReason
from llm_engine.core.request import Output, Request, RequestId
from llm_engine.engine import Engine
from llm_engine.errors import RequestError
from llm_engine.speculative.drafter import Draft, Drafter
from llm_engine.speculative.ngram import NgramDrafter
from llm_engine.structured_output.compiler import MAX_COMPILED, GrammarCompiler
from llm_engine.structured_output.grammar import Grammar, Schema
from tests.support.fakes.llm_models import save_tiny_model

CONTEXT = 1000
NAMES = ("a", "name", "the cat", "\u00e9\U0001f600", 'quo"te')


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_tiny_model(path, "llama", num_hidden_layers=1, max_position_embeddings=CONTEXT)
    return path


@pytest.fixture(scope="module")
def checkpoint(model: Path) -> Checkpoint:
    return load_checkpoint(model)


@pytest.fixture(scope="module", params=["torch", "onnx"])
def backend(request: pytest.FixtureRequest, checkpoint: Checkpoint) -> Backend:
    if request.param == "torch":
        return CpuBackend(checkpoint, EngineConfig(num_threads=1, kv_cache_mb=8), CONTEXT)
    config = EngineConfig(precision=Precision.INT8, num_threads=1, kv_cache_mb=8)
    return OnnxBackend(checkpoint, config, CONTEXT)


@pytest.fixture(scope="module")
def constraints(checkpoint: Checkpoint) -> GrammarCompiler:
    return GrammarCompiler(checkpoint.tokenizer)


class Babble:
    """Drafts what nobody would say, and now and then the end."""

    name = "babble"
    grade = 0

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def begin(self, slot: Slot) -> Draft:
        return self

    def propose(self, tokens: Sequence[int], max_tokens: int) -> Sequence[int]:
        letters = [self._random.choice([2, *range(320)]) for _ in range(max_tokens)]
        known = [list(tokens[start : start + max_tokens]) for start in range(len(tokens))]
        return self._random.choice([letters, *known])

    def num_unread(self, num_tokens: int) -> int:
        return 0

    def close(self) -> None:
        pass


def core_on(
    backend: Backend,
    constraints: GrammarCompiler,
    checkpoint: Checkpoint,
    drafters: Sequence[Drafter],
) -> EngineCore:
    return EngineCore(
        backend,
        checkpoint.tokenizer.token_bytes,
        context_length=CONTEXT,
        prefill_chunk=16,
        max_sequences=6,
        clock=ManualClock(),
        drafters=drafters,
        grammars=constraints,
    )


def add(core: EngineCore, prompt: Sequence[int], sampling: SamplingParams) -> RequestId:
    ends, room = frozenset([0, 2]), sampling.max_tokens or CONTEXT
    return core.add(Request(tuple(prompt), sampling, ends, room, core.open_sequence()))


def run(core: EngineCore) -> dict[RequestId, list[Output]]:
    outputs: dict[RequestId, list[Output]] = {}
    while core.has_work:
        for output in core.step():
            assert output.error is None, output.error
            outputs.setdefault(output.request_id, []).append(output)
        core.cache.check()
    for sequence in list(core.cache.sequences):
        core.close_sequence(sequence)
    core.cache.forget_everything()
    return outputs


def ids_of(outputs: Sequence[Output]) -> list[int]:
    return [token_id for output in outputs for token_id in output.token_ids]


def text_of(outputs: Sequence[Output]) -> str:
    return "".join(output.text for output in outputs)


LEAVES = st.sampled_from(
    [
        {"type": "boolean"},
        {"type": "null"},
        {"type": "integer", "minimum": -20, "maximum": 300},
        {"type": "string", "maxLength": 5},
        {"type": "string", "pattern": "^[a-c]{2,4}$"},
        {"enum": ["red", "\u00e9t\u00e9", 'a "b"', 5, None, True]},
        {"const": "</tool_call>\n"},
    ]
)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    arrays = st.builds(
        lambda items, least: {"type": "array", "items": items, "minItems": least, "maxItems": 2},
        inner,
        st.integers(0, 2),
    )
    objects = st.builds(
        lambda properties, required: {
            "type": "object",
            "properties": properties,
            "required": [name for name in properties if name in required],
            "additionalProperties": False,
        },
        st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
        st.sets(st.sampled_from(NAMES)),
    )
    return arrays | objects | st.builds(lambda *of: {"anyOf": list(of)}, inner, inner)


SCHEMAS = st.recursive(LEAVES, nested, max_leaves=5)
SAMPLINGS = st.sampled_from(
    [
        SamplingParams(),
        SamplingParams(temperature=1.5, seed=3),
        SamplingParams(temperature=0.9, top_p=0.8, top_k=40, min_p=0.02, seed=8, min_tokens=9),
        SamplingParams(repetition_penalty=1.3, ignore_eos=True),
    ]
)


@settings(max_examples=25, deadline=None)
@given(schema=SCHEMAS, sampling=SAMPLINGS, seed=st.integers(0, 5))
def test_a_random_model_writes_what_fits(
    backend: Backend,
    constraints: GrammarCompiler,
    checkpoint: Checkpoint,
    schema: dict[str, Any],
    sampling: SamplingParams,
    seed: int,
) -> None:
    """With drafts, good and bad, with company, and alone: the same, and valid."""
    sampling = replace(sampling, grammar=Grammar.json(schema))
    prompt = [5, 17, 30, *(40 + seed,) * 9, 5, 17]
    replies: list[list[int]] = []
    for drafters in ([], [NgramDrafter()], [Babble(seed)]):
        core = core_on(backend, constraints, checkpoint, drafters)
        request = add(core, prompt, sampling)
        outputs = run(core)[request]
        assert outputs[-1].finish_reason is FinishReason.STOP
        jsonschema.validate(json.loads(text_of(outputs)), schema)
        replies.append(ids_of(outputs))
    core = core_on(backend, constraints, checkpoint, [NgramDrafter()])
    ours, other = (
        add(core, prompt, sampling),
        add(core, prompt[:5], SamplingParams(max_tokens=30, ignore_eos=True)),
    )
    together = run(core)
    replies.append(ids_of(together[ours]))
    assert len(ids_of(together[other])) == 30
    assert replies.count(replies[0]) == len(replies)


def test_a_reply_that_lost_its_pages_goes_on_as_it_would_have(
    constraints: GrammarCompiler, checkpoint: Checkpoint
) -> None:
    schema = {"type": "array", "items": {"type": "boolean"}, "minItems": 30, "maxItems": 30}
    sampling = SamplingParams(temperature=1.0, seed=4, grammar=Grammar.json(schema))
    replies = []
    for kv_cache_mb, company in ((8, 0), (1, 5)):
        config = EngineConfig(num_threads=1, kv_cache_mb=kv_cache_mb)
        core = core_on(CpuBackend(checkpoint, config, CONTEXT), constraints, checkpoint, [])
        for number in range(company):
            add(core, [9 + number] * 700, SamplingParams(max_tokens=200, ignore_eos=True))
        request = add(core, [5, 17, 30] * 90, sampling)
        replies.append(ids_of(run(core)[request]))
        assert bool(core.stats().num_preempted) == bool(company)
    assert replies[0] == replies[1]


@pytest.mark.parametrize("drafters", [[], [Babble(1)]], ids=["alone", "drafted"])
def test_stop_strings_and_limits_cut_it_short(
    backend: Backend, constraints: GrammarCompiler, checkpoint: Checkpoint, drafters: list[Drafter]
) -> None:
    grammar = Grammar.json({"const": {"name": "Ann", "age": 34}})
    whole = '{"name": "Ann", "age": 34}'
    wanted = {
        (): (whole, FinishReason.STOP),
        ("age",): (whole.partition("age")[0], FinishReason.STOP),
        ('"}', "Z"): (whole, FinishReason.STOP),
    }
    for stop, (text, reason) in wanted.items():
        core = core_on(backend, constraints, checkpoint, drafters)
        request = add(core, [7, 8, 9], SamplingParams(grammar=grammar, stop=stop))
        outputs = run(core)[request]
        shown = text_of(outputs).replace(", ", ",").replace(": ", ":")
        assert (shown, outputs[-1].finish_reason) == (
            text.replace(", ", ",").replace(": ", ":"),
            reason,
        )
    core = core_on(backend, constraints, checkpoint, drafters)
    request = add(core, [7, 8, 9], SamplingParams(grammar=grammar, max_tokens=5))
    outputs = run(core)[request]
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    assert len(ids_of(outputs)) == 5


def test_what_a_grammar_forces_is_drafted(
    backend: Backend, constraints: GrammarCompiler, checkpoint: Checkpoint
) -> None:
    schema = {
        "type": "object",
        "properties": {"the_cat": {"const": "sat"}},
        "required": ["the_cat"],
    }
    sampling = SamplingParams(grammar=Grammar.json({**schema, "additionalProperties": False}))
    core = core_on(backend, constraints, checkpoint, [NgramDrafter()])
    add(core, [7, 8, 9], sampling)
    run(core)
    counts = core.stats().drafts["grammar"]
    assert counts.num_accepted == counts.num_drafted > 2


REFUSED = {
    "minLength (5) is greater": {"type": "string", "minLength": 5, "maxLength": 3},
    "Unsatisfiable schema": {"enum": []},
    "required property 'a' is unsatisfiable": {
        "type": "object",
        "required": ["a"],
        "properties": {"a": False},
    },
    "would contain another": {"properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "look-around": {"type": "string", "pattern": "(?=a)b"},
    "uniqueItems": {"type": "array", "uniqueItems": True},
    "Invalid type: strin": {"type": "strin"},
    "properties must be an object": {"properties": []},
    "does not exist": {"$ref": "#/$defs/nothing"},
    "Failed to parse array index '99": {
        "properties": {"a": {"$ref": "#/properties/b/enum/" + "9" * 5000}, "b": {"enum": ["x"]}}
    },
    "is not present": {"$ref": "https://example.com/schema"},
    "oneOf constraints": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    "can't be met": {"const": "\u0001"},
    "JSON does not have": {"const": float("nan")},
    "is too much to follow: Parser Error: Current row": {
        "type": "object",
        "properties": {f"p{i}": {"type": "string"} for i in range(3000)},
    },
    "more than 1000 ways": {
        "$ref": "#/$defs/a",
        "$defs": {
            "a": {
                "allOf": [
                    {"anyOf": [{"type": "string", "pattern": f"^.*{i}{j}.*$"} for j in range(5)]}
                    for i in range(6)
                ]
            }
        },
    },
}


@pytest.mark.parametrize("problem", REFUSED)
def test_a_schema_that_cannot_be_followed_is_refused(
    constraints: GrammarCompiler, problem: str
) -> None:
    with pytest.raises(RequestError) as caught:
        constraints.compile(Grammar.json(REFUSED[problem], "response_format.json_schema"))
    assert problem in str(caught.value)
    assert caught.value.field == "response_format.json_schema"
    assert "\n" not in str(caught.value)
    assert "x-guidance" not in str(caught.value)


def test_alternatives_that_are_not_combined_may_be_many() -> None:
    kinds = [{"properties": {"kind": {"const": each}}} for each in range(1200)]
    Grammar.json({"allOf": [{"type": "object"}, {"oneOf": kinds}]})
    Grammar.json({"anyOf": [*kinds, {"items": {"$ref": "#"}}]})
    twice = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(60)}
    Grammar.json({"$defs": {**twice, "d60": {"type": "object"}}, "$ref": "#/$defs/d0"})
    twice["d60"] = {"anyOf": [{"type": "object"}, {"type": "string"}]}
    with pytest.raises(RequestError, match="ways"):
        Grammar.json({"$defs": twice, "$ref": "#/$defs/d0"})


def test_schemas_that_refer_to_themselves() -> None:
    tree = {"type": "array", "items": {"$ref": "#"}}
    Grammar.json(tree)
    linked = {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
                "required": ["next"],
            }
        },
    }
    Grammar.json(linked)
    endless: list[Any] = [
        {**tree, "minItems": 1},
        {"allOf": [{"type": "object"}, {"$ref": "#"}]},
        {"allOf": [{"type": "object"}, {"$ref": "#/allOf/1"}]},
        {"anyOf": [{"$ref": "#/$defs/~1a"}], "$defs": {"/a": {"$ref": "#"}}},
    ]
    for schema in endless:
        with pytest.raises(RequestError, match="would contain another"):
            Grammar.json(schema)
    deep: Any = {"type": "integer"}
    for _ in range(200):
        deep = {"type": "array", "items": deep}
    with pytest.raises(RequestError, match="nests more than"):
        Grammar.json(deep)
    with pytest.raises(RequestError, match="must be a JSON schema"):
        Grammar.json([])


@pytest.mark.parametrize(
    ("schema", "begin", "end"),
    [
        ({"$ref": "#/$defs/" + "x" * 9000}, "can't be followed: Pointer '/$defs/x", "not exist"),
        ({"pattern": "(" + "x" * 9000, "type": "string"}, "can't be followed: regex", "group"),
        ({"type": "x" * 9000}, "can't be followed: Invalid type: x", "x"),
    ],
)
def test_what_a_problem_quotes_of_a_schema_is_shortened(
    constraints: GrammarCompiler, schema: dict[str, str], begin: str, end: str
) -> None:
    with pytest.raises(RequestError) as caught:
        constraints.compile(Grammar.json(schema))
    assert caught.value.problem.startswith(begin)
    assert caught.value.problem.endswith(end)
    assert len(caught.value.problem) < 250


def test_compiled_grammars_are_kept_within_bounds(constraints: GrammarCompiler) -> None:
    for number in range(MAX_COMPILED + 3):
        constraints.compile(Grammar.json({"const": number}))
    assert len(constraints._compiled) == MAX_COMPILED


async def test_an_engine_refuses_before_it_computes(model: Path) -> None:
    engine = Engine.load(model, EngineConfig(num_threads=1))
    try:
        bad = SamplingParams(grammar=Grammar.json({"type": "strin"}, "schema"))
        with pytest.raises(RequestError, match="schema: can't be followed: Invalid type"):
            async for _ in engine.generate("hello", bad):
                pass
        conversation = await engine.open_conversation()
        await conversation.commit("hello")
        with pytest.raises(RequestError, match="schema: can't be followed"):
            async for _ in conversation.generate(TurnId(1), sampling=bad):
                pass
        good = SamplingParams(grammar=Grammar.json({"const": "sat"}))
        chunks = [chunk async for chunk in conversation.generate(TurnId(2), sampling=good)]
        assert "".join(chunk.text for chunk in chunks) == '"sat"'
        assert chunks[-1].usage is not None
        assert (await engine.stats()).num_replying == 0
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("num_callable", "text", "is_allowed"),
    [
        (1, '{"name": "clock", "arguments": {}}', True),
        (1, '{"name": "clock", "arguments": {}}\n{"name": "clock", "arguments": {}}', True),
        (1, '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>', True),
        (1, "It is noon.", True),
        (1, '{"name": "watch"', False),
        (1, '{"time": "noon"}', False),
        (0, "It is noon.", True),
        (0, '{"name": "clock"', False),
    ],
)
def test_a_reply_that_begins_with_a_brace_is_a_call(
    constraints: GrammarCompiler,
    checkpoint: Checkpoint,
    num_callable: int,
    text: str,
    is_allowed: bool,
) -> None:
    """With or without the tags of its form; no caller hears JSON."""
    tools = (Tool("clock", '{"name": "clock"}', Schema.of({"type": "object"}, "tools[0]")),)
    use = ToolUse(tools, tools[:num_callable], must_call=False, in_parallel=True)
    matcher = constraints.begin(HERMES.grammar(use), frozenset([0, 2]))
    ids = checkpoint.tokenizer.encode(text)
    assert (tuple(matcher.fitting(ids)) == tuple(ids)) == is_allowed
