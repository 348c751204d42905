"""Scores of the caller's words by a small model of this process, beside a model on a server."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from agent.config.presets import PRESETS
from agent.config.schema import Config, LlmSettings
from agent.errors import StageError
from agent.session.ports.stage_ports import ChatMessage, OnMessageEnd, ScoresMessageEnd
from agent.stages.llm_chat import EngineChat
from agent.stages.model_store.catalogue import ModelStore
from agent.stages.model_thread import ModelThread
from agent.stages.registry import Stages, _scoring_prompt
from agent.stages.remote import message_end_scores
from agent.stages.remote.message_end_scores import MAX_CHARS, NUM_MESSAGES, last_exchange
from agent.stages.remote.remote_chat import (
    ScoringRemoteChat,
    SmallModel,
    remote_chat_factory,
)
from agent.stages.tool_call_adapter import ToolLimits
from latency_budget.account.clock import SystemClock
from latency_budget.account.turn import TurnId
from llm_engine.config import EngineConfig, SamplingParams
from llm_engine.engine import Engine
from tests.agent.stages.test_chat_contract import EchoChat
from tests.support.fakes.llm_models import save_tiny_model
from tests.support.models import model_path
from tests.support.service.model_servers import (
    WAIT_S,
    Answer,
    ScriptedServer,
    error,
    head,
    model_server,
    said,
    scripted_server,
    stream,
)
from tests.support.session.engine_fixtures import SMOLLM2

HELLO: Final = stream(said("Hel"), said("lo", "stop"))
SHORT_S: Final = 0.3
"""Timeout of a server that is to be given up."""
ASKED: Final = (
    ChatMessage("user", "Hi, I would like a table."),
    ChatMessage("assistant", "Sure, for how many people?"),
)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A score may take as long as a busy machine needs."""
    monkeypatch.setattr(message_end_scores, "MAX_SCORE_S", WAIT_S)


class Scores:
    """What a chat tells of the ends of messages."""

    def __init__(self) -> None:
        self.told: list[tuple[str, float]] = []
        self._changed = asyncio.Event()

    def tell(self, words: str, log_prob: float) -> None:
        self.told.append((words, log_prob))
        self._changed.set()

    async def next(self) -> tuple[str, float]:
        """The newest one, once one has come since the last call."""
        async with asyncio.timeout(WAIT_S):
            await self._changed.wait()
        self._changed.clear()
        return self.told[-1]


class ScriptedScores(EchoChat):
    """A chat that tells a score when it is let, or fails."""

    def __init__(self, failure: Exception | None = None) -> None:
        super().__init__("", ())
        self.failure = failure
        self.let = asyncio.Event()
        self.previewed: list[tuple[tuple[ChatMessage, ...], str]] = []
        self.tell: OnMessageEnd | None = None
        self.num_closed = 0

    def watch_message_end(self, tell: OnMessageEnd) -> None:
        self.tell = tell

    async def preview(self, text: str) -> None:
        self.previewed.append((tuple(self._history), text))
        if self.failure is not None:
            raise self.failure
        await self.let.wait()
        if text and self.tell is not None:
            self.tell(text, -0.5)

    async def close(self) -> None:
        self.num_closed += 1


@asynccontextmanager
async def talking(
    small: SmallModel, *answers: Answer, timeout_s: float = WAIT_S
) -> AsyncIterator[tuple[ScoringRemoteChat, ScriptedServer, Scores]]:
    """A chat with a server that keeps no prompts, and what is told of its messages."""
    async with (
        scripted_server(*answers) as scripted,
        model_server(scripted.url, timeout_s=timeout_s) as server,
    ):
        factory = remote_chat_factory(
            server, SystemClock(), SamplingParams(), 4096, ToolLimits(), "off", small
        )
        chat = factory("Sell tea to whoever calls.", ())
        assert isinstance(chat, ScoringRemoteChat)
        assert isinstance(chat, ScoresMessageEnd)
        scores = Scores()
        chat.watch_message_end(scores.tell)
        yield chat, scripted, scores
        await chat.close()
        scorer = chat._scorer
        assert scorer is not None
        assert scorer._works == set(), "no task is left behind"


def scored_by(chat: ScriptedScores, *, is_ready: bool = True) -> SmallModel:
    return SmallModel(EchoChat, lambda: is_ready, lambda: chat)


async def reply(chat: ScoringRemoteChat) -> str:
    tokens = chat.generate(TurnId(1), deadline_ns=0, max_tokens=None, on_mark=lambda *_: None)
    async with asyncio.timeout(WAIT_S), aclosing(tokens):
        return "".join([token.text async for token in tokens])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def let_work() -> None:
    """Let every task go on until it waits."""
    for _ in range(50):
        await asyncio.sleep(0)


# --- with an engine ---


@pytest.fixture(params=["tiny", pytest.param("smollm2", marks=pytest.mark.models)])
async def small_llm(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[ModelThread[Engine]]:
    path = tmp_path
    if request.param == "tiny":
        save_tiny_model(path, "qwen3", num_hidden_layers=2, head_dim=16)
    else:
        path = model_path(SMOLLM2)
    stage: ModelThread[Engine] = ModelThread(
        "small llm", lambda: Engine.load(path, EngineConfig(num_threads=1)), Engine.close
    )
    await stage.start()
    yield stage
    await stage.close()


async def test_words_are_scored_as_by_the_same_model_as_own_engine(
    small_llm: ModelThread[Engine],
) -> None:

    def open_own() -> EngineChat:
        examples = ChatMessage("user", "Hi."), ChatMessage("assistant", "Good day.")
        return EngineChat(small_llm, SystemClock(), SamplingParams(), "Be brief.", examples)

    expected: list[tuple[str, float]] = []
    own = open_own()
    own.watch_message_end(lambda words, log_prob: expected.append((words, log_prob)))
    await own.reset(ASKED)
    for words in ("For", "For two, please."):
        await own.preview(words)
    small = SmallModel(EchoChat, lambda: small_llm.model is not None, open_own)
    async with talking(small, HELLO) as (chat, _, scores):
        await chat.reset(ASKED)
        await chat.preview("For")
        await scores.next()
        await chat.commit(ChatMessage("user", "For two, please."))
        assert await reply(chat) == "Hello"
        await scores.next()
        assert [words for words, _ in scores.told] == [words for words, _ in expected]
        found = [log_prob for _, log_prob in scores.told]
        assert found == pytest.approx([log_prob for _, log_prob in expected], abs=0.02)
    await own.close()
    engine = await small_llm.call(lambda engine: engine, timeout_s=WAIT_S)
    assert (await engine.stats()).num_sequences == 0


@pytest.mark.models
async def test_finished_sentences_end_and_others_do_not() -> None:
    settings = LlmSettings(
        model="openai:http://127.0.0.1:9/v1#absent",
        small_model=str(model_path(SMOLLM2)),
        threads=1,
        context=2048,
    )
    stages = Stages(Config(llm_engine=settings), ModelStore(), SystemClock())
    assert stages.small_llm is not None
    await stages.small_llm.start()
    await stages.prefill_scoring_prompt()
    chat, scores = stages.open_chat("Be brief.", ()), Scores()
    assert isinstance(chat, ScoresMessageEnd)
    chat.watch_message_end(scores.tell)
    for words in ("What time do you open tomorrow?", "What time do you"):
        await chat.preview(words)
        await scores.next()
    finished, unfinished = (log_prob for _, log_prob in scores.told)
    assert finished > -1.0
    assert unfinished < -4.0
    await chat.close()
    await stages.close()


# --- what is scored, and when ---


async def test_words_are_scored_behind_the_last_exchange() -> None:
    small = ScriptedScores()
    small.let.set()
    async with talking(scored_by(small), HELLO) as (chat, _, scores):
        await chat.reset([ChatMessage("user", "First."), *ASKED])
        await chat.preview("For two")
        assert await scores.next() == ("For two", -0.5)
        await chat.commit(ChatMessage("user", "For two, please."))
        await reply(chat)
        assert await scores.next() == ("For two, please.", -0.5)
        assert small.previewed == [(ASKED, "For two"), (ASKED, "For two, please.")]


def test_the_context_of_a_score_is_bounded() -> None:
    call = ChatMessage("assistant", "", ())
    history = [ChatMessage("user", f"{number} {'word ' * 500}") for number in range(9)]
    history += [call, ChatMessage("tool", "dry"), ChatMessage("system", "Be kind.")]
    found = last_exchange([*history, ChatMessage("assistant", "It is dry.")])
    assert len(found) == NUM_MESSAGES
    assert found[-1] == ChatMessage("assistant", "It is dry.")
    assert found[0].role == "user"
    assert len(found[0].text) <= MAX_CHARS
    assert last_exchange(()) == ()


async def test_without_words_only_the_prompt_is_computed() -> None:
    small = ScriptedScores()
    async with talking(scored_by(small), HELLO) as (chat, _, scores):
        await chat.preview("")
        await until(lambda: small.previewed == [((), "")])
        small.let.set()
        await let_work()
        assert scores.told == []


async def test_a_slow_score_delays_neither_previews_nor_the_reply() -> None:
    small = ScriptedScores()
    async with talking(scored_by(small), HELLO) as (chat, scripted, scores):
        async with asyncio.timeout(WAIT_S):
            await chat.preview("For")
            await chat.preview("For two")
        await chat.commit(ChatMessage("user", "For two."))
        assert await reply(chat) == "Hello"
        assert scores.told == []
        assert len(scripted.bodies) == 1
        small.let.set()
        assert await scores.next() == ("For two.", -0.5)
        assert [words for words, _ in scores.told] == ["For two."], "the newest words only"


async def test_the_same_words_are_read_once_while_they_are_read() -> None:
    small = ScriptedScores()
    async with talking(scored_by(small), HELLO) as (chat, _, scores):
        await chat.preview("For two.")
        await until(lambda: len(small.previewed) == 1)
        await chat.commit(ChatMessage("user", "For two."))
        await reply(chat)
        assert len(small.previewed) == 1
        small.let.set()
        assert await scores.next() == ("For two.", -0.5)


@pytest.mark.parametrize("change", ["take back", "reset", "cut", "no answer to words"])
async def test_a_score_of_words_that_are_outdated_is_dropped(change: str) -> None:
    small = ScriptedScores()
    async with talking(scored_by(small), HELLO) as (chat, _, scores):
        await chat.commit(ChatMessage("user", "For two."))
        await reply(chat)
        await until(lambda: len(small.previewed) == 1)
        if change == "take back":
            await chat.take_back()
        elif change == "reset":
            await chat.reset(ASKED)
        elif change == "cut":
            await chat.truncate_reply(3)
        else:
            await chat.commit(ChatMessage("tool", "dry"))
            await reply(chat)
        small.let.set()
        await let_work()
        assert scores.told == []


async def test_a_score_that_comes_late_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_end_scores, "MAX_SCORE_S", 0.01)
    small = ScriptedScores()
    async with talking(scored_by(small), HELLO) as (chat, _, scores):
        await chat.preview("For two.")
        scorer = chat._scorer
        assert scorer is not None
        await until(lambda: not scorer._works)
        small.let.set()
        await let_work()
        assert scores.told == []


async def test_nothing_is_scored_that_nobody_watches() -> None:
    small = ScriptedScores()
    async with scripted_server(HELLO) as scripted, model_server(scripted.url) as server:
        factory = remote_chat_factory(
            server, SystemClock(), SamplingParams(), 4096, ToolLimits(), "off", scored_by(small)
        )
        chat = factory("", ())
        await chat.preview("For two.")
        await let_work()
        assert small.previewed == []
        await chat.close()
        assert small.num_closed == 0


async def test_the_conversation_is_closed_with_the_chat() -> None:
    small = ScriptedScores()
    async with talking(scored_by(small), HELLO) as (chat, _, scores):
        await chat.preview("For two.")
        await until(lambda: len(small.previewed) == 1)
        await chat.close()
        small.let.set()
        await let_work()
        assert (small.num_closed, scores.told) == (1, [])


# --- the smaller model answers, or fails ---


@pytest.mark.parametrize("failing", [error(404, "no"), Answer([head()], "hang")])
async def test_nothing_is_scored_while_the_smaller_model_answers(failing: Answer) -> None:
    small = ScriptedScores()
    async with talking(scored_by(small), failing, timeout_s=SHORT_S) as (chat, _, scores):
        await chat.commit(ChatMessage("user", "For two."))
        assert "For two." in await reply(chat)
        small.let.set()
        await let_work()
        assert scores.told == []
        before = len(small.previewed)
        await chat.preview("And")
        await chat.commit(ChatMessage("user", "And now?"))
        assert "And now?" in await reply(chat)
        await let_work()
        assert len(small.previewed) == before, "the smaller model has its own work"


async def test_nothing_is_scored_where_the_policy_lets_the_smaller_model_answer() -> None:
    small = ScriptedScores()
    small.let.set()
    async with talking(scored_by(small), HELLO) as (chat, _, scores):
        assert chat.use_small_model(small=True)
        await chat.preview("For")
        await chat.commit(ChatMessage("user", "For two."))
        assert "For two." in await reply(chat)
        assert small.previewed == []
        assert not chat.use_small_model(small=False)
        await chat.preview("And now?")
        assert await scores.next() == ("And now?", -0.5)


@pytest.mark.parametrize("failure", [StageError("llm", "It fails."), RuntimeError("a fault")])
async def test_a_smaller_model_that_fails_gives_no_score_and_the_call_goes_on(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    small = ScriptedScores(failure)
    with caplog.at_level(logging.ERROR):
        async with talking(scored_by(small), HELLO) as (chat, _, scores):
            for words in ("For", "For two."):
                await chat.preview(words)
                await let_work()
            await chat.commit(ChatMessage("user", "For two."))
            assert await reply(chat) == "Hello"
            await let_work()
            assert scores.told == []
            assert len(small.previewed) == 3, "it is tried again with the next words"
            small.failure = None
            small.let.set()
            await chat.preview("And")
            assert await scores.next() == ("And", -0.5)
    assert ("could not score" in caplog.text) == isinstance(failure, RuntimeError)


async def test_one_that_is_not_loaded_is_not_waited_for() -> None:
    small = ScriptedScores()
    async with talking(scored_by(small, is_ready=False), HELLO) as (chat, _, scores):
        await chat.preview("For two.")
        await chat.commit(ChatMessage("user", "For two."))
        assert await reply(chat) == "Hello"
        await let_work()
        assert (small.previewed, scores.told) == ([], [])


# --- the settings ---


@pytest.mark.parametrize("small", ["", "smollm2-135m-instruct"])
async def test_a_small_model_in_the_settings_scores_the_words(small: str, tmp_path: Path) -> None:
    settings = LlmSettings(model="openai:http://127.0.0.1:9/v1#absent", small_model=small)
    stages = Stages(Config(llm_engine=settings), ModelStore(tmp_path, {}), SystemClock())
    chat = stages.open_chat("Be brief.", ())
    assert isinstance(chat, ScoresMessageEnd) == bool(small)
    await chat.preview("Hi")  # neither is there: nothing happens
    await chat.close()
    await stages.close()


def examples_of(preset: str) -> Sequence[str]:
    agent = PRESETS[preset]["agents"]["default"]
    return [each[role] for each in agent["examples"] for role in ("user", "assistant")]


@pytest.mark.parametrize(
    ("model", "preset"),
    [
        ("smollm2-135m-instruct", "embedded"),
        ("qwen2.5-coder-0.5b-instruct", "embedded-0.5b"),
        ("/models/own.gguf", "embedded"),
    ],
)
def test_words_are_scored_behind_the_prompt_of_the_models_preset(model: str, preset: str) -> None:
    instructions, examples = _scoring_prompt(model)
    assert instructions == PRESETS[preset]["agents"]["default"]["instructions"]
    assert [each.text for each in examples] == examples_of(preset)
    assert [each.role for each in examples[:2]] == ["user", "assistant"]
