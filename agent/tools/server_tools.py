"""Tools that run on the server: the selection for each call, and their execution.

A voice call keeps the tools that existed when it began: they are at the beginning of its prompt, so
that a change would recompute the whole conversation. A tool that has disappeared since then fails.

However a tool call ends, the model gets a text, in bounded time. The text names the tool and the
kind of failure, never the message of an exception other than ToolError: it may be confidential.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from agent.config.schema import Config, ServiceSettings
from agent.config.tools import MCP_PREFIX, handoff_tool
from agent.errors import StageError
from agent.session.api.conversation import ItemId, ModelCall
from agent.session.api.server_events import Extension, Notice
from agent.session.ports.stage_ports import Tools, ToolsPort
from latency_budget.account.clock import Clock

from .api import ToolError
from .event_loop import ToolLoop
from .files import KnownTools, load_tools
from .mcp_tools import McpServers
from .offered import NO_TOOLS
from .server_tool import ServerTool, definition_of, one_line, shortened

MAX_TOOLS: Final = 64
"""Most server tools of one agent. With those of a client there may be 128."""

MAX_COUNTED: Final = 200
"""Most names with a count of their own: MCP servers may have new names every hour."""

OTHERS: Final = "(others)"
"""Name of the count of all other tools. No tool can have it."""

CHECK_S: Final = 5.0
"""Time limit for the language model to check the tools; tools not checked by then are left out."""

ToolState = Literal["started", "background", "done", "failed", "cancelled"]
""""background": it has started, and goes on while the agent talks on."""

CheckTools = Callable[[Tools], Awaitable[None]]
"""The method `ChatPort.check_tools` of the agent's model."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HandoffTool:
    """Tool by which the model hands the call to another agent."""

    name: str
    definition: str
    agent: str


def handoff_tools(config: Config, agent: str) -> tuple[HandoffTool, ...]:
    """Tools of the handoffs of an agent; none for an unknown one."""
    if agent not in config.agents:
        return ()
    tools = []
    for target in config.agents[agent].handoffs:
        name = handoff_tool(target)
        about = config.agents[target].handoff_description
        text = f"Hands the caller over to the agent {target!r}. {about}".strip()
        tools.append(
            HandoffTool(
                name, definition_of(name, text, {"type": "object", "properties": {}}), target
            )
        )
    return tuple(tools)


@dataclass(frozen=True, slots=True)
class LoadedTools:
    """The settings with the Python tools that were loaded for them. A call keeps those that it
    began with."""

    config: Config
    python: Mapping[str, Sequence[ServerTool]]
    """By agent."""


class ToolCounts:
    """Counts of tool calls by name and state; names beyond MAX_COUNTED share one count."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, ToolState]] = Counter()
        self._names: set[str] = set()

    def add(self, name: str, state: ToolState) -> None:
        if name not in self._names and len(self._names) >= MAX_COUNTED:
            name = OTHERS
        self._names.add(name)
        self.counts[name, state] += 1


class CallTools:
    """Server tools of one voice call; implements `ToolsPort`."""

    def __init__(
        self,
        tools: Sequence[ServerTool],
        settings: ServiceSettings,
        clock: Clock,
        session_id: str,
        notify: Callable[[Notice], None],
        counts: ToolCounts,
        handoffs: Sequence[HandoffTool] = (),
    ) -> None:
        self._counts = counts
        self.definitions = (
            *(each.definition for each in handoffs),
            *(each.definition for each in tools),
        )
        self._handoffs = {each.name: each.agent for each in handoffs}
        self._tools = {each.name: each for each in tools}
        self._settings = settings
        self._clock = clock
        self._session_id = session_id
        self._notify = notify

    def has(self, name: str) -> bool:
        return name in self._tools or name in self._handoffs

    def handoff_to(self, name: str) -> str | None:
        return self._handoffs.get(name)

    def is_background(self, name: str) -> bool:
        return name in self._tools and self._tools[name].is_background

    async def run(self, call: ModelCall, item_id: ItemId) -> str:
        """Run a tool. Returns its result or its failure as text for the model; raises only
        CancelledError. Emits `halfsec.tool` at the beginning and at the end."""
        began_ns = self._clock.now_ns()
        self._tell(item_id, call.name, "started", 0)
        if self.is_background(call.name):
            self._tell(item_id, call.name, "background", 0)
        state: ToolState = "cancelled"
        text = ""
        try:
            text = await self._given(call)
            state = "done"
        except ToolError as error:
            text = f"Error: {error}"
            state = "failed"
        finally:
            # Half a surrogate pair, as of a foreign API's JSON, is no text for a model or a store.
            text = text.encode("utf-8", "replace").decode()
            text = shortened(text, self._settings.tool_result_chars)
            ms = (self._clock.now_ns() - began_ns) // 1_000_000
            self._tell(item_id, call.name, state, ms)
            level = logging.WARNING if state == "failed" else logging.DEBUG
            ids = (self._session_id, item_id, call.name)
            _log.log(level, "call %s, reply %s: tool %s %s after %d ms", *ids, state, ms)
            if self._settings.log_tools:
                _log.info("tool %s of call %s: %s -> %s", call.name, ids[0], call.arguments, text)
        return text

    async def _given(self, call: ModelCall) -> str:
        """Raises ToolError."""
        tool = self._tools[call.name]
        try:
            async with asyncio.timeout(tool.timeout_s) as limit:
                return await tool.call(call.arguments)
        except ToolError:
            raise
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise ToolError(f"{call.name} was cancelled") from None  # by itself
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                raise ToolError(
                    f"{call.name} has not answered within {tool.timeout_s:g} seconds"
                ) from None
            kind = type(error).__name__
            traceback = error if self._settings.log_tools else None
            _log.warning("tool %s raised %s", call.name, kind, exc_info=traceback)
            raise ToolError(f"{call.name} failed ({kind})") from None

    def _tell(self, item_id: ItemId, name: str, state: ToolState, ms: int) -> None:
        self._counts.add(name, state)
        fields = {"item_id": item_id, "name": name, "state": state, "ms": ms}
        self._notify(Extension("halfsec.tool", fields))


class ServerTools:
    """Server tools of all agents. Used on the server's event loop."""

    def __init__(self, config: Config, clock: Clock) -> None:
        """Executes the files of the settings. Raises ConfigError."""
        self._clock = clock
        self._loop = ToolLoop("tools")
        self._known: KnownTools = {}
        """All Python tools that were ever loaded: calls in progress may have some that the settings
        name no longer."""
        self.loaded = LoadedTools(config, load_tools(config, self._loop, self._known))
        """The tools of calls that begin now."""
        self._is_running = False
        self._has_loop = False
        """The loop of the Python tools was started."""
        self._servers = McpServers(config)
        self.tool_counts: Final = ToolCounts()
        self._callable: dict[tuple[str, bool], tuple[tuple[str, ...], frozenset[str]]] = {}
        """Cache of the model's checks by agent and by whether the call has tools of its own: the
        definitions that were checked, and the names of those that the model can call."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Context in which tools can be called; after it none runs, except those that hang. Does
        not wait for any MCP server."""
        self._is_running = True
        await self._start_loop()
        await self._servers.start()
        try:
            yield
        finally:
            self._is_running = False
            for tool in self._known.values():
                tool.close()
            await asyncio.gather(self._loop.close(), self._servers.close())

    async def _start_loop(self) -> None:
        if any(self.loaded.python.values()) and not self._has_loop:
            self._has_loop = True
            await self._loop.start()

    async def reload(self, config: Config) -> Callable[[], Awaitable[None]]:
        """Load the Python tools of other settings, on a thread. Returns what gives them to calls
        that begin after it; calls in progress keep theirs. A file that was loaded before is not
        executed again. Raises ConfigError, having changed nothing."""
        known = dict(self._known)
        own = await asyncio.to_thread(load_tools, config, self._loop, known)

        async def use() -> None:
            self.loaded, self._known = LoadedTools(config, own), known
            gone = [kind for kind in self._callable if kind[0] not in own]
            for kind in gone:
                del self._callable[kind]
            if self._is_running:
                await self._start_loop()

        return use

    @property
    def problem(self) -> Mapping[str, str]:
        """Reasons why tools are missing, by MCP server. Empty where none are."""
        return {f"mcp:{name}": why for name, why in self._servers.problems().items()}

    async def for_call(
        self,
        agent: str,
        session_id: str,
        taken: Collection[str],
        check: CheckTools,
        notify: Callable[[Notice], None],
        of_call: Mapping[str, ServerTool] = MappingProxyType({}),
        loaded: LoadedTools | None = None,
    ) -> ToolsPort:
        """The server tools of this agent in a call. `taken`: names of the client's tools. `check`:
        asks the agent's model. `of_call`: tools of this call alone, by their names in
        `server_tools`. `loaded`: those of the call's beginning; None: it begins now."""
        loaded = loaded or self.loaded
        handoffs = [each for each in handoff_tools(loaded.config, agent) if each.name not in taken]
        taken = {*taken, *(each.name for each in handoffs)}
        offered = self._offered(agent, taken, of_call, loaded)
        if not (offered or handoffs):
            return NO_TOOLS
        every: list[ServerTool | HandoffTool] = [*handoffs, *offered]
        definitions = tuple(each.definition for each in every)
        kind = agent, bool(of_call)
        known, names = self._callable.get(kind, ((), frozenset()))
        if known != definitions:
            names, is_sure = await _callable_names(every, check)
            if is_sure:
                self._callable[kind] = (definitions, names)
        return CallTools(
            [each for each in offered if each.name in names],
            loaded.config.agent,
            self._clock,
            session_id,
            notify,
            self.tool_counts,
            [each for each in handoffs if each.name in names],
        )

    def _offered(
        self,
        agent: str,
        taken: Collection[str],
        of_call: Mapping[str, ServerTool],
        loaded: LoadedTools | None = None,
    ) -> list[ServerTool]:
        """Python tools first, then the others in the order of the settings; of two tools with one
        name the first."""
        loaded = loaded or self.loaded
        own, (_, profile) = loaded.python.get(agent, ()), loaded.config.profile(agent)
        offered: dict[str, ServerTool] = {tool.name: tool for tool in own}
        for source in profile.server_tools:
            if source.startswith(MCP_PREFIX):
                for tool in self._servers.tools(source.removeprefix(MCP_PREFIX)):
                    offered.setdefault(tool.name, tool)
            elif source in of_call:
                offered.setdefault(of_call[source].name, of_call[source])
        return [each for each in offered.values() if each.name not in taken][:MAX_TOOLS]


async def _callable_names(
    offered: Sequence[ServerTool | HandoffTool], check: CheckTools
) -> tuple[frozenset[str], bool]:
    """Names of the tools that the model accepts together; False where the check took too long."""
    kept: list[ServerTool | HandoffTool] = []
    try:
        async with asyncio.timeout(CHECK_S):
            if await _refusal(offered, check) is None:
                return frozenset(each.name for each in offered), True
            for tool in offered:
                problem = await _refusal([*kept, tool], check)
                if problem is None:
                    kept.append(tool)
                else:
                    _log.warning("tool %s is left out: %s", tool.name, one_line(problem))
    except TimeoutError:
        _log.warning(
            "%d tools are left out: the model did not say whether it can call them",
            len(offered) - len(kept),
        )
        return frozenset(each.name for each in kept), False
    return frozenset(each.name for each in kept), True


async def _refusal(tools: Sequence[ServerTool | HandoffTool], check: CheckTools) -> str | None:
    """Reason why the model refuses these tools; None where it accepts them or can't be asked.
    Raises TimeoutError.

    Any other exception counts as a refusal: the definitions of an MCP server are not ours, and one
    that the check fails on must cost the agent that tool, not its calls."""
    try:
        await check(Tools(tuple(each.definition for each in tools)))
    except StageError as error:
        return error.message if error.refused else None
    except TimeoutError:
        raise
    except Exception as error:
        _log.exception("the check of %s failed", ", ".join(each.name for each in tools))
        return f"the check of its definition failed ({type(error).__name__})"
    return None
