"""A session that condenses on a real engine: what the model reads, token for token."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from agent.config.schema import Condensing
from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import Message
from agent.session.context import condensing as condensing_decision
from agent.session.context.chat_messages import told
from agent.session.context.condensing import goal_of
from llm_engine.config import EngineConfig, Precision, SamplingParams
from llm_engine.engine import Engine
from tests.support.fakes import stages
from tests.support.models import model_path
from tests.support.session.engine_call import EngineCall, call_on
from tests.support.session.engine_fixtures import SMOLLM2

pytestmark = [pytest.mark.slow, pytest.mark.models]


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    """A real model: a random one writes ids that no prompt may have."""
    config = EngineConfig(precision=Precision.INT8, num_threads=1, context_length=700)
    engine = await asyncio.to_thread(Engine.load, model_path(SMOLLM2), config)
    yield engine
    engine.close()


def condensed(on: EngineCall) -> list[say.Extension]:
    found = (each for each in on.call.notices if isinstance(each, say.Extension))
    return [each for each in found if each.type == "halfsec.context"]


def is_due(on: EngineCall) -> bool:
    use = on.call.session._context.use()
    return use is not None and goal_of(use) is not None


async def talk_until_condensed(on: EngineCall) -> None:
    """A quick model condenses while the reply is sent that makes it due."""
    on.call.ears.say("My name is Miriam.")
    await on.answered()
    for number in range(2, 60):
        on.call.ears.say(f"Tell me about number {number}, please, and the cat on the mat.")
        await on.answered()
        if is_due(on) or condensed(on):
            while not condensed(on):  # a slow stage has notices of its own
                await on.call.until(say.Extension, len(on.call.of(say.Extension)) + 1)
            return
    raise AssertionError("never condensed")


def tail_of(on: EngineCall) -> list[tuple[str, str]]:
    """The last messages of the conversation, as many as the model has."""
    told_all = told(on.call.session.conversation)
    messages: list[tuple[str, str]] = [(each.role, each.text) for _, each in told_all]
    return messages[len(messages) - len(on.messages()) :]


def last_question(engine: Engine, prompt: tuple[int, ...]) -> tuple[int, ...]:
    """The prompt up to where its last reply begins."""
    opening = tuple(engine.vocabulary.tokenizer.encode_template("<|im_start|>assistant\n"))
    starts = range(len(prompt) - len(opening) - 1, -1, -1)
    last = next(start for start in starts if prompt[start : start + len(opening)] == opening)
    return prompt[: last + len(opening)]


@pytest.mark.parametrize("condensing", ["quotes", "summary"])
async def test_a_call_goes_on_as_a_fresh_one_with_the_same_context(
    engine: Engine, condensing: Condensing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "SAMPLES_PER_CHAR", 12)  # a hundred times as fast as one can speak
    monkeypatch.setattr(condensing_decision, "IDLE_MS", 0)
    async with call_on(engine, "audio", condensing=condensing) as on:
        await talk_until_condensed(on)
        (notice,) = condensed(on)
        assert "Miriam" in notice.fields["summary"]
        assert notice.fields["tokens"] < 0.7 * notice.fields["tokens_before"]
        assert on.messages() == tail_of(on)
        before = on.prompt()
        assert list(before[:-5]) == (await on.cached())[: len(before) - 5], "computed ahead"

        on.call.ears.say("And now?")
        await on.answered()
        asked = on.prompt()  # with the reply, and the gap behind it
        question = last_question(engine, asked)
        chunks = engine.generate(question, SamplingParams(max_tokens=16))
        fresh = [token async for chunk in chunks for token in chunk.token_ids]
        assert list(asked[len(question) :][: len(fresh)]) == fresh

        reply = [each for each in on.call.session.conversation if isinstance(each, Message)][-1]
        await on.call.session.handle(ask.TruncateItem(reply.id, 1))
        on.call.ears.say("What did you say?")
        await on.answered()
        assert on.messages() == tail_of(on)
        assert "Miriam" in " ".join(on.summary())
    await on.num_pages()  # which checks the cache
    assert not engine._core.has_work
