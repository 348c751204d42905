"""Log-probability that the user's message ends: the model's own, at no cost to cache or reply."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

from latency_budget.account.turn import TurnId
from llm_engine.backends.base import SequenceRows
from llm_engine.backends.cpu import CpuBackend
from llm_engine.chat.conversation import Conversation
from llm_engine.chat.template import ChatMessage
from llm_engine.chat.token_history import message_end_ids, without_end_marks
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.config import EngineConfig, Precision, SamplingParams
from llm_engine.core.output import Usage
from llm_engine.engine import Engine
from tests.support.fakes.llm_models import save_tiny_model

GREEDY = SamplingParams(max_tokens=6)
SYSTEM = "You are short."


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_tiny_model(path, "qwen3", num_hidden_layers=2, head_dim=16)
    return path


@pytest.fixture(scope="module", params=[Precision.FLOAT32, Precision.INT8])
def config(request: pytest.FixtureRequest) -> EngineConfig:
    return EngineConfig(num_threads=1, precision=request.param)


@pytest.fixture
async def engine(model: Path, config: EngineConfig) -> AsyncIterator[Engine]:
    engine = await asyncio.to_thread(Engine.load, model, config)
    yield engine
    engine.close()


async def watched(engine: Engine) -> tuple[Conversation, list[tuple[str, float]]]:
    talk = await engine.open_conversation(SYSTEM, sampling=GREEDY)
    told: list[tuple[str, float]] = []
    talk.watch_message_end(lambda text, log_prob: told.append((text, log_prob)))
    return talk, told


async def answer(talk: Conversation, turn: int = 1) -> tuple[list[int], Usage]:
    chunks = [chunk async for chunk in talk.generate(TurnId(turn))]
    usage = chunks[-1].usage
    assert usage is not None
    return [token for chunk in chunks for token in chunk.token_ids], usage


def by_reference(model: Path, engine: Engine, words: str) -> float:
    """The log-probability by the slow backend, in plain torch."""
    vocabulary = engine.vocabulary
    template = vocabulary.chat_template
    gaps = template.gaps(["system", "user"])
    ids = [*gaps[0].token_ids, *template.content("system", SYSTEM, gaps[0])]
    ids += [*gaps[1].token_ids, *template.content("user", words, gaps[1])]
    checkpoint = load_checkpoint(model)
    backend = CpuBackend(checkpoint, EngineConfig(num_threads=1), 400)
    pages = range(len(ids))
    rows = SequenceRows(backend.open_slot(), tuple(ids), 0, 1, GREEDY, 0, pages=list(pages))  # type: ignore[arg-type]  # page ids are plain numbers here
    with torch.inference_mode():
        shares = backend.logits(rows)[0].log_softmax(0).exp()
    return float(shares[list(vocabulary.message_end_ids)].sum().log())


async def test_a_preview_tells_what_the_model_expects(
    engine: Engine, model: Path, config: EngineConfig
) -> None:
    talk, told = await watched(engine)
    await talk.warm("what time is it")
    ((text, log_prob),) = told
    assert text == "what time is it"
    loose = 0.2 if config.precision is Precision.INT8 else 1e-3
    assert log_prob == pytest.approx(by_reference(model, engine, text), abs=loose)


async def test_punctuation_is_no_part_of_the_question(engine: Engine) -> None:
    talk, told = await watched(engine)
    for text in ("what time is it", "what time is it?", "what time is it. "):
        await talk.warm(text)
    assert [text for text, _ in told] == [
        "what time is it",
        "what time is it?",
        "what time is it. ",
    ]
    assert len({log_prob for _, log_prob in told}) == 1


async def test_a_reply_asks_for_words_that_no_preview_had(engine: Engine) -> None:
    talk, told = await watched(engine)
    await talk.warm("what time")
    await talk.commit("what time is it?")
    await answer(talk)
    assert [text for text, _ in told] == ["what time", "what time is it?"]
    assert told[0][1] != told[1][1]


async def test_a_previewed_message_is_not_computed_again(engine: Engine) -> None:
    talk, told = await watched(engine)
    await talk.warm("what time is it?")
    await talk.commit("what time is it?")
    _, usage = await answer(talk)
    assert usage.cached_tokens == usage.prompt_tokens - 1
    assert len(told) == 2
    assert told[0] == told[1]


async def test_watching_changes_no_reply(engine: Engine) -> None:
    plain = await engine.open_conversation(SYSTEM, sampling=GREEDY)
    talk, told = await watched(engine)
    for turn, text in enumerate(("hello there", "what time is it?", "and now."), 1):
        await talk.warm(text[:7])
        for each in (plain, talk):
            await each.commit(text)
        assert (await answer(plain, turn))[0] == (await answer(talk, turn))[0]
    assert len(told) == 6
    assert talk.messages == plain.messages


async def test_nothing_is_told_of_what_is_no_words_of_the_user(engine: Engine) -> None:
    talk, told = await watched(engine)
    await talk.warm("")
    await talk.warm(" ... ")
    await talk.reset([ChatMessage("user", "hi"), ChatMessage("assistant", "hello")])
    await talk.warm("")
    assert told == []


async def test_only_the_newest_question_is_answered(engine: Engine) -> None:
    talk, told = await watched(engine)
    async with asyncio.TaskGroup() as group:
        group.create_task(talk.warm("what time"))
        group.create_task(talk.warm("what time is it"))
    assert [text for text, _ in told][-1] == "what time is it"


def test_marks_count_with_and_without_white_space() -> None:
    token_bytes = (b"a", b".", b" ?", b"!\n", b"...", b"?)", b"<end>", b"")
    assert message_end_ids(token_bytes, frozenset({6})) == (1, 2, 3, 6)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("what time is it?", "what time is it"),
        ("well ...", "well"),
        ('I said "yes." ', 'I said "yes'),
        ("?!", ""),
        ("ten o'clock", "ten o'clock"),
    ],
)
def test_end_marks_are_taken_off(text: str, words: str) -> None:
    assert without_end_marks(text) == words
