"""Sessions on fake stages whose model calls tools."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.api.conversation import FunctionOutput, ItemId, ModelCall
from agent.session.api.settings import ResponseOptions
from tests.support.session.session_call import Call

CLOCK = {"type": "function", "name": "clock", "parameters": {"type": "object"}}
CALL = ModelCall("clock", '{"zone": "UTC"}')
NOON = "It is noon."


@dataclass
class Toolbox:
    """Tools of the server that answer when the test lets them."""

    results: list[str] = field(default_factory=lambda: ["12:00"] * 100)
    gate: asyncio.Event | None = None
    called: list[ModelCall] = field(default_factory=list)
    cancelled: list[ModelCall] = field(default_factory=list)
    definitions: tuple[str, ...] = ('{"name": "clock"}',)

    def has(self, name: str) -> bool:
        return name == "clock"

    def handoff_to(self, name: str) -> str | None:
        return None

    def is_background(self, name: str) -> bool:
        return False

    async def run(self, call: ModelCall, item_id: ItemId) -> str:
        self.called.append(call)
        try:
            if self.gate is not None:
                await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(call)
            raise
        return self.results.pop(0)


async def equip(call: Call, *tools: dict[str, object], choice: Any = "auto") -> None:
    settings = call.session.settings.changed(tools=tools or (CLOCK,), tool_choice=choice)
    await call.session.handle(ask.UpdateSession(settings))


async def answer(call: Call, output: str = "12:00") -> None:
    """The client has run the tool that was called last, and asks for a reply."""
    made = call.of(say.ReplyCalled)[-1]
    assert isinstance(made, say.ReplyCalled)
    item = FunctionOutput(ItemId(f"out_{made.call.id}"), made.call.call_id, output)
    await call.session.handle(ask.CreateItem(item))
    await call.session.handle(ask.CreateResponse(ResponseOptions()))


def problems(call: Call) -> list[tuple[str, str | None]]:
    return [(n.code, n.param) for n in call.notices if isinstance(n, say.Problem)]


def items(call: Call) -> list[str]:
    return [type(item).__name__ for item in call.session.conversation]


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.005)
