"""A tool server that hangs: an MCP server with a tool that the caller's turns need.

The caller's session requires a tool call in each turn, so that the small model makes one. It takes
no arguments, and replies are longer than in other cases, whose limit cuts tool calls off. A call
that gets no answer ends after `agent.tool_timeout_s`, with an error that the model is given.
"""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from .fault_case import Aftermath, FaultCase, FaultSite, Surroundings

_SERVER: Final = Path(__file__).with_name("tool_server.py")
_NAME: Final = "bench"


class ToolServer(Surroundings):
    """Settings with the tool server, and the file by which it hangs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.flag = folder / "hang"
        self.max_reply_tokens = 64
        command = json.dumps([sys.executable, str(_SERVER), str(self.flag)])
        self.settings = (
            f'[agents.default]\nserver_tools = ["mcp:{_NAME}"]\n'
            f"[mcp.{_NAME}]\ncommand = {command}\n"
        )

    @property
    def calls(self) -> list[str]:
        """Calls of the tool so far, in order: "answered" or "hangs"."""
        path = self.flag.with_name(f"{self.flag.name}.calls")
        return path.read_text(encoding="utf-8").split() if path.exists() else []


@asynccontextmanager
async def around_tools(folder: Path) -> AsyncIterator[ToolServer]:
    """A tool server, which the server under test starts."""
    yield ToolServer(folder)


def _tools(site: FaultSite) -> ToolServer:
    assert isinstance(site.around, ToolServer)
    return site.around


async def _hang(site: FaultSite) -> None:
    _tools(site).flag.touch()


async def _answer(site: FaultSite) -> None:
    _tools(site).flag.unlink(missing_ok=True)


async def calls_made(site: FaultSite) -> Aftermath:
    """Whether the tool was called while it hung."""
    calls = _tools(site).calls
    why = [] if "hangs" in calls else ["the tool was not called while it hung"]
    return Aftermath(seen=[f"calls of the tool: {', '.join(calls) or 'none'}"], why=why)


def _no_mcp() -> str:
    try:
        import mcp  # noqa: F401
    except ImportError:
        return "needs the package mcp: pip install 'halfsec[mcp]'"
    return ""


TOOL_CASES: Final[tuple[FaultCase, ...]] = (
    FaultCase(
        "tool server hangs",
        _hang,
        _answer,
        not_here=_no_mcp,
        around=around_tools,
        session={"tool_choice": "required"},
        look=calls_made,
    ),
)
