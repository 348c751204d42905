"""Conversations: the same tokens as a cold start, computing only what is new."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest

from latency_budget.account.clock import SystemClock
from latency_budget.account.turn import TurnId
from llm_engine.chat.conversation import Conversation
from llm_engine.chat.template import ChatMessage, ChatTemplate
from llm_engine.chat.token_history import TokenHistory
from llm_engine.checkpoints.huggingface_tokenizer import load_tokenizer
from llm_engine.checkpoints.tokenizer import LONG_TEXT_CHARS
from llm_engine.config import EngineConfig, SamplingParams
from llm_engine.core.output import FinishReason, TokenChunk, Usage
from llm_engine.engine import Engine, Vocabulary, read_vocabulary
from llm_engine.errors import EngineError, RequestError
from tests.support.fakes.llm_models import ScriptedBackend, save_tiny_model
from tests.support.models import model_path

GREEDY = SamplingParams(max_tokens=16)
ONE, TWO, THREE = TurnId(1), TurnId(2), TurnId(3)
END = 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_tiny_model(path, "qwen3", num_hidden_layers=2, head_dim=16)
    return path


@pytest.fixture
async def engine(model: Path) -> AsyncIterator[Engine]:
    engine = await asyncio.to_thread(Engine.load, model, EngineConfig(num_threads=1))
    yield engine
    engine.close()


Scripted = Callable[[Callable[[list[int]], int], int], Engine]


@pytest.fixture
def scripted(model: Path) -> Scripted:
    vocabulary: Vocabulary = read_vocabulary(load_tokenizer(model, {}), model)

    def start(next_token: Callable[[list[int]], int], context: int = 400) -> Engine:
        config = EngineConfig(prefill_chunk=32)
        backend = ScriptedBackend(next_token)
        return Engine(
            backend, vocabulary, context_length=context, config=config, clock=SystemClock()
        )

    return start


async def answer(talk: Conversation, turn: TurnId) -> tuple[list[int], str, Usage]:
    ids: list[int] = []
    text = ""
    chunk: TokenChunk | None = None
    async for chunk in talk.generate(turn):
        ids += chunk.token_ids
        text += chunk.text
    assert chunk is not None
    assert chunk.usage is not None
    return ids, text, chunk.usage


async def test_reuse_equals_a_cold_start(engine: Engine, model: Path) -> None:
    warm = await engine.open_conversation("You are short.", sampling=GREEDY)
    for turn, question in enumerate(("hello there", "what time is it", "and now?"), 1):
        history = warm.messages
        await warm.preview(question[:5])
        await warm.preview(question[:9])
        await warm.commit(question)
        ids, _, usage = await answer(warm, TurnId(turn))
        other = await asyncio.to_thread(Engine.load, model, EngineConfig(num_threads=1))
        cold = await other.open_conversation("You are short.", sampling=GREEDY)
        await cold.reset(history)
        # A cold start has only text; give it the very ids, then compare what it answers.
        cold._history._turns = list(warm._history._turns[:-1])
        cold_ids, _, cold_usage = await answer(cold, TurnId(turn))
        assert ids == cold_ids
        assert usage.prompt_tokens == cold_usage.prompt_tokens
        assert cold_usage.cached_tokens == 0
        if turn > 1:
            assert usage.cached_tokens > usage.prompt_tokens // 2
        other.close()


async def test_conversations_share_what_they_begin_with(engine: Engine) -> None:
    for number in range(3):
        talk = await engine.open_conversation("You are short.", sampling=GREEDY)
        await talk.commit("hello")
        _, _, usage = await answer(talk, ONE)
        fixed = talk._history.num_fixed
        assert fixed > 5
        assert usage.cached_tokens == (fixed if number else 0)
    stats = await engine.stats()
    assert stats.num_sequences == 3
    assert stats.cached_tokens == 2 * fixed
    assert stats.first_token_ms.count == 3
    assert stats.between_tokens_ms.count == stats.output_tokens - 3


async def test_books_that_do_not_balance_are_closed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("llm_engine.core.engine_thread.CHECK_AFTER_S", 0.01)
    talk = await engine.open_conversation("You are short.", sampling=GREEDY)
    await talk.commit("hello")
    first, _, _ = await answer(talk, ONE)
    engine._core.cache.pool._free.pop()
    await talk.truncate_reply(0)
    while "integrity check failed" not in caplog.text:
        await engine.stats()  # work, and then none
        await asyncio.sleep(0.02)
    again, _, usage = await answer(talk, TWO)
    assert again == first
    assert usage.cached_tokens == 0


async def test_a_preview_leaves_little_to_compute(engine: Engine) -> None:
    talk = await engine.open_conversation("You are short.", sampling=GREEDY)
    await talk.warm()
    await talk.warm("the cat sat on the mat and said")
    await talk.commit("the cat sat on the mat and said hello")
    _, _, usage = await answer(talk, ONE)
    gap = len(engine.vocabulary.tokenizer.encode_template("<|im_end|>\n<|im_start|>assistant\n"))
    hello = len(engine.vocabulary.tokenizer.encode(" hello"))
    assert usage.prompt_tokens - usage.cached_tokens <= gap + hello + 1


async def test_the_callers_last_word_may_change(engine: Engine) -> None:
    plain = await engine.open_conversation("S", sampling=GREEDY)
    await plain.commit("what time is it")
    expected, _, _ = await answer(plain, ONE)
    for guesses in (("what tim",), ("what time is it now", "what"), ("the", "")):
        talk = await engine.open_conversation("S", sampling=GREEDY)
        for guess in guesses:
            await talk.warm(guess)
        await talk.commit("what time is it")
        ids, _, _ = await answer(talk, ONE)
        assert ids == expected


async def test_a_reply_thrown_away_leaves_no_trace(engine: Engine) -> None:
    plain = await engine.open_conversation("S", sampling=GREEDY)
    await plain.commit("what time is it now")
    expected, _, _ = await answer(plain, ONE)
    talk = await engine.open_conversation("S", sampling=GREEDY)
    await talk.commit("what time is it")
    async with aclosing(talk.generate(ONE)) as stream:
        await anext(stream)
    await talk.uncommit()
    assert talk.messages == []
    await talk.commit("what time is it now")
    ids, _, usage = await answer(talk, TWO)
    assert ids == expected
    assert usage.cached_tokens > 0


async def test_history_contains_the_played_text(engine: Engine) -> None:
    talk = await engine.open_conversation("S", sampling=GREEDY)
    await talk.commit("hello")
    ids, text, _ = await answer(talk, ONE)
    await talk.truncate_reply(3)
    kept = talk._history._turns[-1].fixed_ids
    assert kept is not None
    assert kept == ids[: len(kept)]
    heard = talk.messages[-1].text
    assert text.startswith(heard)
    assert 3 <= len(heard) < len(text)
    await talk.commit("go on")
    after_cut, _, _ = await answer(talk, TWO)
    cold = await engine.open_conversation("S", sampling=GREEDY)
    cold._history._turns = list(talk._history._turns[:-1])
    assert after_cut == (await answer(cold, TWO))[0]
    await talk.truncate_reply(0)
    assert [message.role for message in talk.messages] == ["user", "assistant", "user"]


async def test_the_first_chunk_says_what_the_prompt_took(engine: Engine) -> None:
    """Who cuts a reply knows then what it cost so far; of the end it only hears where it came."""
    talk = await engine.open_conversation("You are short.", sampling=GREEDY)
    await talk.commit("hello there")
    usages = [chunk.usage async for chunk in talk.generate(ONE)]
    first, last = usages[0], usages[-1]
    assert first is not None
    assert last is not None
    assert (first.prompt_tokens, first.cached_tokens) == (last.prompt_tokens, last.cached_tokens)
    assert 1 <= first.output_tokens < last.output_tokens
    assert usages[1:-1] == [None] * (len(usages) - 2)


async def test_cancelling_ends_the_stream(scripted: Scripted) -> None:
    engine = scripted(lambda held: 10 + len(held) % 50, 400)
    talk = await engine.open_conversation("S")
    await talk.commit("hello")
    chunks: list[TokenChunk] = []
    async for chunk in talk.generate(ONE):
        chunks.append(chunk)
        await talk.cancel(TWO)  # another turn: ignored
        if len(chunks) == 3:
            await talk.cancel(ONE)
    assert [c.finish_reason for c in chunks] == [None] * 3 + [FinishReason.CANCELLED]
    assert chunks[-1].token_ids == ()
    kept = talk._history._turns[-1].fixed_ids
    assert kept == [token for chunk in chunks for token in chunk.token_ids]
    await talk.commit("again")
    async with aclosing(talk.generate(TWO)) as stream:
        assert (await anext(stream)).text
        with pytest.raises(RequestError, match="turn 2 is still being answered"):
            await anext(talk.generate(THREE))
        await talk.preview("ignored while a reply is generated")
        assert (await anext(stream)).text
    await talk.close()
    engine.close()


async def test_a_reply_without_a_token_is_no_message(scripted: Scripted) -> None:
    engine = scripted(lambda held: END, 400)
    talk = await engine.open_conversation("S")
    await talk.commit("hello")
    chunks = [chunk async for chunk in talk.generate(ONE)]
    assert [(c.text, c.finish_reason) for c in chunks] == [("", FinishReason.STOP)]
    assert [message.role for message in talk.messages] == ["user"]
    engine.close()


async def test_a_long_call_forgets_its_beginning(scripted: Scripted) -> None:
    engine = scripted(lambda held: END if len(held) % 7 == 0 else 40, 120)
    talk = await engine.open_conversation("Be brief.", examples=[ChatMessage("user", "hi")])
    for turn in range(12):
        await talk.commit(f"question number {turn}")
        chunks = [chunk async for chunk in talk.generate(TurnId(turn))]
        assert chunks[-1].finish_reason is not None
    assert len(talk.messages) < 24
    assert talk.messages[-1].role in ("assistant", "user")
    engine.close()


async def test_the_model_may_speak_first(engine: Engine) -> None:
    talk = await engine.open_conversation("S", sampling=GREEDY)
    ids, _, _ = await answer(talk, ONE)
    assert ids
    await talk.commit("Welcome!", role="assistant")
    await talk.commit("thanks")
    await talk.set_system("T")
    await answer(talk, TWO)
    await talk.reset([ChatMessage("user", "hello")])
    assert talk.messages == [ChatMessage("user", "hello")]


async def test_a_failure_reaches_the_caller_and_the_call_lives(scripted: Scripted) -> None:
    broken = True

    def next_token(held: list[int]) -> int:
        if broken:
            raise RuntimeError("cosmic ray")
        return END

    engine = scripted(next_token, 400)
    talk = await engine.open_conversation("S")
    await talk.commit("hello")
    with pytest.raises(EngineError, match="cosmic ray"):
        await answer(talk, ONE)
    broken = False
    await answer(talk, ONE)
    assert len(talk.messages) == 1
    engine.close()


async def test_bad_input_and_closing(engine: Engine) -> None:
    talk = await engine.open_conversation("S", sampling=GREEDY)
    for bad in ("", "half \ud83d", "long " * 3000):
        with pytest.raises(RequestError, match="text"):
            await talk.commit(bad)
    for bad in ("half \udc00", "long " * 3000):
        with pytest.raises(RequestError, match="text"):
            await talk.preview(bad)
    with pytest.raises(RequestError, match="max_tokens"):
        await anext(talk.generate(ONE, max_tokens=0))
    with pytest.raises(RequestError, match="system"):
        await engine.open_conversation("long " * 3000)
    assert talk.messages == []
    await talk.close()
    await talk.close()
    with pytest.raises(EngineError, match="conversation is closed"):
        await talk.commit("x")


async def test_long_instructions_are_encoded_beside_the_event_loop(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    class Noting(TokenHistory):
        def set_system(
            self,
            text: str,
            template: ChatTemplate | None = None,
            *,
            with_examples: bool | None = None,
            examples: Sequence[ChatMessage] | None = None,
        ) -> None:
            threads.append(threading.get_ident())
            super().set_system(text, template, with_examples=with_examples, examples=examples)

    monkeypatch.setattr("llm_engine.engine.TokenHistory", Noting)
    await (await engine.open_conversation("Be brief.")).close()
    assert threads == [threading.get_ident()]
    with pytest.raises(RequestError, match="system"):
        await engine.open_conversation("word " * (LONG_TEXT_CHARS // 4))
    assert threads[1] != threads[0]


@pytest.mark.models
async def test_the_embedded_model_over_several_turns() -> None:
    path = model_path("smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf")
    engine = await asyncio.to_thread(Engine.load, path, EngineConfig(num_threads=1))
    assert engine.vocabulary.template is not None
    assert engine.vocabulary.template.is_incremental
    talk = await engine.open_conversation("You answer in one short sentence.", sampling=GREEDY)
    await talk.commit("What is the capital of France?")
    _, text, _ = await answer(talk, ONE)
    assert "Paris" in text
    await talk.preview("And of Ita")
    await talk.commit("And of Italy?")
    ids, _, usage = await answer(talk, TWO)
    assert usage.prompt_tokens - usage.cached_tokens < 20
    cold = await engine.open_conversation("You answer in one short sentence.", sampling=GREEDY)
    cold._history._turns = list(talk._history._turns[:-1])
    assert (await answer(cold, TWO))[0] == ids
    engine.close()
