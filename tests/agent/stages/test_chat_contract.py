"""The contract of a chat factory and its chats: for an engine of this process, for one behind
OpenAI's HTTP API, and for a small implementation without a model."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest

from agent.errors import StageError
from agent.session.api.server_events import Usage
from agent.session.api.settings import AUTO_TRUNCATION, Truncation
from agent.session.ports.stage_ports import (
    ChatMessage,
    ChatPort,
    Condensed,
    CondensingGoal,
    ContextUse,
    OnMark,
    ReplyToken,
    ScoresMessageEnd,
    Tools,
)
from agent.stages.llm_chat import ChatFactory, chat_factory
from agent.stages.model_thread import ModelThread
from agent.stages.remote.plugin_model import PluginModel
from agent.stages.remote.remote_chat import remote_chat_factory
from agent.stages.tool_call_adapter import NO_LIMITS
from latency_budget.account.clock import SystemClock
from latency_budget.account.marks import MarkName
from latency_budget.account.turn import TurnId
from llm_engine.chat.chat_model import ChatModelOptions
from llm_engine.config import EngineConfig, SamplingParams
from llm_engine.engine import Engine
from tests.llm_engine.chat.test_chat_model import EchoModel
from tests.support.fakes.llm_models import save_tiny_model
from tests.support.service.model_servers import chat_endpoint, model_server

MAX_CHARS = 20_000
HELLO = ChatMessage("user", "Hello")


class EchoChat:
    """Answers with what it was last told, a word a token."""

    def __init__(self, instructions: str, examples: Sequence[ChatMessage]) -> None:
        self._system = instructions
        self._history: list[ChatMessage] = []
        self._summary: tuple[str, ...] = ()
        self._num_left_out = 0

    async def check(self, message: ChatMessage) -> None:
        if len(message.text) > MAX_CHARS:
            raise StageError("llm", "That is too long.", refused=True)

    async def set_system(self, text: str, examples: Sequence[ChatMessage] | None = None) -> None:
        self._system = text

    async def check_tools(self, tools: Tools) -> None: ...

    async def set_tools(self, definitions: tuple[str, ...]) -> None: ...

    async def commit(self, message: ChatMessage) -> None:
        await self.check(message)
        self._history.append(message)

    async def take_back(self) -> None:
        while self._history and self._history.pop().role != "user":
            pass

    async def reset(self, messages: Sequence[ChatMessage], summary: tuple[str, ...] = ()) -> None:
        self._history = list(messages)
        self._summary, self._num_left_out = summary, 0

    async def truncate_reply(self, num_chars: int) -> None:
        reply = self._history.pop()
        if num_chars:
            self._history.append(ChatMessage("assistant", reply.text[:num_chars]))

    async def generate(
        self,
        turn: TurnId,
        *,
        deadline_ns: int,
        max_tokens: int | None,
        on_mark: OnMark,
        tools: Tools | None = None,
    ) -> AsyncGenerator[ReplyToken, None]:
        words = f"{self._system} {' '.join(each.text for each in self._history)}".split()
        words = words[-(max_tokens or 8) :]
        on_mark(MarkName.LLM_FIRST_TOKEN, SystemClock().now_ns())
        said = ""
        try:
            for index, word in enumerate(words, start=1):
                said += f"{word} "
                reason = "stop" if index == len(words) else None
                yield ReplyToken(f"{word} ", Usage(len(self._history), 0, index), reason)
        finally:
            self._history.append(ChatMessage("assistant", said))

    def played_until(self, turn: TurnId, at_ns: int) -> None: ...

    async def preview(self, text: str) -> None: ...

    def set_truncation(self, truncation: Truncation) -> None: ...

    @property
    def num_left_out(self) -> int:
        return self._num_left_out

    def context_use(self) -> ContextUse | None:
        return ContextUse(1000, 0, self._num_words, 10)

    async def condense(self, goal: CondensingGoal) -> Condensed | None:
        before, gone = self._num_words, []
        while self._num_words > goal.max_kept_tokens:
            gone += [self._history.pop(0), self._history.pop(0)]
        if not gone:
            return None
        self._summary = (*self._summary, *(each.text for each in gone if "name" in each.text))
        roles = tuple(each.role for each in gone)
        self._num_left_out += len(roles)
        left_out = self._num_left_out - len(roles)
        return Condensed(self._summary, left_out, roles, before, self._num_words)

    @property
    def _num_words(self) -> int:
        texts = [*self._summary, *(each.text for each in self._history)]
        return sum(len(text.split()) for text in texts)

    def use_small_model(self, *, small: bool) -> bool:
        return False

    async def close(self) -> None: ...


@pytest.fixture(params=["engine", "remote", "plugin", "echo"])
async def open_chat(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ChatFactory]:
    if request.param == "echo":
        yield EchoChat
        return
    sampling = SamplingParams(temperature=0.0, max_tokens=8)
    if request.param == "plugin":
        plugin = PluginModel("echo:", ChatModelOptions(), 60.0)
        plugin._model = EchoModel()
        yield remote_chat_factory(
            plugin, SystemClock(), sampling, 4096, NO_LIMITS, condensing="quotes"
        )
        return
    save_tiny_model(tmp_path, "qwen3", num_hidden_layers=2, head_dim=16)
    stage: ModelThread[Engine] = ModelThread(
        "llm", lambda: Engine.load(tmp_path, EngineConfig(num_threads=1)), Engine.close
    )
    await stage.start()
    if request.param == "engine":
        yield chat_factory(stage, SystemClock(), sampling, condensing="quotes")
    else:
        async with chat_endpoint(stage) as url, model_server(url) as server:
            await server.start()
            yield remote_chat_factory(
                server, SystemClock(), sampling, 4096, NO_LIMITS, condensing="quotes"
            )
    await stage.close()


async def reply(chat: ChatPort, turn: int = 1, max_tokens: int | None = None) -> list[ReplyToken]:
    marks: list[MarkName] = []
    tokens = chat.generate(
        TurnId(turn),
        deadline_ns=SystemClock().now_ns(),
        max_tokens=max_tokens,
        on_mark=lambda name, _: marks.append(name),
    )
    async with asyncio.timeout(60), aclosing(tokens):
        found = [token async for token in tokens]
    assert marks == [MarkName.LLM_FIRST_TOKEN]
    return found


def text_of(tokens: list[ReplyToken]) -> str:
    return "".join(token.text for token in tokens)


async def test_a_reply_ends_with_its_reason_and_counts_its_tokens(open_chat: ChatFactory) -> None:
    chat = open_chat("Be brief.", ())
    await chat.commit(HELLO)
    tokens = await reply(chat, max_tokens=4)
    assert [token.finish_reason is not None for token in tokens][-1:] == [True]
    assert all(token.finish_reason is None for token in tokens[:-1])
    counts = [token.usage.output_tokens for token in tokens]
    assert counts == sorted(counts)
    assert 1 <= counts[-1] <= 4
    await chat.close()


async def test_a_message_is_scored_before_its_reply_by_a_chat_that_can(
    open_chat: ChatFactory,
) -> None:
    chat = open_chat("Be brief.", ())
    told: list[tuple[str, float]] = []
    if isinstance(chat, ScoresMessageEnd):
        chat.watch_message_end(lambda text, log_prob: told.append((text, log_prob)))
    await chat.preview("Hel")
    await chat.commit(HELLO)
    await reply(chat)
    can_score = isinstance(chat, ScoresMessageEnd)
    assert [text for text, _ in told] == (["Hel", HELLO.text] if can_score else [])
    assert all(log_prob < 0 for _, log_prob in told)
    await chat.close()


async def test_what_was_taken_back_was_never_said(open_chat: ChatFactory) -> None:
    chat, other = open_chat("Be brief.", ()), open_chat("Be brief.", ())
    await chat.commit(HELLO)
    fresh = text_of(await reply(chat))
    await other.commit(ChatMessage("user", "Something else altogether"))
    await reply(other)
    await other.take_back()
    await other.commit(HELLO)
    assert text_of(await reply(other, 2)) == fresh
    await chat.close()
    await other.close()


async def test_a_reset_replaces_the_history(open_chat: ChatFactory) -> None:
    chat, other = open_chat("Be brief.", ()), open_chat("Be brief.", ())
    await chat.commit(HELLO)
    await reply(chat)
    await chat.truncate_reply(0)
    await chat.reset([ChatMessage("user", "One"), ChatMessage("assistant", "Two")])
    await other.reset([ChatMessage("user", "One"), ChatMessage("assistant", "Two")])
    for each in (chat, other):
        await each.commit(HELLO)
    assert text_of(await reply(chat, 2)) == text_of(await reply(other))
    await chat.close()
    await other.close()


async def test_a_reply_that_is_broken_off_leaves_a_chat_that_goes_on(
    open_chat: ChatFactory,
) -> None:
    chat = open_chat("Be brief.", ())
    await chat.preview("Hel")
    await chat.commit(HELLO)
    tokens = chat.generate(
        TurnId(1), deadline_ns=0, max_tokens=None, on_mark=lambda name, at_ns: None
    )
    async with aclosing(tokens):
        await anext(tokens)
    chat.played_until(TurnId(1), SystemClock().now_ns())
    await chat.truncate_reply(0)
    await chat.set_system("Be long.")
    await chat.set_system("Be long.", [ChatMessage("user", "Q?"), ChatMessage("assistant", "A.")])
    await chat.commit(ChatMessage("user", "And?"))
    assert await reply(chat, 2)
    await chat.close()
    await chat.close()


async def test_a_message_too_long_is_refused(open_chat: ChatFactory) -> None:
    chat = open_chat("Be brief.", ())
    with pytest.raises(StageError) as caught:
        await chat.check(ChatMessage("user", "word " * MAX_CHARS))
    assert caught.value.refused
    await chat.check(HELLO)
    await chat.close()


@pytest.mark.parametrize("open_chat", ["engine", "remote", "plugin"], indirect=True)
async def test_half_of_a_surrogate_pair_is_refused(open_chat: ChatFactory) -> None:
    """A tool of this service may return one, as in the name of a file. The chat goes on."""
    chat = open_chat("Be brief.", ())
    half = ChatMessage("tool", "rep\udcf6rt.txt")
    await chat.commit(HELLO)
    for refused in (chat.check(half), chat.commit(half), chat.reset([HELLO, half])):
        with pytest.raises(StageError, match="half of a surrogate pair") as caught:
            await refused
        assert caught.value.refused
    assert await reply(chat)
    await chat.close()


async def test_no_smaller_model(open_chat: ChatFactory) -> None:
    chat = open_chat("Be brief.", ())
    assert not chat.use_small_model(small=True)
    assert not chat.use_small_model(small=False)
    await chat.close()


async def test_the_oldest_messages_give_way_to_a_summary(open_chat: ChatFactory) -> None:
    chat, other = open_chat("Be brief.", ()), open_chat("Be brief.", ())
    lines = ["My name is Miriam.", "And now?", "Well?", "Tell me more.", "And then?"]
    history = [
        message
        for line in lines
        for message in (ChatMessage("user", line), ChatMessage("assistant", "the cat"))
    ]
    await chat.reset(history)
    assert await chat.condense(CondensingGoal(10_000, 40)) is None
    use = chat.context_use()
    assert use is not None
    assert chat.num_left_out == 0
    done = await chat.condense(CondensingGoal(use.num_turns // 2, 40))
    assert done is not None
    assert chat.num_left_out == len(done.roles)
    assert done.summary == ("My name is Miriam.",)
    assert done.num_left_out == 0
    assert done.roles == tuple(message.role for message in history[: len(done.roles)])
    assert 0 < done.num_tokens < done.num_tokens_before
    await other.reset(history[len(done.roles) :], done.summary)
    for each in (chat, other):
        await each.commit(HELLO)
    assert text_of(await reply(chat)) == text_of(await reply(other))
    await chat.close()
    await other.close()


@pytest.mark.parametrize("open_chat", ["engine", "remote", "plugin"], indirect=True)
async def test_a_clients_rule_of_truncation(open_chat: ChatFactory) -> None:
    """Set before the conversation is there, and after."""
    sizes = []
    for rule in (AUTO_TRUNCATION, Truncation(retention_ratio=0.5, post_instructions_tokens=120)):
        chat = open_chat("Be brief.", ())
        chat.set_truncation(rule)
        for number in range(8):
            await chat.commit(ChatMessage("user", f"This is what I say as number {number}."))
            await chat.commit(ChatMessage("assistant", f"That is what I answer to {number}."))
        await chat.commit(HELLO)
        await reply(chat, max_tokens=4)
        use = chat.context_use()
        assert use is not None
        sizes.append(use.num_turns)
        await chat.close()
    assert sizes[0] > 120 > sizes[1]
    chat = open_chat("Be brief.", ())
    for number in range(60):
        await chat.commit(ChatMessage("user", f"{number} words {'and more of them ' * 40}"))
        await chat.commit(ChatMessage("assistant", "Yes."))
    await chat.commit(HELLO)
    chat.set_truncation(Truncation(is_disabled=True))
    with pytest.raises(StageError) as refused:
        await reply(chat, max_tokens=4)
    assert refused.value.refused
    chat.set_truncation(AUTO_TRUNCATION)
    assert await reply(chat, max_tokens=4)
    await chat.close()
