"""The tools that run on the server: which an agent has, and how a call of one ends.

A call (of the telephone's kind) has the tools that were there when it began: they stand in the
prompt at its beginning, so that a change would have all that was said computed anew. A tool that is
gone by the time it is called is one that failed.

However a tool ends, the model gets a text, in bounded time. It is told what failed, never how:
messages of exceptions, other than ToolError's, may hold anything.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Final, Literal

from agent.config.schema import Config, ServiceSettings
from agent.config.tools import MCP_PREFIX
from agent.errors import StageError
from agent.session.api.conversation import ItemId, ModelCall
from agent.session.api.server_events import Extension, Notice
from agent.session.ports.stage_ports import Tools, ToolsPort
from latency_budget.account.clock import Clock

from .api import ToolError
from .decorator import ServerTool, one_line, shortened
from .event_loop import ToolLoop
from .files import load_tools
from .mcp_tools import McpServers
from .offered import NO_TOOLS

MAX_TOOLS: Final = 64
"""Of one agent. With a client's own there may be 128."""

MAX_COUNTED: Final = 200
"""Names of tools that are counted by themselves: MCP servers may have others every hour."""

OTHERS: Final = "(others)"
"""The name of all others. No tool can have it."""

CHECK_S: Final = 5.0
"""For the model to say which tools it can call; those it has not spoken of by then it can't."""

ToolState = Literal["started", "done", "failed", "cancelled"]

CheckTools = Callable[[Tools], Awaitable[None]]
"""As `ChatPort.check_tools`."""

_log = logging.getLogger(__name__)


class ToolCounts:
    """What became of calls of tools, by name: those counted first, and the others together."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, ToolState]] = Counter()
        self._names: set[str] = set()

    def add(self, name: str, state: ToolState) -> None:
        if name not in self._names and len(self._names) >= MAX_COUNTED:
            name = OTHERS
        self._names.add(name)
        self.counts[name, state] += 1


class CallTools:
    """The `ToolsPort` of one call."""

    def __init__(
        self,
        tools: Sequence[ServerTool],
        settings: ServiceSettings,
        clock: Clock,
        session_id: str,
        notify: Callable[[Notice], None],
        counts: ToolCounts,
    ) -> None:
        self._counts = counts
        self.definitions = tuple(each.definition for each in tools)
        self._tools = {each.name: each for each in tools}
        self._settings = settings
        self._clock = clock
        self._session_id = session_id
        self._notify = notify

    def has(self, name: str) -> bool:
        return name in self._tools

    async def run(self, call: ModelCall, item_id: ItemId) -> str:
        """What it gave, or that it failed, for the model. Raises nothing but that it is cancelled.
        Clients with extensions are told how it goes."""
        began_ns = self._clock.now_ns()
        self._tell(item_id, call.name, "started", 0)
        state: ToolState = "cancelled"
        text = ""
        try:
            text = shortened(await self._given(call), self._settings.tool_result_chars)
            state = "done"
        except ToolError as error:
            text = shortened(f"Error: {error}", self._settings.tool_result_chars)
            state = "failed"
        finally:
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
    """Belongs to the server's event loop."""

    def __init__(self, config: Config, clock: Clock) -> None:
        """Runs the files that the settings name. Raises ConfigError."""
        self._config = config
        self._clock = clock
        self._loop = ToolLoop("tools")
        self._own = load_tools(config, self._loop)
        self._servers = McpServers(config)
        self.tool_counts: Final = ToolCounts()
        self._callable: dict[tuple[str, bool], tuple[tuple[str, ...], frozenset[str]]] = {}
        """Of each agent, in calls with tools of their own and in others: definitions about which
        the model was asked, and which it can call."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Tools can be called meanwhile; behind it none runs any more, but for those that hang.
        Does not wait for any server of tools."""
        if any(self._own.values()):
            await self._loop.start()
        await self._servers.start()
        try:
            yield
        finally:
            for tools in self._own.values():
                for tool in tools:
                    tool.close()
            await asyncio.gather(self._loop.close(), self._servers.close())

    @property
    def problem(self) -> Mapping[str, str]:
        """Why tools are missing, by the server that has them. Empty: none are."""
        return {f"mcp:{name}": why for name, why in self._servers.problems().items()}

    async def for_call(
        self,
        agent: str,
        session_id: str,
        taken: Collection[str],
        check: CheckTools,
        notify: Callable[[Notice], None],
        of_call: Mapping[str, ServerTool] = MappingProxyType({}),
    ) -> ToolsPort:
        """What a new call of this agent may use. `taken`: names of tools that its client runs.
        `check` asks the agent's model. `of_call`: tools that this call alone has, by the names that
        `server_tools` has for them."""
        offered = self._offered(agent, taken, of_call)
        if not offered:
            return NO_TOOLS
        definitions = tuple(each.definition for each in offered)
        kind = agent, bool(of_call)
        known, names = self._callable.get(kind, ((), frozenset()))
        if known != definitions:
            names, is_sure = await _callable_names(offered, check)
            if is_sure:
                self._callable[kind] = (definitions, names)
        tools = [each for each in offered if each.name in names]
        return CallTools(
            tools, self._config.agent, self._clock, session_id, notify, self.tool_counts
        )

    def _offered(
        self, agent: str, taken: Collection[str], of_call: Mapping[str, ServerTool]
    ) -> list[ServerTool]:
        """In the order of the settings, those of servers last; of two with one name the first."""
        offered: dict[str, ServerTool] = {tool.name: tool for tool in self._own[agent]}
        for source in self._config.agents[agent].server_tools:
            if source.startswith(MCP_PREFIX):
                for tool in self._servers.tools(source.removeprefix(MCP_PREFIX)):
                    offered.setdefault(tool.name, tool)
            elif source in of_call:
                offered.setdefault(of_call[source].name, of_call[source])
        return [each for each in offered.values() if each.name not in taken][:MAX_TOOLS]


async def _callable_names(
    offered: Sequence[ServerTool], check: CheckTools
) -> tuple[frozenset[str], bool]:
    """Those that the model can be told of, all together, with calls made to fit; and whether that
    was found out in time."""
    kept: list[ServerTool] = []
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


async def _refusal(tools: Sequence[ServerTool], check: CheckTools) -> str | None:
    """Why these can't be called. A model that can't say is no reason."""
    try:
        await check(Tools(tuple(each.definition for each in tools)))
    except StageError as error:
        return error.message if error.refused else None
    return None
