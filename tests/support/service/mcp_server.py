"""An MCP server made with the library, for tests: `python mcp_server.py [PORT]`.

Without a port it talks on standard input and output, as commands do.
"""

import asyncio
import os
import sys
from pathlib import Path

from mcp.server.mcpserver import Context, Image, MCPServer

app = MCPServer("tests", log_level="CRITICAL")


@app.tool()
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@app.tool()
async def forecast(city: str) -> dict[str, str]:
    """Tell the weather."""
    return {"city": city, "sky": "clear"}


@app.tool(structured_output=False)
async def picture() -> list[str | Image]:
    """Show a picture."""
    return ["A dot:", Image(data=b"dot", format="png")]


@app.tool()
async def hang(marker: str) -> str:
    """Never answer. Writes into the file MARKER what becomes of the call."""
    _note(marker, "begun")
    try:
        await asyncio.Event().wait()
    finally:
        _note(marker, "cancelled")
    return ""


@app.tool()
async def crash() -> None:
    """End the server."""
    os._exit(3)


@app.tool()
async def fail() -> None:
    """Fail."""
    raise ValueError("no such city")


@app.tool()
async def process_id() -> int:
    """Tell the number of this process."""
    return os.getpid()


@app.tool()
async def variable(name: str) -> str:
    """Tell a variable of the environment."""
    return os.environ.get(name, "(none)")


@app.tool()
async def learn(context: Context) -> str:
    """Have one more tool."""
    app.add_tool(learned)
    await context.notify_tools_changed()
    return "ok"


async def learned() -> str:
    """Do what was learned."""
    return "as learned"


def _note(marker: str, text: str) -> None:
    Path(marker).write_text(text)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        app.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        app.run("stdio")
