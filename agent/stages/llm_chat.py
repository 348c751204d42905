"""Conversations of the calls with the service's language model.

The engine owns a thread of its own and survives a step that raises. One that hangs is abandoned and
loaded anew by its stage; each chat notices that at its next request and gives the new engine the
history, so that the call goes on. In the same way a chat moves to a smaller model and back.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import replace
from typing import Final, NoReturn, TypeVar

import llm_engine
from agent.config.schema import Condensing
from agent.errors import StageError
from agent.session.api.conversation import ModelCall
from agent.session.api.server_events import Usage
from agent.session.api.settings import AUTO_TRUNCATION, Truncation
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
from latency_budget.account.clock import Clock
from latency_budget.account.marks import MarkName
from latency_budget.account.turn import TurnId
from llm_engine.chat import condensation
from llm_engine.chat.call_reader import CallFilter
from llm_engine.chat.token_history import HistoryTruncation
from llm_engine.chat.tool_calls import NO_TOOLS, CallingMessage, Tool, ToolUse

from .idle_threads import CHECK_S, IdleThreadsError, until_idle
from .model_thread import ModelThread
from .stall_timeout import first_of, stall_timeout
from .tool_call_adapter import (
    NO_LIMITS,
    CallCollector,
    ToolLimits,
    calls_for_engine,
    for_engine,
    num_tool_rounds,
    tool_use_off_loop,
)

LOAD_TIMEOUT_S: Final = 60.0
"""Wait for an engine that is being loaded anew; a large model takes this long."""

HANGS_S: Final = 10.0
"""An engine that has taken no step for so long hangs: a step takes a fraction of a second. Counted
by `stall_timeout`, so that time in which nothing ran does not count."""

MAX_SLOW_S: Final = 60.0
"""An engine that computes, and gets little of the processor, may take so long for a step. At a load
of 14 on two cores a 1.5B model was loaded anew in the middle of its prompts, again and again, and
each load took the processor from the next prompt."""

TOO_LONG: Final = f"took no step for {HANGS_S:g} s of the processor's time"
"""Why it is loaded anew, for the log. Where the machine has time to spare, that is the clock's."""

NUM_SUSPICIOUS: Final = 3
"""Checks in a row at which all threads of an engine that owes a token slept, before it is asked
whether it still takes steps: it may owe none yet."""

NUM_CONVINCING: Final = 2
"""Further ones, with that question in its queue. Fewer would do; the two together leave a caller
1 s without an answer, of 2."""

_log = logging.getLogger(__name__)

Result = TypeVar("Result")

ChatFactory = Callable[[str, Sequence[ChatMessage]], ChatPort]
"""Opens a conversation from instructions and example messages; all of a language model that a
session needs."""


def _for_engine(examples: Sequence[ChatMessage]) -> list[llm_engine.ChatMessage]:
    return [llm_engine.ChatMessage(each.role, each.text) for each in examples]


class EngineChat:
    """A `ChatPort` that `ScoresMessageEnd`: one conversation with an engine of this process. One
    event loop."""

    def __init__(
        self,
        stage: ModelThread[llm_engine.Engine],
        clock: Clock,
        sampling: llm_engine.SamplingParams,
        instructions: str,
        examples: Sequence[ChatMessage],
        small: ModelThread[llm_engine.Engine] | None = None,
        limits: ToolLimits = NO_LIMITS,
        condensing: Condensing = "off",
    ) -> None:
        """`small`: a smaller model that `use_small_model` may turn to."""
        self._clock = clock
        self._sampling = sampling
        self._instructions = instructions
        self._examples = _for_engine(examples)
        self._limits = limits
        self._condensing = condensing
        self._num_left_out = 0
        """Messages since the last `reset` that engines before this one had left out."""
        self._collector: CallCollector | None = None
        """Of the last reply, where it could call tools."""
        self._call_filter: CallFilter | None = None
        """Of the last reply, where it could call none."""
        self._num_rounds = 0
        """Tool rounds since the caller's last words."""
        self._has_calls = False
        """The history has a call, or had one since the last `reset`."""
        self._tools: tuple[str, ...] = ()
        """Tool definitions in the model's prompt."""
        self._large, self._small = stage, small
        self._stage = stage
        """Stage of the requests of this turn."""
        self._next_stage = stage
        """Stage from the next message or preview on."""
        self._engine: llm_engine.Engine | None = None
        self._engine_stage = stage
        """Stage of `_engine`, which has the conversation."""
        self._conversation: llm_engine.Conversation | None = None
        self._on_message_end: OnMessageEnd | None = None
        self._truncation = AUTO_TRUNCATION
        self._opening = asyncio.Lock()
        """A preview and the first message may come at once."""

    def watch_message_end(self, tell: OnMessageEnd) -> None:
        self._on_message_end = tell
        if self._conversation is not None:
            self._conversation.watch_message_end(tell)

    async def check(self, message: ChatMessage) -> None:
        with as_stage_errors():
            calls = calls_for_engine(message)
            await (await self._open()).check(message.text, message.role, calls)

    async def set_system(self, text: str, examples: Sequence[ChatMessage] | None = None) -> None:
        shown = None if examples is None else _for_engine(examples)
        with as_stage_errors():
            await (await self._open()).set_system(text, shown)
        self._instructions = text
        if shown is not None:
            self._examples = shown

    async def check_tools(self, tools: Tools) -> None:
        with as_stage_errors():
            conversation = await self._open()
            try:
                use = await tool_use_off_loop(tools)
                use = self._limits.limited(use, 0)
                await conversation.check_tools(self._sampling, use)
            except llm_engine.RequestError as error:
                field = error.field.replace(".function", "")  # the client's name of the field
                raise llm_engine.RequestError(field, error.problem) from None

    async def set_tools(self, definitions: tuple[str, ...]) -> None:
        with as_stage_errors():
            await self._set_tools(await self._open(), definitions)
        self._tools = definitions

    async def commit(self, message: ChatMessage) -> None:
        self._stage = self._next_stage
        with as_stage_errors():
            calls = calls_for_engine(message)
            await (await self._open()).commit(message.text, message.role, calls)
        if message.role == "user":
            self._num_rounds = 0
        self._has_calls = self._has_calls or bool(calls)

    async def take_back(self) -> None:
        with as_stage_errors():
            await (await self._open()).uncommit()

    async def reset(self, messages: Sequence[ChatMessage], summary: tuple[str, ...] = ()) -> None:
        with as_stage_errors():
            history = _with_instructions(self._instructions, for_engine(messages))
            await (await self._open()).reset(history, summary)
        self._num_left_out = 0
        self._num_rounds = num_tool_rounds(history)
        self._has_calls = any(message.calls for message in messages)

    async def truncate_reply(self, num_chars: int) -> None:
        with as_stage_errors():
            if num_chars > 0 and self._collector is not None:
                num_chars += self._collector.num_hidden
            if num_chars > 0 and self._call_filter is not None:
                num_chars = self._call_filter.num_chars(num_chars)
            await (await self._open()).truncate_reply(num_chars)

    async def generate(
        self,
        turn: TurnId,
        *,
        deadline_ns: int,
        max_tokens: int | None,
        on_mark: OnMark,
        tools: Tools | None = None,
    ) -> AsyncGenerator[ReplyToken, None]:
        """See `ChatPort.generate`. Raises StageError where the engine fails or hangs."""
        conversation = await self._open()
        if tools is None:
            replies = self._without_calls(conversation, turn, deadline_ns, max_tokens, on_mark)
        else:
            self._call_filter = None
            with as_stage_errors():
                use = self._limits.limited(await tool_use_off_loop(tools), self._num_rounds)
            if self._limits.grounds(use):
                use = await self._grounded(use, conversation)
            replies = self._reply(conversation, turn, deadline_ns, max_tokens, on_mark, use)
        async with aclosing(replies):
            async for token in replies:
                yield token

    async def _without_calls(
        self,
        conversation: llm_engine.Conversation,
        turn: TurnId,
        deadline_ns: int,
        max_tokens: int | None,
        on_mark: OnMark,
    ) -> AsyncGenerator[ReplyToken, None]:
        """A reply without tools. Where the conversation has calls, a grammar keeps the model from
        writing another one as its words; elsewhere they are dropped, and a reply of nothing else is
        asked for again, once, by that grammar."""
        spent = Usage()
        for use in (NO_TOOLS,) if self._has_calls else (None, NO_TOOLS):
            calls, has_words, is_over = CallFilter(), False, False
            self._call_filter = calls
            tokens = self._reply(conversation, turn, deadline_ns, max_tokens, on_mark, use)
            async with aclosing(tokens):
                async for token in tokens:
                    is_over = token.finish_reason is not None
                    text = calls.push(token.text) + (calls.flush() if is_over else "")
                    has_words = has_words or bool(text.strip())
                    self._has_calls = self._has_calls or calls.has_dropped
                    used = spent.plus(token.usage)
                    if is_over and use is None and calls.has_dropped and not has_words:
                        spent = used
                        break
                    yield replace(token, text=text, usage=used)
                else:
                    return
            _log.warning("a reply without tools was nothing but a call; it is asked for again")
            with as_stage_errors():
                await conversation.truncate_reply(0)

    async def _reply(
        self,
        conversation: llm_engine.Conversation,
        turn: TurnId,
        deadline_ns: int,
        max_tokens: int | None,
        on_mark: OnMark,
        use: ToolUse | None,
    ) -> AsyncGenerator[ReplyToken, None]:
        """Raises StageError."""
        assert self._engine is not None
        collector = CallCollector(self._engine.dialect, use) if use and use.shown else None
        self._collector = collector
        usage = Usage()
        num_ids = 0
        is_first, has_called = True, False
        chunks = conversation.generate(turn, deadline_ns, max_tokens=max_tokens, use=use)
        async with aclosing(chunks):
            while (chunk := await self._answer(anext(chunks, None))) is not None:
                # The model's thoughts are not the beginning of its reply.
                if is_first and (chunk.text or chunk.finish_reason is not None):
                    on_mark(MarkName.LLM_FIRST_TOKEN, self._clock.now_ns())
                    is_first = False
                counted, num_ids = chunk.usage, num_ids + len(chunk.token_ids)
                if counted is not None:
                    usage = Usage(
                        counted.prompt_tokens, counted.cached_tokens, counted.output_tokens
                    )
                usage = replace(usage, output_tokens=max(usage.output_tokens, num_ids))
                text = chunk.text
                calls: tuple[ModelCall, ...] = ()
                if collector is not None:
                    text, calls = collector.push(text, is_last=chunk.finish_reason is not None)
                if calls and not has_called:
                    self._num_rounds, has_called = self._num_rounds + 1, True
                    self._has_calls = True
                yield ReplyToken(text, usage, chunk.finish_reason, calls)

    async def _grounded(self, use: ToolUse, conversation: llm_engine.Conversation) -> ToolUse:
        """The tools, narrowed on a thread to what the conversation grounds."""
        messages = conversation.messages
        if conversation.summary:
            told = llm_engine.ChatMessage("user", " ".join(conversation.summary))
            messages = [told, *messages]
        return await asyncio.to_thread(self._limits.grounded, use, messages, self._instructions)

    def set_truncation(self, truncation: Truncation) -> None:
        self._truncation = truncation
        if self._conversation is not None:
            self._conversation.set_truncation(history_truncation(truncation))

    def played_until(self, turn: TurnId, at_ns: int) -> None:
        if self._conversation is not None:
            self._conversation.played_until(turn, at_ns)

    async def preview(self, text: str) -> None:
        """Prefill what is known so far, so that the next turn need not.

        An optimization: where it fails, the first turn fails too, and handles that. It yields to
        the replies of other calls for as long as these take, so it has no deadline; an engine that
        hangs is found here, while the caller still speaks, and loaded anew.
        """
        self._stage = self._next_stage
        with contextlib.suppress(StageError):
            conversation = await self._open()
            assert self._engine is not None
            hung = until_asleep(self._stage, self._engine)
            with as_stage_errors():
                await first_of(conversation.warm(text), hung)

    @property
    def num_left_out(self) -> int:
        conversation = self._conversation
        now = 0 if conversation is None else conversation.num_left_out
        return self._num_left_out + now

    def context_use(self) -> ContextUse | None:
        if self._condensing == "off" or self._conversation is None:
            return None
        use = self._conversation.context_use()
        return ContextUse(use.length, use.num_fixed, use.num_turns, use.num_reserved)

    async def condense(self, goal: CondensingGoal) -> Condensed | None:
        conversation = await self._open()
        limits = condensation.CondensationLimits(
            goal.max_kept_tokens, goal.max_summary_tokens, self._condensing == "summary"
        )
        with as_stage_errors():
            done = await conversation.condense(limits)
        if done is None or conversation is not self._conversation:
            return None
        return Condensed(
            done.summary,
            self._num_left_out + done.num_left_out,
            done.roles,
            done.num_tokens_before,
            done.num_tokens,
        )

    def use_small_model(self, *, small: bool) -> bool:
        is_there = self._small is not None and self._small.model is not None
        self._next_stage = self._small if small and self._small and is_there else self._large
        return self._next_stage is not self._large

    async def close(self) -> None:
        conversation, self._conversation = self._conversation, None
        if conversation is not None:
            await conversation.close()

    async def _answer(self, question: Awaitable[Result]) -> Result:
        """Wait for the conversation's engine until it hangs; its errors become the stage's."""
        assert self._engine is not None
        with as_stage_errors():
            return await unless_hung(question, self._stage, self._engine)

    async def _open(self) -> llm_engine.Conversation:
        """The conversation, moved to a new engine where the old one was given up, or where another
        model is to answer. A smaller model that fails is not tried again in this call."""
        async with self._opening:
            while True:
                if self._stage is self._small and self._small.model is None:
                    # It is being rebuilt: no request waits for that.
                    self._stage = self._next_stage = self._large
                stage = self._stage
                engine = await stage.call(lambda engine: engine, timeout_s=LOAD_TIMEOUT_S)
                if self._conversation is not None and engine is self._engine:
                    return self._conversation
                try:
                    fresh, num_left_out = await self._opened(engine)
                except StageError as error:  # whatever it refuses, the client can't mend that
                    if stage is self._large:
                        raise StageError("llm", error.message) from error
                    self._stage = self._next_stage = self._large
                    self._small = None
                    continue
                left, left_engine, left_stage = (
                    self._conversation,
                    self._engine,
                    self._engine_stage,
                )
                self._conversation, self._engine, self._engine_stage = fresh, engine, stage
                self._num_left_out += num_left_out
                if left is not None and left_stage is not stage and left_stage.model is left_engine:
                    await left.close()  # its engine is alive, and may be needed again
                return fresh

    async def _set_tools(
        self, conversation: llm_engine.Conversation, definitions: tuple[str, ...]
    ) -> None:
        shown: tuple[Tool, ...] = ()
        if definitions:
            use = await tool_use_off_loop(Tools(definitions))
            shown = self._limits.limited(use, 0).shown
        with_examples = self._limits.with_examples or not shown
        await conversation.set_tools(shown, with_examples=with_examples)

    async def _opened(self, engine: llm_engine.Engine) -> tuple[llm_engine.Conversation, int]:
        """A new conversation with the history so far, and how many messages of the present one are
        not in it. Cancelling leaves none open."""
        opening = engine.open_conversation(
            self._instructions, sampling=self._sampling, examples=self._examples
        )
        try:
            # In this task: what another task opened would be lost if this one is cancelled.
            with as_stage_errors():
                async with _step_timeout(self._stage, HANGS_S):
                    fresh = await opening
        except TimeoutError:
            _give_up(self._stage, engine, TOO_LONG)
        num_left_out = 0
        try:
            with as_stage_errors():
                if self._tools:
                    await self._set_tools(fresh, self._tools)
                if self._conversation is not None:
                    messages, summary = self._conversation.messages, self._conversation.summary
                    num_left_out = self._conversation.num_left_out
                    await fresh.reset(_with_instructions(self._instructions, messages), summary)
        except BaseException:
            await fresh.close()
            raise
        if self._truncation != AUTO_TRUNCATION:
            fresh.set_truncation(history_truncation(self._truncation))
        if self._on_message_end is not None:
            fresh.watch_message_end(self._on_message_end)
        return fresh, num_left_out


async def unless_hung(
    question: Awaitable[Result], stage: ModelThread[llm_engine.Engine], engine: llm_engine.Engine
) -> Result:
    """Wait for what the engine owes, but not beyond `until_hung`: raises what that raises.

    Called for every token. Nearly all are there before the first check is due, so nothing watches
    until then; a task for the token and one beside it took 0.1 ms of the event loop.
    """
    loop = asyncio.get_running_loop()
    watch: asyncio.Task[None] | None = None
    failure: Exception | None = None

    async def watching() -> None:
        nonlocal failure
        try:
            await until_hung(stage, engine, waited_s=CHECK_S)
        except Exception as error:
            failure = error
            limit.reschedule(loop.time())  # ends the wait

    def begin() -> None:
        nonlocal watch
        watch = loop.create_task(watching())

    timer = loop.call_later(CHECK_S, begin)
    try:
        async with asyncio.timeout(None) as limit:
            return await question
    except TimeoutError:
        if failure is not None:
            raise failure from None
        raise
    finally:
        timer.cancel()
        if watch is not None:
            watch.cancel()
            await asyncio.wait([watch])


async def until_hung(
    stage: ModelThread[llm_engine.Engine], engine: llm_engine.Engine, waited_s: float = 0.0
) -> NoReturn:
    """Wait until the engine takes no steps; then have its stage rebuild it and raise StageError.

    A request may wait long for its turn and its prompt, but between two steps the engine answers.
    `waited_s`: for how long it has been waited for, `CHECK_S` at most.
    """
    while True:
        await _watched(stage, engine, HANGS_S / 2, waited_s)
        await _answered(stage, engine)
        waited_s = 0.0


async def _answered(stage: ModelThread[llm_engine.Engine], engine: llm_engine.Engine) -> None:
    """Wait until the engine answers between two steps, or give it up. Raises StageError."""
    try:
        async with _step_timeout(stage, HANGS_S / 2):
            if stage.only_computes:
                idle = until_idle(stage.idle_check(NUM_CONVINCING))
                await first_of(_stats(engine), idle)
            else:
                await engine.stats()
    except IdleThreadsError:
        _give_up(stage, engine, "slept in a step")
    except TimeoutError:
        _give_up(stage, engine, TOO_LONG)


def _step_timeout(
    stage: ModelThread[llm_engine.Engine], seconds: float
) -> AbstractAsyncContextManager[None]:
    """A deadline for the engine's next step. One that computes, but gets too little of the
    processor for that, is slow and has more time: another load of the model would make everything
    slower."""
    if not stage.only_computes or not seconds:
        return stall_timeout(seconds)
    return stall_timeout(seconds, stage.slow_check(seconds, round(MAX_SLOW_S / seconds)).look)


async def until_asleep(
    stage: ModelThread[llm_engine.Engine], engine: llm_engine.Engine
) -> NoReturn:
    """`until_hung` for work that other requests go before: without a deadline, and asking nothing
    of an engine that computes, because that would break off its step."""
    while True:
        await _watched(stage, engine, HANGS_S / 2)


async def _watched(
    stage: ModelThread[llm_engine.Engine],
    engine: llm_engine.Engine,
    seconds: float,
    waited_s: float = 0.0,
) -> None:
    """Sleep, and give an engine up whose threads sleep as well and don't wake to answer."""
    if not stage.only_computes:
        await asyncio.sleep(seconds - waited_s)
        return
    await asyncio.sleep(CHECK_S - waited_s)  # nearly every token is there by then
    check = stage.idle_check(NUM_SUSPICIOUS)
    for _ in range(round(seconds / CHECK_S)):
        await asyncio.sleep(CHECK_S)
        if check.look():
            try:
                await first_of(_stats(engine), until_idle(stage.idle_check(NUM_CONVINCING)))
            except IdleThreadsError:
                _give_up(stage, engine, "slept in a step")
            return


async def _stats(engine: llm_engine.Engine) -> None:
    await engine.stats()


def _give_up(
    stage: ModelThread[llm_engine.Engine], engine: llm_engine.Engine, why: str
) -> NoReturn:
    engine.stop()  # takes effect if its thread ever returns
    stage.restart(engine, why)
    raise StageError("llm", "The language model took too long.") from None


@contextlib.contextmanager
def as_stage_errors() -> Iterator[None]:
    """Raise the engine's errors as StageError, `refused` where the request is at fault."""
    try:
        yield
    except llm_engine.RequestError as error:
        message = f"The language model can't take this: {error}"
        raise StageError("llm", message, refused=True) from error
    except llm_engine.EngineError as error:
        raise StageError("llm", f"The language model can't answer: {error}") from error


def history_truncation(truncation: Truncation) -> HistoryTruncation:
    """The engine's rule for a client's."""
    return HistoryTruncation(
        keeps_all=truncation.is_disabled,
        kept_share=truncation.retention_ratio,
        max_turn_tokens=truncation.post_instructions_tokens,
    )


def _with_instructions(
    instructions: str, turns: Sequence[llm_engine.ChatMessage | CallingMessage]
) -> list[llm_engine.ChatMessage | CallingMessage]:
    """The history with the instructions first: the engine would take a client's system message at
    its beginning for them."""
    return [llm_engine.ChatMessage("system", instructions), *turns]


def chat_factory(
    llm: ModelThread[llm_engine.Engine],
    clock: Clock,
    sampling: llm_engine.SamplingParams,
    small: ModelThread[llm_engine.Engine] | None = None,
    limits: ToolLimits = NO_LIMITS,
    condensing: Condensing = "off",
) -> ChatFactory:
    """Chats with the engine on `llm`, and with the smaller one on `small` where there is one.

    A language model elsewhere is another `ChatFactory`; its chats must pass
    `tests/agent/stages/test_chat_contract.py`.
    """

    def open_chat(instructions: str, examples: Sequence[ChatMessage]) -> ChatPort:
        return EngineChat(llm, clock, sampling, instructions, examples, small, limits, condensing)

    return open_chat
