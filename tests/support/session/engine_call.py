"""A session on a real engine, for tests."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, cast
from unittest.mock import patch

from agent.config.schema import Condensing
from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import Modality
from agent.session.api.settings import ServerVad
from agent.session.ports.stage_ports import OnMark, ReplyToken, Tools
from agent.stages import llm_chat
from agent.stages.llm_chat import EngineChat
from agent.stages.model_thread import ModelThread
from agent.turn_taking import barge_in, transitions
from latency_budget.account.clock import SystemClock
from latency_budget.account.turn import TurnId
from llm_engine.config import SamplingParams
from llm_engine.engine import Engine
from tests.support.fakes.stages import FakeChat
from tests.support.session.session_call import Call, call_with
from tests.support.session.unhurried import NEVER_NS, unhurried


class UnthreadedStage:
    """A model stage that runs each job at once, without a thread or a timeout."""

    only_computes = False

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def call(self, job: Callable[[Engine], Any], *, timeout_s: float) -> Any:
        return job(self._engine)


class AudibleChat(EngineChat):
    """Tells when the model has said something."""

    speaks: asyncio.Event

    async def generate(
        self,
        turn: TurnId,
        *,
        deadline_ns: int,
        max_tokens: int | None,
        on_mark: OnMark,
        tools: Tools | None = None,
    ) -> AsyncGenerator[ReplyToken, None]:
        tokens = super().generate(
            turn, deadline_ns=deadline_ns, max_tokens=max_tokens, on_mark=on_mark, tools=tools
        )
        async with aclosing(tokens):
            async for token in tokens:
                self.speaks.set()
                yield token


class EngineCall:
    """A call, and what the engine knows of it."""

    def __init__(self, call: Call, chat: AudibleChat, engine: Engine) -> None:
        self.call = call
        self._chat = chat
        self._engine = engine
        self._num_replies = 0

    def prompt(self) -> tuple[int, ...]:
        assert self._chat._conversation is not None
        return self._chat._conversation._history.prompt(0)

    def messages(self) -> list[tuple[str, str]]:
        conversation = self._chat._conversation
        return [(m.role, m.text) for m in conversation.messages] if conversation else []

    def summary(self) -> tuple[str, ...]:
        conversation = self._chat._conversation
        return conversation.summary if conversation else ()

    async def num_pages(self) -> int:
        """Pages of the cache that hold tokens. A page may be reserved ahead of them, for a draft
        that was refused: how long drafts are depends on what steps took."""

        def count() -> int:
            cache = self._engine._core.cache
            cache.check()
            size = cache.page_tokens
            everything = (*cache.sequences.values(), *cache._pinned.values())
            return len(
                {
                    page
                    for each in everything
                    for page in each.table.pages[: -(-len(each.token_ids) // size)]
                }
            )

        return await self._engine._thread.call(count, undo=lambda _: None)

    async def cached(self) -> list[int]:
        """The ids whose keys and values the engine keeps."""
        conversation = self._chat._conversation
        assert conversation is not None
        sequence = conversation._sequence

        def look() -> list[int]:
            return list(self._engine._core.cache.sequences[sequence].token_ids)

        return await self._engine._thread.call(look, undo=lambda _: None)

    async def speaks(self) -> None:
        """Wait until the model has said something since the last time."""
        await self._chat.speaks.wait()
        self._chat.speaks.clear()

    async def guess(self, text: str, whole: str | None = None) -> None:
        """A pause that lasts until the model has said something, as if this were all."""
        self._chat.speaks.clear()
        self.call.ears.pause(text)
        await self.speaks()
        while self.messages()[-2:-1] != [("user", whole or text)]:
            await self.speaks()  # that was the last word of a guess that is being dropped

    async def answered(self) -> None:
        self._num_replies += 1
        await self.call.until(say.ReplyEnded, self._num_replies)


@asynccontextmanager
async def call_on(
    engine: Engine,
    modality: Modality,
    *,
    interrupts: bool = False,
    condensing: Condensing = "off",
) -> AsyncIterator[EngineCall]:
    stage = cast(ModelThread[Engine], UnthreadedStage(engine))
    sampling = SamplingParams(max_tokens=16)
    chat = AudibleChat(stage, SystemClock(), sampling, "Be brief.", (), condensing=condensing)
    chat.speaks = asyncio.Event()
    # A pause lasts until the test ends it, and a model has the time that it needs, however slow the
    # machine is.
    with (
        patch.object(transitions, "STALL_GRACE_NS", NEVER_NS),
        patch.object(barge_in, "STALL_GRACE_NS", NEVER_NS),
        unhurried(),
        patch.object(llm_chat, "HANGS_S", NEVER_NS / 1e9),
    ):
        async with call_with(chat=cast(FakeChat, chat)) as call:
            settings = call.session.settings.changed(
                output_modality=modality, turn_detection=ServerVad(interrupt_response=interrupts)
            )
            await call.session.handle(ask.UpdateSession(settings))
            yield EngineCall(call, chat, engine)
