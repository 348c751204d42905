"""A session with guesses on a real engine: what the model is left with, token for token."""

from collections.abc import Awaitable, Callable

import pytest

from agent.session.api.conversation import Modality
from llm_engine.engine import Engine
from tests.support.fakes import stages
from tests.support.session.engine_call import EngineCall, call_on

pytestmark = pytest.mark.slow

pytest_plugins = ["tests.support.session.engine_fixtures"]


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


@pytest.mark.parametrize(
    ("engine", "modality"),
    [
        ("tiny", "text"),
        ("tiny", "audio"),
        # In text nothing is interrupted and cut that is not in audio.
        pytest.param("smollm2", "audio", marks=pytest.mark.models),
    ],
    indirect=["engine"],
)
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


@pytest.mark.parametrize("engine", ["tiny"], indirect=True)  # pages are counted, not read
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
