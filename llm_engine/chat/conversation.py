"""One conversation with the model: the interface through which a voice agent uses the engine.

Everything here is bookkeeping of token ids; the engine finds out by itself how much of each new
prompt its KV cache already holds. That makes a change of plan cheap: a preview of words that are
still being recognized, a reply discarded because the caller went on, a reply truncated to what was
heard.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from latency_budget.account.turn import TurnId
from llm_engine.checkpoints.tokenizer import LONG_TEXT_CHARS
from llm_engine.config import SamplingParams
from llm_engine.core.engine_thread import EngineThread, OutputStream
from llm_engine.core.output import TokenChunk, Usage
from llm_engine.core.request import Request, TokenScore
from llm_engine.errors import EngineError, RequestError
from llm_engine.kv_cache.kv_cache import SequenceId
from llm_engine.structured_output.grammar import Grammar

from .condensation import Condensation, CondensationLimits, ContextReplacement, OutdatedError
from .template import ChatMessage, ChatTemplate, Role
from .thinking import ThoughtReader, WordIds
from .token_history import ContextTokens, HistoryTruncation, TokenHistory
from .tool_calls import CallingMessage, Dialect, Tool, ToolCall, ToolUse

OnMark = Callable[[str, int], None]
"""Callback for an EngineMark's name and its instant in monotonic ns; called on the event loop with
the first token, in order, for instants that may lie a little back."""

OnMessageEnd = Callable[[str, float], None]
"""Callback for the user's newest message and the natural logarithm of the probability that it ends
after its last word: that the end of the message or a sentence-final mark follows. Called on the
event loop."""

DEFAULT_RESERVE = 256
"""Tokens kept free for a reply whose length is not limited. A spoken reply has 20 to 100."""


async def chunks(
    stream: OutputStream,
    turn: TurnId,
    on_mark: OnMark | None,
    on_log_prob: Callable[[float], None] | None = None,
) -> AsyncGenerator[TokenChunk, None]:
    """Yield a request's outputs as chunks of its reply, up to and including the last.

    `on_log_prob`: called with the answer to the request's `score`.
    """
    index = 0
    usage: Usage | None = None
    while True:
        output = await stream.next()
        usage = output.usage or usage
        if output.log_prob is not None and on_log_prob is not None:
            on_log_prob(output.log_prob)
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


@dataclass(frozen=True, slots=True)
class ToolPrompts:
    """Tools in the prompt, and grammars that hold a reply to their schemas. For any event loop."""

    dialect: Dialect
    template_with: Callable[[tuple[str, ...]], Awaitable[ChatTemplate]]
    """Returns the chat template with these tool definitions in it. Raises RequestError."""
    compile: Callable[[Grammar], None]
    """Compiles a grammar ahead of its use, on any thread. Raises RequestError."""

    async def template(self, tools: Sequence[Tool]) -> ChatTemplate:
        """The chat template with these tools in it. Raises RequestError where it refuses them."""
        return await self.template_with(self.dialect.definitions(tools))

    async def constrained(self, sampling: SamplingParams, use: ToolUse | None) -> SamplingParams:
        """Add the grammar that lets a reply call these tools only, in their form.

        Raises RequestError naming the tool whose arguments can't be constrained.
        """
        if use is None:
            return sampling
        grammar = self.dialect.grammar(use)
        await asyncio.to_thread(self.compile, grammar)
        if use.must_call:
            # JSON repeats its quotes and brackets; penalized, it becomes strings without an end.
            sampling = replace(sampling, repetition_penalty=1.0)
        return replace(sampling, grammar=grammar)

    async def check(
        self, history: TokenHistory, system: str, sampling: SamplingParams, use: ToolUse
    ) -> None:
        """Raise RequestError where a conversation with this system prompt can't be shown these
        tools, or a reply can't be held to what they take."""
        await self.constrained(sampling, use)
        template = await self.template(use.shown)
        text = self.dialect.system(system, use.shown)
        await _prepare(history, [ChatMessage("system", text)])
        history.check("system", text, template=template)


@dataclass(frozen=True, slots=True)
class Sequences:
    """What a conversation needs of its engine to condense itself."""

    open: Callable[[], Awaitable[SequenceId]]
    """Opens a sequence, if need be in place of an idle conversation. Raises RequestError."""
    close: Callable[[SequenceId], None]
    """Closes a sequence, on the engine's thread."""
    encode: Callable[[list[ChatMessage]], list[int]]
    """Token ids of a prompt that asks for a reply to messages, without tools."""
    token_bytes: tuple[bytes, ...]


@dataclass(slots=True, eq=False)
class _MessageEnd:
    """End of a user's message that the engine was asked about."""

    text: str
    prefix: tuple[int, ...]
    """The prompt up to the message's last word."""
    log_prob: float | None = None
    """None until the engine answers."""


@dataclass(frozen=True, slots=True, eq=False)
class _Generation:
    turn: TurnId
    stream: OutputStream


class Conversation:
    """A conversation with its own KV cache. Made by `Engine.open_conversation`; use it from one
    event loop and close it when done."""

    def __init__(  # noqa: PLR0913
        self,
        thread: EngineThread,
        sequence: SequenceId,
        sequences: Sequences,
        history: TokenHistory,
        *,
        end_ids: frozenset[int],
        message_end_ids: tuple[int, ...],
        sampling: SamplingParams,
        tool_prompts: ToolPrompts,
        system: str = "",
    ) -> None:
        """`history` was opened with the system prompt `system` and without tools.
        `message_end_ids`: tokens that end a message or a sentence."""
        self._thread = thread
        self._sequence = sequence
        self._sequences = sequences
        self._history = history
        self._end_ids = end_ids
        self._sampling = sampling
        self._tool_prompts = tool_prompts
        self._system = system
        """System prompt as it was given, without what the dialect adds about tools."""
        self._tools: tuple[Tool, ...] = ()
        self._generation: _Generation | None = None
        self._preview: OutputStream | None = None
        self._condensation: Condensation | None = None
        """Being prepared."""
        self._message_end_ids = message_end_ids
        self._on_message_end: OnMessageEnd | None = None
        self._message_end: _MessageEnd | None = None
        """The newest end of a message that was asked about."""
        self.is_closed = False

    @property
    def messages(self) -> list[ChatMessage]:
        """The turns as the model sees them, without system prompt and examples."""
        return self._history.messages()

    @property
    def summary(self) -> tuple[str, ...]:
        """Sentences that stand for older turns; empty where there is no summary."""
        return self._history.summary

    @property
    def num_left_out(self) -> int:
        """Messages since the last `reset`, its own included, that were dropped or condensed."""
        return self._history.num_left_out

    def context_use(self) -> ContextTokens:
        """Tokens of the context. Takes 1 us a message."""
        length = self._history.context_length
        return self._history.use(_reserve(self._sampling.max_tokens, length))

    def set_truncation(self, truncation: HistoryTruncation) -> None:
        """Drop the oldest exchanges by this rule from the next prompt on."""
        self._history.truncation = truncation

    def watch_message_end(self, tell: OnMessageEnd) -> None:
        """Call back whenever a preview or the prompt of a reply ends with words of the user that
        the model has computed. Costs the logits of a row; the words of a preview are not computed
        again for the reply to them. Never called where the backend has no logits on the host."""
        self._on_message_end = tell

    # --- the prompt ahead of time ---

    async def preview(self, text: str) -> None:
        """Prefill, at low priority, this beginning of the user's next message.

        What ends a message is prefilled with it: when exactly these words are committed, one row is
        left to compute, and when the message goes on, a few were in vain. Returns at once. Each
        preview replaces the one before; text may change in any way. Does nothing while a reply is
        being generated. Raises RequestError for text that cannot be one.
        """
        _require_open(self.is_closed)
        if self._generation is not None:
            return
        reserve = _reserve(self._sampling.max_tokens, self._history.context_length)
        self._replace_if_full(text, reserve)
        prompt = self._history.open_prompt(text, reserve)
        request = Request(
            prompt,
            self._sampling,
            self._end_ids,
            max_tokens=0,
            sequence=self._sequence,
            num_fixed=self._history.num_fixed,
            score=self._ask_message_end(prompt, text) if text else None,
        )
        self._preview = self._thread.submit(request)

    async def warm(self, text: str = "") -> None:
        """Preview, and wait until it is computed or superseded. Raises EngineError."""
        await self.preview(text)
        preview, self._preview, end = self._preview, None, self._message_end
        while preview is not None:
            output = await preview.next()
            if output.log_prob is not None:
                self._message_end_scored(end, output.log_prob)
            if output.is_last:
                break

    # --- the history ---

    async def commit(self, text: str, role: str = "user", calls: Sequence[ToolCall] = ()) -> None:
        """Append a complete message to the history. `calls`: tool calls, by the assistant; the
        role "tool" is for a tool's result. Raises RequestError, changing nothing."""
        _require_open(self.is_closed)
        message = self._message(text, role, calls)
        await _prepare(self._history, [message])
        self._history.append(message.role, message.text, message.markup)

    async def check(self, text: str, role: str = "user", calls: Sequence[ToolCall] = ()) -> None:
        """Raise RequestError where this message could never be committed, however short the
        history. With the role "system" the check is that of `set_system`."""
        _require_open(self.is_closed)
        message = self._message(text, role, calls)
        await _prepare(self._history, [message])
        self._history.check(message.role, message.text)

    async def uncommit(self) -> None:
        """Take back the last user message and the reply to it: the caller went on speaking."""
        _require_open(self.is_closed)
        self._stop()
        self._history.uncommit()

    async def truncate_reply(self, num_chars_heard: int) -> None:
        """Cut the last reply to what was heard: tokens that start before this character stay.

        0 takes the reply out of the history. A reply still being generated is stopped.
        """
        _require_open(self.is_closed)
        self._stop()
        self._history.truncate_reply(num_chars_heard)

    async def set_system(self, text: str, examples: Sequence[ChatMessage] | None = None) -> None:
        """Replace the system prompt and, where given, the examples. Everything is prefilled anew;
        `warm` can do so ahead. Raises RequestError, changing nothing."""
        _require_open(self.is_closed)
        message = self._message(text, "system")
        await _prepare(self._history, [message])
        self._history.set_system(message.text, examples=examples)
        self._system = text

    async def set_tools(self, tools: Sequence[Tool], *, with_examples: bool = True) -> None:
        """Show the model these tools and no others, and the conversation's examples or none of
        them. Everything is prefilled anew. Raises RequestError, changing nothing."""
        template = await self._tool_prompts.template(tools)
        system = self._tool_prompts.dialect.system(self._system, tools)
        await _prepare(self._history, [ChatMessage("system", system)])
        self._history.set_system(system, template, with_examples=with_examples)
        self._tools = tuple(tools)

    async def check_tools(self, sampling: SamplingParams, use: ToolUse) -> None:
        """Raise RequestError where `set_tools` or a reply that uses these tools would."""
        await self._tool_prompts.check(self._history, self._system, sampling, use)

    async def reset(
        self, messages: Sequence[ChatMessage | CallingMessage], summary: tuple[str, ...] = ()
    ) -> None:
        """Replace the history. Messages equal to present ones keep their ids; those older than the
        context can hold are dropped. `summary` stands for messages that came before.

        A system message at the front replaces the system prompt; otherwise that stays. Raises
        RequestError, changing nothing.
        """
        _require_open(self.is_closed)
        self._stop()
        # One by one, as `commit` has them: else results in a row would become one message.
        dialect = self._tool_prompts.dialect
        shown = [each for message in messages for each in dialect.shown([message])]
        if shown and shown[0].role == "system":
            shown[0] = self._message(shown[0].text, "system")
        present = set(self._history.messages())
        await _prepare(self._history, [each for each in shown if each not in present])
        self._history.reset(shown, summary)
        first = messages[0] if messages else None
        if isinstance(first, ChatMessage) and first.role == "system":
            self._system = first.text

    async def condense(self, limits: CondensationLimits) -> ContextReplacement | None:
        """Replace the oldest turns by a summary, in the background; returns when it is done.

        None where there is nothing to replace, or a reply is under way, or the turns have changed
        meanwhile. Cancelled, it has changed nothing; called again, it goes on with what it has
        prepared. Raises EngineError, also where the cache has no room for it, and RequestError
        where the engine has no sequence left.
        """
        _require_open(self.is_closed)
        work = self._condensation
        if work is not None and not work.is_current:
            self._drop_condensation()
            work = None
        if work is None:
            work = await self._begin_condensation(limits)
            if work is None:
                return None
        try:
            await work.run()
        except OutdatedError:
            if self._condensation is work:
                self._drop_condensation()
            return None
        except EngineError:
            if self._condensation is work:
                raise
            return None  # a full context has taken it, or the conversation is closed
        if self._condensation is not work or self._generation is not None or self.is_closed:
            return None
        before, num_left_out = self.context_use(), self._history.num_left_out
        self._replace(work)
        after = self.context_use()
        return ContextReplacement(
            work.summary,
            num_left_out,
            tuple(message.role for message in work.old),
            before.num_fixed + before.num_turns,
            after.num_fixed + after.num_turns,
        )

    async def _begin_condensation(self, limits: CondensationLimits) -> Condensation | None:
        if not self._history.oldest(limits.max_kept_tokens):
            return None
        sequence = await self._sequences.open()
        old = self._history.oldest(limits.max_kept_tokens)
        if not old or self.is_closed or self._condensation is not None:
            self._close_sequence(sequence)
            return None
        self._condensation = Condensation(
            self._thread,
            sequence,
            self._history,
            old,
            limits,
            end_ids=self._end_ids,
            token_bytes=self._sequences.token_bytes,
            encode=self._sequences.encode,
        )
        return self._condensation

    def _replace(self, work: Condensation) -> None:
        """Put what was prepared in place of the oldest turns."""
        self._history.condense(len(work.old), work.summary)
        left, self._sequence = self._sequence, work.sequence
        self._condensation = None
        self._close_sequence(left)

    def _replace_if_full(self, opened: str | None, reserve: int) -> None:
        """Where turns would be dropped, take the replacement as far as it is prepared. `opened` as
        in `TokenHistory.message_end`."""
        work = self._condensation
        if work is not None and work.is_current and self._history.is_full(opened, reserve):
            self._replace(work)

    def _drop_condensation(self) -> None:
        work, self._condensation = self._condensation, None
        if work is not None:
            self._close_sequence(work.sequence)

    # --- the reply ---

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
        """Generate the reply. What has been yielded is history; closing the generator stops the
        engine.

        `deadline_ns` (monotonic) orders prompts that wait for the engine; a late reply still comes.
        `sampling` replaces the conversation's own for this reply. `use`: tools that the reply may
        call, in the form that `llm_engine.chat.call_reader` reads. Thoughts come apart from the
        text, count for `max_tokens`, and are not part of the history.
        Raises RequestError when a reply is already under way, EngineError when the engine fails.
        """
        sampling = await self._tool_prompts.constrained(sampling or self._sampling, use)
        _require_open(self.is_closed)
        if self._generation is not None:
            raise RequestError(
                "turn", f"turn {self._generation.turn} is still being answered; cancel it first"
            )
        if max_tokens is not None:
            sampling = replace(sampling, max_tokens=max_tokens)
        limit = sampling.max_tokens
        reserve = _reserve(limit, self._history.context_length)
        self._replace_if_full(None, reserve)
        prompt = self._history.prompt(reserve)
        request = Request(
            prompt,
            sampling,
            self._end_ids,
            max_tokens=limit or self._history.context_length,
            sequence=self._sequence,
            deadline_ns=deadline_ns,
            num_fixed=self._history.num_fixed,
            score=self._ask_message_end(prompt),
        )
        generation = self._generation = _Generation(turn, self._thread.submit(request))
        reply = self._history.begin_reply()
        thoughts = self._thoughts(sampling.grammar)
        try:
            scored = partial(self._message_end_scored, self._message_end)
            async for whole in chunks(generation.stream, turn, on_mark, scored):
                chunk, word_ids = thoughts.split(whole)
                if generation is self._generation:
                    assert reply.fixed_ids is not None
                    reply.fixed_ids.extend(word_ids)
                    if chunk is not None and chunk.finish_reason is not None:
                        self._generation = None
                if chunk is not None:
                    yield chunk
        finally:
            if generation is self._generation:
                self._stop()
            self._history.forget_if_empty(reply)

    def played_until(self, turn: TurnId, at_ns: int) -> None:
        """Note until when (monotonic) the audio of this reply so far plays: the engine may serve
        others first. Costs next to nothing. Ignores turns that are not being answered."""
        if self._generation is not None and self._generation.turn == turn:
            self._generation.stream.played_until_ns = at_ns

    async def cancel(self, turn: TurnId) -> None:
        """Stop answering this turn; its generator ends with `cancelled`. Ignores other turns."""
        if self._generation is not None and self._generation.turn == turn:
            self._stop()

    async def close(self) -> None:
        """Stop, and release the cache. Does nothing the second time."""
        if not self.is_closed:
            self._stop()
            self.is_closed = True
            self._drop_condensation()
            self._close_sequence(self._sequence)

    def _close_sequence(self, sequence: SequenceId) -> None:
        self._thread.post(lambda: self._sequences.close(sequence))

    def _thoughts(self, grammar: Grammar | None) -> "_Thoughts":
        """What separates the thoughts of a reply with this grammar."""
        history = self._history
        if grammar is not None and not grammar.has_text:
            return _Thoughts(None, history.word_ids())
        calls = None if grammar is None else self._tool_prompts.dialect.opening
        reader = ThoughtReader(is_open=history.opens_thought, calls=calls)
        return _Thoughts(reader, history.word_ids())

    def _ask_message_end(
        self, prompt: tuple[int, ...], opened: str | None = None
    ) -> TokenScore | None:
        """The question whether the message at the end of this prompt is over; None where nothing
        watches or the answer is known, which is passed on at once. `opened`: as in
        `TokenHistory.message_end`."""
        if self._on_message_end is None or not self._message_end_ids:
            return None
        found = self._history.message_end(opened)
        if found is None:
            self._message_end = None
            return None
        text, num_before = found
        known, prefix = self._message_end, prompt[:num_before]
        self._message_end = _MessageEnd(text, prefix)
        if known is not None and known.log_prob is not None and known.prefix == prefix:
            self._message_end_scored(self._message_end, known.log_prob)
            return None
        return TokenScore(num_before, self._message_end_ids)

    def _message_end_scored(self, end: _MessageEnd | None, log_prob: float) -> None:
        """Take the answer about a message's end; it is passed on if it is the newest question."""
        if end is not None and self._on_message_end is not None:
            end.log_prob = log_prob
            if end is self._message_end:
                self._on_message_end(end.text, log_prob)

    def _message(self, text: str, role: str, calls: Sequence[ToolCall] = ()) -> ChatMessage:
        """A message as the model reads it; a system prompt with the present tools."""
        dialect = self._tool_prompts.dialect
        if role == "system":
            return ChatMessage("system", dialect.system(text, self._tools))
        if calls:
            return dialect.written(CallingMessage(text, tuple(calls)))
        return dialect.shown([ChatMessage(cast(Role, role), text)])[0]

    def _stop(self) -> None:
        generation, self._generation = self._generation, None
        if generation is not None:
            generation.stream.cut()
            self._thread.abort(generation.stream)


class _Thoughts:
    """Separates the thoughts of one reply from its words."""

    def __init__(self, reader: ThoughtReader | None, word_ids: WordIds) -> None:
        """`reader` None: the reply has no thoughts."""
        self._reader = reader
        self._word_ids = word_ids
        self._num_chunks = 0
        self._ids: tuple[int, ...] = ()
        self._usage: Usage | None = None
        """Ids and counts of chunks whose text is held back."""

    def split(self, chunk: TokenChunk) -> tuple[TokenChunk | None, Sequence[int]]:
        """The chunk with its thoughts apart, None while its text is held back; and more ids of
        words."""
        if self._reader is None:
            return chunk, chunk.token_ids
        is_last = chunk.finish_reason is not None
        pieces = [*self._reader.push(chunk.text), *(self._reader.flush() if is_last else ())]
        word_ids = self._word_ids.push(chunk.token_ids, pieces, is_last=is_last)
        text = "".join(piece.text for piece in pieces if piece.kind == "words")
        thought = "".join(piece.text for piece in pieces if piece.kind == "thought")
        self._ids += chunk.token_ids
        self._usage = chunk.usage or self._usage
        if not (text or thought or is_last):
            return None, word_ids
        whole = replace(
            chunk,
            index=self._num_chunks,
            text=text,
            token_ids=self._ids,
            usage=self._usage,
            thought=thought,
        )
        self._num_chunks, self._ids, self._usage = self._num_chunks + 1, (), None
        return whole, word_ids


async def _prepare(history: TokenHistory, messages: Sequence[ChatMessage]) -> None:
    """Encode long texts on another thread: all calls share the event loop."""
    if sum(len(each.text) for each in messages) > LONG_TEXT_CHARS:
        await asyncio.to_thread(history.prepare, messages)


def _require_open(closed: bool) -> None:
    if closed:
        raise EngineError("the conversation is closed")


def _reserve(limit: int | None, context_length: int) -> int:
    """Tokens to keep free for a reply of at most `limit`."""
    return min(limit or DEFAULT_RESERVE, context_length // 4)
