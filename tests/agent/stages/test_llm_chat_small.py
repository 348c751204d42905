"""A chat that a smaller model takes over, and gives back."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

import llm_engine
from agent.config.schema import Config, LlmSettings
from agent.session.ports.stage_ports import ChatMessage, ChatPort
from agent.stages.llm_chat import EngineChat
from agent.stages.model_store.catalogue import ModelStore
from agent.stages.model_thread import ModelThread
from agent.stages.registry import Stages
from latency_budget.account.clock import SystemClock
from latency_budget.account.turn import TurnId
from tests.agent.stages.test_llm_chat import StubConversation, StubEngine, StubStage
from tests.support.fakes.llm_models import save_tiny_model


class LendingStage(StubStage):
    """Says which engine it has."""

    is_gone = False

    @property
    def model(self) -> StubEngine | None:
        return None if self.is_gone else self.engine


class EmptyStage(StubStage):
    model = None


def chat_between(large: StubStage, small: StubStage | None) -> EngineChat:
    lent = cast(ModelThread[llm_engine.Engine], large)
    other = cast(ModelThread[llm_engine.Engine] | None, small)
    return EngineChat(lent, SystemClock(), llm_engine.SamplingParams(), "Be brief.", (), other)


async def test_the_history_moves_with_the_next_message_and_back() -> None:
    large, small = LendingStage(), LendingStage()
    chat = chat_between(large, small)
    await chat.reset([ChatMessage("user", "Hello")])
    chat.use_small_model(small=True)
    assert small.engine.opened == [], "nothing moves in the middle of a turn"
    await chat.commit(ChatMessage("user", "And?"))
    assert small.engine.opened[0].told == ["Hello", "And?"]
    assert large.engine.opened[0].closed
    chat.use_small_model(small=False)
    await chat.commit(ChatMessage("user", "So?"))
    assert large.engine.opened[1].told == ["Hello", "So?"]
    assert small.engine.opened[0].closed
    assert not large.engine.opened[1].closed


@pytest.mark.parametrize("small", [None, EmptyStage()])
async def test_where_there_is_none_the_large_model_goes_on(small: StubStage | None) -> None:
    large = LendingStage()
    chat = chat_between(large, small)
    chat.use_small_model(small=True)
    await chat.commit(ChatMessage("user", "Hello"))
    assert large.engine.opened[0].told == ["Hello"]


async def test_an_engine_that_was_given_up_is_not_spoken_to() -> None:
    large, small = LendingStage(), LendingStage()
    chat = chat_between(large, small)
    await chat.commit(ChatMessage("user", "Hello"))
    left = large.engine.opened[0]
    large.engine = StubEngine()
    chat.use_small_model(small=True)
    await chat.commit(ChatMessage("user", "And?"))
    assert not left.closed


class RefusingEngine(StubEngine):
    async def open_conversation(self, system: str, **_: Any) -> StubConversation:
        raise llm_engine.RequestError("prompt", "too long for so small a model")


async def test_a_smaller_model_that_cannot_take_the_call_is_not_asked_again() -> None:
    large, small = LendingStage(), LendingStage()
    small.engine = RefusingEngine()
    chat = chat_between(large, small)
    assert chat.use_small_model(small=True)
    await chat.commit(ChatMessage("user", "Hello"))
    assert large.engine.opened[0].told == ["Hello"]
    assert not chat.use_small_model(small=True)


async def test_a_smaller_model_that_breaks_in_a_call_gives_it_back() -> None:
    large, small = LendingStage(), LendingStage()
    chat = chat_between(large, small)
    chat.use_small_model(small=True)
    await chat.reset([ChatMessage("user", "Hello")])
    await chat.commit(ChatMessage("user", "And?"))
    assert len(small.engine.opened) == 1
    small.is_gone = True
    await chat.set_system("Be kind.")  # what comes before the next message goes there as well
    assert large.engine.opened[-1].system == "Be kind."
    assert not chat.use_small_model(small=True)


@pytest.fixture
async def stages(tmp_path: Path) -> AsyncIterator[Stages]:
    """With two models, their engines started."""
    for name, layers in (("large", 2), ("small", 1)):
        save_tiny_model(tmp_path / name, "llama", num_hidden_layers=layers)
    settings = LlmSettings(
        model=str(tmp_path / "large"),
        small_model=str(tmp_path / "small"),
        dtype="float32",
        context=256,
        cache_mb=16,
    )
    stages = Stages(Config(llm_engine=settings), ModelStore(tmp_path, {}), SystemClock())
    assert stages.small_llm is not None
    await stages.llm.start()
    await stages.small_llm.start()
    yield stages
    await stages.close()


async def said(chat: ChatPort) -> str:
    tokens = chat.generate(TurnId(1), deadline_ns=0, max_tokens=8, on_mark=lambda *_: None)
    return "".join([token.text async for token in tokens])


async def test_real_engines_answer_alike_after_a_handover(stages: Stages) -> None:
    assert "small llm" in stages.threads()
    moved = stages.open_chat("Be brief.", ())
    await moved.commit(ChatMessage("user", "Hello"))
    await moved.take_back()
    moved.use_small_model(small=True)
    await moved.commit(ChatMessage("user", "How are you?"))
    fresh = stages.open_chat("Be brief.", ())
    fresh.use_small_model(small=True)
    await fresh.commit(ChatMessage("user", "How are you?"))
    first = await said(moved)
    assert first == await said(fresh)
    moved.use_small_model(small=False)
    await moved.commit(ChatMessage("user", "And now?"))
    other = stages.open_chat("Be brief.", ())
    await other.reset([ChatMessage("user", "How are you?"), ChatMessage("assistant", first)])
    await other.commit(ChatMessage("user", "And now?"))
    assert await said(moved) == await said(other)
    for chat in (moved, fresh, other):
        await chat.close()
    for stage in (stages.llm, stages.small_llm):
        assert stage is not None
        engine = await stage.call(lambda engine: engine, timeout_s=5)
        assert (await engine.stats()).num_sequences == 0, "no conversation is left behind"
