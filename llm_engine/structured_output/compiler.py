"""Grammars compiled for a vocabulary, and each reply's place in its own.

llguidance parses the reply byte by byte (Earley's algorithm) and walks the trie of all tokens to
find those that may follow. For 49 k tokens that takes 11 us (median; p95 43) where a schema rules,
and 0.35 ms while what looks like a marker goes on; the sampler takes 60 us to apply it. Its state
is on the host and knows tokens only, so that a reply which gives up its pages and computes them
anew keeps it as it is.

**Drafts.** What may follow depends on the tokens before it alone. A draft is cut where the grammar
forbids it; each row then gets the mask that it would have had without a draft: the parser takes the
drafted tokens in one by one, and back again. Where a grammar leaves no choice (names of fields,
brackets) llguidance allows exactly one token, that of the text's usual encoding; those make the
best draft there is.

**The end.** The tokens that end a reply have no bytes, or bytes that must not count as text. So the
parser gets an end of its own, one id beyond the vocabulary, and its bit is moved to them.
"""

import random
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Final

import numpy as np

from llm_engine.checkpoints.tokenizer import Tokenizer
from llm_engine.errors import EngineError, RequestError
from llm_engine.structured_output.grammar import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

PROBES: Final = 4
PROBE_TOKENS: Final = 16
"""Beginnings of replies that are tried before a grammar is taken. What overruns the parser's bounds
does so within the first few characters of the text that it is for. A token takes 0.1 ms, or 15 at
most."""

MAX_COMPILED: Final = 64
"""Grammars kept for the next request. One of a dozen tools takes about 1 MB and 2 ms to compile."""


class GrammarMatcher:
    """One reply's place in its grammar. Belongs to the engine's thread."""

    def __init__(self, matcher: "LLMatcher", end_ids: frozenset[int], num_tokens: int) -> None:
        self._matcher = matcher
        self._end_ids = end_ids
        self._end_bit = num_tokens
        ends = np.zeros(8 * -(-(num_tokens + 1) // 32) * 4, dtype=np.uint8)
        ends[[*end_ids, num_tokens]] = 1
        self._ends = np.packbits(ends, bitorder="little")

    @property
    def is_over(self) -> bool:
        """Whether nothing but the end may follow."""
        return bool(self._matcher.is_stopped())

    def accept(self, token_id: int) -> None:
        """The reply goes on. Raises EngineError for a token that may not follow."""
        if token_id not in self._end_ids and not self._matcher.consume_token(token_id):
            raise self._failure()

    def fitting(self, draft: Sequence[int]) -> tuple[int, ...]:
        """The beginning of a draft that the grammar allows and that does not end the reply."""
        # Models pad their vocabulary: a drafted id may be one that no text has.
        wordless = (
            place
            for place, token_id in enumerate(draft)
            if token_id in self._end_ids or token_id >= self._end_bit
        )
        words = list(draft[: next(wordless, len(draft))])
        return tuple(words[: self._matcher.validate_tokens(words)])

    def allowed(self, draft: Sequence[int], num_endless: int) -> tuple[bytes, ...]:
        """What may follow now, and after each token of a draft that fits: a bit for each token.

        The first `num_endless` may not be the end unless there is no other way. Raises EngineError.
        """
        rows = [self._row(num_endless > 0)]
        for place, token_id in enumerate(draft):
            if not self._matcher.consume_token(token_id):
                raise self._failure()
            rows.append(self._row(num_endless > place + 1))
        if draft and not self._matcher.rollback(len(draft)):
            raise self._failure()
        return tuple(rows)

    def forced(self) -> Sequence[int]:
        """The tokens that must follow."""
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

    def _failure(self) -> EngineError:
        return EngineError(f"the reply's grammar failed: {_first_line(self._matcher.get_error())}")


class ForcedDraft:
    """Proposes what a grammar leaves no choice about: see `llm_engine.drafts.Draft`."""

    def __init__(self, matcher: GrammarMatcher) -> None:
        self._matcher = matcher

    def propose(self, tokens: Sequence[int], max_tokens: int) -> Sequence[int]:
        return self._matcher.forced()[:max_tokens]

    def close(self) -> None:
        """Nothing to do."""


class GrammarCompiler:
    """Compiles grammars, each once. Any thread may use it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._num_tokens = len(tokenizer.token_bytes)
        self._vocabulary: LLTokenizer | None = None
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def num_compiled(self) -> int:
        """Grammars kept."""
        return len(self._compiled)

    def begin(self, grammar: Grammar, end_ids: frozenset[int]) -> GrammarMatcher:
        """For a new reply. Raises RequestError as `compile`; takes 20 us for a known grammar."""
        return GrammarMatcher(self._find(grammar).deep_copy(), end_ids, self._num_tokens)

    def compile(self, grammar: Grammar) -> None:
        """Have a grammar ready: some milliseconds, large schemas a second or two. The first one of
        all also builds the vocabulary's trie, in 0.1 s.

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
        matcher, problem = self._matcher(grammar.lark)
        if not problem:
            return matcher
        for schema in grammar.schemas if len(grammar.schemas) > 1 else ():
            _, its_problem = self._matcher(f"start: %json {schema.text}\n")
            if its_problem:
                raise RequestError(schema.field, its_problem)
        field = grammar.schemas[0].field if grammar.schemas else "grammar"
        raise RequestError(field, problem)

    def _matcher(self, lark: str) -> "tuple[LLMatcher, str]":
        """And what is wrong with it."""
        package = _llguidance()
        # Its own bounds (a mask takes 15 ms at most), and no parts of requests in messages.
        limits = package.LLParserLimits(verbose_errors=False)
        matcher = package.LLMatcher(self._ready_vocabulary(), lark, log_level=0, limits=limits)
        if matcher.is_error():
            return matcher, f"can't be followed: {_first_line(matcher.get_error())}"
        matcher.compute_bitmask()
        if matcher.is_error():
            return matcher, "can't be met"
        return matcher, next(filter(None, map(self._probe, [matcher] * PROBES, range(PROBES))), "")

    def _probe(self, fresh: "LLMatcher", seed: int) -> str:
        """What is wrong with a grammar, as far as some reply's beginning shows it."""
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
    """Loaded with the first grammar. Raises RequestError where it is not installed."""
    try:
        return import_module("llguidance")
    except ModuleNotFoundError as error:
        problem = f"needs the package {error.name!r}, which is not installed here"
        raise RequestError("grammar", problem) from None


class _Vocabulary:
    """A tokenizer as llguidance wants it, with an end of its own behind the last token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._encode = tokenizer.encode_spelled
        self.eos_token_id = len(tokenizer.token_bytes)
        self.bos_token_id = None
        self.tokens = [*tokenizer.token_bytes, b"<end>"]
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, text: str) -> list[int]:
        """The usual tokens of a text that has to follow."""
        return self._encode(text)


_WHERE = re.compile(r"\n\s*\d+ \| |<state>|<non-verbose/>")


def _first_line(problem: str) -> str:
    """A message without the excerpt of the grammar that it ends with."""
    said = _WHERE.split(problem.partition("JSON schema: ")[2] or problem)[0]
    return " ".join(said.split()) or "no reason given"
