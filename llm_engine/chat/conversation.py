"""One call's talk with the model: the port through which an agent uses the engine.

Everything here is bookkeeping of ids; the engine finds out by itself how much of each new prompt
its cache already holds. That makes changing one's mind cheap: a preview of words that are still
being recognized, a reply thrown away because the caller went on, a reply cut to what was heard.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace

from latency_budget.account.turn import TurnId
from llm_engine.config import SamplingParams
from llm_engine.core.engine_thread import EngineThread, OutputStream
from llm_engine.core.output import TokenChunk, Usage
from llm_engine.core.request import Request
from llm_engine.errors import EngineError, RequestError
from llm_engine.kv_cache.sequence import SequenceId

from .template import ChatMessage
from .token_history import TokenHistory
from .tool_calls import CallingMessage, ToolCall, ToolUse
from .tool_prompt import PromptHead, ToolPrompts, prepare

OnMark = Callable[[str, int], None]
"""Takes the name of an EngineMark and monotonic ns; called on the event loop with the first token,
in order, for instants that may lie a little back."""

DEFAULT_RESERVE = 256
"""Tokens kept free for a reply whose length is not limited. A spoken reply has 20 to 100."""


async def chunks(
    stream: OutputStream, turn: TurnId, on_mark: OnMark | None
) -> AsyncGenerator[TokenChunk, None]:
    """A request's outputs as a reply's chunks, up to and including the last."""
    index = 0
    usage: Usage | None = None
    while True:
        output = await stream.next()
        usage = output.usage or usage
        for name, at_ns in output.marks if on_mark else ():
            assert on_mark is not None
            on_mark(name, at_ns)
        if output.text or output.finish_reason is not None:
            yield TokenChunk(
                turn, index, output.text, output.token_ids, output.finish_reason, usage
            )
            usage = None
            index += 1
        if output.finish_reason is not None:
            return


@dataclass(frozen=True, slots=True, eq=False)
class _Generation:
    turn: TurnId
    stream: OutputStream


class Conversation:
    """Made by `Engine.open_conversation`. Use it from one event loop; close it when done."""

    def __init__(
        self,
        worker: EngineThread,
        sequence: SequenceId,
        close_sequence: Callable[[SequenceId], None],
        dialogue: TokenHistory,
        *,
        end_ids: frozenset[int],
        sampling: SamplingParams,
        tooling: ToolPrompts,
        system: str = "",
    ) -> None:
        self._worker = worker
        self._sequence = sequence
        self._close_sequence = close_sequence
        self._dialogue = dialogue
        self._end_ids = end_ids
        self._sampling = sampling
        self.head = PromptHead(dialogue, tooling, system)
        """Through which tools are set."""
        self._generation: _Generation | None = None
        self._preview: OutputStream | None = None
        self.is_closed = False

    @property
    def messages(self) -> list[ChatMessage]:
        """The turns as the model sees them, without system prompt and examples."""
        return self._dialogue.messages()

    async def preview(self, text: str) -> None:
        """Prefill, at low priority, this beginning of the user's next message.

        What ends a message is prefilled with it: when just these words are committed, one row is
        left to compute, and when it goes on, a few were in vain. Returns at once. Each preview
        replaces the one before; text may change in any way. Does nothing while a reply is being
        generated. Raises RequestError for text that cannot be one.
        """
        _require_open(self.is_closed)
        if self._generation is not None:
            return
        prompt = self._dialogue.open_prompt(
            text, _reserve(self._sampling.max_tokens, self._dialogue.context_length)
        )
        request = Request(
            prompt,
            self._sampling,
            self._end_ids,
            max_tokens=0,
            sequence=self._sequence,
            num_fixed=self._dialogue.num_fixed,
        )
        self._preview = self._worker.submit(request)

    async def warm(self, text: str = "") -> None:
        """As `preview`, until it is computed or something else came first. Raises EngineError."""
        await self.preview(text)
        preview, self._preview = self._preview, None
        if preview is not None:
            await preview.next()

    async def commit(self, text: str, role: str = "user", calls: Sequence[ToolCall] = ()) -> None:
        """A message is complete and part of the history. `calls`: of tools, by the assistant; the
        role "tool" is for what one of them gave. Raises RequestError, changing nothing."""
        _require_open(self.is_closed)
        message = self.head.message(text, role, calls)
        await prepare(self._dialogue, [message])
        self._dialogue.append(message.role, message.text, message.markup)

    async def check(self, text: str, role: str = "user", calls: Sequence[ToolCall] = ()) -> None:
        """Raise RequestError where it could never be committed, however short the history. The role
        "system" asks for `set_system`."""
        _require_open(self.is_closed)
        message = self.head.message(text, role, calls)
        await prepare(self._dialogue, [message])
        self._dialogue.check(message.role, message.text)

    async def uncommit(self) -> None:
        """Take back the last user message and the reply to it: the caller went on speaking."""
        _require_open(self.is_closed)
        self._stop()
        self._dialogue.uncommit()

    async def generate(
        self,
        turn: TurnId,
        deadline_ns: int | None = None,
        *,
        max_tokens: int | None = None,
        sampling: SamplingParams | None = None,
        use: ToolUse | None = None,
        on_mark: OnMark | None = None,
    ) -> AsyncGenerator[TokenChunk, None]:
        """Answer. What has been yielded is history; closing the generator stops the engine.

        `deadline_ns` (monotonic) orders prompts that wait for the engine; a late reply still comes.
        `sampling` replaces the conversation's own for this reply. `use`: what it may call, in the
        form that `llm_engine.call_reader` reads.
        Raises RequestError when a reply is already under way, EngineError when the engine fails.
        """
        sampling = await self.head.constrained(sampling or self._sampling, use)
        _require_open(self.is_closed)
        if self._generation is not None:
            raise RequestError(
                "turn", f"turn {self._generation.turn} is still being answered; cancel it first"
            )
        if max_tokens is not None:
            sampling = replace(sampling, max_tokens=max_tokens)
        limit = sampling.max_tokens
        prompt = self._dialogue.prompt(_reserve(limit, self._dialogue.context_length))
        request = Request(
            prompt,
            sampling,
            self._end_ids,
            max_tokens=limit or self._dialogue.context_length,
            sequence=self._sequence,
            deadline_ns=deadline_ns,
            num_fixed=self._dialogue.num_fixed,
        )
        generation = self._generation = _Generation(turn, self._worker.submit(request))
        reply = self._dialogue.begin_reply()
        try:
            async for chunk in chunks(generation.stream, turn, on_mark):
                if generation is self._generation:
                    assert reply.fixed_ids is not None
                    reply.fixed_ids.extend(chunk.token_ids)
                    if chunk.finish_reason is not None:
                        self._generation = None
                yield chunk
        finally:
            if generation is self._generation:
                self._stop()
            self._dialogue.forget_if_empty(reply)

    def played_until(self, turn: TurnId, at_ns: int) -> None:
        """The speech made of this reply so far lasts until then (monotonic): the engine may serve
        others first. Costs next to nothing. Ignores turns that are not being answered."""
        if self._generation is not None and self._generation.turn == turn:
            self._generation.stream.played_until_ns = at_ns

    async def cancel(self, turn: TurnId) -> None:
        """Stop answering this turn; its generator ends with `cancelled`. Ignores other turns."""
        if self._generation is not None and self._generation.turn == turn:
            self._stop()

    async def truncate_reply(self, num_chars_heard: int) -> None:
        """Cut the last reply to what was heard: tokens that start before this character stay.

        0 takes the reply out of the history. A reply still being generated is stopped.
        """
        _require_open(self.is_closed)
        self._stop()
        self._dialogue.truncate_reply(num_chars_heard)

    async def set_system(self, text: str) -> None:
        """Replace the system prompt. Everything is prefilled anew; `warm` can do so ahead."""
        _require_open(self.is_closed)
        message = self.head.system(text)
        await prepare(self._dialogue, [message])
        self._dialogue.set_system(message.text)
        self.head.has_system(text)

    async def reset(self, messages: Sequence[ChatMessage | CallingMessage]) -> None:
        """Replace the history. Messages equal to present ones keep their ids; those older than the
        context can hold are dropped.

        A system message at the front replaces the system prompt; otherwise that stays. Raises
        RequestError, changing nothing.
        """
        _require_open(self.is_closed)
        self._stop()
        told = self.head.history(messages)
        present = set(self._dialogue.messages())
        await prepare(self._dialogue, [each for each in told if each not in present])
        self._dialogue.reset(told)
        first = messages[0] if messages else None
        if isinstance(first, ChatMessage) and first.role == "system":
            self.head.has_system(first.text)

    async def close(self) -> None:
        """Stop, and release the cache. Does nothing the second time."""
        if not self.is_closed:
            self._stop()
            self.is_closed = True
            sequence, close_sequence = self._sequence, self._close_sequence
            self._worker.post(lambda: close_sequence(sequence))

    def _stop(self) -> None:
        generation, self._generation = self._generation, None
        if generation is not None:
            generation.stream.cut()
            self._worker.abort(generation.stream)


def _require_open(closed: bool) -> None:
    if closed:
        raise EngineError("the conversation is closed")


def _reserve(limit: int | None, context_length: int) -> int:
    """Tokens to keep free for a reply of at most `limit`."""
    return min(limit or DEFAULT_RESERVE, context_length // 4)
