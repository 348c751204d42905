"""Compiles grammars for a vocabulary, and tracks each reply's state in its grammar.

llguidance parses the reply byte by byte (Earley's algorithm) and walks the trie of all tokens to
find those that may follow. For 49 k tokens that takes 11 us (median; p95 43) inside a schema, and
0.35 ms while text looks like the beginning of a marker; the sampler takes 60 us to apply the mask.
The state is on the host and depends on tokens only, so that a preempted reply keeps it.

**Drafts.** What may follow depends only on the tokens before it. A draft is cut where the grammar
forbids it; each row then gets the mask that it would have had without a draft: the parser consumes
the drafted tokens one by one and rolls back. Where a grammar leaves no choice (names of fields,
brackets) llguidance allows exactly one token, that of the text's usual encoding; these
forced tokens are the best draft there is.

**The end.** The tokens that end a reply have no bytes, or bytes that must not count as text. So the
parser gets an end token of its own, one id beyond the vocabulary, whose bit is moved to theirs.

**Failures.** Whatever llguidance raises, a panic included (which is no Exception), belongs to the
one reply whose state broke: it becomes a GrammarError, so that the step goes on for the others.
"""

import random
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import wraps
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, TypeVar

import numpy as np

from llm_engine.checkpoints.tokenizer import Tokenizer
from llm_engine.errors import GrammarError, RequestError
from llm_engine.structured_output.grammar import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

PROBES: Final = 4
PROBE_TOKENS: Final = 16
"""Random replies, and tokens of each, that are tried before a grammar is accepted. One that
overruns the parser's limits does so within the first few characters. A token takes 0.1 ms, or 15 at
most."""

MAX_COMPILED: Final = 64
"""Grammars kept for the next request. One of a dozen tools takes about 1 MB and 2 ms to compile."""


Params = ParamSpec("Params")
Result = TypeVar("Result")


def _failing_alone(
    method: "Callable[Concatenate[GrammarMatcher, Params], Result]",
) -> "Callable[Concatenate[GrammarMatcher, Params], Result]":
    """Raise GrammarError in place of whatever else a method raises."""

    @wraps(method)
    def failing(self: "GrammarMatcher", /, *args: Params.args, **kwargs: Params.kwargs) -> Result:
        try:
            return method(self, *args, **kwargs)
        except GrammarError:
            raise
        except BaseException as error:  # a panic of Rust's is no Exception
            raise GrammarError(_failed(f"{type(error).__name__}: {error}")) from error

    return failing


class GrammarMatcher:
    """State of one reply in its grammar. Belongs to the engine's thread. Any method raises
    GrammarError where that state is broken."""

    def __init__(self, matcher: "LLMatcher", end_ids: frozenset[int], num_tokens: int) -> None:
        self._matcher = matcher
        self._end_ids = end_ids
        self._end_bit = num_tokens
        ends = np.zeros(8 * -(-(num_tokens + 1) // 32) * 4, dtype=np.uint8)
        ends[[*end_ids, num_tokens]] = 1
        self._ends = np.packbits(ends, bitorder="little")

    @property
    @_failing_alone
    def is_over(self) -> bool:
        """True when nothing but the end may follow."""
        return bool(self._matcher.is_stopped())

    @_failing_alone
    def accept(self, token_id: int) -> None:
        """Consume the next token. Raises GrammarError for one that may not follow."""
        if token_id not in self._end_ids and not self._matcher.consume_token(token_id):
            raise self._failure()

    @_failing_alone
    def fitting(self, draft: Sequence[int]) -> tuple[int, ...]:
        """Longest prefix of a draft that the grammar allows and that does not end the reply."""
        # Models pad their vocabulary: a drafted id may have no text.
        wordless = (
            place
            for place, token_id in enumerate(draft)
            if token_id in self._end_ids or token_id >= self._end_bit
        )
        words = list(draft[: next(wordless, len(draft))])
        return tuple(words[: self._matcher.validate_tokens(words)])

    @_failing_alone
    def allowed(self, draft: Sequence[int], num_endless: int) -> tuple[bytes, ...]:
        """Bit masks of the tokens that may follow now, and after each token of a draft that fits.

        The first `num_endless` rows exclude the end unless nothing else may follow.
        """
        rows = [self._row(num_endless > 0)]
        for place, token_id in enumerate(draft):
            if not self._matcher.consume_token(token_id):
                raise self._failure()
            rows.append(self._row(num_endless > place + 1))
        if draft and not self._matcher.rollback(len(draft)):
            raise self._failure()
        return tuple(rows)

    @_failing_alone
    def forced(self) -> Sequence[int]:
        """Tokens that must follow."""
        return self._matcher.compute_ff_tokens()

    def _row(self, is_endless: bool) -> bytes:
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            raise self._failure()
        may_end = bits[self._end_bit >> 3] >> (self._end_bit & 7) & 1
        words = bits & ~self._ends
        if may_end and not (is_endless and words.any()):
            words |= self._ends
        return words.tobytes()

    def _failure(self) -> GrammarError:
        return GrammarError(_failed(self._matcher.get_error()))


def _failed(problem: str) -> str:
    return f"the reply's grammar failed: {_first_line(problem)}"


class ForcedDraft:
    """Draft of the tokens that a grammar forces: see `llm_engine.speculative.drafter.Draft`."""

    grade = 0

    def __init__(self, matcher: GrammarMatcher) -> None:
        self._matcher = matcher

    def propose(self, tokens: Sequence[int], max_tokens: int) -> Sequence[int]:
        return self._matcher.forced()[:max_tokens]

    def num_unread(self, num_tokens: int) -> int:
        return 0

    def close(self) -> None:
        """Do nothing: nothing is held."""


class GrammarCompiler:
    """Compiles grammars and caches them. Any thread may use it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._num_tokens = len(tokenizer.token_bytes)
        self._vocabulary: LLTokenizer | None = None
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, grammar: Grammar, end_ids: frozenset[int]) -> GrammarMatcher:
        """Start a reply in a grammar. Raises RequestError as `compile`; takes 20 us for a known
        one."""
        return GrammarMatcher(self._find(grammar).deep_copy(), end_ids, self._num_tokens)

    def compile(self, grammar: Grammar) -> None:
        """Compile a grammar into the cache: some milliseconds, large schemas a second or two. The
        first one also builds the vocabulary's trie, in 0.1 s.

        Raises RequestError naming the field whose schema can't be compiled or can't be met.
        """
        self._find(grammar)

    def _find(self, grammar: Grammar) -> "LLMatcher":
        with self._lock:
            known = self._compiled.get(grammar)
            if known is not None:
                self._compiled.move_to_end(grammar)
                return known
        compiled = self._compile(grammar)
        with self._lock:
            self._compiled[grammar] = compiled
            if len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        return compiled

    def _compile(self, grammar: Grammar) -> "LLMatcher":
        matcher, problem = self._tried(grammar.lark)
        if matcher is not None and not problem:
            return matcher
        for schema in grammar.schemas if len(grammar.schemas) > 1 else ():
            _, its_problem = self._tried(f"start: %json {schema.text}\n")
            if its_problem:
                raise RequestError(schema.field, its_problem)
        field = grammar.schemas[0].field if grammar.schemas else "grammar"
        raise RequestError(field, problem)

    def _tried(self, lark: str) -> "tuple[LLMatcher | None, str]":
        """Compile; returns the problem too, "" for none. A panic of llguidance's is one."""
        try:
            return self._matcher(lark)
        except Exception:
            raise
        except BaseException as error:  # a panic of Rust's
            return None, f"can't be followed: {_first_line(f'{type(error).__name__}: {error}')}"

    def _matcher(self, lark: str) -> "tuple[LLMatcher, str]":
        """Compile; returns the problem too, "" for none."""
        package = _llguidance()
        # llguidance's own limits (a mask takes 15 ms at most); no parts of requests in messages.
        limits = package.LLParserLimits(verbose_errors=False)
        matcher = package.LLMatcher(self._ready_vocabulary(), lark, log_level=0, limits=limits)
        if matcher.is_error():
            return matcher, f"can't be followed: {_first_line(matcher.get_error())}"
        matcher.compute_bitmask()
        if matcher.is_error():
            return matcher, "can't be met"
        return matcher, next(filter(None, map(self._probe, [matcher] * PROBES, range(PROBES))), "")

    def _probe(self, fresh: "LLMatcher", seed: int) -> str:
        """Try a random reply; returns the problem that it meets, "" for none."""
        matcher, choose = fresh.deep_copy(), random.Random(seed).choice
        for _ in range(PROBE_TOKENS):
            matcher.consume_tokens(matcher.compute_ff_tokens())
            mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
            if matcher.is_error():
                return f"is too much to follow: {_first_line(matcher.get_error())}"
            allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little")[: self._num_tokens])
            if not len(allowed):
                break
            matcher.consume_token(int(choose(allowed)))
        return ""

    def _ready_vocabulary(self) -> "LLTokenizer":
        with self._lock:
            if self._vocabulary is None:
                package, vocabulary = _llguidance(), _Vocabulary(self._tokenizer)
                self._vocabulary = package.LLTokenizer(package.TokenizerWrapper(vocabulary))
            return self._vocabulary


def _llguidance() -> ModuleType:
    """Import llguidance with the first grammar. Raises RequestError where it is not installed."""
    try:
        return import_module("llguidance")
    except ModuleNotFoundError as error:
        problem = f"needs the package {error.name!r}, which is not installed here"
        raise RequestError("grammar", problem) from None


class _Vocabulary:
    """Tokenizer in llguidance's interface, with an end token of its own behind the last one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._encode = tokenizer.encode_spelled
        self.eos_token_id = len(tokenizer.token_bytes)
        self.bos_token_id = None
        self.tokens = [*tokenizer.token_bytes, b"<end>"]
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, text: str) -> list[int]:
        """Usual encoding of a forced text."""
        return self._encode(text)


MAX_PROBLEM_CHARS = 200
"""Of a problem with a schema: what is shown. The kind stands at its beginning, the reason often at
its end."""

_WHERE = re.compile(r"\n\s*\d+ \| |<state>|<non-verbose/>")


def _first_line(problem: str) -> str:
    """First line of a message, without the excerpt of the grammar at its end, and without the
    middle of what it quotes of a schema: a reference or a pattern has any length."""
    first = _WHERE.split(problem.partition("JSON schema: ")[2] or problem)[0]
    line = " ".join(first.split()) or "no reason given"
    half = MAX_PROBLEM_CHARS // 2
    return line if len(line) <= MAX_PROBLEM_CHARS else f"{line[:half]}...{line[-half:]}"
