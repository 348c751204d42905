"""Conversations of the calls with a language model on another server, or of a plug-in.

The server (any `ReplySource`) is stateless: each request has the whole history, which is kept here
as text. A conversation prefills it all the same: the caller's words are sent ahead, as a request of
one token, while they are being spoken, so that the server's prefix cache has them when the reply is
asked for. Where there is a smaller model in this process, it reads them too, and says how likely
the message is over (`message_end_scores.py`).

Where a reply fails before its first token and there is a smaller model in this process, that one
answers in its place, with the same history; so it does while the server is known to fail, and where
the first token has not come by the time that the first sound is due. Without a smaller model, and
after the first token, the turn fails as it does with an engine that fails: the caller hears an
apology, and the history holds what was said.
"""

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final

import llm_engine
from agent.config.schema import Condensing
from agent.errors import StageError
from agent.session.api.server_events import Usage
from agent.session.api.settings import Truncation
from agent.session.ports.stage_ports import (
    ChatMessage,
    ChatPort,
    Condensed,
    CondensingGoal,
    ContextUse,
    OnMark,
    OnMessageEnd,
    ReplyToken,
    Tools,
)
from agent.stages.tool_call_adapter import CHOICES, ToolLimits, tool_use
from latency_budget.account.clock import Clock
from latency_budget.account.marks import MarkName
from latency_budget.account.turn import TurnId
from llm_engine.chat.call_reader import CallFilter
from llm_engine.chat.summary import bounded, checked, completed, request, statements
from llm_engine.chat.template import ChatMessage as PromptMessage
from llm_engine.chat.thinking import Piece, ThoughtReader

from .completion_chunks import CallAssembler, Chunk
from .event_stream import MalformedStreamError
from .message_end_scores import MessageEndScorer, ScoringChat
from .optional_fields import before_quoted_input
from .remote_error import RemoteError
from .reply_source import ReplySource
from .text_history import TextHistory

PREVIEW_EVERY_S: Final = 0.3
"""Shortest interval between two requests that send a call's words ahead. Shorter: a server with
many calls computes beginnings of the same sentence all the time. Longer: more words are left for
the reply's own request; a person speaks one in 0.3 s."""

MIN_WAIT_S: Final = 0.3
"""Shortest wait for the first token before the smaller model answers: a server that works may need
as long for a prompt that was not sent ahead."""

MAX_TOKENS: Final = 256
"""Longest reply where neither the settings nor the client limit it."""

_TOO_LONG: Final = re.compile(
    r"context[ _]?(length|size|window)|max_model_len|maximum (model|allowed|prompt) length"
    r"|\b(prompt|input)\b[^.]{0,40}\bis too long|input token count|`inputs` tokens"
    r"|context limit|reduce the length of the messages|the context holds",
    re.IGNORECASE,
)
"""What servers say of a prompt that is longer than their context: OpenAI, vLLM, SGLang, llama.cpp,
Ollama, LM Studio, TGI, Gemini, Anthropic, Groq, Cerebras, this service. Not what they say of a name
or limit that is too long or large: to drop the history is no remedy for that."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SmallModel:
    """The smaller model in this process."""

    open_chat: Callable[[str, Sequence[ChatMessage]], ChatPort]
    is_ready: Callable[[], bool]
    open_scoring_chat: Callable[[], ScoringChat] | None = None
    """Opens a conversation that scores the caller's words. None: nothing does."""


class RemoteChat:
    """A `ChatPort`: one conversation with a model on another server, or of a plug-in. It does not
    score the end of messages: no such model returns the probabilities of a prompt. One event
    loop."""

    def __init__(
        self,
        server: ReplySource,
        clock: Clock,
        sampling: llm_engine.SamplingParams,
        history: TextHistory,
        limits: ToolLimits,
        condensing: Condensing,
        small: SmallModel | None = None,
    ) -> None:
        self._server = server
        self._clock = clock
        self._sampling = sampling
        self._history = history
        self._limits = limits
        self._condensing = condensing
        self._small = small
        self._small_chat: ChatPort | None = None
        self._definitions: tuple[str, ...] = ()
        self._small_setting: tuple[str, tuple[ChatMessage, ...], tuple[str, ...]] = ("", (), ())
        """Instructions, examples and tools that the smaller model has."""
        self._scorer: MessageEndScorer | None = None
        if small is not None and small.open_scoring_chat is not None:
            self._scorer = MessageEndScorer(small.open_scoring_chat, small.is_ready)
        self._is_small = self._is_small_next = False
        """The smaller model answers, and will from the next message or preview on."""
        self._num_rounds = 0
        """Tool rounds since the caller's last words."""

    async def check(self, message: ChatMessage) -> None:
        _require_text(message)
        num_tokens = self._history.count(message.text)
        room = self._history.context_tokens - self._max_tokens(None)
        if num_tokens > room:
            raise StageError(
                "llm",
                f"The language model can't take this: about {num_tokens} tokens, and "
                f"llm_engine.context leaves room for {room}.",
                refused=True,
            )

    async def set_system(self, text: str, examples: Sequence[ChatMessage] | None = None) -> None:
        await self.check(ChatMessage("system", text))
        self._history.instructions = text
        if examples is not None:
            self._history.examples = tuple(examples)

    async def check_tools(self, tools: Tools) -> None:
        try:
            # On a thread: reading large schemas takes a while.
            await asyncio.to_thread(tool_use, tools)
        except llm_engine.RequestError as error:
            field = error.field.replace(".function", "")  # the client's name of the field
            problem = f"The language model can't take this: {field}: {error.problem}"
            raise StageError("llm", problem, refused=True) from None

    async def set_tools(self, definitions: tuple[str, ...]) -> None:
        tools: tuple[dict[str, Any], ...] = ()
        if definitions:
            await self.check_tools(Tools(definitions))
            tools = tuple(
                {"type": "function", "function": json.loads(each)} for each in definitions
            )
        self._history.tools, self._definitions = tools, definitions

    async def commit(self, message: ChatMessage) -> None:
        self._is_small = self._is_small_next
        await self.check(message)
        self._history.append(message)
        if message.role == "user":
            self._num_rounds = 0

    async def take_back(self) -> None:
        self._drop_score()
        self._history.take_back()

    async def reset(self, messages: Sequence[ChatMessage], summary: tuple[str, ...] = ()) -> None:
        for message in messages:
            _require_text(message)
        self._drop_score()
        self._history.reset(messages, summary)
        self._num_rounds = _num_rounds(messages)

    async def truncate_reply(self, num_chars: int) -> None:
        self._drop_score()
        self._history.truncate_reply(num_chars)

    async def generate(
        self,
        turn: TurnId,
        *,
        deadline_ns: int,
        max_tokens: int | None,
        on_mark: OnMark,
        tools: Tools | None = None,
    ) -> AsyncGenerator[ReplyToken, None]:
        """See `ChatPort.generate`. Raises StageError where no model answers."""
        small = None if self._small is None or not self._small.is_ready() else self._small
        is_known_to_fail = self._server.problem is not None  # it is watched, and may recover
        if small is not None and (self._is_small or is_known_to_fail):
            tokens = self._by_small(small, turn, deadline_ns, max_tokens, on_mark, tools)
        else:
            self._score_last()
            tokens = self._by_server(deadline_ns, max_tokens, on_mark, tools, small)
        recorder = _Recorder(self._history)
        failure: RemoteError | None = None
        try:
            async with aclosing(tokens):
                async for token in tokens:
                    self._record(recorder, token)
                    yield token
        except RemoteError as error:
            failure = error
        if failure is None:
            return
        if small is None or recorder.has_begun:
            raise StageError("llm", f"{self._server.subject} {failure.reason}.") from failure
        tokens = self._by_small(small, turn, deadline_ns, max_tokens, on_mark, tools)
        async with aclosing(tokens):
            async for token in tokens:
                self._record(recorder, token)
                yield token

    def set_truncation(self, truncation: Truncation) -> None:
        self._history.truncation = truncation

    def played_until(self, turn: TurnId, at_ns: int) -> None:
        if self._small_chat is not None:
            self._small_chat.played_until(turn, at_ns)

    async def preview(self, text: str) -> None:
        """See `ChatPort.preview`. Nothing is sent to a server that keeps no prompts."""
        self._is_small = self._is_small_next
        if self._is_small and self._small is not None and self._small.is_ready():
            self._drop_score()
            with contextlib.suppress(StageError):
                await (await self._brief_small(self._small)).preview(text)
            return
        if self._server.problem is not None:  # then the smaller model answers
            self._drop_score()
            return
        if self._scorer is not None:
            self._scorer.request(self._history.messages, text)
        if not self._server.caches_prefix:
            return
        began_ns = self._clock.now_ns()
        if self._history.truncation.retention_ratio is not None:
            self._history.drop_to_fit(self._max_tokens(None))  # a limit of the client's is for cost
        body = self._request(1, None, opened=text)
        with contextlib.suppress(RemoteError):  # a reply would fail too, and handles that
            await self._server.read_ahead(body)
        took_s = (self._clock.now_ns() - began_ns) / 1e9
        await asyncio.sleep(max(0.0, PREVIEW_EVERY_S - took_s))

    @property
    def num_left_out(self) -> int:
        return self._history.num_left_out

    def context_use(self) -> ContextUse | None:
        if self._condensing == "off":
            return None
        history = self._history
        reserved = self._max_tokens(None)
        return ContextUse(
            history.context_tokens, history.num_fixed(), history.num_turns(), reserved
        )

    async def condense(self, goal: CondensingGoal) -> Condensed | None:
        """See `ChatPort.condense`. The new context is not computed ahead: the next preview does
        that."""
        history = self._history
        old, before = history.oldest(goal.max_kept_tokens), history.summary
        if not old:
            return None
        num_before, num_left_out = history.num_fixed() + history.num_turns(), history.num_left_out
        prompts = [PromptMessage(each.role, each.text) for each in old if not each.calls]
        found = statements(before, prompts)
        if self._condensing == "summary" and found:
            found = await self._summarized(found, goal.max_summary_tokens)
        if history.summary != before or not history.begins_with(old):
            return None
        summary = tuple(
            each.text for each in bounded(found, history.count, goal.max_summary_tokens)
        )
        history.condense(len(old), summary)
        num_tokens = history.num_fixed() + history.num_turns()
        roles = tuple(each.role for each in old)
        return Condensed(summary, num_left_out, roles, num_before, num_tokens)

    def use_small_model(self, *, small: bool) -> bool:
        is_there = self._small is not None and self._small.is_ready()
        self._is_small_next = small and is_there
        return self._is_small_next

    async def close(self) -> None:
        if self._scorer is not None:
            await self._scorer.close()
        small, self._small_chat = self._small_chat, None
        if small is not None:
            await small.close()

    # --- scores of the caller's words ---

    def _score_last(self) -> None:
        """Score the user's message that is to be answered."""
        messages = self._history.messages
        if self._scorer is None:
            return
        if messages and messages[-1].role == "user":
            self._scorer.request(messages[:-1], messages[-1].text)
        else:
            self._scorer.drop()

    def _drop_score(self) -> None:
        if self._scorer is not None:
            self._scorer.drop()

    # --- the server ---

    async def _by_server(
        self,
        deadline_ns: int,
        max_tokens: int | None,
        on_mark: OnMark,
        tools: Tools | None,
        small: SmallModel | None,
    ) -> AsyncGenerator[ReplyToken, None]:
        """Raises RemoteError."""
        history, reserved = self._history, self._max_tokens(max_tokens)
        if history.truncation.is_disabled and history.is_over(reserved):
            raise StageError(
                "llm",
                "The language model can't take this: the conversation is longer than "
                'llm_engine.context, and session.truncation is "disabled".',
                refused=True,
            )
        history.drop_to_fit(reserved)
        before = history.turns()
        while True:
            tokens = self._tried(deadline_ns, max_tokens, on_mark, tools, small)
            try:
                async with aclosing(tokens):
                    async for token in tokens:
                        yield token
                return
            except RemoteError as error:  # one that rejects a prompt has said nothing
                may_drop = _is_too_long(error) and not history.truncation.is_disabled
                num_gone = history.drop_half() if may_drop else 0
                if not num_gone:
                    history.put_back(before)
                    raise
                _log.warning(
                    "%s is asked again without the oldest %d messages: it %s",
                    *(self._server.subject, num_gone, error.reason),
                )

    async def _tried(
        self,
        deadline_ns: int,
        max_tokens: int | None,
        on_mark: OnMark,
        tools: Tools | None,
        small: SmallModel | None,
    ) -> AsyncGenerator[ReplyToken, None]:
        """A reply; one that was nothing but calls that may not be made is asked for again, once.
        Raises RemoteError."""
        spent = Usage()
        is_first = True
        for is_again in (False, True):
            chunks = self._server.reply(
                self._request(self._max_tokens(max_tokens), tools),
                first_token_s=self._first_token_s(deadline_ns, small),
                is_last_resort=small is None,
            )
            num_chars = self._history.num_chars()
            reader = _ReplyReader(tools, may_call=self._choice(tools) != "none")
            async with aclosing(chunks):
                async for chunk in chunks:
                    try:
                        token = reader.push(chunk)
                    except MalformedStreamError as error:
                        raise RemoteError(str(error)) from None
                    if is_first and (token.text or chunk.finish_reason is not None):
                        on_mark(MarkName.LLM_FIRST_TOKEN, self._clock.now_ns())
                        is_first = False
                    if token.text or token.calls or chunk.thinks:
                        yield replace(token, usage=spent.plus(token.usage))
            try:
                last = reader.last()
            except MalformedStreamError as error:
                raise RemoteError(str(error)) from None
            self._history.counted(num_chars, last.usage.input_tokens)
            spent = spent.plus(last.usage)
            if is_again or not reader.is_only_markup:
                yield replace(last, usage=spent)
                return
            _log.warning(
                "%s wrote a call, where nothing may be called, and no words; it is asked again",
                self._server.subject,
            )

    def _request(self, max_tokens: int, tools: Tools | None, *, opened: str = "") -> dict[str, Any]:
        """Fields of a request. `opened`: beginning of the user's next message."""
        sampling = self._sampling
        body: dict[str, Any] = {
            "messages": self._history.prompt(opened),
            "max_tokens": max_tokens,
            "temperature": sampling.temperature,
        }
        if sampling.top_p != 1:
            body["top_p"] = sampling.top_p
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if self._history.tools:
            body |= {"tools": list(self._history.tools), "tool_choice": self._choice(tools)}
            if tools is not None and not (tools.in_parallel and self._limits.in_parallel):
                body["parallel_tool_calls"] = False
        return body

    def _choice(self, tools: Tools | None) -> str | dict[str, Any]:
        if tools is None:
            return "auto" if self._num_rounds < self._limits.max_rounds else "none"
        if tools.choice not in CHOICES:
            return {"type": "function", "function": {"name": tools.choice}}
        is_free = tools.choice == "auto" and self._num_rounds >= self._limits.max_rounds
        return "none" if is_free else tools.choice

    def _max_tokens(self, wanted: int | None) -> int:
        limits = [each for each in (wanted, self._sampling.max_tokens) if each is not None]
        return min(limits, default=MAX_TOKENS)

    def _first_token_s(self, deadline_ns: int, small: SmallModel | None) -> float:
        """Time for the first token: with a smaller model, until the first sound is due."""
        timeout_s = self._server.timeout_s
        left_s = (deadline_ns - self._clock.now_ns()) / 1e9
        if small is None or left_s <= 0:  # one that is late already gains nothing
            return timeout_s
        return min(timeout_s, max(left_s, MIN_WAIT_S))

    async def _summarized(self, found: list[Any], max_tokens: int) -> list[Any]:
        prompt = [{"role": each.role, "content": each.text} for each in request(found)]
        try:
            written = await self._server.complete(prompt, max_tokens)
        except RemoteError as error:
            raise StageError("llm", f"{self._server.subject} {error.reason}.") from error
        return completed(checked(written, found), found)

    # --- the smaller model ---

    async def _by_small(
        self,
        small: SmallModel,
        turn: TurnId,
        deadline_ns: int,
        max_tokens: int | None,
        on_mark: OnMark,
        tools: Tools | None,
    ) -> AsyncGenerator[ReplyToken, None]:
        """Raises StageError."""
        self._drop_score()
        chat = await self._brief_small(small)
        tokens = chat.generate(
            turn, deadline_ns=deadline_ns, max_tokens=max_tokens, on_mark=on_mark, tools=tools
        )
        async with aclosing(tokens):
            async for token in tokens:
                yield token

    async def _brief_small(self, small: SmallModel) -> ChatPort:
        """A conversation of the smaller model with the history as it is now."""
        history = self._history
        if self._small_chat is None:
            self._small_chat = small.open_chat(history.instructions, history.examples)
            self._small_setting = history.instructions, history.examples, ()
        chat, (instructions, examples, tools) = self._small_chat, self._small_setting
        chat.set_truncation(history.truncation)
        if (instructions, examples) != (history.instructions, history.examples):
            await chat.set_system(history.instructions, history.examples)
        if tools != self._definitions:
            await chat.set_tools(self._definitions)
        self._small_setting = history.instructions, history.examples, self._definitions
        await chat.reset(history.messages, history.summary)
        return chat

    def _record(self, recorder: "_Recorder", token: ReplyToken) -> None:
        if token.calls and not recorder.has_called:
            self._num_rounds += 1
        recorder.add(token)


class ScoringRemoteChat(RemoteChat):
    """A `RemoteChat` that `ScoresMessageEnd`, by the smaller model in this process. A score may
    come after the first token of the server's reply, and where that model is busy, broken, or
    answers itself there is none."""

    def watch_message_end(self, tell: OnMessageEnd) -> None:
        assert self._scorer is not None
        self._scorer.watch(tell)


def _is_too_long(error: RemoteError) -> bool:
    """True if a server rejects a prompt because it is longer than its context."""
    said = before_quoted_input(error.said)
    return error.kind == "rejected" and _TOO_LONG.search(said) is not None


def _require_text(message: ChatMessage) -> None:
    """Raise StageError for what can't be sent: a tool of this service may return any string."""
    try:
        message.text.encode()
    except UnicodeEncodeError as error:
        raise StageError(
            "llm",
            f"The language model can't take this: character {error.start} is half of a surrogate "
            "pair, not text.",
            refused=True,
        ) from None


class _Recorder:
    """Puts a reply into the history as it is generated."""

    def __init__(self, history: TextHistory) -> None:
        self._history = history
        self.has_begun = self.has_called = False

    def add(self, token: ReplyToken) -> None:
        self.has_called = self.has_called or bool(token.calls)
        if token.text or token.calls:
            self._history.extend_reply(token.text, token.calls, begins=not self.has_begun)
            self.has_begun = True


class _ReplyReader:
    """The tokens of one reply from the server's chunks."""

    def __init__(self, tools: Tools | None, *, may_call: bool) -> None:
        names = _names(tools)
        self._thoughts = ThoughtReader()
        self._calls = CallAssembler(names)
        self._markup = None if names and may_call else CallFilter()
        """Where nothing may be called: a server then sends a call that its model writes as text."""
        self._has_words = False
        self._usage = Usage()
        self._reason = "stop"

    def push(self, chunk: Chunk) -> ReplyToken:
        """A token that is not the last. Raises MalformedStreamError."""
        self._reason = chunk.finish_reason or self._reason
        num_output = self._usage.output_tokens + bool(chunk.text or chunk.thinks or chunk.calls)
        self._usage = replace(self._usage, output_tokens=num_output)
        if chunk.usage is not None:  # the server's count holds: it may put tokens together
            num_output = chunk.usage.output_tokens or num_output
            self._usage = replace(chunk.usage, output_tokens=num_output)
        pieces = self._thoughts.push(chunk.text) if chunk.text else []
        text = self._words(pieces, is_last=False)
        return ReplyToken(text, self._usage, None, self._calls.push(chunk.calls))

    def last(self) -> ReplyToken:
        """Raises MalformedStreamError."""
        text = self._words(self._thoughts.flush(), is_last=True)
        calls = self._calls.flush(is_whole=self._reason != "length")
        return ReplyToken(text, self._usage, self._reason, calls)

    @property
    def is_only_markup(self) -> bool:
        """True if the reply so far is calls that may not be made, and nothing else."""
        return self._markup is not None and self._markup.has_dropped and not self._has_words

    def _words(self, pieces: Iterable[Piece], *, is_last: bool) -> str:
        text = "".join(piece.text for piece in pieces if piece.kind == "words")
        if self._markup is not None:
            text = self._markup.push(text) + (self._markup.flush() if is_last else "")
        self._has_words = self._has_words or bool(text.strip())
        return text


def _names(tools: Tools | None) -> frozenset[str]:
    """Names of the tools that a reply may call."""
    if tools is None or tools.choice == "none":
        return frozenset()
    return frozenset(str(json.loads(each).get("name")) for each in tools.definitions)


def _num_rounds(messages: Sequence[ChatMessage]) -> int:
    """Number of replies with calls behind the last user message."""
    num_rounds = 0
    for message in reversed(messages):
        if message.role == "user":
            break
        num_rounds += bool(message.calls)
    return num_rounds


def remote_chat_factory(
    server: ReplySource,
    clock: Clock,
    sampling: llm_engine.SamplingParams,
    context_tokens: int,
    limits: ToolLimits,
    condensing: Condensing,
    small: SmallModel | None = None,
) -> Callable[[str, Sequence[ChatMessage]], ChatPort]:
    """Chats with the model of a source; `small` stands in for it where it fails, and scores the end
    of messages where it can."""
    scores = small is not None and small.open_scoring_chat is not None
    chat = ScoringRemoteChat if scores else RemoteChat

    def open_chat(instructions: str, examples: Sequence[ChatMessage]) -> ChatPort:
        history = TextHistory(instructions, examples, context_tokens)
        history.with_examples = limits.with_examples
        return chat(server, clock, sampling, history, limits, condensing, small)

    return open_chat
