"""Loader of Python tools from the files and modules of the settings."""

import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from agent.config.schema import AgentProfile, Config
from agent.config.tools import MCP_PREFIX, PHONE_PREFIX
from agent.errors import ConfigError

from .api import mark_of
from .event_loop import ToolLoop
from .python_tools import BadToolError, PythonTool
from .server_tool import one_line

KnownTools = dict[Callable[..., Any], PythonTool]
"""The tools that were made so far, by their functions."""


def load_tools(
    config: Config, loop: ToolLoop, known: KnownTools | None = None
) -> Mapping[str, tuple[PythonTool, ...]]:
    """Load the Python tools of each agent, by its name. `async` tools run on `loop`. `known`:
    tools that were made before and go on; new ones are added.

    Executes each file once in this process. Raises ConfigError with the file or module and the
    reason.
    """
    known = {} if known is None else known
    result = {}
    for agent, profile in config.agents.items():
        key = f"agents.{agent}.server_tools"
        tools: dict[str, PythonTool] = {}
        for source in _sources(profile):
            for function in _functions(source, key):
                if function not in known:
                    known[function] = _tool(function, source, key, config, loop)
                _add(tools, known[function], profile, source, key)
        result[agent] = tuple(tools.values())
    return result


def _sources(profile: AgentProfile) -> Iterator[str]:
    elsewhere = (MCP_PREFIX, PHONE_PREFIX)
    return (each for each in profile.server_tools if not each.startswith(elsewhere))


def _functions(source: str, key: str) -> list[Callable[..., Any]]:
    module = _loaded(source, key)
    found = [value for value in vars(module).values() if mark_of(value) is not None]
    if not found:
        raise ConfigError(
            f"{key}: {source} has no tools: mark functions with @tool of agent.tools.", key=key
        )
    return list(dict.fromkeys(found))


def _tool(
    function: Callable[..., Any], source: str, key: str, config: Config, loop: ToolLoop
) -> PythonTool:
    mark = mark_of(function)
    assert mark is not None
    try:
        agent = config.agent
        timeout_s = agent.background_tool_timeout_s if mark.is_background else agent.tool_timeout_s
        return PythonTool(function, mark, loop, timeout_s)
    except BadToolError as error:
        name = getattr(function, "__name__", repr(function))
        raise ConfigError(f"{key}: the tool {name} of {source} {error}.", key=key) from None


def _add(
    tools: dict[str, PythonTool], tool: PythonTool, profile: AgentProfile, source: str, key: str
) -> None:
    """Add a tool to an agent's. Raises ConfigError where the name is taken."""
    if tools.setdefault(tool.name, tool) is not tool:
        raise ConfigError(
            f"{key}: {source} has a tool {tool.name!r}, as has a file before it; give one of them "
            "another name: @tool(name=...).",
            key=key,
        )
    if any(each.get("name") == tool.name for each in profile.tools):
        raise ConfigError(
            f"{key}: {source} has a tool {tool.name!r}, as have the agent's `tools`, which the "
            "client runs; give one of them another name.",
            key=key,
        )


def _loaded(source: str, key: str) -> ModuleType:
    try:
        return _file(Path(source)) if source.endswith(".py") else importlib.import_module(source)
    except FileNotFoundError:
        problem = f"there is no file {Path(source).absolute()}"
    except ModuleNotFoundError as error:
        missing = str(error.name)
        is_it = source == missing or source.startswith(f"{missing}.")
        hint = '; a file ends in ".py"' if is_it else ""
        problem = f"there is no module {missing}, which {source} needs{hint}"
        if is_it:
            problem = f"there is no module {missing}{hint}"
    except (Exception, SystemExit) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        problem = (
            f"{source} can't be loaded: {type(error).__name__}: {one_line(error)} "
            f"({Path(where.filename).name}, line {where.lineno})"
        )
    raise ConfigError(f"{key}: {problem}.", key=key)


def _file(path: Path) -> ModuleType:
    """Execute a file as a module. Raises FileNotFoundError, and any error of the file."""
    if not path.is_file():
        raise FileNotFoundError(path)
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    name = f"halfsec_tools_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # annotations of its functions are resolved here
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
