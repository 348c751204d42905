"""A chat over an engine that answers when the test lets it."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

import llm_engine
from agent.errors import StageError
from agent.session.api.conversation import ModelCall
from agent.session.api.server_events import Usage
from agent.session.ports.stage_ports import ChatMessage, ReplyToken, Tools
from agent.stages import idle_threads, llm_chat
from agent.stages.llm_chat import EngineChat
from agent.stages.model_thread import ModelThread
from agent.stages.tool_call_adapter import ToolLimits, tool_use
from latency_budget.account.clock import SystemClock
from latency_budget.account.turn import TurnId
from llm_engine.chat.tool_calls import HERMES, NO_TOOLS, CallingMessage, ToolCall, ToolUse


class StubConversation:
    """Takes everything that fits into ten characters."""

    def __init__(self, system: str) -> None:
        self.system = system
        self.warming = asyncio.Event()
        self.answering = asyncio.Event()
        self.told: list[str] = []
        self.closed = False
        self.chunks = [llm_engine.TokenChunk(TurnId(1), 0, "Yes.", (1,), None, None)]
        self.messages: list[llm_engine.ChatMessage] = []
        self.summary: tuple[str, ...] = ()
        self.num_left_out = 0
        self.truncated: list[int] = []
        self.callable: list[str] = []
        """Tools that the last reply could call."""
        self.uses: list[ToolUse | None] = []
        self.replies: list[list[llm_engine.TokenChunk]] = []
        """The next replies; then each is `chunks`."""

    async def warm(self, text: str) -> None:
        await self.warming.wait()

    async def generate(
        self, turn: TurnId, deadline_ns: int, *, use: ToolUse | None = None, **_: Any
    ) -> AsyncGenerator[llm_engine.TokenChunk, None]:
        self.callable = [tool.name for tool in use.callable] if use else []
        self.uses.append(use)
        await self.answering.wait()
        for chunk in self.replies.pop(0) if self.replies else self.chunks:
            yield chunk

    def played_until(self, turn: TurnId, at_ns: int) -> None:
        self.played = (turn, at_ns)

    async def set_system(
        self, text: str, examples: Sequence[llm_engine.ChatMessage] | None = None
    ) -> None:
        if len(text) > 10:
            raise llm_engine.RequestError("system", "too long")
        self.system = text

    async def commit(self, text: str, role: str, calls: Sequence[ToolCall]) -> None:
        self.told.append(text)

    async def truncate_reply(self, num_chars: int) -> None:
        self.truncated.append(num_chars)

    async def reset(
        self, messages: list[llm_engine.ChatMessage], summary: tuple[str, ...] = ()
    ) -> None:
        assert messages[0].role == "system"
        self.system, *self.told = [message.text for message in messages]
        self.messages = list(messages[1:])

    async def close(self) -> None:
        self.closed = True


class StubEngine:
    dialect = HERMES

    def __init__(self) -> None:
        self.opened: list[StubConversation] = []
        self.stopped = False
        self.hangs = False
        self.going_on = asyncio.Event()

    async def open_conversation(self, system: str, **_: Any) -> StubConversation:
        self.opened.append(StubConversation(system))
        return self.opened[-1]

    async def stats(self) -> None:
        if self.hangs:
            await self.going_on.wait()

    def stop(self) -> None:
        self.stopped = True


class AsleepAtOnce:
    """Threads that are found asleep at the first look."""

    def look(self) -> bool:
        return True


class StubStage:
    """Lends an engine, and counts those that were given up."""

    only_computes = False

    def idle_check(self, num_checks: int) -> AsleepAtOnce:
        return AsleepAtOnce()

    def slow_check(self, seconds: float, max_looks: int) -> Any:
        return Awake()

    def __init__(self) -> None:
        self.engine = StubEngine()
        self.restarts = 0

    async def call(self, job: Callable[[StubEngine], Any], *, timeout_s: float) -> Any:
        return job(self.engine)

    def restart(self, engine: StubEngine, why: str) -> None:
        self.restarts += 1


def chat_with(stage: StubStage) -> EngineChat:
    lent = cast(ModelThread[llm_engine.Engine], stage)
    return EngineChat(lent, SystemClock(), llm_engine.SamplingParams(), "Be brief.", ())


async def test_a_warm_up_that_gives_way_for_long_is_no_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = StubStage()
    chat = chat_with(stage)
    await chat.commit(ChatMessage("user", "Hello"))
    monkeypatch.setattr(llm_chat, "HANGS_S", 0.0)
    async with asyncio.TaskGroup() as group:
        warming = group.create_task(chat.preview(""))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not warming.done()
        stage.engine.opened[0].warming.set()
    assert stage.restarts == 0


async def test_a_token_may_take_its_time_as_long_as_the_engine_takes_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = StubStage()
    chat = chat_with(stage)
    await chat.commit(ChatMessage("user", "Hello"))
    conversation = stage.engine.opened[0]
    monkeypatch.setattr(llm_chat, "HANGS_S", 0.0)
    monkeypatch.setattr(llm_chat, "CHECK_S", 0.0)

    async def read() -> list[str]:
        tokens = chat.generate(TurnId(1), deadline_ns=0, max_tokens=None, on_mark=lambda *_: None)
        return [token.text async for token in tokens]

    async with asyncio.TaskGroup() as group:
        reading = group.create_task(read())
        for _ in range(100):
            await asyncio.sleep(0)
        assert not reading.done()
        conversation.answering.set()
    assert reading.result() == ["Yes."]
    conversation.answering.clear()
    stage.engine.hangs = True
    with pytest.raises(StageError, match="too long"):
        await read()
    assert (stage.restarts, stage.engine.stopped) == (1, True)


async def test_a_token_that_is_there_takes_no_task_of_its_own() -> None:
    stage = StubStage()
    chat = chat_with(stage)
    await chat.commit(ChatMessage("user", "Hello"))
    stage.engine.opened[0].answering.set()
    tokens = chat.generate(TurnId(1), deadline_ns=0, max_tokens=None, on_mark=lambda *_: None)
    assert [(token.text, asyncio.all_tasks()) async for token in tokens] == [
        ("Yes.", {asyncio.current_task()})
    ]


@pytest.fixture
def sleeping(monkeypatch: pytest.MonkeyPatch) -> StubStage:
    """A stage that only computes, whose threads sleep; the clock is no help."""
    monkeypatch.setattr(llm_chat, "CHECK_S", 0.0005)
    monkeypatch.setattr(idle_threads, "CHECK_S", 0.0)
    monkeypatch.setattr(llm_chat, "HANGS_S", 3600.0)
    stage = StubStage()
    stage.only_computes = True
    return stage


async def test_an_engine_that_sleeps_and_does_not_wake_to_answer_is_given_up(
    sleeping: StubStage,
) -> None:
    chat = chat_with(sleeping)
    await chat.commit(ChatMessage("user", "Hello"))
    sleeping.engine.hangs = True
    tokens = chat.generate(TurnId(1), deadline_ns=0, max_tokens=None, on_mark=lambda *_: None)
    with pytest.raises(StageError, match="too long"):
        await anext(tokens)
    assert (sleeping.restarts, sleeping.engine.stopped) == (1, True)


class Awake:
    """Threads that run at every look."""

    def look(self) -> bool:
        return False


class BusyStage(StubStage):
    """A stage that only computes, whose threads run now and then."""

    only_computes = True

    def __init__(self, num_slow: int) -> None:
        super().__init__()
        self.num_slow = num_slow

    def idle_check(self, num_checks: int) -> Any:
        return Awake()

    def slow_check(self, seconds: float, max_looks: int) -> "BusyStage":
        return self

    def look(self) -> bool:
        """After so many looks the engine goes on."""
        self.num_slow -= 1
        if self.num_slow == 0:
            self.engine.going_on.set()
            self.engine.opened[0].answering.set()
        return self.num_slow >= 0


async def first_text(stage: BusyStage, monkeypatch: pytest.MonkeyPatch) -> str:
    """The first token's text of an engine that hangs at first."""
    monkeypatch.setattr(llm_chat, "CHECK_S", 0.0005)
    monkeypatch.setattr(llm_chat, "HANGS_S", 0.02)
    chat = chat_with(stage)
    await chat.commit(ChatMessage("user", "Hello"))
    stage.engine.hangs = True
    tokens = chat.generate(TurnId(1), deadline_ns=0, max_tokens=None, on_mark=lambda *_: None)
    async with asyncio.timeout(60):
        return (await anext(tokens)).text


async def test_an_engine_that_gets_little_of_the_processor_does_not_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = BusyStage(num_slow=3)
    assert await first_text(stage, monkeypatch) == "Yes."
    assert stage.restarts == 0


async def test_an_engine_that_has_the_processor_and_takes_no_step_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = BusyStage(num_slow=0)
    with pytest.raises(StageError, match="too long"):
        await first_text(stage, monkeypatch)
    assert stage.restarts == 1


async def test_an_engine_that_hangs_is_given_up_while_the_caller_speaks(
    sleeping: StubStage,
) -> None:
    chat = chat_with(sleeping)
    await chat.commit(ChatMessage("user", "Hello"))
    sleeping.engine.hangs = True
    await chat.preview("What ti")
    assert (sleeping.restarts, sleeping.engine.stopped) == (1, True)


async def test_an_engine_that_sleeps_because_it_owes_nothing_yet_stays(
    sleeping: StubStage,
) -> None:
    chat = chat_with(sleeping)
    await chat.commit(ChatMessage("user", "Hello"))
    asked = 0
    enough = asyncio.Event()

    async def stats() -> None:
        nonlocal asked
        asked += 1
        if asked == 10:
            enough.set()

    sleeping.engine.stats = stats  # type: ignore[method-assign]
    async with asyncio.TaskGroup() as group:
        previewing = group.create_task(chat.preview("What ti"))
        await enough.wait()
        sleeping.engine.opened[0].warming.set()
    assert previewing.done()
    assert (sleeping.restarts, sleeping.engine.stopped) == (0, False)


async def test_after_the_last_tool_round_the_model_has_to_answer() -> None:
    stage = StubStage()
    lent = cast(ModelThread[llm_engine.Engine], stage)
    limits = ToolLimits(max_rounds=1)
    chat = EngineChat(
        lent, SystemClock(), llm_engine.SamplingParams(), "Be brief.", (), limits=limits
    )
    await chat.commit(ChatMessage("user", "What time is it?"))
    conversation = stage.engine.opened[0]
    conversation.answering.set()
    written = HERMES.written(CallingMessage("", (ToolCall("clock", "{}"),))).text
    conversation.chunks = [
        llm_engine.TokenChunk(TurnId(1), 0, written, (1,), llm_engine.FinishReason.STOP, None)
    ]

    async def callable_tools() -> list[str]:
        tools = Tools(('{"name": "clock"}',))
        async for _ in chat.generate(
            TurnId(1), deadline_ns=0, max_tokens=None, on_mark=lambda *_: None, tools=tools
        ):
            pass
        return conversation.callable

    assert await callable_tools() == ["clock"]
    await chat.commit(ChatMessage("tool", "12:30"))
    assert await callable_tools() == []
    await chat.commit(ChatMessage("user", "And now?"))
    assert await callable_tools() == ["clock"]
    call = ModelCall("clock", "{}")
    await chat.reset([ChatMessage("user", "And now?"), ChatMessage("assistant", "", (call,))])
    assert await callable_tools() == []


async def test_a_tool_can_be_called_once_its_arguments_were_said() -> None:
    stage = StubStage()
    lent = cast(ModelThread[llm_engine.Engine], stage)
    limits = ToolLimits(is_grounded=True)
    chat = EngineChat(
        lent, SystemClock(), llm_engine.SamplingParams(), "Be brief.", (), limits=limits
    )
    await chat.commit(ChatMessage("user", "A timer, please."))
    conversation = stage.engine.opened[0]
    conversation.answering.set()
    minutes = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tools = Tools((json.dumps({"name": "timer", "parameters": minutes}),))
    for said, callable_tools in (("A timer, please.", []), ("Ten minutes.", ["timer"])):
        conversation.messages.append(llm_engine.ChatMessage("user", said))
        async for _ in chat.generate(
            TurnId(1), deadline_ns=0, max_tokens=None, on_mark=lambda *_: None, tools=tools
        ):
            pass
        assert conversation.callable == callable_tools


async def test_a_reply_with_tools_waits_for_no_thread_where_nothing_is_grounded() -> None:
    stage = StubStage()
    chat = chat_with(stage)
    await chat.commit(ChatMessage("user", "What time is it?"))
    conversation = stage.engine.opened[0]
    conversation.answering.set()
    no_threads = ThreadPoolExecutor()
    no_threads.shutdown()
    asyncio.get_running_loop().set_default_executor(no_threads)
    tools = Tools(('{"name": "clock"}',))
    async for _ in chat.generate(
        TurnId(1), deadline_ns=0, max_tokens=None, on_mark=lambda *_: None, tools=tools
    ):
        pass
    assert conversation.callable == ["clock"]


async def test_a_reply_by_call_is_cut_behind_its_words() -> None:
    stage = StubStage()
    lent = cast(ModelThread[llm_engine.Engine], stage)
    limits = ToolLimits(replies_by_call=True)
    chat = EngineChat(
        lent, SystemClock(), llm_engine.SamplingParams(), "Be brief.", (), limits=limits
    )
    await chat.commit(ChatMessage("user", "What time is it?"))
    conversation = stage.engine.opened[0]
    conversation.answering.set()
    use = limits.limited(tool_use(Tools(('{"name": "clock"}',))), 0)
    head = f"{HERMES.opening}{HERMES.reply_heads(use)[0]}"
    conversation.chunks = [
        llm_engine.TokenChunk(TurnId(1), 0, text, (1,), reason, None)
        for text, reason in (
            (head, None),
            ("It's ", None),
            ('late."}', None),
            ("}\n</tool_call>", llm_engine.FinishReason.STOP),
        )
    ]
    tools = Tools(('{"name": "clock"}',))
    tokens = chat.generate(
        TurnId(1), deadline_ns=0, max_tokens=None, on_mark=lambda *_: None, tools=tools
    )
    said = [(token.text, token.calls) async for token in tokens]
    assert said == [("", ()), ("It's ", ()), ("late.", ()), ("", ())]
    await chat.truncate_reply(5)
    await chat.truncate_reply(0)
    assert conversation.truncated == [len(head) + 5, 0]


CALL = HERMES.written(CallingMessage("", (ToolCall("clock", "{}"),))).text


def chunks_of(*texts: str) -> list[llm_engine.TokenChunk]:
    """A reply whose chunks have these texts, and one token each."""
    ends = [None] * (len(texts) - 1) + [llm_engine.FinishReason.STOP]
    return [
        llm_engine.TokenChunk(TurnId(1), index, text, (1,), end, None)
        for index, (text, end) in enumerate(zip(texts, ends, strict=True))
    ]


async def without_tools(chat: EngineChat) -> list[ReplyToken]:
    tokens = chat.generate(TurnId(1), deadline_ns=0, max_tokens=None, on_mark=lambda *_: None)
    return [token async for token in tokens]


async def test_a_reply_without_tools_goes_on_without_a_call() -> None:
    stage = StubStage()
    chat = chat_with(stage)
    await chat.commit(ChatMessage("user", "What time is it?"))
    conversation = stage.engine.opened[0]
    conversation.answering.set()
    conversation.replies = [chunks_of("It is ", "<tool", f"{CALL[5:]}noon", ".")]
    tokens = await without_tools(chat)
    assert [token.text for token in tokens] == ["It is ", "", "noon", "."]
    assert (conversation.uses, conversation.truncated) == ([None], [])


async def test_a_reply_without_tools_is_cut_behind_the_words_that_were_heard() -> None:
    stage = StubStage()
    chat = chat_with(stage)
    await chat.commit(ChatMessage("user", "What time is it?"))
    conversation = stage.engine.opened[0]
    conversation.answering.set()
    conversation.replies = [chunks_of("One moment. ", CALL, "It is ", "noon.")]
    said = "".join(token.text for token in await without_tools(chat))
    assert said == "One moment. It is noon."
    for num_heard in (len("One moment. It is"), len("One moment."), 0):
        await chat.truncate_reply(num_heard)
    assert conversation.truncated == [len(f"One moment. {CALL}It is"), len("One moment."), 0]


async def test_a_reply_without_tools_that_is_a_call_is_asked_for_again() -> None:
    stage = StubStage()
    chat = chat_with(stage)
    await chat.commit(ChatMessage("user", "What time is it?"))
    conversation = stage.engine.opened[0]
    conversation.answering.set()
    conversation.replies = [chunks_of(CALL, "\n"), chunks_of("It is noon.", "")]
    tokens = await without_tools(chat)
    assert "".join(token.text for token in tokens) == "It is noon."
    assert [token.finish_reason for token in tokens] == [None, None, "stop"]
    assert tokens[-1].usage.output_tokens == 4, "the first reply has cost something as well"
    assert (conversation.uses, conversation.truncated) == ([None, NO_TOOLS], [0])


async def test_after_calls_a_reply_without_tools_can_be_no_call() -> None:
    stage = StubStage()
    chat = chat_with(stage)
    await chat.commit(ChatMessage("user", "What time is it?"))
    conversation = stage.engine.opened[0]
    conversation.answering.set()
    conversation.replies = [chunks_of(CALL), chunks_of("Noon."), chunks_of("Hi.")]
    tools = Tools(('{"name": "clock"}',))
    async for _ in chat.generate(
        TurnId(1), deadline_ns=0, max_tokens=None, on_mark=lambda *_: None, tools=tools
    ):
        pass
    await chat.commit(ChatMessage("tool", "12:00"))
    assert [token.text for token in await without_tools(chat)] == ["Noon."]
    assert conversation.uses[1:] == [NO_TOOLS]
    await chat.reset([ChatMessage("user", "Hello")])
    await without_tools(chat)
    assert conversation.uses[2:] == [None]


async def test_a_thought_is_not_the_first_token() -> None:
    """The model's thoughts are counted as tokens, and neither spoken nor taken for its reply."""
    stage = StubStage()
    chat = chat_with(stage)
    await chat.commit(ChatMessage("user", "Hello"))
    conversation = stage.engine.opened[0]
    conversation.answering.set()
    conversation.chunks = [
        llm_engine.TokenChunk(TurnId(1), 0, "", (1, 2), None, None, thought="The caller"),
        llm_engine.TokenChunk(TurnId(1), 1, "", (3,), None, None, thought=" said"),
        llm_engine.TokenChunk(TurnId(1), 2, "Hi!", (4, 5), None, None),
        llm_engine.TokenChunk(TurnId(1), 3, "", (), llm_engine.FinishReason.STOP, None),
    ]
    marks: list[str] = []
    tokens = chat.generate(
        TurnId(1), deadline_ns=0, max_tokens=None, on_mark=lambda name, at_ns: marks.append(name)
    )
    said = [(token.text, token.usage.output_tokens, len(marks)) async for token in tokens]
    assert said == [("", 2, 0), ("", 3, 0), ("Hi!", 5, 1), ("", 5, 1)]


async def test_tokens_are_counted_while_they_come() -> None:
    """A reply that is cut has cost something as well."""
    stage = StubStage()
    chat = chat_with(stage)
    await chat.commit(ChatMessage("user", "Hello"))
    conversation = stage.engine.opened[0]
    conversation.answering.set()
    made = [
        ((1, 2), llm_engine.Usage(30, 20, 1)),  # one more was chosen since
        ((3,), None),
        ((), llm_engine.Usage(30, 20, 4)),  # one has no text
    ]
    conversation.chunks = [
        llm_engine.TokenChunk(TurnId(1), number, "a", ids, None, usage)
        for number, (ids, usage) in enumerate(made)
    ]
    tokens = chat.generate(TurnId(1), deadline_ns=0, max_tokens=None, on_mark=lambda *_: None)
    assert [token.usage async for token in tokens] == [
        Usage(30, 20, 2),
        Usage(30, 20, 3),
        Usage(30, 20, 4),
    ]


async def test_what_is_left_to_hear_goes_to_the_engine_that_answers() -> None:
    stage = StubStage()
    chat = chat_with(stage)
    chat.played_until(TurnId(1), 5)  # nobody is asked yet
    await chat.commit(ChatMessage("user", "Hello?"))
    chat.played_until(TurnId(1), 7)
    assert stage.engine.opened[0].played == (1, 7)


async def test_refused_instructions_do_not_poison_the_next_engine() -> None:
    stage = StubStage()
    chat = chat_with(stage)
    with pytest.raises(StageError, match="too long") as refused:
        await chat.set_system("x" * 11)
    assert refused.value.refused
    stage.engine = StubEngine()
    await chat.commit(ChatMessage("user", "Hello"))
    assert stage.engine.opened[0].system == "Be brief."
    await chat.set_system("Be kind.")
    stage.engine = StubEngine()
    await chat.commit(ChatMessage("user", "Hello"))
    assert stage.engine.opened[0].system == "Be kind."


async def test_a_system_message_of_the_clients_in_front_is_not_the_instructions() -> None:
    stage = StubStage()
    chat = chat_with(stage)
    await chat.reset([ChatMessage("system", "It rains."), ChatMessage("user", "Hello")])
    before = stage.engine.opened[0]
    stage.engine = StubEngine()
    await chat.commit(ChatMessage("user", "And?"))
    after = stage.engine.opened[0]
    assert (before.system, after.system) == ("Be brief.", "Be brief.")
    assert after.told == ["It rains.", "Hello", "And?"]


async def test_a_chat_cancelled_while_it_moves_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = StubStage()
    chat = chat_with(stage)
    await chat.commit(ChatMessage("user", "Hello"))
    resetting = asyncio.Event()

    async def reset(self: StubConversation, messages: object, summary: object) -> None:
        resetting.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(StubConversation, "reset", reset)
    stage.engine = StubEngine()
    async with asyncio.TaskGroup() as group:
        moving = group.create_task(chat.commit(ChatMessage("user", "And?")))
        await resetting.wait()
        moving.cancel()
    assert stage.engine.opened[0].closed
