"""Chat models of plug-ins behind the chat port: replies, tools, faults, recovery."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

import llm_engine
from agent.errors import StageError
from agent.session.api.conversation import ModelCall
from agent.session.ports.stage_ports import ChatMessage, ChatPort, Tools
from agent.stages.remote import plugin_model, recovery
from agent.stages.remote.completion_chunks import CHARS_PER_TOKEN, SPARE_CHARS
from agent.stages.remote.plugin_model import PluginModel
from agent.stages.remote.remote_chat import SmallModel, remote_chat_factory
from agent.stages.tool_call_adapter import NO_LIMITS
from latency_budget.account.clock import SystemClock
from latency_budget.account.turn import TurnId
from llm_engine import ChatModelOptions, ReplyRequest, SamplingParams, ToolCall
from tests.agent.stages.remote.test_remote_chat import HI, WEATHER, failure, reply, text_of
from tests.agent.stages.test_chat_contract import EchoChat
from tests.support.plugins import Install

pytest_plugins = ["tests.support.plugin_fixtures"]

Piece = str | int | ToolCall | Exception | Callable[[], Awaitable[Any]]
SECRET = "sk-very-secret"


class Scripted:
    """Replies with the next script; the last one repeats. A function in a script is awaited."""

    def __init__(self, *scripts: Sequence[Piece]) -> None:
        self.scripts = list(scripts)
        self.requests: list[ReplyRequest] = []
        self.ended: list[str] = []

    async def reply(self, request: ReplyRequest) -> AsyncIterator[str | ToolCall]:
        self.requests.append(request)
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        try:
            for piece in script:
                if isinstance(piece, Exception):
                    raise piece
                if isinstance(piece, str | ToolCall | int):
                    yield piece  # type: ignore[misc]
                else:
                    await piece()
        finally:
            self.ended.append("reply")

    async def close(self) -> None:
        self.ended.append("close")


def source_of(model: Any, timeout_s: float = 60.0) -> PluginModel:
    source = PluginModel("mine:x", ChatModelOptions(), timeout_s)
    source._model = model
    return source


@asynccontextmanager
async def talking(
    *scripts: Sequence[Piece], small: SmallModel | None = None, timeout_s: float = 60.0
) -> AsyncIterator[tuple[ChatPort, Scripted, PluginModel]]:
    model = Scripted(*scripts)
    source = source_of(model, timeout_s)
    sampling = SamplingParams(max_tokens=32, seed=7, stop=("END",), temperature=0.5)
    factory = remote_chat_factory(source, SystemClock(), sampling, 4096, NO_LIMITS, "off", small)
    chat = factory("Be brief.", ())
    await chat.commit(HI)
    yield chat, model, source
    await chat.close()
    await source.close()
    assert model.ended == ["reply"] * len(model.requests) + ["close"]


async def hang() -> None:
    await asyncio.Event().wait()


async def test_a_reply_streams_and_the_request_has_all() -> None:
    async with talking(("Hel", "", "lo")) as (chat, model, source):
        tokens = await reply(chat)
        assert [token.text for token in tokens] == ["Hel", "lo", ""]
        assert [token.finish_reason for token in tokens] == [None, None, "stop"]
        assert [token.usage.output_tokens for token in tokens] == [1, 2, 2]
        (asked,) = model.requests
        assert [each["content"] for each in asked.messages] == ["Be brief.", "Hi"]
        assert (asked.max_tokens, asked.temperature, asked.seed) == (32, 0.5, 7)
        assert (asked.stop, asked.tools) == (("END",), ())
        assert source.problem is None


async def test_a_reply_that_takes_no_notice_of_its_limit_is_cut() -> None:
    async with talking(["words and "] * 1000) as (chat, model, source):
        tokens = await reply(chat)
        assert tokens[-1].finish_reason == "length"
        assert sum(len(token.text) for token in tokens) == 32 * CHARS_PER_TOKEN + SPARE_CHARS
        assert model.ended == ["reply"]
        assert source.problem is None


async def test_calls_of_tools() -> None:
    call = ToolCall("weather", '{"city": "Paris"}')
    async with talking(("Let me see. ", call), ("18 degrees.",)) as (chat, model, _):
        await chat.set_tools((WEATHER,))
        tools = Tools((WEATHER,), in_parallel=False)
        tokens = await reply(chat, tools)
        assert text_of(tokens) == "Let me see. "
        assert tokens[-1].finish_reason == "tool_calls"
        calls = [each for token in tokens for each in token.calls]
        assert calls == [ModelCall("weather", '{"city": "Paris"}')]
        assert model.requests[0].tools[0]["function"]["name"] == "weather"
        assert not model.requests[0].parallel_tool_calls
        await chat.commit(ChatMessage("tool", "18 degrees"))
        assert text_of(await reply(chat, tools)) == "18 degrees."
        assert [each["role"] for each in model.requests[1].messages][-2:] == ["assistant", "tool"]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ((OSError(SECRET),), "raised OSError"),
        ((3,), "raised TypeError"),
        ((), "sent an empty reply"),
        (("",), "sent an empty reply"),
        ((ToolCall("strike", "{}"),), "called a tool that was not offered"),
    ],
)
async def test_a_fault_is_named_and_its_words_are_only_in_the_log(
    script: Sequence[Piece], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with talking(script) as (chat, _, source):
        assert (await failure(chat)).message == f"The chat plug-in 'mine' {said}."
        if "called" not in said:
            assert source.problem == f"the chat plug-in 'mine' {said}"
        assert (SECRET in caplog.text) == (said == "raised OSError")


async def test_what_was_said_before_a_fault_stays_said() -> None:
    async with talking(("Hello ", OSError()), ("Again.",)) as (chat, model, _):
        with pytest.raises(StageError, match="raised OSError"):
            await reply(chat)
        assert text_of(await reply(chat)) == "Again."
        assert [each["content"] for each in model.requests[1].messages] == [
            "Be brief.",
            "Hi",
            "Hello ",
        ]


@pytest.mark.parametrize("script", [(hang,), ("Hello ", hang)])
async def test_one_that_hangs_is_given_up(script: Sequence[Piece]) -> None:
    async with talking(script, timeout_s=0.1) as (chat, model, source):
        with pytest.raises(StageError, match=r"sent nothing for 0\.1 s"):
            await reply(chat)
        assert model.ended == ["reply"]
        assert source.problem == "the chat plug-in 'mine' sent nothing for 0.1 s"


async def test_the_smaller_model_answers_for_one_that_fails() -> None:
    small = SmallModel(EchoChat, lambda: True)
    async with talking((OSError(),), small=small) as (chat, model, _):
        assert text_of(await reply(chat)) == "Be brief. Hi "
        assert text_of(await reply(chat))
        assert len(model.requests) == 1, "it is known to fail, and is not asked"


async def test_it_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "RECOVERY_S", 0.01)
    async with talking((OSError(),), (OSError(),), ("Hello",)) as (chat, model, source):
        await failure(chat)
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            watching = group.create_task(source.watch())
            while source.problem is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            watching.cancel()
        assert len(model.requests) == 3
        assert model.requests[-1].max_tokens == 1


async def test_a_reply_that_is_broken_off_is_closed_whatever_it_does_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plugin_model, "CLOSE_TIMEOUT_S", 0.1)

    class Stubborn(Scripted):
        async def reply(self, request: ReplyRequest) -> AsyncIterator[str | ToolCall]:
            try:
                yield "Hello"
                yield "you"
            finally:
                if self.scripts[0]:
                    await hang()
                raise OSError

    for script in ((), ("hangs",)):
        source = source_of(Stubborn(script))
        factory = remote_chat_factory(
            source, SystemClock(), SamplingParams(), 4096, NO_LIMITS, "off"
        )
        chat = factory("Be brief.", ())
        await chat.commit(HI)
        tokens = chat.generate(
            TurnId(1), deadline_ns=0, max_tokens=None, on_mark=lambda name, at_ns: None
        )
        async with asyncio.timeout(60), aclosing(tokens):
            assert (await anext(tokens)).text == "Hello"
        assert source.problem is None
        await source.close()


async def test_it_is_loaded_with_the_settings_and_tried(install: Install) -> None:
    source_text = """
        class Echo:
            def __init__(self, argument, options):
                self.words = f"{argument} {options.threads} {options.context}"

            async def reply(self, request):
                yield self.words

            async def close(self):
                raise OSError
    """
    install("mine", "halfsec.chats", "mine = mine_chat:Echo", source_text)
    source = PluginModel("mine:x y", ChatModelOptions(3, 99), 60.0)
    await source.start()
    assert source.problem is None
    assert await source.complete([{"role": "user", "content": "Hi"}], 8) == "x y 3 99"
    await source.close()
    with pytest.raises(llm_engine.ModelError, match="no chat plug-in 'other'"):
        await PluginModel("other:", ChatModelOptions(), 60.0).start()


async def test_one_that_fails_at_the_start_is_a_problem_not_a_failure() -> None:
    source = source_of(Scripted((OSError(),)))
    await source._probe()
    assert source.problem == "the chat plug-in 'mine' raised OSError"
