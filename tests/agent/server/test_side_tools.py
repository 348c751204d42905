"""The tools that an agent has, and how a call of one ends, whatever the tool does."""

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent.config.layers import load_config
from agent.config.schema import ServiceSettings
from agent.errors import StageError
from agent.session.api import server_events as say
from agent.session.api.conversation import ItemId, ModelCall
from agent.session.ports.stage_ports import Tools
from agent.tools.api import ToolError
from agent.tools.server_tools import CallTools, ServerTools, ToolCounts
from latency_budget.account.clock import ManualClock, SystemClock
from tests.support.fakes.stages import Calling
from tests.support.session import virtual_time
from tests.support.session.session_call import call_with

ITEM = ItemId("item_1")
FILE = '''
from agent.tools import ToolError, tool

@tool
def clock(zone: str) -> str:
    """Tell the time."""
    return f"12:00 {zone}"

@tool
async def lamp(on: bool) -> bool:
    """Switch the lamp."""
    return on
'''


@dataclass
class Fake:
    """A tool that gives, or raises, what the test wants."""

    result: str | BaseException = "12:00"
    name: str = "clock"
    timeout_s: float = 10
    is_background: bool = False
    gate: asyncio.Event | None = None
    given: list[str] = field(default_factory=list)

    @property
    def definition(self) -> str:
        return json.dumps({"name": self.name})

    async def call(self, arguments: str) -> str:
        self.given.append(arguments)
        if self.gate is not None:
            await self.gate.wait()
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


class Caller:
    """Calls tools as a session does."""

    def __init__(self, *tools: Fake, clock: ManualClock | None = None, **settings: Any) -> None:
        self.notices: list[say.Notice] = []
        self.counts = ToolCounts()
        self.tools = CallTools(
            tools,
            ServiceSettings(**settings),
            clock or SystemClock(),
            "sess",
            self.notices.append,
            self.counts,
        )

    async def call(self, name: str = "clock") -> str:
        return await self.tools.run(ModelCall(name, '{"zone": "secret"}'), ITEM)

    def told(self) -> list[tuple[str, Any]]:
        extensions = [each for each in self.notices if isinstance(each, say.Extension)]
        assert {each.type for each in extensions} == {"halfsec.tool"}
        assert {each.fields["item_id"] for each in extensions} == {ITEM}
        return [(each.fields["name"], each.fields["state"]) for each in extensions]


async def test_a_tool_that_answers() -> None:
    tool = Fake()
    caller = Caller(tool)
    assert await caller.call() == "12:00"
    assert tool.given == ['{"zone": "secret"}']
    assert caller.told() == [("clock", "started"), ("clock", "done")]
    assert caller.counts.counts == {("clock", "started"): 1, ("clock", "done"): 1}
    assert caller.tools.has("clock")
    assert not caller.tools.has("lamp")
    assert caller.tools.definitions == ('{"name": "clock"}',)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ToolError("there is no such zone"), "Error: there is no such zone"),
        (ValueError("password=secret"), "Error: clock failed (ValueError)"),
        (TimeoutError("secret"), "Error: clock failed (TimeoutError)"),
        (asyncio.CancelledError(), "Error: clock was cancelled"),
    ],
)
async def test_a_tool_that_fails(
    error: BaseException, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    caller = Caller(Fake(error))
    with caplog.at_level(logging.DEBUG):
        assert await caller.call() == text
    assert caller.told() == [("clock", "started"), ("clock", "failed")]
    assert any("tool clock failed" in record.getMessage() for record in caplog.records)
    assert "secret" not in caplog.text
    with caplog.at_level(logging.DEBUG):
        await Caller(Fake(error), log_tools=True).call()
    assert "secret" in caplog.text


def test_a_tool_that_hangs_is_given_up_in_time() -> None:
    async def story(clock: ManualClock) -> None:
        caller = Caller(Fake(gate=asyncio.Event(), timeout_s=2.5), clock=clock)
        began_ns = clock.now_ns()
        assert await caller.call() == "Error: clock has not answered within 2.5 seconds"
        assert clock.now_ns() - began_ns == 2_500_000_000
        last = caller.notices[-1]
        assert isinstance(last, say.Extension)
        assert (last.fields["state"], last.fields["ms"]) == ("failed", 2500)

    virtual_time.run(story)


async def test_a_tool_that_is_cancelled() -> None:
    tool = Fake(gate=asyncio.Event())
    caller = Caller(tool)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(caller.call())
        while not tool.given:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)
        task.cancel()
    assert task.cancelled()
    assert caller.told() == [("clock", "started"), ("clock", "cancelled")]


async def test_a_result_that_no_file_can_hold_is_mended() -> None:
    """Half a surrogate pair, in a result or in an error."""
    assert await Caller(Fake("Caf\ud800")).call() == "Caf?"
    assert "Caf?" in await Caller(Fake(ToolError("Caf\ud800"))).call()


async def test_a_result_that_is_too_long_is_cut() -> None:
    text = await Caller(Fake("x" * 4001)).call()
    assert text == "x" * 4000 + " [cut: the first 4000 of 4001 characters]"
    assert await Caller(Fake("x" * 100), tool_result_chars=100).call() == "x" * 100


# --- which tools an agent has ---


class Model:
    """Says which tools it can call."""

    def __init__(self, *refused: str, fails: bool = False) -> None:
        self.refused = refused
        self.fails = fails
        self.asked: list[list[str]] = []

    async def check(self, tools: Tools) -> None:
        names = [json.loads(each)["name"] for each in tools.definitions]
        self.asked.append(names)
        if self.fails:
            raise StageError("llm", "is being restarted")
        for name in names:
            if name in self.refused:
                raise StageError("llm", f"{name} can't be met", refused=True)


def service(tmp_path: Path, text: str = "") -> ServerTools:
    file = tmp_path / "home.py"
    file.write_text(FILE)
    settings = f'[agents.default]\nserver_tools = ["{file}"]\n[agents.bare]\nserver_tools = []\n'
    return ServerTools(load_config(file_text=settings + text), SystemClock())


async def names_of(
    tools: ServerTools, model: Model, agent: str = "default", taken: Sequence[str] = ()
) -> list[str]:
    own = await tools.for_call(agent, "sess", taken, model.check, lambda notice: None)
    return [json.loads(each)["name"] for each in own.definitions]


async def test_each_agent_has_its_own(tmp_path: Path) -> None:
    tools, model = service(tmp_path), Model()
    assert await names_of(tools, model) == ["clock", "lamp"]
    assert await names_of(tools, model, "bare") == []
    assert await names_of(tools, model) == ["clock", "lamp"]
    assert model.asked == [["clock", "lamp"]], "it is asked once"
    assert await names_of(tools, model, taken=["clock"]) == ["lamp"]


async def test_uncallable_tool_leaves_the_other_tools_usable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert await names_of(service(tmp_path), Model("clock")) == ["lamp"]
    assert "tool clock is left out: clock can't be met" in caplog.text
    assert await names_of(service(tmp_path), Model(fails=True)) == ["clock", "lamp"]


async def test_a_tool_on_which_the_check_fails_leaves_the_other_tools_usable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Model):
        async def check(self, tools: Tools) -> None:
            await super().check(tools)
            if "clock" in self.asked[-1]:
                raise ValueError("too many digits")

    tools, model = service(tmp_path), Failing()
    assert await names_of(tools, model) == ["lamp"]
    assert await names_of(tools, model) == ["lamp"]
    assert model.asked == [["clock", "lamp"], ["clock"], ["lamp"]], "it is asked once"
    told = [record.getMessage() for record in caplog.records]
    assert "tool clock is left out: the check of its definition failed (ValueError)" in told
    assert [each for each in caplog.records if each.exc_info], "the cause is in the log"


async def test_a_whole_reply_with_tools_in_python(tmp_path: Path) -> None:
    tools = service(tmp_path)
    replies = (
        Calling("", (ModelCall("clock", '{"zone": "UTC"}'), ModelCall("lamp", '{"on": true}'))),
        Calling("", (ModelCall("clock", '{"zone": 5}'),)),
        "It is noon.",
    )
    noted: list[say.Notice] = []
    async with tools.running():
        own = await tools.for_call("default", "sess", (), Model().check, noted.append)
        async with call_with(*replies, tools=own) as call:
            call.ears.say("What time is it?")
            (ended,) = await call.until(say.ReplyEnded)
            (started,) = call.of(say.ReplyStarted)
            results = [what for kind, what in call.chat.calls if kind == "tool"]
    assert isinstance(ended, say.ReplyEnded)
    assert isinstance(started, say.ReplyStarted)
    assert (ended.status, ended.text) == ("completed", "It is noon.")
    wrong = "Error: wrong arguments: zone: Input should be a valid string"
    assert results == ["12:00 UTC", "true", wrong]
    told = [each.fields for each in noted if isinstance(each, say.Extension)]
    assert {each["item_id"] for each in told} == {started.item_id}
    ends = sorted((each["name"], each["state"]) for each in told if each["state"] != "started")
    assert ends == [("clock", "done"), ("clock", "failed"), ("lamp", "done")]
