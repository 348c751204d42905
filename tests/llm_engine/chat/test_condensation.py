"""Condensing: the reply after it is that of a fresh conversation with the same context."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from latency_budget.account.turn import TurnId
from llm_engine.chat.condensation import CondensationLimits, ContextReplacement
from llm_engine.chat.conversation import Conversation
from llm_engine.chat.summary import NOTES, listed
from llm_engine.chat.template import ChatMessage
from llm_engine.config import EngineConfig, Precision, SamplingParams
from llm_engine.engine import Engine
from llm_engine.errors import RequestError
from tests.support.fakes.llm_models import save_tiny_model
from tests.support.models import model_path

SYSTEM = "You are short."
EXAMPLES = [ChatMessage("user", "the cat"), ChatMessage("assistant", "sat on the mat")]
LINES = (  # of more words than an answer that is kept with its question
    "My name is Miriam.",
    "the cat sat on the mat",
    "I need 4 chairs for them.",
    "what time is it there",
    "hello there and hello again",
    "and what time is it there",
)
QUOTES = CondensationLimits(max_kept_tokens=80, max_summary_tokens=60, is_written=False)
WRITTEN = CondensationLimits(max_kept_tokens=80, max_summary_tokens=60, is_written=True)
GREEDY = SamplingParams(max_tokens=12)
SMOLLM2 = "smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_tiny_model(path, "qwen3", num_hidden_layers=2, head_dim=16)
    return path


@pytest.fixture(params=["tiny", pytest.param("smollm2", marks=pytest.mark.models)])
async def engine(request: pytest.FixtureRequest, tiny: Path) -> AsyncIterator[Engine]:
    if request.param == "tiny":
        path, config = tiny, EngineConfig(num_threads=1)
    else:
        path, config = model_path(SMOLLM2), EngineConfig(precision=Precision.INT8, num_threads=2)
    engine = await asyncio.to_thread(Engine.load, path, config)
    yield engine
    engine.close()


async def ids_of(talk: Conversation, turn: int) -> list[int]:
    return [token async for chunk in talk.generate(TurnId(turn)) for token in chunk.token_ids]


async def said(talk: Conversation, line: str, turn: int) -> None:
    await talk.commit(line)
    await ids_of(talk, turn)


async def talked(engine: Engine) -> Conversation:
    talk = await engine.open_conversation(SYSTEM, sampling=GREEDY, examples=EXAMPLES)
    for turn, line in enumerate(LINES, 1):
        await said(talk, line, turn)
    return talk


async def cold(engine: Engine, prompt: tuple[int, ...]) -> list[int]:
    return [token async for chunk in engine.generate(prompt, GREEDY) for token in chunk.token_ids]


def prompt_of(talk: Conversation) -> tuple[int, ...]:
    return talk._history.prompt(12)


async def num_sequences(engine: Engine) -> int:
    def count() -> int:
        engine._core.cache.check()
        return len(engine._core.cache.sequences)

    return await engine._thread.call(count, undo=lambda _: None)


async def writing(
    talk: Conversation, num_tokens: int = 0
) -> asyncio.Task[ContextReplacement | None]:
    """Condensing that has written more tokens than this, or is done."""
    work = asyncio.get_running_loop().create_task(talk.condense(WRITTEN))
    while not work.done():
        if talk._condensation is not None and len(talk._condensation._written) > num_tokens:
            break
        await asyncio.sleep(0)  # nothing tells of it
    return work


@pytest.mark.parametrize("goal", [QUOTES, WRITTEN], ids=["quotes", "written"])
async def test_the_reply_is_that_of_a_fresh_conversation(
    engine: Engine, goal: CondensationLimits
) -> None:
    talk = await talked(engine)
    before = talk.messages
    done = await talk.condense(goal)
    assert done is not None
    assert talk.messages == before[len(done.roles) :]
    assert talk.summary == done.summary
    assert any("Miriam" in each for each in done.summary)
    assert done.num_tokens < done.num_tokens_before
    await talk.commit("and now")
    prompt = prompt_of(talk)
    last: list[int] = []
    async for chunk in talk.generate(TurnId(9)):
        last += chunk.token_ids
        usage = chunk.usage
    assert usage is not None
    assert usage.prompt_tokens - usage.cached_tokens < 20, "the new context was computed ahead"
    assert last == await cold(engine, prompt)

    fresh = await engine.open_conversation(SYSTEM, sampling=GREEDY, examples=EXAMPLES)
    await fresh.reset(before[len(done.roles) :], done.summary)
    assert fresh._history.written(fresh._history._summary) == [
        ChatMessage("system", NOTES.format(lines=listed(done.summary)))
    ]
    await fresh.commit("and now")
    assert len(prompt_of(fresh)) == pytest.approx(len(prompt), abs=20)  # replies encoded anew
    await talk.close()
    await fresh.close()
    assert await num_sequences(engine) == 0


async def test_writing_goes_on_where_it_was_interrupted(engine: Engine) -> None:
    whole = await talked(engine)
    done = await whole.condense(WRITTEN)
    assert done is not None
    talk = await talked(engine)
    again: ContextReplacement | None = None
    for num_tokens in range(0, 200, 7):
        work = await writing(talk, num_tokens)
        if work.done():
            again = work.result()
            break
        work.cancel()
        await asyncio.wait([work])
        assert len(talk.messages) == 2 * len(LINES), "nothing has changed"
    assert again == done
    assert num_tokens > 0, "it was interrupted"
    assert prompt_of(talk) == prompt_of(whole)


async def test_a_turn_comes_between(engine: Engine) -> None:
    talk, other = await talked(engine), await talked(engine)
    work = await writing(talk)
    work.cancel()
    await talk.commit("the mat")
    await other.commit("the mat")
    assert await ids_of(talk, 7) == await ids_of(other, 7)
    assert (await asyncio.wait([work]))[0] == {work}
    assert work.cancelled()
    done = await talk.condense(WRITTEN)
    assert done is not None
    assert talk.messages == other.messages[len(done.roles) :]
    await said(talk, "hello", 8)


async def test_turns_taken_back_end_it(engine: Engine) -> None:
    talk = await talked(engine)
    work = await writing(talk)
    for _ in LINES[1:]:
        await talk.uncommit()
    assert await work is None
    assert len(talk.messages) == 2
    assert await talk.condense(WRITTEN) is None
    assert await num_sequences(engine) == 1


@pytest.fixture
async def small(tiny: Path) -> AsyncIterator[Callable[[int], Engine]]:
    engines: list[Engine] = []

    def load(max_sequences: int) -> Engine:
        config = EngineConfig(num_threads=1, max_sequences=max_sequences, context_length=600)
        engines.append(Engine.load(tiny, config))
        return engines[-1]

    yield load
    for engine in engines:
        engine.close()


async def test_without_a_second_sequence_the_call_goes_on(small: Callable[[int], Engine]) -> None:
    engine = small(1)
    talk = await talked(engine)
    with pytest.raises(RequestError, match="max_sequences"):
        await talk.condense(QUOTES)
    await said(talk, "hello", 9)


async def test_an_idle_conversation_gives_its_sequence(small: Callable[[int], Engine]) -> None:
    """Of a request without a conversation of its own, as at the HTTP endpoint."""
    engine = small(2)
    talk = await talked(engine)
    async for _ in engine.chat([ChatMessage("user", "hello there")], GREEDY):
        pass
    assert await num_sequences(engine) == 2
    assert await talk.condense(QUOTES) is not None
    assert await num_sequences(engine) == 1
    await said(talk, "hello", 9)


async def test_where_nothing_is_condensed_the_oldest_are_dropped(
    small: Callable[[int], Engine],
) -> None:
    engine = small(4)
    talk = await engine.open_conversation(SYSTEM, sampling=GREEDY, examples=EXAMPLES)
    for turn in range(1, 30):
        await said(talk, f"I need {turn} chairs.", turn)
    assert talk.summary == ()
    num_dropped = talk.num_left_out
    assert num_dropped > 0
    done = await talk.condense(QUOTES)
    assert done is not None
    assert done.num_left_out == num_dropped
    assert talk.num_left_out == num_dropped + len(done.roles)


async def test_a_summary_of_a_summary_keeps_what_was_said_first(
    small: Callable[[int], Engine], caplog: pytest.LogCaptureFixture
) -> None:
    engine = small(4)
    talk = await talked(engine)
    for turn in range(10, 40):
        await said(talk, "what time is it there", turn)
        if talk.context_use().num_turns > 300:
            assert await talk.condense(QUOTES) is not None
    assert talk.summary == ("My name is Miriam.", "I need 4 chairs for them.")
    assert "dropped" not in caplog.text


async def test_a_summary_gives_way_to_the_last_question(small: Callable[[int], Engine]) -> None:
    engine = small(4)
    talk = await engine.open_conversation(SYSTEM, sampling=GREEDY)
    await talk.reset([ChatMessage("user", "hello")], ("I need 4 chairs. " * 8,))
    long = "the cat sat on the mat " * 70
    await talk.commit(long)
    await ids_of(talk, 1)
    assert talk.summary == ()
    assert talk.messages[0].text == long


@pytest.mark.parametrize("is_stopped", [True, False], ids=["stopped", "running"])
async def test_a_full_context_takes_what_is_prepared(
    small: Callable[[int], Engine], *, is_stopped: bool
) -> None:
    """A turn comes for which there is no room before the new context is computed."""
    engine = small(4)
    talk = await talked(engine)
    work = await writing(talk, 3)
    if is_stopped:
        work.cancel()
        await asyncio.wait([work])
    assert talk._condensation is not None
    old = [each.text for each in talk._history.written(talk._condensation.old)]
    assert LINES[0] in old
    text = "what time is it there"
    while not talk._history.is_full(text, 12):
        text += " and there"
    await talk.commit(text)
    last = await ids_of(talk, 9)
    if not is_stopped:
        assert await work is None
    assert LINES[0] in talk.summary
    assert talk.num_left_out == len(old), "nothing was dropped"
    assert [each.text for each in talk.messages if each.role == "user"] == [*LINES[-2:], text]

    reply = tuple(talk._history._turns[-1].fixed_ids or ())
    asked = prompt_of(talk)
    start = max(place for place in range(len(asked)) if asked[place:][: len(reply)] == reply)
    assert last == await cold(engine, asked[:start])
    assert await num_sequences(engine) == 1
