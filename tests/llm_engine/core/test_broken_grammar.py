"""A reply whose grammar breaks fails alone, also where llguidance panics."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from llm_engine.backends.base import Slot
from llm_engine.config import SamplingParams
from llm_engine.errors import GrammarError, RequestError
from llm_engine.speculative.drafter import Draft
from llm_engine.structured_output import compiler
from llm_engine.structured_output.compiler import GrammarCompiler, GrammarMatcher
from llm_engine.structured_output.grammar import Grammar
from tests.support.fakes.llm_core import LETTERS, Bench, alone

NUM_WORDS = -(-(len(LETTERS) + 1) // 32)


class PanicException(BaseException):
    """As pyo3's: no Exception."""


class BreakingMatcher:
    """Allows every token, until one of its methods is called once too often."""

    def __init__(self, breaks: str, calls_before: int) -> None:
        self._breaks = breaks
        self._calls_left = calls_before

    def _called(self, name: str, answer: Any) -> Any:
        if name == self._breaks:
            self._calls_left -= 1
            if self._calls_left < 0:
                raise PanicException("index out of bounds")
        return answer

    def __getattr__(self, name: str) -> Callable[..., Any]:
        answers = {
            "compute_bitmask": b"\xff" * 4 * NUM_WORDS,
            "consume_token": True,
            "rollback": True,
            "is_stopped": False,
            "is_error": False,
            "compute_ff_tokens": [],
        }
        if name == "validate_tokens":
            return lambda tokens: self._called(name, len(tokens))
        return lambda *_: self._called(name, answers[name])


class Grammars:
    """In place of a compiler."""

    def __init__(self, matcher: BreakingMatcher) -> None:
        self._matcher = matcher

    def begin(self, grammar: Grammar, end_ids: frozenset[int]) -> GrammarMatcher:
        return GrammarMatcher(self._matcher, end_ids, len(LETTERS))  # type: ignore[arg-type]


class Echo:
    """Drafts the last token again."""

    name = "echo"
    grade = 0

    def begin(self, slot: Slot) -> Draft:
        return self

    def propose(self, tokens: Sequence[int], max_tokens: int) -> Sequence[int]:
        return [tokens[-1]] * min(2, max_tokens)

    def num_unread(self, num_tokens: int) -> int:
        return 0

    def close(self) -> None:
        pass


CONSTRAINED = SamplingParams(grammar=Grammar("start: /.*/\n"))


@pytest.mark.parametrize("breaks", ["compute_bitmask", "consume_token", "is_stopped", "is_error"])
@pytest.mark.parametrize("calls_before", [0, 2])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_panic_in_one_reply_s_mask_fails_that_reply_alone(
    breaks: str, calls_before: int, is_first: bool
) -> None:
    bench = Bench(grammars=Grammars(BreakingMatcher(breaks, calls_before)))
    before = None if is_first else bench.add("one before", 9)
    broken = bench.add("broken", 9, sampling=CONSTRAINED)
    behind = bench.add("one behind", 9)
    bench.run()
    error = bench.outputs[broken][-1].error
    assert isinstance(error, GrammarError)
    assert str(error) == "the reply's grammar failed: PanicException: index out of bounds"
    assert bench.text(behind) == alone("one behind", 9)
    if before is not None:
        assert bench.text(before) == alone("one before", 9)
    later = bench.add("later", 5)
    bench.run()
    assert bench.text(later) == alone("later", 5)


@pytest.mark.parametrize("breaks", ["compute_ff_tokens", "validate_tokens", "rollback"])
def test_a_panic_over_a_draft_fails_that_reply_and_drafting_goes_on(breaks: str) -> None:
    letter = ord("a")
    grammars = Grammars(BreakingMatcher(breaks, 0))
    bench = Bench(lambda held: letter, grammars=grammars, drafters=[Echo()])
    broken = bench.add("broken", 60, sampling=CONSTRAINED)
    bench.run()
    assert isinstance(bench.outputs[broken][-1].error, GrammarError)
    later = bench.add("later", 60)
    bench.run()
    assert bench.text(later) == "a" * 60
    assert bench.core.stats().drafts["echo"].num_accepted


@pytest.mark.parametrize("part", ["LLMatcher", "LLTokenizer"])
def test_a_panic_while_a_grammar_is_compiled_is_the_request_s_error(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def panic(*_: Any, **__: Any) -> None:
        raise PanicException("called `Option::unwrap()` on a `None` value")

    parts: dict[str, Any] = dict.fromkeys(
        ("LLMatcher", "LLTokenizer", "TokenizerWrapper", "LLParserLimits"), lambda *_, **__: None
    )
    parts[part] = panic
    monkeypatch.setattr(compiler, "_llguidance", lambda: SimpleNamespace(**parts))
    tokenizer: Any = SimpleNamespace(token_bytes=LETTERS, encode_spelled=None)
    with pytest.raises(RequestError, match="can't be followed: PanicException: called"):
        GrammarCompiler(tokenizer).compile(Grammar("start: /a/\n"))
