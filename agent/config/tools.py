"""`[mcp.NAME]`: servers of tools that the service calls itself."""

from dataclasses import dataclass, field
from typing import Annotated, Final

from .values import Between, Matching

MAX_TOOL_TIMEOUT_S: Final = 15
"""The turn-taking machine gives a reply up after 20 s without a sign of life; the model needs some
of them to answer."""

ToolTimeout = Annotated[int, Between(1, MAX_TOOL_TIMEOUT_S)]

MCP_PREFIX: Final = "mcp:"
"""In `server_tools`: what follows is the name of a server."""

PHONE_PREFIX: Final = "phone:"
"""In `server_tools`: what follows is something that can be done to a telephone call."""

PHONE_TOOLS: Final = tuple(PHONE_PREFIX + name for name in ("hang_up", "transfer", "press_keys"))


@dataclass(frozen=True, slots=True)
class McpSettings:
    """`[mcp.NAME]`: an MCP server, for agents with "mcp:NAME" in their `server_tools`. It has a
    `url` or a `command`."""

    url: Annotated[
        str, Matching(r"(https?://[^\s@#]+)?", "empty, or an address like https://HOST/mcp")
    ] = ""
    """Where a server that runs already takes streamable HTTP."""
    command: tuple[str, ...] = ()
    """What starts a server that talks on its standard input and output, a list like
    ["uvx", "mcp-server-time"]. It runs as long as halfsec does."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables of the command's environment, each with the name of the variable of halfsec's own
    from which it is taken, like { GITHUB_TOKEN = "MY_TOKEN" }. It gets no others but PATH, HOME and
    the like."""
    headers: dict[str, str] = field(default_factory=dict)
    """Headers for the url, each with the name of the variable of halfsec's environment that has the
    whole value, like { Authorization = "MY_MCP_AUTHORIZATION" }."""
    timeout_s: ToolTimeout | None = None
    """The longest that a call may take. Not set: as `agent.tool_timeout_s` says."""
    tools: tuple[str, ...] = ()
    """The only tools that may be called, by name. Empty: all that the server has."""
