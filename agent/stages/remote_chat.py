"""Conversations of the calls with a language model on another server.

The server keeps nothing between two requests, so each request brings the whole history: a barge-in
just shortens the last message, and the history holds exactly the words that were heard. Servers
with a prefix cache (vLLM, SGLang, llama.cpp, halfsec) recompute only what is new; `preview` fills
that cache with the caller's words while they are being spoken.

Tokens are counted by an estimate, `num_tokens_of`, since the model's tokenizer is elsewhere. When
the history outgrows `llm_engine.context`, its oldest turns are left out, down to `KEPT_SHARE` of
the room at once: leaving out one turn every time would spoil the server's cache every time.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from agent.errors import StageError
from agent.session.api.server_events import Usage
from agent.session.ports.stage_ports import (
    ChatMessage,
    ChatPort,
    Condensed,
    CondensingGoal,
    ContextUse,
    OnMark,
    ReplyToken,
    Tools,
)
from latency_budget.account.clock import Clock
from latency_budget.account.marks import MarkName
from latency_budget.account.turn import TurnId

from .llm_chat import ChatFactory, as_stage_errors
from .remote.errors import RemoteError
from .remote.model_server import ModelServer
from .tool_call_adapter import NO_LIMITS, ToolLimits, tool_use

BYTES_PER_TOKEN: Final = 3
"""Of a text in UTF-8. English has 4 to 4.5, German and digits about 3; less means that a history is
cut sooner than it must, more that the server refuses a request."""

TOKENS_PER_MESSAGE: Final = 8
"""What a chat template puts around a message: 4 to 6."""

KEPT_SHARE: Final = 0.7

PREVIEW_EVERY_NS: Final = 400_000_000
"""Shortest time between two previews of a call. A partial transcript comes every 100 to 300 ms;
what is new in one is a few tokens."""

NO_RESULT: Final = "The call was interrupted."
"""Result of a call that has none: servers refuse a history without."""


@dataclass(frozen=True, slots=True)
class RemoteSampling:
    """Parameters of replies, as `llm_engine` has them."""

    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 256
    context: int = 4096


class RemoteChat:
    """A `ChatPort`: one conversation with a `ModelServer`. One event loop."""

    def __init__(
        self,
        server: ModelServer,
        clock: Clock,
        sampling: RemoteSampling,
        instructions: str,
        examples: Sequence[ChatMessage],
        limits: ToolLimits = NO_LIMITS,
    ) -> None:
        self._server = server
        self._clock = clock
        self._sampling = sampling
        self._instructions = instructions
        self._examples = tuple(examples)
        self._limits = limits
        self._history: list[ChatMessage] = []
        self._num_left_out = 0
        """Oldest messages of the history that are not sent any more."""
        self._reply: ChatMessage | None = None
        """The last reply, in `_history` unless it was empty or taken back."""
        self._tools: tuple[str, ...] = ()
        self._summary: tuple[str, ...] = ()
        self._num_rounds = 0
        """Tool rounds since the caller's last words."""
        self._previewed_ns: int | None = None

    async def check(self, message: ChatMessage) -> None:
        is_system = message.role == "system"
        fixed = [] if is_system else [ChatMessage("system", self._instructions)]
        if self._num_tokens([*fixed, *self._examples, message]) > self._room:
            raise StageError(
                "llm",
                f"The language model can't take this: {message.role}: is longer than "
                f"llm_engine.context allows ({self._sampling.context} tokens)",
                refused=True,
            )

    async def set_system(self, text: str) -> None:
        await self.check(ChatMessage("system", text))
        self._instructions = text

    async def check_tools(self, tools: Tools) -> None:
        with as_stage_errors():
            # On a thread: reading large schemas takes a while.
            await asyncio.to_thread(tool_use, tools)

    async def set_tools(self, definitions: tuple[str, ...]) -> None:
        if definitions:
            await self.check_tools(Tools(definitions))
        self._tools = definitions

    async def commit(self, message: ChatMessage) -> None:
        await self.check(message)
        self._history.append(message)
        if message.role == "user":
            self._num_rounds = 0

    async def take_back(self) -> None:
        for index in reversed(range(len(self._history))):
            if self._history[index].role == "user":
                del self._history[index:]
                break
        self._num_left_out = min(self._num_left_out, len(self._history))
        self._reply = None

    async def reset(self, messages: Sequence[ChatMessage], summary: tuple[str, ...] = ()) -> None:
        self._history = list(messages)
        self._summary = summary
        self._num_left_out, self._num_rounds = 0, 0
        self._reply = messages[-1] if messages and messages[-1].role == "assistant" else None

    async def truncate_reply(self, num_chars: int) -> None:
        """See `ChatPort.truncate_reply`. Keeps the characters before this one."""
        reply = self._reply
        found = [index for index, each in enumerate(self._history) if each is reply]
        if reply is None or not found:
            return
        text = reply.text[: max(0, num_chars)]
        if text == reply.text and num_chars > 0:
            return
        del self._history[found[-1]]
        self._reply = None
        if text:
            self._reply = ChatMessage("assistant", text)
            self._history.insert(found[-1], self._reply)

    async def generate(
        self,
        turn: TurnId,
        *,
        deadline_ns: int,
        max_tokens: int | None,
        on_mark: OnMark,
        tools: Tools | None = None,
    ) -> AsyncGenerator[ReplyToken, None]:
        """See `ChatPort.generate`. Raises StageError where the server fails or is too slow."""
        limit = min(max_tokens or self._sampling.max_tokens, self._sampling.max_tokens)
        request = self._request(self._sent_history(), limit, tools)
        offered = request.get("tool_choice", "none") != "none"
        names = _names(tools.definitions) if tools is not None and offered else frozenset()
        reply = ""
        last = ReplyToken("", Usage(), "stop")
        is_first = True
        self._reply = None
        try:
            with _as_stage_errors():
                async with aclosing(self._server.reply(request)) as pieces:
                    async for text, state in pieces:
                        has_output = text or state.has_calls or state.finish_reason is not None
                        if is_first and has_output:
                            on_mark(MarkName.LLM_FIRST_TOKEN, self._clock.now_ns())
                            is_first = False
                        reply += text
                        calls = state.calls(names) if state.finish_reason is not None else ()
                        last = ReplyToken("", state.usage, state.finish_reason or "stop", calls)
                        if text or state.finish_reason is None:
                            yield ReplyToken(text, state.usage)
            if is_first:
                on_mark(MarkName.LLM_FIRST_TOKEN, self._clock.now_ns())
            if not reply and not last.calls and last.finish_reason != "length":
                raise StageError("llm", "The language model's server sent an empty reply.")
            if last.calls:
                self._num_rounds += 1
        finally:
            if reply or last.calls:
                self._reply = ChatMessage("assistant", reply, last.calls)
                self._history.append(self._reply)
        yield last

    def played_until(self, turn: TurnId, at_ns: int) -> None:
        """Does nothing: the server knows no playback."""

    async def preview(self, text: str) -> None:
        """Have the server read what is known so far, by a request for one token.

        An optimization: where it fails, the first turn fails too, and handles that. Cancelling
        closes the request.
        """
        now_ns = self._clock.now_ns()
        is_early = self._previewed_ns is not None and now_ns - self._previewed_ns < PREVIEW_EVERY_NS
        if is_early or not self._server.has_prefix_cache:
            return
        self._previewed_ns = now_ns
        said = [ChatMessage("user", text)] if text.strip() else []
        history = [*self._sent_history(), *said]
        if not any(each.role == "user" for each in history):
            return  # chat templates refuse a conversation without words of the user
        request = self._request(history, 1, None)
        with contextlib.suppress(RemoteError):
            async with aclosing(self._server.reply(request, retries=False)) as pieces:
                async for _ in pieces:
                    pass

    def context_use(self) -> ContextUse | None:
        """None: nothing is condensed; the oldest turns are left out."""
        return None

    async def condense(self, goal: CondensingGoal) -> Condensed | None:
        return None

    def use_small_model(self, *, small: bool) -> bool:
        return False

    async def close(self) -> None:
        """Does nothing: a conversation holds nothing on the server."""

    @property
    def _room(self) -> int:
        """Tokens of the context without a reply."""
        return self._sampling.context - self._sampling.max_tokens

    def _num_tokens(self, messages: Sequence[ChatMessage]) -> int:
        tools = sum(num_tokens_of(each) for each in self._tools)
        return tools + sum(_num_tokens(each) for each in messages)

    def _sent_history(self) -> list[ChatMessage]:
        """Turns that fit into the context, from one of the caller's messages on."""
        fixed = [ChatMessage("system", self._instructions), *self._examples]
        room = self._room - self._num_tokens(fixed)
        kept = self._history[self._num_left_out :]
        if sum(map(_num_tokens, kept)) > room:
            starts = [index for index, each in enumerate(kept) if each.role == "user"][1:]
            for start in starts:
                if sum(map(_num_tokens, kept)) <= KEPT_SHARE * room:
                    break
                kept = self._history[self._num_left_out + start :]
            self._num_left_out = len(self._history) - len(kept)
        return kept

    def _request(
        self, history: Sequence[ChatMessage], max_tokens: int, tools: Tools | None
    ) -> dict[str, Any]:
        sampling = self._sampling
        with_examples = self._limits.with_examples or not self._tools
        examples = self._examples if with_examples else ()
        summary = [ChatMessage("user", " ".join(self._summary))] if self._summary else []
        system = [ChatMessage("system", self._instructions)] if self._instructions else []
        messages = _messages([*system, *examples, *summary, *history])
        request = {
            **self._server.request(messages),
            "max_tokens": max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        definitions = self._tools if tools is None else tools.definitions
        if definitions:
            functions = [json.loads(each) for each in definitions]
            request["tools"] = [{"type": "function", "function": each} for each in functions]
            request |= self._tool_choice(tools)
        return request

    def _tool_choice(self, tools: Tools | None) -> dict[str, Any]:
        """Which tools a reply may call. They are shown in any case, so that the beginning of the
        prompt stays the same."""
        if tools is None:
            return {"tool_choice": "none"}
        choice: Any = tools.choice
        if choice == "auto" and self._num_rounds >= self._limits.max_rounds:
            choice = "none"
        if choice not in ("auto", "required", "none"):
            choice = {"type": "function", "function": {"name": choice}}
        in_parallel = tools.in_parallel and self._limits.in_parallel
        return {"tool_choice": choice, "parallel_tool_calls": in_parallel}


def remote_chat_factory(
    server: ModelServer, clock: Clock, sampling: RemoteSampling, limits: ToolLimits = NO_LIMITS
) -> ChatFactory:
    """Chats with the model of this server."""

    def open_chat(instructions: str, examples: Sequence[ChatMessage]) -> ChatPort:
        return RemoteChat(server, clock, sampling, instructions, examples, limits)

    return open_chat


def num_tokens_of(text: str) -> int:
    """Estimate of a text's tokens, rather too many than too few."""
    return -(-len(text.encode(errors="replace")) // BYTES_PER_TOKEN)


def _num_tokens(message: ChatMessage) -> int:
    texts = [message.text, *(f"{call.name}{call.arguments}" for call in message.calls)]
    return TOKENS_PER_MESSAGE + sum(map(num_tokens_of, texts))


def _names(definitions: tuple[str, ...]) -> frozenset[str]:
    return frozenset(json.loads(each)["name"] for each in definitions)


def _messages(history: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """OpenAI's form of a history. Calls get ids, and each exactly one result."""
    messages: list[dict[str, Any]] = []
    waiting: list[str] = []
    num_calls = 0

    def answer(text: str) -> None:
        messages.append({"role": "tool", "tool_call_id": waiting.pop(0), "content": text})

    for message in history:
        if message.role == "tool":
            if waiting:  # the call of another was left out with its turn
                answer(message.text)
            continue
        while waiting:
            answer(NO_RESULT)
        if not message.calls:
            messages.append({"role": message.role, "content": message.text})
            continue
        written = []
        for call in message.calls:
            num_calls += 1
            waiting.append(f"call_{num_calls}")
            function = {"name": call.name, "arguments": call.arguments}
            written.append({"id": waiting[-1], "type": "function", "function": function})
        content = message.text or None
        messages.append({"role": "assistant", "content": content, "tool_calls": written})
    while waiting:
        answer(NO_RESULT)
    return messages


@contextlib.contextmanager
def _as_stage_errors() -> Iterator[None]:
    try:
        yield
    except RemoteError as error:
        raise StageError("llm", f"The language model's server {error}.") from error
