"""What the model has read before the first call."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agent.calls.first_prompt import prefill_first_prompt
from agent.calls.registry import CallRegistry
from agent.config.schema import AgentProfile, Config, Example
from agent.errors import StageError
from agent.session.ports.stage_ports import ChatMessage, ChatPort
from agent.stages.registry import Stages
from agent.tools.server_tools import ServerTools
from latency_budget.account.clock import ManualClock

CALENDAR = {
    "type": "function",
    "name": "calendar",
    "description": "Read the calendar.",
    "parameters": {"type": "object", "properties": {}},
}


class RecordedChat:
    """Writes down what it is asked to compute."""

    def __init__(self, told: list[Any], error: Exception | None) -> None:
        self._told = told
        self._error = error

    async def set_tools(self, definitions: tuple[str, ...]) -> None:
        self._told.append(("tools", len(definitions), "calendar" in definitions[0]))

    async def preview(self, text: str) -> None:
        self._told.append(("preview", text))
        if self._error is not None:
            raise self._error

    async def close(self) -> None:
        self._told.append("close")


class LoadedStages:
    """Stages that have started, with a status."""

    def __init__(
        self,
        status: str = "ready",
        *,
        remote: object = None,
        error: Exception | None = None,
    ) -> None:
        self.status = status
        self.remote_llm = remote
        self.told: list[Any] = []
        self._error = error

    async def wait_started(self) -> None:
        self.told.append("started")

    async def prefill_scoring_prompt(self) -> None:
        self.told.append("scoring prompt")
        if self._error is not None:
            raise self._error

    def open_chat(self, instructions: str, examples: Sequence[ChatMessage]) -> ChatPort:
        self.told.append((instructions, [(each.role, each.text) for each in examples]))
        return cast(ChatPort, RecordedChat(self.told, self._error))


CONFIG = Config(
    agents={
        "default": AgentProfile(
            instructions="You sell tea.",
            examples=(Example("Hi.", "Good day."),),
            tools=(CALENDAR,),
        )
    }
)


async def prefilled(stages: LoadedStages, admitted: int = 0) -> list[Any]:
    tools = ServerTools(CONFIG, ManualClock())
    calls = cast(CallRegistry, SimpleNamespace(admitted=admitted))
    await prefill_first_prompt(cast(Stages, stages), tools, calls)
    return stages.told


async def test_the_default_agents_prompt_is_read() -> None:
    assert await prefilled(LoadedStages()) == [
        "started",
        ("You sell tea.", [("user", "Hi."), ("assistant", "Good day.")]),
        ("tools", 1, True),
        ("preview", ""),
        "close",
    ]


@pytest.mark.parametrize("error", [StageError("llm", "fails"), RuntimeError("a fault of ours")])
async def test_a_model_that_fails_is_left_to_the_first_call(error: Exception) -> None:
    assert (await prefilled(LoadedStages(error=error)))[-2:] == [("preview", ""), "close"]


@pytest.mark.parametrize("error", [None, StageError("llm", "fails"), RuntimeError("a fault")])
async def test_with_a_model_elsewhere_the_prompt_of_scores_is_read(error: Exception | None) -> None:
    stages = LoadedStages(remote=object(), error=error)
    assert await prefilled(stages) == ["started", "scoring prompt"]


@pytest.mark.parametrize(
    ("stages", "admitted"),
    [
        (LoadedStages("failed"), 0),
        (LoadedStages(), 1),
    ],
    ids=["not loaded", "a call was sooner"],
)
async def test_nothing_is_read(stages: LoadedStages, admitted: int) -> None:
    assert await prefilled(stages, admitted) == ["started"]
