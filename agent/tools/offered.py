"""Tools that run on the server, as a session's model gets to know them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from agent.errors import ClientError
from agent.session.api.conversation import ItemId, ModelCall
from agent.session.api.settings import ResponseOptions, SessionSettings
from agent.session.ports.stage_ports import Tools, ToolsPort


class NoTools:
    """A `ToolsPort` without tools."""

    definitions: Final[tuple[str, ...]] = ()

    def has(self, name: str) -> bool:
        return False

    async def run(self, call: ModelCall, item_id: ItemId) -> str:
        """Never called: there is nothing to call."""
        raise LookupError(call.name)


NO_TOOLS: Final = NoTools()


def tools_of(
    settings: SessionSettings, options: ResponseOptions, own: ToolsPort = NO_TOOLS
) -> Tools | None:
    """What one reply may call: the client's tools, and the server's own. None for nothing."""
    clients = settings.tools if options.tools is None else options.tools
    choice = settings.tool_choice if options.tool_choice is None else options.tool_choice
    definitions = (*map(_definition, clients), *own.definitions)
    if choice == "none" or not definitions:
        return None
    named = choice["name"] if isinstance(choice, Mapping) else choice
    return Tools(definitions, named, settings.echo.get("parallel_tool_calls") is not False)


class SessionTools:
    """What the replies of one session may call. Large tools take a while to be written down, so
    that is done once for each change and not for each reply."""

    def __init__(self, own: ToolsPort) -> None:
        self._own = own
        self._newest: tuple[object, ...] | None = None
        self._tools: Tools | None = None

    def of(self, settings: SessionSettings, options: ResponseOptions) -> Tools | None:
        """As `tools_of`."""
        if options.tools is not None or options.tool_choice is not None:
            return tools_of(settings, options, self._own)
        parallel = settings.echo.get("parallel_tool_calls")
        newest = (settings.tools, settings.tool_choice, parallel, self._own.definitions)
        if self._newest is None or newest != self._newest:
            self._tools = tools_of(settings, options, self._own)
            self._newest = newest
        return self._tools


def check_names(tools: Sequence[Mapping[str, Any]], own: ToolsPort) -> None:
    """Raises ClientError where a client's tool is called as one of the server's."""
    for index, tool in enumerate(tools):
        if own.has(tool["name"]):
            raise ClientError(
                f"{tool['name']!r} is the name of a tool of this server; call yours something "
                "else.",
                code="invalid_value",
                param=f"tools[{index}].name",
            )


def check_choice(
    settings: SessionSettings, options: ResponseOptions, own: ToolsPort, param: str
) -> None:
    """Raises ClientError where a function is chosen and there is none at all. One that is not among
    others, the model's side refuses."""
    choice = settings.tool_choice if options.tool_choice is None else options.tool_choice
    clients = settings.tools if options.tools is None else options.tools
    if isinstance(choice, Mapping) and not (clients or own.definitions):
        raise ClientError(
            f"{param!r} names the function {choice['name']!r}, and there are no tools.",
            code="invalid_value",
            param=param,
        )


def _definition(tool: Mapping[str, Any]) -> str:
    """Of a client's tool, as `Tools` has them."""
    known = ("name", "description", "parameters")
    described = {name: tool[name] for name in known if tool.get(name) is not None}
    return json.dumps(described, ensure_ascii=False)
