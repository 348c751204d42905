"""Startup check of tools: are the client's well formed, can the server's be loaded?"""

import importlib.metadata
import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Final

from agent.config.schema import Config
from agent.config.tools import MCP_PREFIX
from agent.errors import ClientError, ConfigError
from agent.realtime.protocol.fields import Fields
from agent.realtime.protocol.session_update import read_tools
from agent.tools.event_loop import ToolLoop
from agent.tools.files import load_tools
from agent.tools.python_tools import PythonTool

INSTALL_MCP: Final = "pip install 'halfsec[mcp]'"


def check_tools(config: Config) -> Mapping[str, tuple[PythonTool, ...]]:
    """Load the Python tools of each agent; the returned tools must not be called.

    Executes the tool files that the settings name and contacts no MCP server. Raises ConfigError.
    """
    check_client_tools(config)
    for key, problem in server_problems(config):
        raise ConfigError(f"{key} {problem}", key=key)
    return load_tools(config, ToolLoop("never started"))


def check_client_tools(config: Config) -> None:
    """Check the tools that clients run, as those of a session. Raises ConfigError for the first
    problem."""
    for name, profile in config.agents.items():
        try:
            read_tools(Fields({"tools": list(profile.tools)}, f"agents.{name}"))
        except ClientError as error:
            key = f"agents.{name}.tools"
            form = '{ type = "function", name = "lamp", parameters = { type = "object" } }'
            raise ConfigError(
                f"{error.message} Tools of agents are like {form}.", key=key
            ) from None


def server_problems(config: Config) -> Iterator[tuple[str, str]]:
    """Problems of the MCP servers that agents use, found without contacting them: the key of the
    setting at fault, and the predicate of a sentence."""
    wanted = {
        source.removeprefix(MCP_PREFIX): None
        for profile in config.agents.values()
        for source in profile.server_tools
        if source.startswith(MCP_PREFIX)
    }
    for name in wanted:
        server = config.mcp[name]
        if not _has_mcp():
            yield f"mcp.{name}", f"needs the package mcp: {INSTALL_MCP}"
        if server.command and shutil.which(server.command[0]) is None:
            yield (
                f"mcp.{name}.command",
                f"names {server.command[0]!r}, which is not on this machine",
            )
        for key, names in (("env", server.env), ("headers", server.headers)):
            for given, variable in names.items():
                if variable not in os.environ:
                    problem = f"needs the environment variable {variable}, which is not set"
                    yield f"mcp.{name}.{key}.{given}", problem


def _has_mcp() -> bool:
    try:
        importlib.metadata.version("mcp")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
