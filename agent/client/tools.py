"""Tools that a Python client runs for the agent.

A tool call arrives as an event; its handler runs in a task of its own, so that events are read
meanwhile. When all calls of a response have been answered, the next reply is requested, unless the
caller interrupted the response: then the server replies anyway. An exception of a handler is sent
to the model as the tool's result.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from . import events as ev
from .errors import CallEndedError

Handler = Callable[..., Awaitable[Any]]
"""Takes the arguments by name; its result is sent as it is where it is text, else as JSON."""


class ToolCallSender(Protocol):
    """The sending side of a call: `agent.client.Call`, or a fake of the tests."""

    async def send(self, event: Mapping[str, Any]) -> None: ...
    async def create_reply(self) -> None: ...
    async def update(self, **session: Any) -> None: ...


@dataclass(slots=True)
class _Asked:
    """The calls of one response."""

    tasks: list[asyncio.Task[None]] = field(default_factory=list)


class ClientTools:
    """Tools of one call. Their tasks run in the call's task group."""

    def __init__(self, call: ToolCallSender, group: asyncio.TaskGroup) -> None:
        self._call = call
        self._group = group
        self._definitions: dict[str, dict[str, Any]] = {}
        self._handlers: dict[str, Handler] = {}
        self._asked: dict[str, _Asked] = {}
        """Tool calls by response."""
        self._known: set[str] = set()
        """`call_id`s of the tool calls that were started."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def add(self, handler: Handler, description: str, parameters: Mapping[str, Any]) -> None:
        """Offer the agent a tool, by the name of the function. `parameters`: the JSON schema of its
        arguments. It can be called after the next `SessionUpdated`."""
        name = handler.__name__
        self._handlers[name] = handler
        self._definitions[name] = {
            "type": "function",
            "name": name,
            "description": description,
            "parameters": dict(parameters),
        }
        await self._call.update(tools=list(self._definitions.values()))

    def take(self, event: ev.ClientEvent) -> None:
        """Handle an event of the call."""
        match event:
            case ev.FunctionCall() if event.name in self._handlers:
                self._begin(event.response_id, event.call_id, event.name, event.arguments)
            case ev.ReplyDone() if event.response_id in self._asked:
                asked = self._asked.pop(event.response_id)
                if event.status == "completed":
                    self._spawn(self._finish(asked))
            case ev.Resumed():
                self._catch_up(event.items)
            case ev.Restarted():
                self.stop()

    def stop(self) -> None:
        """Cancel all tools: their results are not needed any more."""
        for task in self._tasks:
            task.cancel()
        self._asked.clear()

    def _catch_up(self, items: list[dict[str, Any]]) -> None:
        """Start the tool calls that were made while there was no connection."""
        answered = {item["call_id"] for item in items if item["type"] == "function_call_output"}
        asked, self._asked = list(self._asked.values()), {}
        for item in items:
            if item["type"] != "function_call" or item["call_id"] in self._known | answered:
                continue
            if item["name"] in self._handlers:
                self._begin("", item["call_id"], item["name"], item["arguments"])
        asked += self._asked.values()
        self._asked.clear()
        tasks = [task for each in asked for task in each.tasks]
        if tasks:
            self._spawn(self._finish(_Asked(tasks)))

    def _begin(self, response_id: str, call_id: str, name: str, arguments: str) -> None:
        self._known.add(call_id)
        asked = self._asked.setdefault(response_id, _Asked())
        asked.tasks.append(self._spawn(self._run(call_id, name, arguments)))

    def _spawn(self, work: Any) -> "asyncio.Task[None]":
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, call_id: str, name: str, arguments: str) -> None:
        try:
            given = await self._handlers[name](**json.loads(arguments or "{}"))
            output = given if isinstance(given, str) else json.dumps(given)
        except Exception as error:  # of the handler: the model gets it as the result
            output = json.dumps({"error": f"{type(error).__name__}: {error}"})
        item = {"type": "function_call_output", "call_id": call_id, "output": output}
        try:
            await self._call.send({"type": "conversation.item.create", "item": item})
        except CallEndedError:
            return

    async def _finish(self, asked: _Asked) -> None:
        await asyncio.wait(asked.tasks)
        if any(task.cancelled() for task in asked.tasks):
            return
        try:
            await self._call.create_reply()
        except CallEndedError:
            return
