"""The language model of the service, and the conversations that sessions have with it.

The engine owns a thread of its own and survives a step that raises. One that hangs is abandoned and
loaded anew by its stage; each chat notices that at its next turn and tells the new engine what was
said, so that the call goes on.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final, NoReturn, TypeVar

import llm_engine
from latency_budget.clock import Clock
from latency_budget.marks import MarkName
from latency_budget.turn import TurnId
from llm_engine.tool_calls import CallingMessage

from .conversation import ModelCall
from .errors import StageError
from .model_calls import CallCollector, calls_for_engine, for_engine, tool_use
from .notices import Usage
from .patience import first_of, patience
from .ports import ChatMessage, OnMark, ReplyToken, Tools
from .stage_thread import StageThread

LOAD_TIMEOUT_S: Final = 60.0
"""An engine that is being loaded anew is worth waiting for; a large model takes this long."""

HANGS_S: Final = 10.0
"""An engine that has taken no step for so long hangs: one takes a fraction of a second. Counted by
`patience`: it is not blamed for a time in which nothing ran."""

Result = TypeVar("Result")


class Chat:
    """A `ChatPort`: one conversation in whichever engine is alive."""

    def __init__(
        self,
        stage: StageThread[llm_engine.Engine],
        clock: Clock,
        sampling: llm_engine.SamplingParams,
        instructions: str,
        examples: Sequence[ChatMessage],
        small: StageThread[llm_engine.Engine] | None = None,
    ) -> None:
        """`small`: a smaller model that may take over for a while."""
        self._stage = self._wanted = stage
        self._large, self._small = stage, small
        self._home = stage
        """Whose engine has the conversation."""
        self._clock = clock
        self._sampling = sampling
        self._instructions = instructions
        self._examples = [llm_engine.ChatMessage(each.role, each.text) for each in examples]
        self._tools: tuple[str, ...] = ()
        """Definitions that the model was told of."""
        self._engine: llm_engine.Engine | None = None
        self._conversation: llm_engine.Conversation | None = None
        self._opening = asyncio.Lock()
        """Warming and the first message may come at once."""

    async def check(self, message: ChatMessage) -> None:
        with _as_stage_errors():
            calls = calls_for_engine(message)
            await (await self._open()).check(message.text, message.role, calls)

    async def set_system(self, text: str) -> None:
        with _as_stage_errors():
            await (await self._open()).set_system(text)
        self._instructions = text

    async def check_tools(self, tools: Tools) -> None:
        with _as_stage_errors():
            conversation = await self._open()
            try:
                # On a thread: large schemas take a while to be looked through.
                use = await asyncio.to_thread(tool_use, tools)
                await conversation.head.check_tools(self._sampling, use)
            except llm_engine.RequestError as error:
                field = error.field.replace(".function", "")  # as this client has it
                raise llm_engine.RequestError(field, error.problem) from None

    async def set_tools(self, definitions: tuple[str, ...]) -> None:
        with _as_stage_errors():
            await _tell_of_tools(await self._open(), definitions)
        self._tools = definitions

    async def commit(self, message: ChatMessage) -> None:
        self._stage = self._wanted
        with _as_stage_errors():
            calls = calls_for_engine(message)
            await (await self._open()).commit(message.text, message.role, calls)

    async def take_back(self) -> None:
        with _as_stage_errors():
            await (await self._open()).uncommit()

    async def reset(self, messages: Sequence[ChatMessage]) -> None:
        with _as_stage_errors():
            whole = _whole(self._instructions, for_engine(messages))
            await (await self._open()).reset(whole)

    async def truncate_reply(self, num_chars: int) -> None:
        with _as_stage_errors():
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
        """Raises StageError where the engine fails, or takes too long for a token."""
        conversation = await self._open()
        assert self._engine is not None
        use = None if tools is None else tool_use(tools)
        collector = None if use is None else CallCollector(self._engine.dialect, use)
        usage = Usage()
        num_ids = 0
        is_first = True
        chunks = conversation.generate(turn, deadline_ns, max_tokens=max_tokens, use=use)
        async with aclosing(chunks):
            while (chunk := await self._answer(anext(chunks, None))) is not None:
                if is_first:
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
                yield ReplyToken(text, usage, chunk.finish_reason, calls)

    def played_until(self, turn: TurnId, at_ns: int) -> None:
        if self._conversation is not None:
            self._conversation.played_until(turn, at_ns)

    async def preview(self, text: str) -> None:
        """Prefill what is known so far, so that the next turn need not.

        A favour: where it fails, the first turn will, and has an answer to that. It gives way to
        the replies of other calls for as long as these take, so that it has no deadline.
        """
        self._stage = self._wanted
        with contextlib.suppress(StageError):
            conversation = await self._open()
            with _as_stage_errors():
                await conversation.warm(text)

    def use_small_model(self, *, small: bool) -> bool:
        is_there = self._small is not None and self._small.model is not None
        self._wanted = self._small if small and self._small and is_there else self._large
        return self._wanted is not self._large

    async def close(self) -> None:
        conversation, self._conversation = self._conversation, None
        if conversation is not None:
            await conversation.close()

    async def _open(self) -> llm_engine.Conversation:
        """The conversation, moved to a new engine where the old one was given up, or where another
        model is to answer. A smaller one that can't is not asked again in this call."""
        async with self._opening:
            while True:
                if self._stage is self._small and self._small.model is None:
                    self._stage = self._wanted = self._large  # who waits for it to be built anew?
                stage = self._stage
                engine = await stage.call(lambda engine: engine, timeout_s=LOAD_TIMEOUT_S)
                if self._conversation is not None and engine is self._engine:
                    return self._conversation
                try:
                    fresh = await self._opened(engine)
                except StageError as error:  # no fault of what is to be told after it
                    if stage is self._large:
                        raise StageError("llm", error.message) from error
                    self._stage = self._wanted = self._large
                    self._small = None
                    continue
                left, left_engine, home = self._conversation, self._engine, self._home
                self._conversation, self._engine, self._home = fresh, engine, stage
                if left is not None and home is not stage and home.model is left_engine:
                    await left.close()  # its engine is alive, and may be needed again
                return fresh

    async def _opened(self, engine: llm_engine.Engine) -> llm_engine.Conversation:
        """A conversation that knows what was said. Nothing is left open when cancelled."""
        opening = engine.open_conversation(
            self._instructions, sampling=self._sampling, examples=self._examples
        )
        try:
            # In this task: what another one had opened would be lost if this one were cancelled.
            with _as_stage_errors():
                async with patience(HANGS_S):
                    fresh = await opening
        except TimeoutError:
            _give_up(self._stage, engine)
        try:
            with _as_stage_errors():
                if self._tools:
                    await _tell_of_tools(fresh, self._tools)
                if self._conversation is not None:
                    await fresh.reset(_whole(self._instructions, self._conversation.messages))
        except BaseException:
            await fresh.close()
            raise
        return fresh

    async def _answer(self, question: Awaitable[Result]) -> Result:
        """Wait for the conversation's engine, not for ever; its errors become the stage's."""
        assert self._engine is not None
        with _as_stage_errors():
            return await first_of(question, until_hung(self._stage, self._engine))


async def until_hung(stage: StageThread[llm_engine.Engine], engine: llm_engine.Engine) -> NoReturn:
    """Returns never; raises StageError, having given the engine up, once it takes no steps.

    A request may wait long for its turn and its prompt, but between two steps the engine answers.
    """
    while True:
        await asyncio.sleep(HANGS_S / 2)
        try:
            async with patience(HANGS_S / 2):
                await engine.stats()
        except TimeoutError:
            _give_up(stage, engine)


def _give_up(stage: StageThread[llm_engine.Engine], engine: llm_engine.Engine) -> NoReturn:
    engine.stop()  # should it ever come to
    stage.restart(engine, f"took no step for {HANGS_S:g} s")
    raise StageError("llm", "The language model took too long.") from None


@contextlib.contextmanager
def _as_stage_errors() -> Iterator[None]:
    try:
        yield
    except llm_engine.RequestError as error:
        message = f"The language model can't take this: {error}"
        raise StageError("llm", message, refused=True) from error
    except llm_engine.EngineError as error:
        raise StageError("llm", f"The language model can't answer: {error}") from error


async def _tell_of_tools(
    conversation: llm_engine.Conversation, definitions: tuple[str, ...]
) -> None:
    await conversation.head.set_tools(tool_use(Tools(definitions)).shown if definitions else ())


def _whole(
    instructions: str, turns: Sequence[llm_engine.ChatMessage | CallingMessage]
) -> list[llm_engine.ChatMessage | CallingMessage]:
    """With the instructions in front: the engine would take a client's system message there for
    them."""
    return [llm_engine.ChatMessage("system", instructions), *turns]
