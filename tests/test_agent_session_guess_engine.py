"""A session with guesses on a real engine: what the model is left with, token for token."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from agent import notices as say
from agent import requests as ask
from agent.conversation import Modality
from agent.ports import OnMark, ReplyToken
from agent.settings import ServerVad
from agent.stage_thread import StageThread
from agent.thinking import Chat
from latency_budget.clock import SystemClock
from latency_budget.turn import TurnId
from llm_engine.config import EngineConfig, SamplingParams
from llm_engine.engine import Engine

from .fakes import stages
from .fakes.llm_models import save_tiny_model
from .fakes.stages import FakeChat
from .models import model_path
from .session_call import Call, call_with

SMOLLM2 = "smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf"


class Lender:
    """A stage whose engine never hangs."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def call(self, job: Callable[[Engine], Any], *, timeout_s: float) -> Any:
        return job(self._engine)


@pytest.fixture(params=["tiny", pytest.param("smollm2", marks=pytest.mark.models)])
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engine]:
    if request.param == "tiny":
        path = tmp_path
        save_tiny_model(path, "qwen3", num_hidden_layers=2, head_dim=16)
    else:
        path = model_path(SMOLLM2)
    engine = await asyncio.to_thread(Engine.load, path, EngineConfig(num_threads=1))
    yield engine
    engine.close()


class AudibleChat(Chat):
    """Tells when the model has said something."""

    speaks: asyncio.Event

    async def generate(
        self, turn: TurnId, *, deadline_ns: int, max_tokens: int | None, on_mark: OnMark
    ) -> AsyncGenerator[ReplyToken, None]:
        tokens = super().generate(
            turn, deadline_ns=deadline_ns, max_tokens=max_tokens, on_mark=on_mark
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
        return self._chat._conversation._dialogue.prompt(0)

    def messages(self) -> list[tuple[str, str]]:
        conversation = self._chat._conversation
        return [(m.role, m.text) for m in conversation.messages] if conversation else []

    async def num_pages(self) -> int:
        def count() -> int:
            self._engine._core.cache.check()
            return self._engine._core.cache.pool.num_used

        return await self._engine._worker.call(count, undo=lambda _: None)

    async def guess(self, text: str) -> None:
        """A pause that lasts until the model has said something."""
        self.call.ears.pause(text)
        while self.messages()[-2:-1] != [("user", text)]:  # of the guess before, till words come
            self._chat.speaks.clear()
            await self._chat.speaks.wait()

    async def answered(self) -> None:
        self._num_replies += 1
        await self.call.until(say.ReplyEnded, self._num_replies)


@asynccontextmanager
async def call_on(engine: Engine, modality: Modality) -> AsyncIterator[EngineCall]:
    stage = cast(StageThread[Engine], Lender(engine))
    chat = AudibleChat(stage, SystemClock(), SamplingParams(max_tokens=16), "Be brief.", ())
    chat.speaks = asyncio.Event()
    async with call_with(chat=cast(FakeChat, chat)) as call:
        settings = call.session.settings.changed(
            output_modality=modality, turn_detection=ServerVad(interrupt_response=False)
        )
        await call.session.handle(ask.UpdateSession(settings))
        yield EngineCall(call, chat, engine)


async def plain(on: EngineCall) -> None:
    for text in ("A table for two.", "And the bill?"):
        on.call.ears.say(text)
        await on.answered()


async def hesitant(on: EngineCall) -> None:
    await on.guess("A table")
    await on.guess("A table for")
    on.call.ears.pause("A table for two.")
    on.call.ears.fall_silent()
    await on.answered()
    await on.guess("And")
    await on.guess("And the bill?")
    on.call.ears.fall_silent()
    await on.answered()


@pytest.mark.parametrize("modality", ["text", "audio"])
async def test_a_call_with_guesses_is_the_call_without_token_for_token(
    engine: Engine, modality: Modality, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "SAMPLES_PER_CHAR", 120)  # ten times as fast as one can speak

    async def after(story: Callable[[EngineCall], Awaitable[None]]) -> tuple[object, ...]:
        async with call_on(engine, modality) as on:
            await story(on)
            assert len(on.messages()) == 4
            return on.prompt(), on.messages(), await on.num_pages()

    await after(plain)  # from now on the instructions are computed, and shared
    assert await after(hesitant) == await after(plain)


async def test_a_call_that_ends_in_a_guess_gives_its_pages_back(engine: Engine) -> None:
    async with call_on(engine, "audio") as on:
        on.call.ears.say("Hello.")
        await on.answered()
    num_idle = await on.num_pages()
    async with call_on(engine, "audio") as on:
        await on.guess("Tell me")
        assert await on.num_pages() > num_idle
    assert await on.num_pages() == num_idle
    assert not engine._core.has_work
