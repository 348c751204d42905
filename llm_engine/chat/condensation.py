"""Replacement of a conversation's oldest turns by a summary, prepared while nobody waits.

A `Condensation` has a sequence of its own in the engine, on which background requests first write
the summary, where a model writes it, and then prefill the new context: system prompt and examples
(taken over from a pinned prefix), summary, recent turns. The conversation goes on meanwhile with
its old context. The two are exchanged when the new one is computed whole, so no turn pays for it.

Cancelled anywhere, it changes nothing, and keeps what it has: the sentences written so far and what
is in its cache. Called again it goes on from there, unless the turns that it is of have changed.

Where the context is full before that, the two are exchanged nevertheless: the summary stands for
the oldest turns, which would be dropped otherwise, and the turn computes only what is missing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from llm_engine.checkpoints.tokenizer import Detokenizer
from llm_engine.config import SamplingParams
from llm_engine.core.engine_thread import EngineThread
from llm_engine.core.output import FinishReason
from llm_engine.core.request import Request
from llm_engine.errors import EngineError
from llm_engine.kv_cache.kv_cache import SequenceId

from .message_encoder import EncodedMessage
from .summary import Statement, bounded, checked, completed, request, statements
from .template import ChatMessage
from .thinking import ThoughtReader
from .token_history import TokenHistory

_GREEDY: Final = SamplingParams()
"""Sampling of summaries. A penalty of repetitions would depend on where writing was interrupted."""


@dataclass(frozen=True, slots=True)
class CondensationLimits:
    """What a context is to be after its oldest turns were condensed."""

    max_kept_tokens: int
    """Tokens of the turns that stay as they are."""
    max_summary_tokens: int
    is_written: bool
    """True: the model writes the summary. False: it is made of the caller's own sentences."""


@dataclass(frozen=True, slots=True)
class ContextReplacement:
    """A replacement that was made."""

    summary: tuple[str, ...]
    """Its sentences; all that is left of older turns."""
    num_left_out: int
    """Messages since the last `reset` that had been dropped or condensed before."""
    roles: tuple[str, ...]
    """Roles of the messages that were replaced, in order."""
    num_tokens_before: int
    """Tokens of the context."""
    num_tokens: int


class OutdatedError(Exception):
    """The turns to condense are not the conversation's oldest any more."""


class Condensation:
    """The replacement of some messages. Belongs to one conversation and its event loop."""

    def __init__(
        self,
        thread: EngineThread,
        sequence: SequenceId,
        history: TokenHistory,
        old: tuple[EncodedMessage, ...],
        limits: CondensationLimits,
        *,
        end_ids: frozenset[int],
        token_bytes: tuple[bytes, ...],
        encode: Callable[[list[ChatMessage]], list[int]],
    ) -> None:
        """`sequence` is its own. `old`: the history's oldest messages. `encode` gives the prompt
        that asks for a reply to messages, without tools."""
        self.sequence = sequence
        self.old = old
        self._thread = thread
        self._history = history
        self._limits = limits
        self._end_ids = end_ids
        self._token_bytes = token_bytes
        self._encode = encode
        self._found = bounded(
            statements(history.summary, history.written(old)),
            history.count,
            history.context_length // 2,
        )
        self._written: list[int] = []
        """Token ids of the summary so far."""
        self._before = history.summary
        self._is_over = not (limits.is_written and self._found)
        """The model has written all that it will."""
        self._summary: tuple[str, ...] | None = None
        self._computed: tuple[int, ...] = ()
        """Prompt of the new context that is in the cache."""

    @property
    def is_current(self) -> bool:
        """True if the history still begins with the summary that was read and the messages to be
        replaced."""
        history = self._history
        return history.summary == self._before and history.begins_with(self.old)

    async def run(self) -> tuple[str, ...]:
        """Write the summary and compute the new context; returns the summary when nothing is
        missing.

        Raises EngineError, also where the cache has no room; OutdatedError.
        """
        while not self._is_over:
            await self._write()
        while True:
            if not self.is_current:
                raise OutdatedError
            prompt, num_fixed = self._history.condensed_prompt(len(self.old), self.summary)
            if prompt == self._computed:
                return self.summary
            await self._request(prompt, 0, num_fixed)
            self._computed = prompt

    @property
    def summary(self) -> tuple[str, ...]:
        """The summary's sentences. The first time that it is asked for ends the writing of it:
        what is missing by then is told by the caller's own sentences."""
        if self._summary is None:
            self._is_over = True
            self._summary = tuple(each.text for each in self._kept())
        return self._summary

    async def _write(self) -> None:
        prompt = (*self._encode(request(self._found)), *self._written)
        left = self._limits.max_summary_tokens - len(self._written)
        if left > 0:
            await self._request(prompt, left)
        self._is_over = True

    async def _request(self, prompt: tuple[int, ...], max_tokens: int, num_fixed: int = 0) -> None:
        """Run a background request to its end; what it generates is added to `_written`."""
        stream = self._thread.submit(
            Request(
                prompt,
                _GREEDY,
                self._end_ids,
                max_tokens=max_tokens,
                sequence=self.sequence,
                is_background=True,
                num_fixed=num_fixed,
            )
        )
        try:
            while True:
                output = await stream.next()
                if output.finish_reason is FinishReason.CANCELLED:
                    raise EngineError("the new context was pushed out of the cache")
                self._written += output.token_ids
                if output.is_last:
                    return
        finally:
            self._thread.abort(stream)

    def _kept(self) -> list[Statement]:
        """The sentences of the summary."""
        found = self._found
        if self._written:
            detokenizer = Detokenizer(self._token_bytes)
            text = "".join(map(detokenizer.push, self._written))
            reader = ThoughtReader(is_open=self._history.opens_thought)
            pieces = [*reader.push(text), *reader.flush()]
            words = "".join(piece.text for piece in pieces if piece.kind == "words")
            found = completed(checked(words, found), found)
        return bounded(found, self._history.count, self._limits.max_summary_tokens)
