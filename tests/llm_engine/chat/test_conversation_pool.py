"""Stateless clients: the whole history arrives each time, only new messages are computed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from llm_engine.chat.conversation_pool import MAX_IDLE
from llm_engine.chat.template import ChatMessage
from llm_engine.config import EngineConfig, SamplingParams
from llm_engine.core.output import Usage
from llm_engine.engine import Engine
from llm_engine.errors import RequestError
from tests.support.fakes.llm_models import save_tiny_model

SYSTEM = ChatMessage("system", "You are short.")
GREEDY = SamplingParams(max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_tiny_model(path, "llama", num_hidden_layers=1)
    return path


@pytest.fixture
async def engine(model: Path) -> AsyncIterator[Engine]:
    config = EngineConfig(num_threads=1, max_sequences=MAX_IDLE + 2)
    engine = await asyncio.to_thread(Engine.load, model, config)
    yield engine
    engine.close()


async def ask(engine: Engine, *messages: ChatMessage) -> tuple[str, Usage]:
    chunks = [chunk async for chunk in engine.chat(messages, GREEDY)]
    usage = chunks[-1].usage
    assert usage is not None
    return "".join(chunk.text for chunk in chunks), usage


def said(text: str) -> ChatMessage:
    return ChatMessage("user", text)


async def test_a_dialogue_is_taken_up_again(engine: Engine) -> None:
    history = [SYSTEM]
    num_known = 0
    for number in range(4):
        others = await ask(engine, SYSTEM, said(f"somebody else says {number}"))
        history.append(said(f"the cat sat on the mat and said {number}"))
        reply, usage = await ask(engine, *history)
        assert usage.cached_tokens >= num_known - 1
        assert not number or usage.prompt_tokens - usage.cached_tokens < 40
        num_known = usage.prompt_tokens + usage.output_tokens
        history.append(ChatMessage("assistant", reply))
        assert others[1].output_tokens == 12
    assert (await engine.stats()).num_sequences <= MAX_IDLE


async def test_a_reply_that_the_client_changed_is_read_anew(engine: Engine, model: Path) -> None:
    await ask(engine, SYSTEM, said("hello there"))
    changed = (SYSTEM, said("hello there"), ChatMessage("assistant", "No."), said("and now?"))
    warm, usage = await ask(engine, *changed)
    assert usage.cached_tokens > 10
    other = await asyncio.to_thread(Engine.load, model, EngineConfig(num_threads=1))
    cold, cold_usage = await ask(other, *changed)
    other.close()
    assert warm == cold
    assert cold_usage.cached_tokens == 0


async def test_a_second_system_message_does_not_replace_the_system_prompt(engine: Engine) -> None:
    other = ChatMessage("system", "You are another one, and long.")
    for messages in ((SYSTEM, other, said("hello there")), (SYSTEM, said("hello there"))):
        expected = [chunk async for chunk in engine.generate(messages, GREEDY)]
        for _ in range(2):  # opened, and taken from the pool
            reply, usage = await ask(engine, *messages)
            assert reply == "".join(chunk.text for chunk in expected)
            assert expected[-1].usage is not None
            assert usage.prompt_tokens == expected[-1].usage.prompt_tokens


async def test_two_at_once_do_not_share_a_dialogue(engine: Engine) -> None:
    messages = (SYSTEM, said("hello there"))
    alone, _ = await ask(engine, *messages)
    both = await asyncio.gather(ask(engine, *messages), ask(engine, *messages))
    assert [text for text, _ in both] == [alone] * 2


async def test_idle_dialogues_make_room(engine: Engine) -> None:
    for number in range(MAX_IDLE + 3):
        await ask(engine, SYSTEM, said(f"hello {number}"))
    assert (await engine.stats()).num_sequences == MAX_IDLE
    talks = [await engine.open_conversation("S") for _ in range(MAX_IDLE + 2)]
    assert (await engine.stats()).num_sequences == MAX_IDLE + 2
    with pytest.raises(RequestError, match="in use"):
        await ask(engine, said("hello"))
    for talk in talks:
        await talk.close()
    await ask(engine, said("hello"))


async def test_a_client_that_goes_stops_the_work(engine: Engine) -> None:
    endless = SamplingParams(ignore_eos=True)
    async with aclosing(engine.chat([said("hello")], endless)) as reply:
        await anext(reply)
    assert (await engine.stats()).num_replying == 0
    _, usage = await ask(engine, said("hello"))
    assert usage.output_tokens == 12


@pytest.mark.parametrize(
    "messages", [(), (SYSTEM,), (said("hello"), ChatMessage("assistant", "Hi."))]
)
async def test_there_must_be_something_to_answer(
    engine: Engine, messages: tuple[ChatMessage, ...]
) -> None:
    with pytest.raises(RequestError, match="must end with a message of the user"):
        await ask(engine, *messages)


async def test_what_cannot_be_read_leaves_nothing(engine: Engine) -> None:
    with pytest.raises(RequestError, match="surrogate"):
        await ask(engine, said("half \ud83d"))
    with pytest.raises(RequestError, match="too long"):
        await ask(engine, said("x " * 5000))
    assert (await engine.stats()).num_sequences == 0
