"""The conversations that sessions have with the language model of the service."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

import llm_engine
from agent.errors import StageError
from agent.session.api.conversation import ModelCall
from agent.session.api.server_events import Usage
from agent.session.ports.stage_ports import ChatMessage, OnMark, ReplyToken, Tools
from latency_budget.account.clock import Clock
from latency_budget.account.marks import MarkName
from latency_budget.account.turn import TurnId

from .llm_failover import EngineBinding, as_stage_errors, tell_of_tools, until_hung, whole
from .model_thread import StageThread
from .stall_timeout import first_of
from .tool_call_adapter import CallCollector, calls_for_engine, for_engine, tool_use

Result = TypeVar("Result")


class Chat:
    """A `ChatPort`: one conversation with the language model."""

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
        self._home = EngineBinding(stage, sampling, instructions, examples, small)
        self._clock = clock

    async def check(self, message: ChatMessage) -> None:
        with as_stage_errors():
            calls = calls_for_engine(message)
            await (await self._home.open()).check(message.text, message.role, calls)

    async def set_system(self, text: str) -> None:
        with as_stage_errors():
            await (await self._home.open()).set_system(text)
        self._home.instructions = text

    async def check_tools(self, tools: Tools) -> None:
        with as_stage_errors():
            conversation = await self._home.open()
            try:
                # On a thread: large schemas take a while to be looked through.
                use = await asyncio.to_thread(tool_use, tools)
                await conversation.check_tools(self._home.sampling, use)
            except llm_engine.RequestError as error:
                field = error.field.replace(".function", "")  # as this client has it
                raise llm_engine.RequestError(field, error.problem) from None

    async def set_tools(self, definitions: tuple[str, ...]) -> None:
        with as_stage_errors():
            await tell_of_tools(await self._home.open(), definitions)
        self._home.tools = definitions

    async def commit(self, message: ChatMessage) -> None:
        self._home.stage = self._home.wanted
        with as_stage_errors():
            calls = calls_for_engine(message)
            await (await self._home.open()).commit(message.text, message.role, calls)

    async def take_back(self) -> None:
        with as_stage_errors():
            await (await self._home.open()).uncommit()

    async def reset(self, messages: Sequence[ChatMessage]) -> None:
        with as_stage_errors():
            history = whole(self._home.instructions, for_engine(messages))
            await (await self._home.open()).reset(history)

    async def truncate_reply(self, num_chars: int) -> None:
        with as_stage_errors():
            await (await self._home.open()).truncate_reply(num_chars)

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
        conversation = await self._home.open()
        assert self._home.engine is not None
        use = None if tools is None else tool_use(tools)
        collector = None if use is None else CallCollector(self._home.engine.dialect, use)
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
        if self._home.conversation is not None:
            self._home.conversation.played_until(turn, at_ns)

    async def preview(self, text: str) -> None:
        """Prefill what is known so far, so that the next turn need not.

        A favour: where it fails, the first turn will, and has an answer to that. It gives way to
        the replies of other calls for as long as these take, so that it has no deadline.
        """
        self._home.stage = self._home.wanted
        with contextlib.suppress(StageError):
            conversation = await self._home.open()
            with as_stage_errors():
                await conversation.warm(text)

    def use_small_model(self, *, small: bool) -> bool:
        return self._home.use_small_model(small=small)

    async def close(self) -> None:
        conversation, self._home.conversation = self._home.conversation, None
        if conversation is not None:
            await conversation.close()

    async def _answer(self, question: Awaitable[Result]) -> Result:
        """Wait for the conversation's engine, not for ever; its errors become the stage's."""
        assert self._home.engine is not None
        with as_stage_errors():
            return await first_of(question, until_hung(self._home.stage, self._home.engine))
