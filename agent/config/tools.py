"""Settings sections `[mcp.NAME]`: MCP servers, whose tools the service calls."""

import re
from dataclasses import dataclass, field
from typing import Annotated, Final

from .values import Between, Matching

MAX_TOOL_TIMEOUT_S: Final = 15
"""Longest time limit of a tool. The turn-taking machine cancels a reply after 20 s without
progress, and the model needs some of them to answer."""

ToolTimeout = Annotated[int, Between(1, MAX_TOOL_TIMEOUT_S)]

MAX_BACKGROUND_TIMEOUT_S: Final = 3600
"""Longest time limit of a tool in the background: the longest call, as it is by default."""

BackgroundTimeout = Annotated[int, Between(1, MAX_BACKGROUND_TIMEOUT_S)]

MAX_TOOL_NAME: Final = 64
"""Longest name of a tool, as in OpenAI's API."""

MCP_PREFIX: Final = "mcp:"
"""Prefix in `server_tools` of the name of an MCP server."""

PHONE_PREFIX: Final = "phone:"
"""Prefix in `server_tools` of an action on a telephone call."""

PHONE_TOOLS: Final = tuple(PHONE_PREFIX + name for name in ("hang_up", "transfer", "press_keys"))


def handoff_tool(agent: str) -> str:
    """Name of the tool that hands a call to this agent, as the OpenAI Agents SDK forms it."""
    return "transfer_to_" + re.sub("[^a-z0-9]", "_", agent.lower())


@dataclass(frozen=True, slots=True)
class McpSettings:
    """`[mcp.NAME]`: an MCP server, for agents with "mcp:NAME" in their `server_tools`. It has a
    `url` or a `command`."""

    url: Annotated[
        str, Matching(r"(https?://[^\s@#]+)?", "empty, or an address like https://HOST/mcp")
    ] = ""
    """Address of a running server with streamable HTTP."""
    command: tuple[str, ...] = ()
    """Command of a server on standard input and output, a list like ["uvx", "mcp-server-time"]. It
    runs as long as halfsec does."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment of the command: each variable with the name of the variable of halfsec's
    environment that has its value, like { GITHUB_TOKEN = "MY_TOKEN" }. Besides these it gets only
    PATH, HOME and the like."""
    headers: dict[str, str] = field(default_factory=dict)
    """Headers for the url, each with the name of the variable of halfsec's environment that has the
    whole value, like { Authorization = "MY_MCP_AUTHORIZATION" }."""
    timeout_s: ToolTimeout | None = None
    """Time limit of a call, in seconds. Not set: `agent.tool_timeout_s`."""
    tools: tuple[str, ...] = ()
    """Names of the only tools that may be called. Empty: all tools of the server."""
    background: tuple[str, ...] = ()
    """Names of tools that go on in the background: the agent talks on, and announces the result
    when it is there. Their time limit is `agent.background_tool_timeout_s`."""
