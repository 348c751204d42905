"""An MCP server whose tool answers, or hangs while a file exists: `python tool_server.py FILE`.

Run by the server under test, as its settings say, over standard input and output. It writes into
FILE.calls a line for each call of the tool: `answered`, or `hangs`.
"""

import sys
from pathlib import Path

import anyio
from mcp.server.mcpserver import MCPServer

app = MCPServer("bench", log_level="CRITICAL")
_flag = Path(sys.argv[-1])


@app.tool()
async def opening_hours() -> str:
    """Tell when we are open."""
    if _is_hanging():
        await anyio.sleep_forever()
    return "We are open from nine to five."


def _is_hanging() -> bool:
    """Whether this call hangs, which is written down."""
    is_hanging = _flag.exists()
    with _flag.with_name(f"{_flag.name}.calls").open("a", encoding="utf-8") as file:
        file.write("hangs\n" if is_hanging else "answered\n")
    return is_hanging


if __name__ == "__main__":
    app.run()
