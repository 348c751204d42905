"""A session with re-opened turns on a real engine: what it is left with, token for token."""

from collections.abc import Awaitable, Callable

import pytest

from agent.session.api import server_events as say
from agent.turn_taking import reopening
from agent.turn_taking.tables import Agent
from llm_engine.engine import Engine
from tests.support.fakes import stages
from tests.support.session.engine_call import EngineCall, call_on
from tests.support.session.guess_call import ended, let_work

pytestmark = pytest.mark.slow

pytest_plugins = ["tests.support.session.engine_fixtures"]

MERGED = "A table for two. By the window, please."


async def over(on: EngineCall, number: int) -> None:
    """So many replies have ended, and the last of them has been played."""
    await on.call.until(say.ReplyEnded, number)
    while on.call.session._machine.agent is not Agent.IDLE:
        await let_work()


async def plain(on: EngineCall) -> None:
    for number, text in enumerate((MERGED, "And the bill?"), start=1):
        on.call.ears.say(text)
        await over(on, number)


async def begun(on: EngineCall, number: int) -> None:
    """That reply was announced, and the model has said something."""
    await on.call.until(say.ReplyStarted, number)
    await on.speaks()


async def go_on(on: EngineCall, text: str) -> None:
    on.call.ears.last_audio_ns = 1 << 62  # it does not stall
    on.call.ears.say(text)
    await let_work()


async def in_halves(on: EngineCall) -> None:
    """The first turn in three, with a cough, the second in two."""
    on.call.ears.say("A table for two.")
    for number, text in enumerate(("", "By the window,", "please."), start=1):
        await begun(on, number)
        await go_on(on, text)
    await over(on, 4)
    await on.speaks()
    on.call.ears.say("And the")
    await begun(on, 5)
    await go_on(on, "bill?")
    await over(on, 6)
    assert [status for status, _ in ended(on.call)].count("cancelled") == 4


async def in_halves_with_guesses(on: EngineCall) -> None:
    on.call.ears.say("A table for two.")
    await begun(on, 1)
    await on.guess("By the", whole="A table for two. By the")
    await on.guess("By the window, please.", whole=MERGED)
    on.call.ears.fall_silent()
    await over(on, 2)
    assert ended(on.call)[0] == ("cancelled", "")
    on.call.ears.say("And the bill?")
    await over(on, 3)


@pytest.mark.parametrize(
    ("engine", "story"),
    [
        ("tiny", in_halves),
        ("tiny", in_halves_with_guesses),
        # Its guesses are in test_guess_engine.py.
        pytest.param("smollm2", in_halves, marks=pytest.mark.models),
    ],
    indirect=["engine"],
)
async def test_reopened_turn_leaves_the_same_context_as_an_unpaused_one(
    engine: Engine,
    story: Callable[[EngineCall], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stages, "SAMPLES_PER_CHAR", 240)  # five times as fast as one can speak
    monkeypatch.setattr(reopening, "REOPEN_NS", 1 << 60)

    async def after(story: Callable[[EngineCall], Awaitable[None]]) -> tuple[object, ...]:
        async with call_on(engine, "audio", interrupts=True) as on:
            await story(on)
            assert on.messages()[0] == ("user", MERGED)
            assert len(on.messages()) == 4
            return on.prompt(), on.messages(), await on.cached(), await on.num_pages()

    await after(plain)  # from now on the instructions are computed, and shared
    assert await after(story) == await after(plain)
