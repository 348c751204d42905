"""Tools of a reply: those of the client and those of the server, as the model gets them."""

import json
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final

from agent.errors import ClientError
from agent.session.api.conversation import ItemId, ModelCall
from agent.session.api.settings import ResponseOptions, SessionSettings
from agent.session.ports.stage_ports import Tools, ToolsPort


class NoTools:
    """`ToolsPort` without tools."""

    definitions: Final[tuple[str, ...]] = ()

    def has(self, name: str) -> bool:
        return False

    async def run(self, call: ModelCall, item_id: ItemId) -> str:
        """Raises LookupError: there is no tool to call."""
        raise LookupError(call.name)

    def handoff_to(self, name: str) -> str | None:
        return None

    def is_background(self, name: str) -> bool:
        return False


NO_TOOLS: Final = NoTools()


def tools_of(
    settings: SessionSettings, options: ResponseOptions, own: ToolsPort = NO_TOOLS
) -> Tools | None:
    """The tools that one reply may call: the client's and the server's. None without any."""
    clients = settings.tools if options.tools is None else options.tools
    choice = settings.tool_choice if options.tool_choice is None else options.tool_choice
    definitions = (*map(_definition, clients), *own.definitions)
    if choice == "none" or not definitions:
        return None
    named = choice["name"] if isinstance(choice, Mapping) else choice
    return Tools(definitions, named, _in_parallel(settings, options))


def _in_parallel(settings: SessionSettings, options: ResponseOptions) -> bool:
    asked = options.parallel_tool_calls
    return (settings.parallel_tool_calls if asked is None else asked) is not False


class AgentTools:
    """`ToolsPort` of the agent that has the call; another one's after a handoff."""

    def __init__(self, tools: ToolsPort) -> None:
        self.current = tools

    @property
    def definitions(self) -> tuple[str, ...]:
        return self.current.definitions

    def has(self, name: str) -> bool:
        return self.current.has(name)

    def run(self, call: ModelCall, item_id: ItemId) -> Coroutine[Any, Any, str]:
        """Begin with the tool of the agent that has the call now, whichever has it later."""
        return self.current.run(call, item_id)

    def handoff_to(self, name: str) -> str | None:
        return self.current.handoff_to(name)

    def is_background(self, name: str) -> bool:
        return self.current.is_background(name)


class SessionTools:
    """Tools of one session's replies, cached: large definitions take a while to encode, so that is
    done for each change and not for each reply."""

    def __init__(self, own: ToolsPort) -> None:
        self._own = own
        self._newest: tuple[object, ...] | None = None
        self._tools: Tools | None = None

    def of(self, settings: SessionSettings, options: ResponseOptions) -> Tools | None:
        """The tools of a reply with these options."""
        own = (options.tools, options.tool_choice, options.parallel_tool_calls)
        if own != (None, None, None):
            return tools_of(settings, options, self._own)
        parallel = settings.parallel_tool_calls
        newest = (settings.tools, settings.tool_choice, parallel, self._own.definitions)
        if self._newest is None or newest != self._newest:
            self._tools = tools_of(settings, options, self._own)
            self._newest = newest
        return self._tools


def check_names(tools: Sequence[Mapping[str, Any]], own: ToolsPort, param: str) -> None:
    """Raise ClientError where a client's tool has the name of a server's tool. `param`: the field
    that has the tools."""
    for index, tool in enumerate(tools):
        if own.has(tool["name"]):
            raise ClientError(
                f"{tool['name']!r} is the name of a tool of this server; call yours something "
                "else.",
                code="invalid_value",
                param=f"{param}[{index}].name",
            )


def check_choice(
    settings: SessionSettings, options: ResponseOptions, own: ToolsPort, param: str
) -> None:
    """Raise ClientError where `tool_choice` names a function and there are no tools. An unknown
    name among other tools is refused by the language model."""
    choice = settings.tool_choice if options.tool_choice is None else options.tool_choice
    clients = settings.tools if options.tools is None else options.tools
    if isinstance(choice, Mapping) and not (clients or own.definitions):
        raise ClientError(
            f"{param!r} names the function {choice['name']!r}, and there are no tools.",
            code="invalid_value",
            param=param,
        )


def _definition(tool: Mapping[str, Any]) -> str:
    """Definition of a client's tool, in the form of `Tools`."""
    known = ("name", "description", "parameters", "strict")
    described = {name: tool[name] for name in known if tool.get(name) is not None}
    return json.dumps(described, ensure_ascii=False)
